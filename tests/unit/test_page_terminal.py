"""The page in a terminal."""

from __future__ import annotations

import copy
from io import StringIO

import pytest
from rich.console import Console

from node.page.terminal import Lines, drawn, sparkline
from node.page.view import View
from tests.tools.page_views import HOSTILE, large_view, small_view


def text_of(view: View, width: int = 100) -> str:
    out = StringIO()
    Console(file=out, width=width, highlight=False).print(drawn(view, width))
    return out.getvalue()


@pytest.mark.parametrize(
    ("values", "width", "line"),
    [((), 5, ""), ((1.0,), 5, "▁"), ((1.0, 8.0), 5, "▁█"), ((8.0, 8.0, 1.0, 1.0), 2, "█▁"), ((3.0, 3.0), 0, "")],
)
def test_a_curve_in_one_line(values: tuple[float, ...], width: int, line: str) -> None:
    assert sparkline(values, width) == line


def test_the_whole_view_is_there() -> None:
    text = text_of(small_view())
    assert text.startswith("This node is working, and its work counts.")
    assert "step 1,204/5,000  loss 3.412  held out 3.520  7,803 tokens/s  2h12m left  last commit 2s ago" in text
    assert "stage 0  ●○○  3 replicas hold it" in text
    assert "Stage 3 is rebuilt from stages 2 and 4, .44 / .56; handed to ivo" in text
    assert "█" in text


def test_two_hundred_nodes_and_hostile_names() -> None:
    view = large_view()
    view["pipeline"][1]["replicas"][0]["name"] = "\x1b[2J[red]x"
    view["events"].append(copy.deepcopy(view["events"][-1]) | {"text": HOSTILE[0] + "\x1b]0;x\x07"})
    text = text_of(view)
    assert len(text.splitlines()) < 70
    assert "stage 7" in text
    assert "\x1b" not in text
    assert HOSTILE[0] in text
    assert "[red]x" in text, "names are no markup"


def test_plain_lines_tell_what_is_new_once() -> None:
    view, lines = small_view(), Lines()
    first = list(lines.news(view))
    assert first[0].startswith("This node is working, and its work counts.")
    assert len(first) == 1 + len(view["events"]) + 1
    assert list(lines.news(view)) == []
    after = copy.deepcopy(view)
    after["now"] += 60.0
    after["run"]["step"] += 1
    after["events"].append(after["events"][-1] | {"serial": 99, "text": "Something happened.", "count": 2})
    told = list(lines.news(after))
    assert told[0].endswith("Something happened. (2 times)")
    assert told[1].startswith("step 1,205/5,000")
    assert len(told) == 2
