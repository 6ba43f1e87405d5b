"""The HTML report is one file, needs nothing from anywhere, and is safe to open whatever names are in the run."""

from __future__ import annotations

import base64
import gzip
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from dash import dcc
from dash import html as tags
from plotly.offline import get_plotlyjs

from dashboard import exhibits, theme
from dashboard.data import RunStore
from dashboard.html import write_report
from dashboard.static import to_html

FIVE_MB = 5_000_000
LOADS = {"src", "href", "srcset", "data", "poster", "action", "formaction", "xlink:href"}


class Page(HTMLParser):
    """Everything in a page that could load something, its scripts, and its visible text."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.references: list[str] = []
        self.tags: list[str] = []
        self.scripts: dict[str, str] = {}
        self.policy = ""
        self.text = ""
        self._in = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self.tags.append(tag)
        self.references += [value or "" for name, value in attrs if name in LOADS]
        if tag == "script":
            self._in = attributes.get("id") or "code"
        if attributes.get("http-equiv") == "Content-Security-Policy":
            self.policy = attributes.get("content") or ""

    def handle_endtag(self, tag: str) -> None:
        if tag == "script":
            self._in = ""

    def handle_data(self, data: str) -> None:
        if self._in:
            self.scripts[self._in] = self.scripts.get(self._in, "") + data
        else:
            self.text += data


@pytest.fixture(scope="module")
def pages(runs_root: Path) -> dict[str, str]:
    return {run.name: write_report(run) for run in RunStore(runs_root).runs() if "broken" not in run.name}


def test_it_stays_under_five_megabytes(pages: dict[str, str], names: dict[str, str]) -> None:
    assert len(pages[names["large"]].encode()) < FIVE_MB


def test_it_loads_nothing_from_anywhere(pages: dict[str, str]) -> None:
    for text in pages.values():
        page = Page(text)
        assert all(reference.startswith("#") for reference in page.references)
        assert not {"link", "iframe", "img", "object", "embed", "base"} & set(page.tags)
        style = re.search(r"<style>(.*?)</style>", text, re.S)
        assert style
        assert not re.search(r"url\(|@import", style.group(1))
        assert page.policy.startswith("default-src 'none';")
        assert "http" not in page.policy


def test_plotly_is_inside_once_and_whole(pages: dict[str, str], names: dict[str, str]) -> None:
    text = pages[names["plain"]]
    packed = Page(text).scripts["plotly-gz"]
    assert gzip.decompress(base64.b64decode(packed)).decode() == get_plotlyjs()
    assert text.count(packed[:400]) == 1


def test_the_verdict_comes_first_and_the_method_last(pages: dict[str, str], names: dict[str, str]) -> None:
    text = Page(pages[names["plain"]]).text
    places = [
        text.index(part)
        for part in ("balance takes", "Speedup", "Arms", "Step time", "Who is waited for", "Warnings", "Method,")
    ]
    assert places[0] == min(places)
    assert places[-1] == max(places)


def test_its_numbers_are_the_reports(pages: dict[str, str], names: dict[str, str], runs_root: Path) -> None:
    report = json.loads((runs_root / names["plain"] / "report.json").read_text())
    text = Page(pages[names["plain"]]).text
    arm, compare = report["arms"]["balance"], report["compare"]["balance"]
    assert f"{compare['speedup']['value']:.2f}×" in text
    assert f"{arm['straggler_pct']:.1f}\u00a0%" in text
    assert f"{arm['step_ms']['median']:.2f}" in text
    assert report["headline"] in text


def test_figures_travel_with_both_templates(pages: dict[str, str], names: dict[str, str]) -> None:
    payload = json.loads(Page(pages[names["plain"]]).scripts["figures"])
    assert payload["templates"].keys() == set(theme.MODES)
    assert set(payload["figures"]) == {*exhibits.OVERVIEW, *exhibits.STRAGGLERS, *exhibits.COLLECTIVES}
    heat = payload["figures"]["rank-steps"]
    assert {json.loads(name)[1] for name in heat} == {"baseline", "balance"}
    assert {json.loads(name)[0] for name in heat} == {"straggler", "bubble", "compute", "wait", "step"}


def test_hostile_names_stay_text(pages: dict[str, str], names: dict[str, str], rundirs: ModuleType) -> None:
    hostile, text = rundirs.HOSTILE, pages[names["evil"]]
    assert hostile not in text
    page = Page(text)
    assert hostile in page.text
    assert page.tags.count("script") == 3
    assert set(page.scripts) == {"figures", "plotly-gz", "code"}


def test_an_incomplete_run_says_so_and_shows_what_there_is(pages: dict[str, str], names: dict[str, str]) -> None:
    text = Page(pages[names["died"]]).text
    assert "This run is not complete: rank 1: killed by signal 9 (SIGKILL)." in text
    assert "baseline, 32 timed steps in 4 blocks; balance, 24 timed steps in 3 blocks" in text
    assert "step 13" in text
    assert "No verdict" in text


def test_provenance_is_on_every_card(pages: dict[str, str], names: dict[str, str]) -> None:
    cards = re.findall(r"<article.*?</article>", pages[names["large"]], re.S)
    assert len(cards) == 12
    assert all("simulated ·" in card for card in cards)


def test_the_same_run_gives_the_same_file(runs_root: Path, names: dict[str, str]) -> None:
    first, second = (write_report(RunStore(runs_root).open(names["plain"])) for _ in range(2))
    assert first == second


def test_text_and_attributes_are_escaped() -> None:
    shown = to_html(tags.Div(["<b>&", tags.P("x", title='"><script>')], id="a"))
    assert shown == '<div id="a">&lt;b&gt;&amp;<p title="&quot;&gt;&lt;script&gt;">x</p></div>'


@pytest.mark.parametrize(
    ("component", "text"),
    [
        (tags.Br(), "<br>"),
        (tags.Div(hidden=True), "<div hidden></div>"),
        (tags.Div(style={"minHeight": "2px", "color": "red"}), '<div style="min-height:2px;color:red"></div>'),
        ([None, False, "a", 1, [tags.B("c")]], "a1<b>c</b>"),
    ],
)
def test_components_become_html(component: Any, text: str) -> None:
    assert to_html(component) == text


def test_a_component_that_needs_react_is_refused() -> None:
    with pytest.raises(TypeError, match="no static form"):
        to_html(dcc.Graph())
