"""The Ablation and Compare pages as a person meets them: clicked through, linked to, on a phone."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.browser
OpenPage = Callable[..., Any]
CARDS = ("cube", "waterfall", "worth", "removed", "interactions", "ablation-blocks")
CUT_OFF = """[...document.querySelectorAll('.chart .main-svg')].filter(svg => {
  const b = svg.getBoundingClientRect();
  const names = '.xtitle, .ytitle, .x2title, .xtick text, .x2tick text, .ytick text, .annotation-text';
  const labels = [...svg.querySelectorAll(names)];
  return labels.some(t => {
    const a = t.getBoundingClientRect();
    return a.width && (a.left < b.left - 1 || a.right > b.right + 1 || a.top < b.top - 1 || a.bottom > b.bottom + 1);
  });
}).map(svg => svg.closest('article').id)"""  # cards with a label that does not fit into its chart


def until(page: Any, expression: str, timeout_s: float = 30) -> None:
    """Wait for an expression to be true (playwright's own wait needs eval, which the pages' policy forbids)."""
    end = time.monotonic() + timeout_s
    while not page.evaluate(expression):
        assert time.monotonic() < end, f"not within {timeout_s} s: {expression}"
        page.wait_for_timeout(50)


def wait_for_charts(page: Any, *cards: str) -> None:
    for card in cards:
        page.wait_for_selector(f"#{card} .main-svg", state="attached")


def drawn(page: Any, card: str, name: str) -> list[float]:
    """x of the trace of that name, as plotly drew it."""
    traces = "document.querySelector(`#${card} .js-plotly-plot`)._fullData"
    return list(page.evaluate(f"([card, name]) => Array.from({traces}.find(t => t.name === name).x)", [card, name]))


def report_of(runs_root: Path, run: str) -> Any:
    return json.loads((runs_root / run / "report.json").read_text())


def test_from_the_overview_to_the_ablation_and_its_table(open_page: OpenPage, server: str, runs_root: Path) -> None:
    page = open_page(f"{server}/run/ablation")
    page.click(".tabs a:text-is('Ablation')")
    wait_for_charts(page, *CARDS)
    assert page.url.endswith("/run/ablation/ablation")
    report = report_of(runs_root, "ablation")
    assert page.text_content("#headline") == report["headline"].replace(" %", "\u00a0%").replace(
        " ms", "\u00a0ms"
    ).replace("% CI", "%\u00a0CI")
    cube = report["ablation"]["cube"]
    assert drawn(page, "cube", "Saved")[-1] == pytest.approx(cube[-1]["saved_ms"]["value"])
    alone = [report["attribution"][layer]["alone_ms"] for layer in ("balance", "overlap", "smfree")]
    assert drawn(page, "worth", "alone") == pytest.approx(alone)
    page.click("#cube button:text-is('Table')")
    cell = page.wait_for_selector("#cube .ag-row[row-index='8'] .ag-cell[col-id='c5']")
    assert cell.text_content() == f"{cube[-1]['saved_ms']['value']:.2f}"


@pytest.mark.parametrize("run", ["ablation", "ablation-of-few", "ablation-wrong"])
@pytest.mark.parametrize(("width", "scheme"), [(390, "dark"), (1280, "light")])
def test_a_deep_link_draws_every_chart_within_the_screen(
    open_page: OpenPage, server: str, run: str, width: int, scheme: str
) -> None:
    page = open_page(f"{server}/run/{run}/ablation", width=width, scheme=scheme)
    wait_for_charts(page, *CARDS)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert page.evaluate(CUT_OFF) == []


def test_no_whisker_is_drawn_where_no_interval_is_known(open_page: OpenPage, server: str) -> None:
    page = open_page(f"{server}/run/ablation-of-few/ablation")
    wait_for_charts(page, *CARDS)
    assert page.locator(".errorbar").count() == 0
    page = open_page(f"{server}/run/ablation/ablation")
    wait_for_charts(page, *CARDS)
    assert page.locator("#waterfall .errorbar").count() == 4


def test_two_runs_are_chosen_and_compared(open_page: OpenPage, server: str) -> None:
    page = open_page(f"{server}/run/ablation")
    page.click(".tabs a:text-is('Compare…')")
    page.wait_for_selector("#hint")
    page.click("#compare-b")
    page.get_by_role("option", name="ablation-of-few").click()
    wait_for_charts(page, "compare")
    assert page.url.endswith("/compare?a=ablation&b=ablation-of-few")
    assert "in B as in A" in page.text_content("#headline")
    assert len(drawn(page, "compare", "speed")) == 9


@pytest.mark.parametrize("width", [390, 1280])
def test_a_deep_link_to_runs_that_differ_stops_at_the_gate(open_page: OpenPage, server: str, width: int) -> None:
    page = open_page(f"{server}/compare?a=ablation&b=ablation-wrong", width=width)
    page.wait_for_selector("#gate")
    assert "world_size" in page.text_content("#gate")
    assert page.locator("#headline").count() == 0
    page.click("#gate a")
    wait_for_charts(page, "compare")
    assert page.text_content("#headline") == "Not comparable: world_size differs."
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_the_html_report_draws_the_ablation_on_a_phone(open_page: OpenPage, runs_root: Path, tmp_path: Path) -> None:
    from dashboard.data import open_run
    from dashboard.html import write_report

    file = tmp_path / "ablation.html"
    file.write_text(write_report(open_run(runs_root / "ablation")), encoding="utf-8")
    page = open_page(file.as_uri(), width=390)
    until(page, "document.body.dataset.ready === 'yes'")
    for card in CARDS:
        page.locator(f"#{card}").scroll_into_view_if_needed()
        page.wait_for_selector(f"#{card} .main-svg")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    totals = report_of(runs_root, "ablation")["ablation"]["classes"]
    assert drawn(page, "removed", "Straggler")[-1] == pytest.approx(totals["straggler"]["total_ms"]["value"])
