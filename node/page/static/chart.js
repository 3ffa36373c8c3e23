"use strict";
/* A line chart in SVG: series of [step, value], marks at steps, a crosshair for pointer and arrow keys. */

const SVG = "http://www.w3.org/2000/svg";
const PAD = { left: 44, right: 8, top: 10, bottom: 24 };

function shape(name, attributes, parent) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (parent) parent.append(node);
  return node;
}

function ticks(low, high, count) {
  const rough = (high - low) / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(rough || 1));
  const step = [1, 2, 2.5, 5, 10].map((x) => x * power).find((x) => x >= rough) || power;
  const found = [];
  for (let n = Math.ceil(low / step - 1e-9); n * step <= high + step * 1e-9; n++) found.push(Number((n * step).toPrecision(12)));
  return found;
}

function brief(value) {
  const size = Math.abs(value);
  if (size >= 1e6) return Number((value / 1e6).toPrecision(3)) + "M";
  if (size >= 1e4) return Number((value / 1e3).toPrecision(3)) + "k";
  if (size >= 100 || Number.isInteger(value)) return Math.round(value).toLocaleString("en");
  return String(Number(value.toPrecision(3)));
}

class Chart {
  constructor(place, options) {
    this.place = place;
    this.options = options;
    this.series = [];
    this.marks = [];
    this.chosen = null;
    this.svg = shape("svg", { role: "img", tabindex: "0", focusable: "true" }, place);
    this.tip = document.createElement("p");
    this.tip.className = "tip";
    this.tip.setAttribute("role", "status");
    this.tip.hidden = true;
    this.empty = document.createElement("p");
    this.empty.className = "empty";
    this.empty.textContent = options.empty;
    place.append(this.tip, this.empty);
    this.svg.addEventListener("pointermove", (event) => this.point(event));
    this.svg.addEventListener("pointerleave", () => this.choose(null));
    this.svg.addEventListener("blur", () => this.choose(null));
    this.svg.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.draw()).observe(place);
  }

  show(series, marks) {
    this.series = series;
    this.marks = marks;
    this.draw();
  }

  scales() {
    const width = this.place.clientWidth, height = this.place.clientHeight;
    const points = this.series.flatMap((one) => one.points);
    const steps = points.map((p) => p[0]), values = points.map((p) => p[1]);
    let [left, right] = [Math.min(...steps), Math.max(...steps)];
    let low = this.options.fromZero ? 0 : Math.min(...values), high = Math.max(...values);
    if (right === left) right = left + 1;
    const room = (high - low || Math.abs(high) || 1) * 0.06;
    high += room;
    if (!this.options.fromZero) low -= room;
    const inner = { width: width - PAD.left - PAD.right, height: height - PAD.top - PAD.bottom };
    const x = (step) => PAD.left + ((step - left) / (right - left)) * inner.width;
    const y = (value) => PAD.top + (1 - (value - low) / (high - low)) * inner.height;
    return { width, height, left, right, low, high, x, y, inner };
  }

  draw() {
    const main = this.series.length ? this.series[0].points : [];
    this.svg.replaceChildren();
    this.empty.hidden = main.length > 1;
    this.svg.style.visibility = main.length > 1 ? "visible" : "hidden";
    if (main.length < 2 || !this.place.clientWidth) return;
    const at = (this.at = this.scales());
    this.svg.setAttribute("viewBox", `0 0 ${at.width} ${at.height}`);
    const last = main[main.length - 1];
    this.svg.setAttribute("aria-label", `${this.options.name}: ${main.length} points, step ${main[0][0]} to ${last[0]}, now ${this.options.format(last[1])}. Arrow keys read values.`);
    this.axes(at);
    this.drawMarks(at);
    for (const one of this.series) this.line(one, at);
    this.over = shape("g", {}, this.svg);
    if (this.chosen !== null) this.choose(Math.min(this.chosen, main.length - 1));
  }

  axes(at) {
    for (const value of ticks(at.low, at.high, 4)) {
      if (at.y(value) > at.height - PAD.bottom + 1) continue;
      shape("line", { class: "grid", x1: PAD.left, x2: at.width - PAD.right, y1: at.y(value), y2: at.y(value) }, this.svg);
      shape("text", { x: PAD.left - 8, y: at.y(value) + 4, "text-anchor": "end" }, this.svg).textContent = brief(value);
    }
    for (const step of ticks(at.left, at.right, Math.max(4, Math.floor(at.inner.width / 95)))) {
      if (!Number.isInteger(step)) continue;
      const anchor = at.x(step) > at.width - 26 ? "end" : at.x(step) < PAD.left + 12 ? "start" : "middle";
      shape("text", { x: at.x(step), y: at.height - 5, "text-anchor": anchor }, this.svg).textContent = brief(step);
    }
  }

  drawMarks(at) {
    for (const [step, kind, stage] of this.marks) {
      if (step < at.left || step > at.right) continue;
      const line = shape("line", { class: `mark ${kind}`, x1: at.x(step), x2: at.x(step), y1: PAD.top, y2: at.height - PAD.bottom }, this.svg);
      shape("title", {}, line).textContent = `step ${step}: ${kind.replace("_", " ")}${stage === null ? "" : `, stage ${stage}`}`;
    }
  }

  line(one, at) {
    if (!one.points.length) return;
    const path = one.points.map(([step, value], i) => `${i ? "L" : "M"}${at.x(step).toFixed(1)} ${at.y(value).toFixed(1)}`).join("");
    if (one.area) {
      const floor = at.height - PAD.bottom, ends = [one.points[0][0], one.points[one.points.length - 1][0]];
      shape("path", { class: `area ${one.name}`, d: `${path}L${at.x(ends[1]).toFixed(1)} ${floor}L${at.x(ends[0]).toFixed(1)} ${floor}Z` }, this.svg);
    }
    shape("path", { class: `line ${one.name}`, d: path }, this.svg);
    if (one.points.length <= 40 && one.dots) for (const [step, value] of one.points) shape("circle", { class: `point ${one.name}`, cx: at.x(step), cy: at.y(value), r: 2.6 }, this.svg);
  }

  point(event) {
    if (!this.at || !this.series.length) return;
    const x = event.clientX - this.svg.getBoundingClientRect().left;
    const main = this.series[0].points;
    let best = 0;
    for (let i = 1; i < main.length; i++) if (Math.abs(this.at.x(main[i][0]) - x) < Math.abs(this.at.x(main[best][0]) - x)) best = i;
    this.choose(best);
  }

  key(event) {
    const main = this.series.length ? this.series[0].points : [], last = main.length - 1;
    if (last < 1) return;
    const from = this.chosen === null ? last : this.chosen;
    const to = { ArrowLeft: Math.max(0, from - 1), ArrowRight: Math.min(last, from + 1), Home: 0, End: last }[event.key];
    if (event.key === "Escape") this.choose(null);
    if (to === undefined) return;
    event.preventDefault();
    this.choose(to);
  }

  choose(index) {
    this.chosen = index;
    if (this.over) this.over.replaceChildren();
    this.tip.hidden = index === null || !this.at;
    if (this.tip.hidden) return;
    const [step, value] = this.series[0].points[index], x = this.at.x(step);
    shape("line", { class: "cross", x1: x, x2: x, y1: PAD.top, y2: this.at.height - PAD.bottom }, this.over);
    shape("circle", { class: "at", cx: x, cy: this.at.y(value), r: 4 }, this.over);
    this.tip.textContent = `step ${step.toLocaleString("en")}: ${this.options.format(value)}`;
    this.tip.style.left = `${Math.min(Math.max(x, 70), this.at.width - 70)}px`;
  }
}
