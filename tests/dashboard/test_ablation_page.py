"""The Ablation page and its part of the reports show the numbers of report.json, and say what is missing or wrong."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from dash.development.base_component import Component

from dashboard import attribution, exhibits, formats
from dashboard.app import offered, page
from dashboard.data import Run, RunStore, open_run
from dashboard.exhibit import Exhibit
from dashboard.html import write_report
from dashboard.markdown import write_markdown
from dashboard.pages.links import parse, run_link
from dashboard.theme import BY_KEY, CLASSES, LAYER_COLOURS

LAYERS = ["balance", "overlap", "smfree"]
EVERY = list(exhibits.ABLATION)


@pytest.fixture
def run(runs_root: Path, names: dict[str, str]) -> Run:
    return RunStore(runs_root).open(names["ablation"])


@pytest.fixture
def report(run: Run) -> Any:
    return json.loads((run.directory.path / "report.json").read_text())


def built(key: str, run: Run) -> Exhibit:
    exhibit = exhibits.build(key, run, {})
    assert exhibit is not None
    return exhibit


def trace(exhibit: Exhibit, name: str) -> Any:
    return next(one for one in exhibit.figure.data if one.name == name)


def text_of(content: Any) -> str:
    if isinstance(content, (list, tuple)):
        return " ".join(text_of(item) for item in content)
    if isinstance(content, Component):
        return text_of(getattr(content, "children", None))
    return "" if content is None else str(content)


def shown(root: Path, name: str) -> str:
    return text_of(page(RunStore(root), parse(run_link(name, "ablation"), ""))[0])


def test_the_cube_draws_what_every_arm_saves_with_its_interval(run: Run, report: Any) -> None:
    exhibit = built("cube", run)
    bars, corners = trace(exhibit, "Saved"), report["ablation"]["cube"]
    # the A/A arm stands below the reference
    saved = [corners[0]["saved_ms"], report["ablation"]["aa"]["saved_ms"], *(c["saved_ms"] for c in corners[1:])]
    assert list(bars.x) == [estimate["value"] for estimate in saved]
    np.testing.assert_allclose(np.add(bars.x, bars.error_x.array), [e["ci95"][1] for e in saved], atol=1e-12)
    np.testing.assert_allclose(np.subtract(bars.x, bars.error_x.arrayminus), [e["ci95"][0] for e in saved], atol=1e-12)
    band = exhibit.figure.layout.shapes[0]
    assert (band.x0, band.x1) == (-report["noise_floor_ms"], report["noise_floor_ms"])
    rows = {row["arm"]: row for row in exhibit.table.rows}
    assert rows["balance+smfree"]["l0"] == rows["balance+smfree"]["l2"] == "on"
    assert rows["balance+smfree"]["l1"] == "off"
    assert [row["step"] for row in exhibit.table.rows if row["arm"] != "baseline-aa"] == [c["step_ms"] for c in corners]
    for corner in corners:
        assert rows[corner["arm"]]["speedup"] == corner["speedup"]["value"]


def test_dots_of_the_cube_are_filled_where_a_layer_is_on(run: Run) -> None:
    exhibit = built("cube", run)
    arms = list(exhibit.figure.layout.yaxis.ticktext)
    for layer in LAYERS:
        filled = [colour == LAYER_COLOURS[layer] for colour in trace(exhibit, layer).marker.color]
        assert filled == [layer in arm or arm == "freescale" for arm in arms]


def test_the_waterfall_goes_from_the_reference_to_all_layers_in_steps_that_add_up(run: Run, report: Any) -> None:
    exhibit = built("waterfall", run)
    ablation = report["ablation"]
    assert set(trace(exhibit, "baseline").y) == {ablation["reference_ms"]}
    level = ablation["reference_ms"]
    for layer in LAYERS:
        bar, value = trace(exhibit, layer), report["attribution"][layer]["shapley_ms"]["value"]
        assert list(bar.base) == pytest.approx([level], abs=1e-9)
        assert list(bar.y) == [-value]
        level -= value
    assert list(trace(exhibit, "freescale").y) == pytest.approx([ablation["full_ms"]] * 2, abs=1e-9)
    assert level == pytest.approx(ablation["full_ms"], abs=1e-9)


def test_whiskers_of_the_waterfall_are_the_intervals_of_the_shapley_values(run: Run, report: Any) -> None:
    ends, level = trace(built("waterfall", run), "Intervals"), report["ablation"]["reference_ms"]
    for place, layer in enumerate(LAYERS):
        low, high = report["attribution"][layer]["shapley_ms"]["ci95"]
        assert ends.y[place] + ends.error_y.array[place] == pytest.approx(level - low)
        assert ends.y[place] - ends.error_y.arrayminus[place] == pytest.approx(level - high)
        level -= report["attribution"][layer]["shapley_ms"]["value"]
    low, high = report["ablation"]["total_ms"]["ci95"]
    assert ends.y[3] + ends.error_y.array[3] == pytest.approx(report["ablation"]["reference_ms"] - low)
    assert ends.y[3] - ends.error_y.arrayminus[3] == pytest.approx(report["ablation"]["reference_ms"] - high)


def test_alone_last_and_shapley_are_the_reports(run: Run, report: Any) -> None:
    exhibit = built("worth", run)
    for key, name in (("alone", "alone"), ("last", "last"), ("shapley_ms", "Shapley")):
        dots, entries = trace(exhibit, name), [report["attribution"][layer][key] for layer in LAYERS]
        assert list(dots.x) == [entry["value"] for entry in entries]
        np.testing.assert_allclose(np.add(dots.x, dots.error_x.array), [entry["ci95"][1] for entry in entries])
    assert [row["verdict"] for row in exhibit.table.rows][:2] == ["Improvement", "Improvement"]


def test_bubbles_by_layer_are_stacked_in_the_colours_of_the_classes(run: Run, report: Any) -> None:
    exhibit = built("removed", run)
    totals = report["ablation"]["classes"]
    assert exhibit.figure.layout.barmode == "relative"
    for item in CLASSES:
        bars = trace(exhibit, item.label)
        by_layer = [report["attribution"][layer]["by_class"][item.key]["shapley_ms"]["value"] for layer in LAYERS]
        assert list(bars.y) == [*LAYERS, "together"]
        assert list(bars.x) == [*by_layer, totals[item.key]["total_ms"]["value"]]
        assert bars.marker.color == item.colour == BY_KEY[item.key].colour
        reaches = [abs(value) >= totals[item.key]["noise_floor_ms"] for value in bars.x]
        assert [opacity == 1 for opacity in bars.marker.opacity] == reaches
    net = trace(exhibit, "In all").x
    windows = [sum(totals[item.key][end] for item in CLASSES) for end in ("reference_ms", "full_ms")]
    assert net[-1] == pytest.approx(windows[0] - windows[1])
    assert sum(net[:-1]) == pytest.approx(net[-1])


def test_interactions_are_the_reports(run: Run, report: Any) -> None:
    dots = trace(built("interactions", run), "Interaction")
    assert list(dots.x) == list(report["interactions"].values())
    found = report["interaction_estimates"]
    np.testing.assert_allclose(
        np.subtract(dots.x, dots.error_x.arrayminus), [entry["ci95"][0] for entry in found.values()]
    )


def test_a_line_per_block_crosses_all_arms_the_aa_arm_included(run: Run, report: Any) -> None:
    exhibit = built("ablation-blocks", run)
    arms = list(exhibit.figure.layout.yaxis.ticktext)
    assert arms[:2] == ["baseline", "baseline-aa"]
    assert len(exhibit.figure.data) == len(report["ablation"]["blocks"]) == 12
    for line, block in zip(exhibit.figure.data, report["ablation"]["blocks"], strict=True):
        assert line.name == f"Block {block['block']}"
        # a log-ratio l means that the arm takes exp(-l) of the reference's time
        assert list(line.x) == pytest.approx([100 * (1 - math.exp(-block["values"][arm])) for arm in arms])


def test_the_page_begins_with_the_verdict_and_each_layers_worth(run: Run, report: Any, runs_root: Path) -> None:
    text = shown(runs_root, run.name)
    assert "ablation" in offered(run)
    places = [text.index(part) for part in (report["headline"][:30], "Saved by all layers", "Every combination")]
    assert places == sorted(places)
    for layer in LAYERS:
        value = report["attribution"][layer]["shapley_ms"]["value"]
        assert f"{value:+.1f}\u00a0ms".replace("-", "−") in text
    floor = report["noise_floor_ms"]
    assert f"Noise floor {floor:.1f}\u00a0ms" in text


def test_every_ablation_exhibit_has_a_table_and_says_its_provenance(run: Run) -> None:
    for key in EVERY:
        exhibit = built(key, run)
        assert exhibit.source.startswith("measured · ")
        assert exhibit.table.rows


def test_a_run_without_layers_has_no_ablation_page(runs_root: Path, names: dict[str, str]) -> None:
    plain = RunStore(runs_root).open(names["plain"])
    assert "ablation" not in offered(plain)
    assert "No Ablation" in shown(runs_root, names["plain"])
    assert all(exhibits.build(key, plain, {}) is None for key in EVERY)


def test_two_blocks_give_values_and_no_whiskers(tmp_path: Path, ablation_rundirs: ModuleType) -> None:
    few = open_run(ablation_rundirs.write_ablation(tmp_path, "few", blocks=2))
    bars = trace(built("cube", few), "Saved")
    assert bars.error_x.visible is False
    assert None not in bars.x
    assert not built("cube", few).figure.layout.shapes
    assert "with 95" not in built("waterfall", few).note
    text = shown(tmp_path, "few")
    assert "ms per step (inconclusive; Shapley values:" in text
    assert "no interval" in text
    assert "Noise floor unknown" in text
    assert "The noise floor is unknown: too few blocks for an interval." in text
    assert "only 2 blocks" in text
    assert not re.search(r"\b(nan|NaN|None)\b", text)


def test_without_an_aa_arm_the_floor_is_unknown(tmp_path: Path, ablation_rundirs: ModuleType) -> None:
    run = open_run(ablation_rundirs.write_ablation(tmp_path, "alone", again=False))
    assert "baseline-aa" not in built("cube", run).figure.layout.yaxis.ticktext
    assert "grey band" not in built("worth", run).reading
    assert "the run has no A/A arm" in shown(tmp_path, "alone")
    assert set(trace(built("removed", run), "Compute").marker.opacity) == {1.0}


def test_a_wrong_arm_is_said_first_and_not_ranked(tmp_path: Path, ablation_rundirs: ModuleType) -> None:
    run = open_run(ablation_rundirs.write_ablation(tmp_path, "wrong", wrong="overlap"))
    text = shown(tmp_path, "wrong")
    assert text.index("overlap is wrong") < text.index("Saved by all layers")
    assert "Wrong result" in text[: text.index("overlap is wrong")]
    assert "overlap is not in the design (wrong): overlap is wrong: its loss is off by" in text
    assert "overlap" not in built("cube", run).figure.layout.yaxis.ticktext
    assert list(trace(built("removed", run), "Compute").y) == ["balance", "smfree", "together"]
    (row,) = re.findall(r"^\| overlap \| Wrong result \| .*$", write_markdown(run), re.M)
    assert row.split(" | ")[3] == "–"


def test_two_layers_have_one_interaction_and_one_layer_has_none(tmp_path: Path, ablation_rundirs: ModuleType) -> None:
    write = ablation_rundirs.write_ablation
    two = open_run(write(tmp_path, "two", layers=("balance", "overlap")))
    assert len(built("interactions", two).table.rows) == 1
    arms = ["baseline", "baseline-aa", "balance", "overlap"]  # without both together, only one can be attributed
    one = open_run(write(tmp_path, "one", layers=("balance", "overlap"), arms=arms))
    there = [key for key in EVERY if exhibits.build(key, one, {})]
    assert there == ["cube", "removed", "ablation-blocks"]
    assert list(trace(built("removed", one), "Compute").y) == ["balance"]
    assert "overlap is not in the design (not measured): the run has no arm balance+overlap" in shown(tmp_path, "one")


def test_a_layer_that_cannot_act_is_no_gain_of_zero(tmp_path: Path, ablation_rundirs: ModuleType) -> None:
    cannot = {"balance": "one rank has nobody to share with"}
    run = open_run(ablation_rundirs.write_ablation(tmp_path, "idle", layers=("overlap", "smfree"), cannot_act=cannot))
    text = shown(tmp_path, "idle")
    assert "balance is not in the design (cannot act): one rank has nobody to share with." in text
    assert "balance – – Cannot act" in text
    assert {row["layer"]: row["shapley_ms"] for row in built("worth", run).table.rows}["balance"] is None


def test_waiting_that_cannot_be_told_from_transfer_is_shown_as_one(
    tmp_path: Path, ablation_rundirs: ModuleType
) -> None:
    run = open_run(ablation_rundirs.write_ablation(tmp_path, "mixed", split=False))
    exhibit = built("removed", run)
    report = json.loads((run.directory.path / "report.json").read_text())
    both = report["attribution"]["balance"]["by_class"]["exposed_total"]["shapley_ms"]["value"]
    assert trace(exhibit, "Exposed communication").x[0] == both
    assert set(trace(exhibit, "Straggler").x) == {None}
    assert "could not be told from transfer" in exhibit.note
    assert "Straggler" not in {row["class"] for row in exhibit.table.rows}


def test_a_run_that_died_says_so_beside_what_it_has(tmp_path: Path, ablation_rundirs: ModuleType) -> None:
    failure = {"rank": 1, "reason": "killed by signal 9", "log_tail": ""}
    ablation_rundirs.write_ablation(tmp_path, "died", blocks=4, complete=False, failure=failure)
    text = shown(tmp_path, "died")
    assert "This run is not complete:  rank 1: killed by signal 9." in text
    assert "Every combination of the layers" in text


def test_on_top_of_sdd_layers_keep_their_colours(tmp_path: Path, ablation_rundirs: ModuleType) -> None:
    path = ablation_rundirs.write_ablation(tmp_path, "sdd", blocks=3, layers=("balance", "overlap"), baseline="sdd")
    exhibit = built("cube", open_run(path))
    arms = list(exhibit.figure.layout.yaxis.ticktext)
    assert arms == ["sdd", "sdd-aa", "sdd+balance", "overlap", "balance+overlap"]
    colours = trace(exhibit, "Saved").marker.color
    assert list(colours[2:4]) == [LAYER_COLOURS["balance"], LAYER_COLOURS["overlap"]]
    assert colours[0] == colours[1]


def test_without_traces_no_bubble_is_attributed(tmp_path: Path, ablation_rundirs: ModuleType) -> None:
    run = open_run(ablation_rundirs.write_ablation(tmp_path, "bare", profiled=False))
    assert exhibits.build("removed", run, {}) is None
    assert built("waterfall", run)


def test_causes_of_noise_and_the_blocks_that_settle_it_are_sentences(run: Run) -> None:
    run.report["ablation"]["noise"]["causes"] = [{"cause": "throttling", "text": "the quota stopped the ranks"}]
    run.report["attribution"]["smfree"] |= {"verdict": "inconclusive", "blocks_needed": 1234}
    said = attribution.doubtful(run)
    assert "smfree is inconclusive; about 1,234 blocks in all would settle it." in said
    assert "Noise: the quota stopped the ranks." in said


def test_hostile_layer_names_are_no_markup(tmp_path: Path, ablation_rundirs: ModuleType, rundirs: ModuleType) -> None:
    path = ablation_rundirs.write_ablation(tmp_path, "evil", blocks=3)
    file = path / "report.json"
    file.write_text(file.read_text().replace("smfree", rundirs.HOSTILE))
    manifest = path / "manifest.json"
    manifest.write_text(manifest.read_text().replace("smfree", rundirs.HOSTILE))
    run = open_run(path)
    for key in EVERY:
        assert rundirs.HOSTILE not in built(key, run).figure.to_json().replace("\\u003c", "<")
    assert rundirs.HOSTILE not in write_report(run)
    assert rundirs.HOSTILE not in write_markdown(run)


def order(text: str, parts: tuple[str, ...]) -> None:
    places = [text.index(part) for part in parts]
    assert places == sorted(places)


def test_the_html_report_has_the_ablation_in_order_between_verdict_and_method(run: Run, report: Any) -> None:
    text = write_report(run)
    assert len(text.encode()) < 5_000_000
    body = text.split('<script type="application/json"')[0]
    order(
        body,
        (
            "freescale is", "Saved by all layers", 'id="cube"', 'id="waterfall"', 'id="removed"', 'id="interactions"',
            'id="ablation-blocks"', "Arm by arm", 'id="step-time"', "Method, machine, provenance",
        ),
    )  # fmt: skip
    assert 'id="paired-blocks"' not in body
    assert f"{report['ablation']['cube'][-1]['saved_ms']['value']:.2f}" in body
    payload = json.loads(re.search(r'id="figures">(.*?)</script>', text, re.S).group(1))  # type: ignore[union-attr]
    assert set(EVERY) <= set(payload["figures"])
    (saved,) = (one for one in payload["figures"]["cube"]["[]"]["data"] if one["name"] == "Saved")
    assert saved["x"][-1] == report["ablation"]["cube"][-1]["saved_ms"]["value"]


def test_the_markdown_report_has_the_same_order_and_speaks_of_no_figure(run: Run, report: Any) -> None:
    text = write_markdown(run)
    order(
        text,
        (
            "# freescale is", "## Before you rely on this", "## Every combination", "## From the reference",
            "## Which layer removed", "## What layers do", "## Every block", "## Arms", "## Method, machine",
        ),
    )  # fmt: skip
    assert not re.search("grey band|axis|dot is|diamond|Faint", text)
    total = report["ablation"]["total_ms"]
    assert f"| all together | {total['value']:.2f} | {total['ci95'][0]:.2f} | {total['ci95'][1]:.2f} |" in text
    assert "student-t over blocks" in text


def test_signed_intervals_are_joined_by_a_word() -> None:
    write = formats.saved_ms(240.0)
    assert formats.span({"ci95": [-39.61, -0.72]}, write) == "−39.6 to −0.7\u00a0ms"
    assert formats.saved_ms(2.5)(0.0314) == "+0.031\u00a0ms"
    assert write(None) == "–"
    assert formats.unbroken("off by 1.0e-02 relative") == "off by 1.0e\u201102 relative"
