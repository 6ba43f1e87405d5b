"""Whatever a manifest or a report holds, a page comes out, or one clear sentence: never a traceback."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from analyzer import rundir
from analyzer.errors import AnalyzerError
from dashboard.app import page
from dashboard.contract import Report, check
from dashboard.data import Run, RunStore
from dashboard.html import write_report
from dashboard.markdown import write_markdown
from dashboard.pages import ablation, collectives, overview, runs, stragglers, timeline
from dashboard.pages.links import parse

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def paths_in(value: Any, so_far: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [so_far] if so_far else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        found += paths_in(inner, (*so_far, key))
    return found


def mangled(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    value = copy.deepcopy(value)
    place = value
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = new
    return value


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, rundirs: ModuleType) -> Path:
    path: Path = rundirs.write_run(tmp_path_factory.mktemp("mangled"), "run", blocks=2, steps=4, traces=True)
    return path


@pytest.fixture(scope="module")
def whole_ablation(tmp_path_factory: pytest.TempPathFactory, ablation_rundirs: ModuleType) -> Path:
    path: Path = ablation_rundirs.write_ablation(tmp_path_factory.mktemp("mangled"), "run", blocks=3)
    return path


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_value_in_the_report_of_an_ablation_breaks_a_page(whole_ablation: Path, data: st.DataObject) -> None:
    report = rundir.read_json(whole_ablation / rundir.REPORT)
    ours = {key: report[key] for key in ("ablation", "attribution", "interaction_estimates", "noise_floor_ms")}
    report |= mangled(ours, data.draw(st.sampled_from(paths_in(ours))), data.draw(ANYTHING))
    run, problem = Run(rundir.open_run(whole_ablation)), ""
    try:
        run.__dict__["report"] = check(whole_ablation / rundir.REPORT, report, Report)
    except AnalyzerError as error:
        problem = str(error)
    if problem:
        assert re.fullmatch(r"\S+report\.json: .* - at `[^`]+`; .*", problem, re.S)
        return
    ablation.layout(run, {})
    write_markdown(run)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_no_value_in_a_manifest_or_a_report_breaks_a_page(whole: Path, data: st.DataObject) -> None:
    manifest = rundir.read_json(whole / rundir.MANIFEST)
    report = rundir.read_json(whole / rundir.REPORT)
    if data.draw(st.booleans(), label="in the report"):
        report = mangled(report, data.draw(st.sampled_from(paths_in(report))), data.draw(ANYTHING))
    else:
        manifest = mangled(manifest, data.draw(st.sampled_from(paths_in(manifest))), data.draw(ANYTHING))
    try:
        run = Run(rundir.RunDirectory(whole, manifest))
        run.__dict__["report"] = check(whole / rundir.REPORT, report, Report)
    except AnalyzerError as error:
        problem = str(error)
    else:
        problem = ""
    if problem:
        assert re.fullmatch(r"\S+(manifest|report)\.json: .* - at `[^`]+`; .*", problem, re.S)
        return
    for layout in (overview.layout, stragglers.layout, collectives.layout, timeline.layout):
        layout(run, {"arm": "balance", "step": "x"})
    write_markdown(run)
    runs.row(run)


def test_a_damaged_report_is_named_and_the_list_goes_on(tmp_path: Path, rundirs: ModuleType) -> None:
    rundirs.write_run(tmp_path, "good")
    bad = rundirs.write_run(tmp_path, "bad")
    (bad / "report.json").write_text("{")
    listed, _ = page(RunStore(tmp_path), parse("/", ""))
    rows = {row["name"]: row for row in listed[1].children.rowData}
    assert rows["good"]["verdict"] == "▲ Improvement"
    assert "report.json: not readable JSON" in rows["bad"]["headline"]
    content, _ = page(RunStore(tmp_path), parse("/run/bad", ""))
    assert "report.json: not readable JSON" in str(content)
    with pytest.raises(AnalyzerError, match="not readable JSON"):
        write_report(RunStore(tmp_path).open("bad"))


@pytest.mark.parametrize("file", ["steps.parquet", "bubbles.parquet", "collectives.parquet"])
def test_a_damaged_table_is_named(file: str, tmp_path: Path, rundirs: ModuleType) -> None:
    path = rundirs.write_run(tmp_path, "run")
    (path / file).write_bytes(b"PAR1 not really")
    content, _ = page(RunStore(tmp_path), parse("/run/run", ""))
    assert f"{file}: not a readable Parquet file" in str(content)


def test_numbers_that_json_allows_and_sense_does_not_are_dashes(tmp_path: Path, rundirs: ModuleType) -> None:
    path = rundirs.write_run(tmp_path, "run")
    report = json.loads((path / "report.json").read_text())
    report["arms"]["balance"] |= {"bubble_pct": float("nan"), "straggler_pct": float("inf")}
    (path / "report.json").write_text(json.dumps(report))  # json writes NaN, and reads it back
    shown = write_report(RunStore(tmp_path).open("run")).split("<script")[0]
    assert not re.search(r"\b(nan|inf)\b", shown)
