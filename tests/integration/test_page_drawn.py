"""The status page as a browser draws it, from made-up views: hostile names, two hundred nodes, phone and wall."""

from __future__ import annotations

import copy
from collections.abc import Iterator

import pytest

from tests.tools.browser import Browser, Tab, browser, served
from tests.tools.page_views import HOSTILE, NOW, large_view, small_view

DRAWN = """() => [...document.querySelectorAll('.stage')].map((stage) => ({
  state: stage.dataset.state,
  names: [...stage.querySelectorAll('.who')].map((who) => who.textContent),
}))"""
FITS = "() => document.documentElement.scrollWidth <= document.documentElement.clientWidth"
CONTRAST = """() => {
  const light = (rgb) => {
    const [r, g, b] = rgb.map((x) => x / 255).map((x) => (x <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const rgb = (text) => text.match(/[\\d.]+/g).map(Number);
  const ground = (node) => {
    for (; node; node = node.parentElement) {
      const [r, g, b, a = 1] = rgb(getComputedStyle(node).backgroundColor);
      if (a > 0) return [r, g, b];
    }
    return [255, 255, 255];
  };
  const poor = [];
  for (const node of document.querySelectorAll('body *')) {
    const own = [...node.childNodes].some((child) => child.nodeType === 3 && child.textContent.trim());
    if (!own || !node.getClientRects().length || node.closest('svg, .skip, .tip')) continue;
    const [a, b] = [light(rgb(getComputedStyle(node).color).slice(0, 3)), light(ground(node))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) poor.push(`${node.className || node.tagName}: ${ratio.toFixed(2)}`);
  }
  return poor;
}"""


@pytest.fixture(scope="module")
def chromium(no_module_orphans: str) -> Iterator[Browser]:
    with browser() as opened:
        yield opened


def shown(chromium: Browser, address: str, **how: object) -> Tab:
    return chromium.open(address, **how)  # type: ignore[arg-type]


@pytest.mark.timeout(180)
def test_two_hundred_nodes_hostile_names_among_them(chromium: Browser) -> None:
    view = large_view()
    with served(view) as at:
        for width, scheme in ((1280, "light"), (1280, "dark"), (390, "light"), (3840, "dark")):
            tab = shown(chromium, at.address, width=width, scheme=scheme, calm=True)
            stages = tab.page.evaluate(DRAWN)
            assert [stage["state"] for stage in stages] == [stage["state"] for stage in view["pipeline"]]
            names = [[r["name"] or r["id"] for r in stage["replicas"]] for stage in view["pipeline"]]
            assert [stage["names"] for stage in stages] == names, "to the letter"
            assert HOSTILE[0] in {name for row in names for name in row}
            assert tab.page.evaluate("() => document.querySelectorAll('img, iframe, object, embed').length") == 0
            assert tab.page.evaluate(FITS), f"{width} pixels wide"
            assert tab.page.evaluate(CONTRAST) == []
            assert tab.complaints == []
            tab.page.close()


@pytest.mark.timeout(180)
def test_changes_are_drawn_and_what_was_opened_stays_open(chromium: Browser) -> None:
    view = large_view()
    with served(view) as at:
        tab = shown(chromium, at.address)
        tab.page.locator(".stage[data-stage='1'] summary").focus()
        tab.page.keyboard.press("Enter")
        after = copy.deepcopy(view)
        after["headline"] = {"level": "bad", "title": "Another headline.", "text": "So."}
        after["run"]["step"] += 1
        after["pipeline"][1]["state"] = "suspected"
        after["curves"]["loss"].append([view["curves"]["loss"][-1][0] + 1, 3.0])
        after["events"].append({"serial": 99, "wall": NOW, "kind": "voided", "level": "info", "step": 1, "text": HOSTILE[0]})
        at.show(after)
        tab.wait("() => document.getElementById('title').textContent === 'Another headline.'")
        assert tab.page.locator("#events li").first.locator(".text").text_content() == HOSTILE[0]
        assert tab.page.locator(".stage[data-stage='1']").get_attribute("data-state") == "suspected"
        assert tab.page.evaluate("() => document.querySelector(\".stage[data-stage='1'] details\").open")
        points = len(after["curves"]["loss"])
        assert f"{points} points" in (tab.page.locator("#chart-loss svg").get_attribute("aria-label") or "")
        assert tab.complaints == []
        tab.page.close()


@pytest.mark.timeout(180)
def test_curves_are_read_with_the_keyboard(chromium: Browser) -> None:
    view = small_view()
    with served(view) as at:
        tab = shown(chromium, at.address)
        tab.page.locator("#chart-loss svg").focus()
        tab.page.keyboard.press("End")
        step, value = view["curves"]["loss"][-1]
        assert tab.page.locator("#chart-loss .tip").text_content() == f"step {step:,}: {value:.3f}"
        tab.page.keyboard.press("ArrowLeft")
        step, value = view["curves"]["loss"][-2]
        assert tab.page.locator("#chart-loss .tip").text_content() == f"step {step:,}: {value:.3f}"
        landmarks = tab.page.evaluate(
            "() => ['header', 'main', 'footer', 'h1'].map((tag) => document.querySelectorAll(tag).length)"
        )
        assert landmarks == [1, 1, 1, 1]
        assert tab.complaints == []
        tab.page.close()
