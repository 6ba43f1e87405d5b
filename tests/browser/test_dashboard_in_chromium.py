"""The dashboard as a person meets it: in a real browser, with numbers read off the page."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

pytestmark = pytest.mark.browser
OpenPage = Callable[..., Any]


def report_of(runs_root: Path, run: str) -> Any:
    return json.loads((runs_root / run / "report.json").read_text())


def until(page: Any, expression: str, timeout_s: float = 30) -> None:
    """Wait for an expression to be true (playwright's own wait needs eval, which the pages' policy forbids)."""
    end = time.monotonic() + timeout_s
    while not page.evaluate(expression):
        assert time.monotonic() < end, f"not within {timeout_s} s: {expression}"
        page.wait_for_timeout(50)


def wait_for_charts(page: Any, count: int) -> None:
    until(page, f"document.querySelectorAll('.chart .main-svg').length >= {count}")


def drawn(page: Any, card: str) -> Any:
    """What plotly drew in a card: name and x of every trace."""
    read = "traces => traces.map(t => ({name: t.name, x: Array.from(t.x)}))"
    return page.evaluate(f"id => ({read})(document.querySelector(`#${{id}} .js-plotly-plot`)._fullData)", card)


def test_the_overview_shows_the_speedup_of_the_report(open_page: OpenPage, server: str, runs_root: Path) -> None:
    page = open_page(f"{server}/run/plain")
    shown = page.text_content("#figure-speedup")
    report = report_of(runs_root, "plain")
    assert shown == f"{report['compare']['balance']['speedup']['value']:.2f}×"
    assert page.text_content("#headline") == report["headline"]
    assert "measured" in page.text_content(".hero")
    wait_for_charts(page, 5)
    assert page.title().startswith("plain")


def test_bars_drawn_are_the_numbers_of_the_report(open_page: OpenPage, server: str, runs_root: Path) -> None:
    page = open_page(f"{server}/run/plain")
    wait_for_charts(page, 5)
    arms = report_of(runs_root, "plain")["arms"]
    bars = {trace["name"]: trace["x"] for trace in drawn(page, "arm-split")}
    assert bars["Compute"] == pytest.approx([arm["compute_ms"] for arm in arms.values()])
    assert bars["Host"] == pytest.approx([arm["host_ms"] for arm in arms.values()])


def test_from_the_list_to_a_run_and_to_an_arm(open_page: OpenPage, server: str, runs_root: Path) -> None:
    page = open_page(f"{server}/")
    page.wait_for_selector(".run-link")
    runs = len(list(runs_root.iterdir()))
    assert page.locator(".run-link").count() == runs
    page.fill("#runs-search", "simulated")
    until(page, "document.querySelectorAll('.run-link').length === 1")
    page.fill("#runs-search", "")
    until(page, f"document.querySelectorAll('.run-link').length === {runs}")
    page.click('.run-link[href="/run/plain"]')
    page.wait_for_selector("#headline")
    page.click(".arms a:text-is('sdd')")
    until(page, "document.querySelector('.verdict-line')?.textContent.includes('sdd against')")
    assert page.url.endswith("/run/plain?arm=sdd")
    report = report_of(runs_root, "plain")
    assert page.text_content("#figure-speedup") == f"{report['compare']['sdd']['speedup']['value']:.2f}×"


def test_a_control_redraws_its_chart_and_its_table(open_page: OpenPage, server: str, runs_root: Path) -> None:
    page = open_page(f"{server}/run/plain")
    wait_for_charts(page, 5)
    page.click("#arm-split label:has-text('%')")
    until(page, "document.querySelector('#arm-split .js-plotly-plot').layout.xaxis.title.text.includes('Share')")
    arm = report_of(runs_root, "plain")["arms"]["baseline"]
    window = sum(arm[key] for key in ("compute_ms", "exposed_total_ms", "exposed_copy_ms", "host_ms"))
    assert drawn(page, "arm-split")[0]["x"][0] == pytest.approx(arm["compute_ms"] / window * 100)
    page.click("#arm-split button:text-is('Table')")
    cell = page.wait_for_selector("#arm-split .ag-row[row-index='0'] .ag-cell[col-id='c1']")
    assert cell.text_content() == f"{arm['compute_ms']:.2f}"
    page.click("#arm-split button:text-is('Table')")
    page.wait_for_selector("#arm-split .ag-row", state="detached")


def test_light_and_dark_follow_the_system_until_one_is_chosen(open_page: OpenPage, server: str) -> None:
    page = open_page(f"{server}/run/plain", scheme="dark")
    wait_for_charts(page, 5)
    paper = "getComputedStyle(document.body).backgroundColor"
    ink = "document.querySelector('#arm-split .js-plotly-plot').layout.template.layout.font.color"
    dark_page, dark_ink = page.evaluate(paper), page.evaluate(ink)
    page.click("#flip")
    until(page, f"{ink} !== '{dark_ink}'")
    assert page.evaluate(paper) != dark_page
    page.reload()
    wait_for_charts(page, 5)
    assert page.evaluate(ink) != dark_ink
    page.evaluate("localStorage.clear()")


def test_hostile_names_are_text_and_run_nothing(open_page: OpenPage, server: str, rundirs: ModuleType) -> None:
    for address in ("/run/evil", "/"):
        page = open_page(f"{server}{address}")
        page.on("dialog", lambda dialog: pytest.fail(f"a name ran: {dialog.message}"))
        page.wait_for_selector("#headline, .run-link")
        page.wait_for_timeout(500)
        assert rundirs.HOSTILE in page.text_content("main")


def test_a_run_of_256_ranks_is_drawn_whole(open_page: OpenPage, server: str) -> None:
    page = open_page(f"{server}/run/large")
    wait_for_charts(page, 5)
    assert "simulated" in page.text_content(".hero")
    assert all(len(trace["x"]) == 256 for trace in drawn(page, "rank-split"))


def test_what_cannot_be_shown_is_explained(open_page: OpenPage, server: str) -> None:
    page = open_page(f"{server}/run/no-such-run")
    page.wait_for_selector("#trouble")
    assert "No run named 'no-such-run'" in page.text_content("main")
    page = open_page(f"{server}/run/died")
    page.wait_for_selector("#incomplete")
    assert "rank 1: killed by signal 9" in page.text_content("#incomplete")


@pytest.mark.parametrize(
    "path",
    ["plain", "evil", "died", "large", "plain/timeline", "plain/stragglers", "evil/stragglers", "evil/collectives"],
)
@pytest.mark.parametrize("width", [390, 1280])
def test_no_page_is_wider_than_the_screen(open_page: OpenPage, server: str, path: str, width: int) -> None:
    page = open_page(f"{server}/run/{path}", width=width)
    wait_for_charts(page, 1)
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_the_timeline_is_drawn_after_its_page_and_follows_its_controls(
    open_page: OpenPage, server: str, rundirs: ModuleType
) -> None:
    page = open_page(f"{server}/run/plain")
    page.click(".tabs a:text-is('Timeline')")
    until(page, "document.querySelector('#timeline .js-plotly-plot')?._fullData?.some(t => t.name === 'Compute')")
    compute = [trace for trace in drawn(page, "timeline") if trace["name"] == "Compute"]
    assert [trace["x"] for trace in compute] == [pytest.approx([length for _, _, length in rundirs.PLANTED])] * 2
    page.click("#timeline .mantine-MultiSelect-pill button")
    until(
        page,
        "document.querySelector('#timeline .js-plotly-plot')._fullData.filter(t => t.name === 'Compute').length === 1",
    )
    assert page.text_content("#timeline .source") == "measured · profiled step 5, arm balance"


@pytest.mark.parametrize("name", ["stragglers", "collectives"])
@pytest.mark.parametrize("run", ["plain", "evil", "large"])
def test_the_other_pages_draw_every_chart(open_page: OpenPage, server: str, run: str, name: str) -> None:
    page = open_page(f"{server}/run/{run}/{name}")
    page.wait_for_selector(".chart")
    wait_for_charts(page, page.locator(".chart").count())
    assert page.locator(".tabs .here").text_content().lower() == name


@pytest.fixture
def report_file(runs_root: Path, tmp_path: Path) -> Callable[[str], str]:
    from dashboard.data import open_run
    from dashboard.html import write_report

    def write(run: str) -> str:
        file = tmp_path / f"{run}.html"
        file.write_text(write_report(open_run(runs_root / run)), encoding="utf-8")
        return file.as_uri()

    return write


def test_the_html_report_draws_its_charts_without_a_network(
    open_page: OpenPage, report_file: Callable[[str], str], runs_root: Path, chromium: Any
) -> None:
    address = report_file("plain")
    chromium.set_offline(True)
    try:
        page = open_page(address, width=390)
        until(page, "document.body.dataset.ready === 'yes'")
        for card in ("step-time", "paired-blocks", "arm-split", "rank-split", "rank-steps"):
            page.locator(f"#{card}").scroll_into_view_if_needed()
            page.wait_for_selector(f"#{card} .main-svg")
        report = report_of(runs_root, "plain")
        assert page.text_content("#figure-speedup") == f"{report['compare']['balance']['speedup']['value']:.2f}×"
        medians = [arm["step_ms"]["median"] for arm in report["arms"].values()]
        assert drawn(page, "step-time")[0]["x"] == pytest.approx(medians)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
    finally:
        chromium.set_offline(False)


def test_choices_of_the_html_report_change_figure_and_table(
    open_page: OpenPage, report_file: Callable[[str], str]
) -> None:
    page = open_page(report_file("plain"))
    until(page, "document.body.dataset.ready === 'yes'")
    page.locator("#rank-steps").scroll_into_view_if_needed()
    page.wait_for_selector("#rank-steps .main-svg")
    page.select_option("#rank-steps [data-choice=measure]", "compute")
    until(page, "document.querySelector('#rank-steps .js-plotly-plot').data[0].x[0] === 'block 0, step 2'")
    shown = page.locator("#rank-steps [data-variant]:visible .source").all_text_contents()
    assert len(shown) == 1
    assert re.search("timed steps, no profiler, arm balance", shown[0])


def test_the_html_report_prints_with_every_chart_drawn(
    open_page: OpenPage, report_file: Callable[[str], str], tmp_path: Path
) -> None:
    page = open_page(report_file("plain"), scheme="dark")
    until(page, "document.body.dataset.ready === 'yes'")
    page.pdf(path=tmp_path / "report.pdf")
    assert (tmp_path / "report.pdf").stat().st_size > 50_000
    assert page.evaluate("[...document.querySelectorAll('.chart')].every(c => c.querySelector('.main-svg'))")
