/* The page: a snapshot and what changes arrive over /feed; all text is set as text. */

const MAX_EVENTS = 60, MANY_REPLICAS = 24, MANY_STAGES = 10;
const by = (id) => document.getElementById(id);
const number = (value) => Math.round(value).toLocaleString("en");
let view = null, skew = 0;

function make(tag, className, text) {
  const node = document.createElement(tag);
  if (className) node.className = className;
  if (text !== undefined) node.textContent = text;
  return node;
}

function put(id, text) {
  const node = by(id);
  if (node.textContent !== text) node.textContent = text;
}

function span(seconds) {
  const s = Math.max(0, Math.round(seconds));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min`;
  if (s < 172800) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} days`;
}

const ago = (wall) => `${span(Date.now() / 1000 + skew - wall)} ago`;

/* ---- signs of replicas: shapes differ, not only colours */

const SIGNS = {
  active: ["circle", { cx: 8, cy: 8, r: 5 }],
  passive: ["circle", { cx: 8, cy: 8, r: 4.4 }],
  parked: ["rect", { x: 3.6, y: 3.6, width: 8.8, height: 8.8, rx: 1.5 }],
  learner: ["path", { d: "M8 3.6A4.4 4.4 0 1 1 3.6 8" }],
  rebuilding: ["path", { d: "M8 3.6A4.4 4.4 0 1 1 3.6 8M3.6 8l-1.6-2M3.6 8l2-1.6" }],
  suspected: ["path", { d: "M8 3 13.4 12.6H2.6ZM8 7v2.4M8 11v.1" }],
  lost: ["path", { d: "M4 4l8 8M12 4l-8 8" }],
};
const MEANS = { active: "computes", passive: "keeps an exact copy", parked: "kept, not computed", learner: "copying", rebuilding: "being rebuilt", suspected: "suspected", lost: "lost" };

const signOf = (replica) => (["suspected", "lost", "rebuilding"].includes(replica.state) ? replica.state : SIGNS[replica.role] ? replica.role : "active");

function sign(kind) {
  const turns = kind === "rebuilding" || kind === "learner" ? " turns" : "";
  const svg = shape("svg", { class: `sign ${kind}${turns}`, viewBox: "0 0 16 16", "aria-hidden": "true" });
  shape(SIGNS[kind][0], SIGNS[kind][1], svg);
  return svg;
}

function replicaRow(replica) {
  const row = make("li", replica.me ? "replica me" : "replica"), kind = signOf(replica);
  row.dataset.state = replica.state;
  row.dataset.peer = replica.id;
  const said = make("span"), who = make("bdi", "who", replica.name || replica.id);
  who.title = replica.name ? `${replica.name} (${replica.id})` : replica.id;
  const as = [MEANS[kind]];
  if (replica.me) as.push("this node");
  if (replica.leads) as.push("coordinator");
  said.append(who, make("span", "as", as.join(" · ")));
  row.append(sign(kind), said);
  return row;
}

function stageCard(stage, dense) {
  const card = make("li", "stage"), head = make("h3", "", `Stage ${stage.stage}`);
  card.dataset.state = stage.state;
  card.dataset.stage = stage.stage;
  card.dataset.mine = stage.replicas.some((r) => r.me && r.role);
  head.append(make("small", "", stage.kind === "embedding" ? "embedding" : ""));
  card.append(head, make("p", "note", stage.note));
  const list = make("ul", "replicas");
  for (const replica of stage.replicas) list.append(replicaRow(replica));
  if (!dense) {
    card.append(list);
    return card;
  }
  const dots = make("div", "dots");
  dots.setAttribute("aria-hidden", "true");
  for (const replica of stage.replicas) dots.append(sign(signOf(replica)));
  const more = make("details", "more");
  const lost = stage.replicas.filter((r) => r.state === "lost").length, here = stage.replicas.length - lost, told = [];
  if (here || !lost) told.push(here === 1 ? "1 replica" : `${here} replicas`);
  if (lost) told.push(`${lost} lost`);
  more.append(make("summary", "", told.join(", ")), list);
  card.append(dots, more);
  return card;
}

function showPipeline() {
  const stages = view.pipeline, place = by("pipeline");
  const replicas = stages.flatMap((stage) => stage.replicas), dense = replicas.length > MANY_REPLICAS;
  const open = new Set([...place.querySelectorAll("details[open]")].map((node) => node.closest(".stage").dataset.stage));
  place.classList.toggle("many", dense || stages.length > MANY_STAGES);
  place.replaceChildren(...stages.map((stage) => stageCard(stage, dense)));
  for (const node of place.querySelectorAll("details")) node.open = open.has(node.closest(".stage").dataset.stage);
  const nodes = new Set(replicas.filter((r) => r.state !== "lost").map((r) => r.id)).size, spares = (view.spares || []).length;
  put("pipeline-said", `${number(nodes)} ${nodes === 1 ? "node" : "nodes"} in ${stages.length} stages${spares ? `, ${spares} to spare` : ""}`);
  const used = new Set(replicas.map(signOf));
  by("legend").replaceChildren(...Object.keys(SIGNS).filter((kind) => used.has(kind)).map((kind) => {
    const item = make("li");
    item.append(sign(kind), make("span", "", MEANS[kind]));
    return item;
  }));
}

/* ---- sentences and figures */

function showHeadline() {
  by("headline").dataset.level = view.headline.level;
  put("title", view.headline.title);
  put("text", view.headline.text);
  document.title = `${view.headline.title} regrow`;
}

function showWarnings() {
  const place = by("warnings");
  place.hidden = !view.warnings.length;
  place.replaceChildren(...view.warnings.map((warning) => {
    const item = make("li");
    item.dataset.level = warning.level;
    item.append(make("b", "", warning.text), make("span", "", warning.do));
    return item;
  }));
}

function figure(name, value, small, id) {
  const box = make("div"), told = make("dd", "", value);
  if (id) told.id = id;
  if (small) told.append(make("small", "", ` ${small}`));
  box.append(make("dt", "", name), told);
  return box;
}

function showRun() {
  const run = view.run, shown = [];
  put("run-id", run.id);
  shown.push(figure("Step", number(run.step), run.last_step ? `of ${number(run.last_step)}` : "", "figure-step"));
  shown.push(figure("Loss", run.loss === null ? "–" : run.loss.toFixed(3)));
  if (run.validation !== null) shown.push(figure("Held-out loss", run.validation.toFixed(3), `step ${number(run.validation_step)}`));
  shown.push(figure("Tokens per second", run.tokens_per_s ? number(run.tokens_per_s) : "–"));
  shown.push(figure("Tokens in all", run.tokens ? brief(run.tokens) : "–"));
  if (run.seconds_left && run.step < run.last_step) shown.push(figure("Time left", span(run.seconds_left)));
  shown.push(figure("Last commit", run.committed_at ? ago(run.committed_at) : "–", "", "figure-commit"));
  by("figures").replaceChildren(...shown);
  const bar = by("progress");
  bar.hidden = !run.last_step;
  bar.setAttribute("aria-valuemax", run.last_step);
  bar.setAttribute("aria-valuenow", run.step);
  bar.firstElementChild.style.width = `${Math.min(100, (100 * run.step) / (run.last_step || 1))}%`;
}

/* ---- curves, events, the node */

const charts = {
  loss: new Chart(by("chart-loss"), { name: "Loss", empty: "The curve begins with the next steps.", format: (v) => v.toFixed(3) }),
  speed: new Chart(by("chart-speed"), { name: "Tokens per second", fromZero: true, empty: "The curve begins with the next steps.", format: (v) => `${number(v)} tokens/s` }),
};

function showCurves() {
  const curves = view.curves;
  charts.loss.show([{ name: "loss", points: curves.loss }, { name: "validation", points: curves.validation, dots: true }], curves.marks);
  charts.speed.show([{ name: "speed", points: curves.tokens_per_s, area: true }], curves.marks);
}

function eventRow(entry) {
  const row = make("li"), when = new Date(entry.wall * 1000), time = make("time", "", when.toLocaleTimeString([], { hour12: false }));
  row.dataset.level = entry.level;
  row.dataset.kind = entry.kind;
  row.dataset.serial = entry.serial;
  time.dateTime = when.toISOString();
  time.title = when.toLocaleString();
  const text = make("span", "text", entry.text);
  text.dir = "ltr";
  if (entry.count > 1) text.append(make("small", "", ` ${entry.count} times`));
  row.append(time, make("i"), text);
  return row;
}

function showEvents() {
  const rows = view.events.map(eventRow).reverse();
  by("events").replaceChildren(...(rows.length ? rows : [make("li", "none", "Nothing yet.")]));
}

function showSeat(seat) {
  const box = make("div", "seat"), head = make("p"), role = { active: "computed here", passive: "an exact copy", learner: "being copied", parked: "kept here" }[seat.role] || seat.role;
  head.append(make("b", "", `Stage ${seat.stage}`), ` ${role}, ${seat.size}`);
  head.style.color = "inherit";
  box.append(head, make("p", "text", seat.how.charAt(0).toUpperCase() + seat.how.slice(1) + "."));
  if (seat.copied !== undefined) {
    const bar = make("div", "progress"), fill = make("i");
    bar.setAttribute("role", "progressbar");
    bar.setAttribute("aria-label", `Stage ${seat.stage} is here`);
    bar.setAttribute("aria-valuenow", Math.round(100 * seat.copied));
    fill.style.width = `${100 * seat.copied}%`;
    bar.append(fill);
    box.append(bar, make("p", "", `${Math.round(100 * seat.copied)} % here${seat.left ? `, about ${seat.left} left` : ""}`));
  }
  return box;
}

function fact(name, value, small) {
  const told = make("dd", "", value);
  if (small) told.append(make("small", "", ` ${small}`));
  return [make("dt", "", name), told];
}

function showNode() {
  const node = view.node;
  by("node").hidden = !node;
  if (!node) return;
  put("node-name", node.name ? `${node.name} (${node.id})` : node.id);
  by("seats").replaceChildren(...(node.seats.length ? node.seats.map(showSeat) : [make("p", "seat", "It holds no stage.")]));
  const own = node.contribution, rows = [];
  if (own.share !== null && own.share !== undefined) rows.push(fact("Share of the work", `${(100 * own.share).toFixed(own.share < 0.0995 ? 1 : 0)} %`, "since it came"));
  if (own.steps) rows.push(fact("Counted steps", number(own.steps), own.first_step ? `since step ${number(own.first_step)}` : ""));
  if (own.tokens) rows.push(fact("Counted tokens", number(own.tokens)));
  if (node.counted_step) rows.push(fact("Last commit with its work", `step ${number(node.counted_step)}`, ago(node.counted_at)));
  if (node.received !== null) rows.push(fact("Received", node.received, "last minute"));
  if (node.sent !== null) rows.push(fact("Sent", node.sent, "last minute"));
  rows.push(fact("Up", span(Date.now() / 1000 + skew - view.run.started_at), node.incarnation > 1 ? `start number ${node.incarnation}` : ""));
  by("facts").replaceChildren(...rows.flat());
}

/* ---- the feed */

const SHOW = { headline: showHeadline, warnings: showWarnings, run: showRun, pipeline: showPipeline, curves: showCurves, events: showEvents, node: showNode };

function grown(old, change) {
  const all = { ...old };
  for (const [name, rows] of Object.entries(change)) all[name] = (old[name] || []).slice(0, rows.from).concat(rows.add);
  return all;
}

function moreEvents(old, fresh) {
  const gone = new Set(fresh.flatMap((entry) => [entry.serial, entry.replaces]));
  const all = old.filter((entry) => !gone.has(entry.serial)).concat(fresh);
  return all.sort((one, other) => one.serial - other.serial).slice(-MAX_EVENTS);
}

function take(told, isWhole) {
  skew = told.now - Date.now() / 1000;
  if (isWhole) view = told;
  else {
    const { curves, events, ...rest } = told;
    Object.assign(view, rest);
    if (curves) view.curves = grown(view.curves, curves);
    if (events) view.events = moreEvents(view.events, events);
  }
  for (const [name, show] of Object.entries(SHOW)) if (isWhole || name in told) show();
  if ("spares" in told) showPipeline();
}

function link(state, text) {
  by("link").dataset.state = state;
  put("link-text", text);
}

function listen() {
  const feed = new EventSource("/feed");
  const on = (name, isWhole) => feed.addEventListener(name, (event) => {
    if (!isWhole && !view) return;
    take(JSON.parse(event.data), isWhole);
    link("live", "live");
  });
  on("view", true);
  on("delta", false);
  feed.onopen = () => link("live", "live");
  feed.onerror = () => {
    link("gone", view ? "not connected; what is shown is old" : "not connected");
    if (feed.readyState === EventSource.CLOSED) setTimeout(listen, 5000);
  };
}

setInterval(() => {
  if (!view) return;
  const commit = by("figure-commit");
  if (commit && view.run.committed_at) commit.textContent = ago(view.run.committed_at);
  showNode();
}, 1000);
listen();
