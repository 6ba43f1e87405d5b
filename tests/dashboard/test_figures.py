"""What a figure shows is what the report and the frames say, read back from the figure itself."""

from __future__ import annotations

import json
from pathlib import Path
from types import ModuleType

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import pytest

from dashboard import exhibits, measures
from dashboard.data import Run, RunStore, open_run
from dashboard.exhibit import Exhibit
from dashboard.theme import CLASSES

KEYS = [item.key for item in CLASSES]


@pytest.fixture
def run(runs_root: Path, names: dict[str, str]) -> Run:
    return RunStore(runs_root).open(names["eight"])


def built(key: str, run: Run, **choices: str) -> Exhibit:
    exhibit = exhibits.build(key, run, choices)
    assert exhibit is not None
    return exhibit


def bars(figure: go.Figure, name: str) -> list[go.Bar]:
    return [trace for trace in figure.data if trace.type == "bar" and trace.name == name]


def test_step_time_bars_and_whiskers_are_the_reports(run: Run) -> None:
    figure = built("step-time", run).figure
    (bar,) = bars(figure, "Median")
    report = json.loads((run.directory.path / "report.json").read_text())
    steps = [report["arms"][arm]["step_ms"] for arm in run.arms]
    assert list(figure.layout.yaxis.ticktext) == run.arms
    assert list(bar.x) == [step["median"] for step in steps]
    np.testing.assert_allclose(np.add(bar.x, bar.error_x.array), [step["ci95"][1] for step in steps])
    np.testing.assert_allclose(np.subtract(bar.x, bar.error_x.arrayminus), [step["ci95"][0] for step in steps])
    assert figure.layout.xaxis.rangemode == "tozero"


def test_no_whisker_where_there_is_no_interval(runs_root: Path, names: dict[str, str]) -> None:
    figure = built("step-time", RunStore(runs_root).open(names["raw"])).figure
    (bar,) = bars(figure, "Median")
    assert bar.error_x.visible is False


def test_block_dots_are_medians_of_the_slowest_rank(tmp_path: Path, rundirs: ModuleType) -> None:
    run = open_run(rundirs.write_run(tmp_path, "run", ranks=2, blocks=1, steps=5))
    rows = []
    for step, (first, second) in enumerate([(90, 90), (90, 90), (10, 30), (40, 20), (50, 70)]):  # 2 warm-up steps
        rows += [(0, "baseline", step, 0, step < 2, first), (0, "baseline", step, 1, step < 2, second)]
    frame = pd.DataFrame(rows, columns=["block", "arm", "step", "rank", "warmup", "step_ms"])
    medians = measures.block_medians(frame, run.world_size)
    assert medians.to_dict("records") == [{"block": 0, "arm": "baseline", "step_ms": 40.0, "n": 3}]


def test_a_step_that_a_rank_did_not_finish_does_not_count() -> None:
    frame = pd.DataFrame(
        [(0, "a", 0, 0, False, 10.0), (0, "a", 0, 1, False, 12.0), (0, "a", 1, 0, False, 500.0)],
        columns=["block", "arm", "step", "rank", "warmup", "step_ms"],
    )
    assert measures.step_times(frame, 2)["step_ms"].tolist() == [12.0]


def test_arm_split_stacks_the_reports_classes(run: Run) -> None:
    exhibit = built("arm-split", run)
    arm = run.arm("balance")
    at = run.arms.index("balance")
    drawn = {item.key: bars(exhibit.figure, item.label)[0].x[at] for item in CLASSES}
    assert drawn["compute"] == arm["compute_ms"]
    assert drawn["exposed_comm"] == arm["exposed_comm_ms"]
    assert drawn["straggler"] == pytest.approx(arm["exposed_total_ms"] - arm["exposed_comm_ms"])
    assert drawn["exposed_copy"] == arm["exposed_copy_ms"]
    assert drawn["host"] == arm["host_ms"]
    assert [trace.marker.color for trace in exhibit.figure.data[:5]] == [item.colour for item in CLASSES]


def test_shares_of_an_arm_add_up_to_a_hundred(run: Run) -> None:
    figure = built("arm-split", run, unit="pct").figure
    total = np.sum([bars(figure, item.label)[0].x for item in CLASSES], axis=0)
    np.testing.assert_allclose(total, 100)


@pytest.mark.parametrize("which", ["plain", "eight", "large"])
def test_rank_split_adds_up_to_the_window_of_every_rank(which: str, runs_root: Path, names: dict[str, str]) -> None:
    run = RunStore(runs_root).open(names[which])
    exhibit = built("rank-split", run)
    focus = run.focus()
    rows = run.bubbles[run.bubbles["arm"] == focus]
    window = rows.groupby("rank")["window_ns"].mean().to_numpy() / 1e6
    panel = [trace for trace in exhibit.figure.data if trace.name in {item.label for item in CLASSES}][5:10]
    values = [trace.x if getattr(trace, "orientation", None) == "h" else trace.y for trace in panel]
    np.testing.assert_allclose(np.sum(values, axis=0), window, rtol=1e-6)
    straggler = rows.groupby("rank")["straggler_ns"].mean().to_numpy() / 1e6
    np.testing.assert_allclose(values[1], straggler, rtol=1e-6)
    table = pd.DataFrame(exhibit.table.rows)
    np.testing.assert_allclose(table[table["arm"] == focus][KEYS].sum(axis=1), window, rtol=1e-9)


def test_heatmap_cells_are_the_frames_values(run: Run) -> None:
    exhibit = built("rank-steps", run, measure="bubble", arm="balance")
    heat = exhibit.figure.data[0]
    rows = run.bubbles[run.bubbles["arm"] == "balance"].set_index(["rank", "step"])
    for i, rank in enumerate(heat.y):
        for j, place in enumerate(heat.x):
            row = rows.loc[(rank, int(place.removeprefix("step ")))]
            assert heat.z[i][j] == pytest.approx((row["window_ns"] - row["compute_ns"]) / 1e6, rel=1e-6)


def test_heatmap_of_timed_steps_leaves_warm_up_out(run: Run) -> None:
    exhibit = built("rank-steps", run, measure="compute", arm="baseline")
    rows = run.steps[(run.steps["arm"] == "baseline") & ~run.steps["warmup"]]
    assert exhibit.figure.data[0].z.shape == (8, len(rows) // 8)
    assert exhibit.table.rows[3]["max"] == pytest.approx(rows[rows["rank"] == 3]["compute_ms"].max())


def test_paired_blocks_draw_a_line_per_block(run: Run) -> None:
    exhibit = built("paired-blocks", run)
    assert len(exhibit.figure.data) == run.manifest["blocks"]
    medians = measures.block_medians(run.steps, run.world_size).set_index(["block", "arm"])["step_ms"]
    assert list(exhibit.figure.data[2].y) == [medians[(2, arm)] for arm in run.arms]


@pytest.mark.parametrize("key", exhibits.BUILDERS)
def test_choices_that_do_not_exist_fall_back(key: str, runs_root: Path, names: dict[str, str]) -> None:
    run = RunStore(runs_root).open(names["ablation" if key in exhibits.ABLATION else "plain"])
    nonsense = {"unit": "<b>", "arm": "no such arm", "measure": "no such measure", "step": "x", "ranks": "9,-1,x"}
    plain, odd = built(key, run), exhibits.build(key, run, nonsense)
    assert odd is not None
    assert odd.choices == plain.choices
    assert set(odd.options) <= set(odd.choices)


@pytest.mark.parametrize("key", exhibits.BUILDERS)
def test_every_exhibit_says_its_provenance(key: str, runs_root: Path, names: dict[str, str]) -> None:
    exhibit = exhibits.build(key, RunStore(runs_root).open(names["large"]), {})
    assert exhibit is None or exhibit.source.startswith("simulated")


@pytest.mark.parametrize("key", exhibits.BUILDERS)
def test_names_in_figures_are_no_markup(key: str, runs_root: Path, names: dict[str, str], rundirs: ModuleType) -> None:
    exhibit = exhibits.build(key, RunStore(runs_root).open(names["evil"]), {})
    assert exhibit is None or rundirs.HOSTILE not in exhibit.figure.to_json().replace("\\u003c", "<")
