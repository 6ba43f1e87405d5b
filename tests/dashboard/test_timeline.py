"""One step on one clock: planted intervals come out where they were planted."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzer import analyze, rundir
from analyzer.lanes import Lane
from dashboard import exhibits
from dashboard.app import drawn, page
from dashboard.data import RunStore, open_run
from dashboard.figures.timeline import TRANSFER, RankRows, step_timeline
from dashboard.lanes import Lanes, bars
from dashboard.pages.links import parse

TRACES = Path(os.environ.get("FREESCALE_TRACES", Path(__file__).resolve().parents[3] / "shared" / "traces"))


def lanes_of(intervals: list[tuple[int, int]]) -> Lanes:
    ordered = sorted(intervals)
    start, end = (np.array([pair[i] for pair in ordered], np.int64) for i in (0, 1))
    names = tuple(f"op{i}" for i in range(len(ordered)))
    return Lanes(start, end, np.zeros(len(ordered), np.uint8), np.arange(len(ordered), dtype=np.int32), names, {})


def covered(intervals: list[tuple[int, int]], low: int, high: int) -> int:
    """Nanoseconds of [low, high) inside any interval, one by one."""
    return sum(any(start <= at < end for start, end in intervals) for at in range(low, high))


INTERVALS = st.lists(
    st.tuples(st.integers(0, 60), st.integers(1, 20)).map(lambda pair: (pair[0], sum(pair))), max_size=12
)


@given(INTERVALS, st.integers(1, 8))
def test_thinning_loses_no_time_and_no_interval(intervals: list[tuple[int, int]], finest: int) -> None:
    low, high = 5, 70
    table = bars(lanes_of(intervals), Lane.COMPUTE, low, high, finest)
    inside = [pair for pair in intervals if pair[1] > low and pair[0] < high]
    assert table["count"].sum() == len(inside)
    assert round(table["busy_ms"].sum() * 1e6) == covered(inside, low, high)
    ends = (table["start_ms"] + table["ms"]).to_numpy()
    gaps = table["start_ms"].to_numpy()[1:] - ends[:-1]
    assert (np.round(gaps * 1e6) >= finest).all()
    assert (table["ms"] >= table["busy_ms"] - 1e-12).all()


def test_a_bar_is_named_after_its_longest_interval() -> None:
    table = bars(lanes_of([(0, 10), (11, 40), (41, 45), (90, 95)]), Lane.COMPUTE, 0, 100, 5)
    assert table["name"].tolist() == ["op1", "op3"]
    assert table["count"].tolist() == [3, 1]


def test_planted_compute_lies_where_it_was_planted(runs_root: Path, names: dict[str, str], rundirs: ModuleType) -> None:
    run = RunStore(runs_root).open(names["plain"])
    exhibit = exhibits.build("timeline", run, {"arm": "baseline", "step": "6", "ranks": "0,1"})
    assert exhibit is not None
    rows = run.bubbles[(run.bubbles["arm"] == "baseline") & (run.bubbles["step"] == 6)].set_index("rank")
    begin = rows["start_ns"].min()
    compute = [trace for trace in exhibit.figure.data if trace.name == "Compute"]
    assert len(compute) == 2
    for rank, trace in enumerate(compute):
        own = (rows.loc[rank, "start_ns"] - begin) / 1e6
        np.testing.assert_allclose(trace.base, [own + after for _, after, _ in rundirs.PLANTED], atol=1e-3)
        np.testing.assert_allclose(trace.x, [length for _, _, length in rundirs.PLANTED], atol=1e-3)


def test_collectives_are_cut_at_the_last_arrival(runs_root: Path, names: dict[str, str]) -> None:
    run = RunStore(runs_root).open(names["plain"])
    exhibit = exhibits.build("timeline", run, {"arm": "baseline", "step": "5", "ranks": "0,1"})
    assert exhibit is not None
    waited = [trace for trace in exhibit.figure.data if trace.name == "Waiting for the last rank"]
    for rank, trace in enumerate(waited):
        rows = run.collectives[(run.collectives["arm"] == "baseline") & (run.collectives["rank"] == rank)]
        rows = rows[rows["step"] == 5]
        np.testing.assert_allclose(np.sort(trace.x), np.sort(rows["wait_ns"] / 1e6))
    assert len(exhibit.table.rows) == sum(len(trace.x) for trace in waited)


def rank_rows(rank: int, *collectives: tuple[str, float, float]) -> RankRows:
    """Collectives as (group, start, transfer) in ms."""
    nothing = pd.DataFrame(columns=["start_ms", "ms", "busy_ms", "count", "name"])
    rows = pd.DataFrame(collectives, columns=["group", "start_ms", "transfer_ms"])
    return RankRows(rank, nothing, nothing, rows.assign(wait_ms=0.0, what=rows["group"], last_rank=0), (0.0, 100.0))


def transfers(figure: Any) -> dict[str, list[float]]:
    """Label of each row -> starts of the transfers in it."""
    labels = figure.layout.yaxis.ticktext
    found: dict[str, list[float]] = {}
    for trace in figure.data:
        if trace.name == TRANSFER:
            for place, start in zip(trace.y, trace.base, strict=True):
                found.setdefault(labels[place], []).append(start)
    return found


def test_every_process_group_has_a_row_in_the_order_of_first_use() -> None:
    figure = step_timeline(
        [rank_rows(0, ("dense", 50, 9), ("urgent", 61, 1)), rank_rows(1, ("ids", 1, 2), ("urgent", 62, 1))]
    )
    kinds = ("compute", "ids", "dense", "urgent")
    assert list(figure.layout.yaxis.ticktext) == [f"rank {rank} · {kind}" for rank in (0, 1) for kind in kinds]
    assert transfers(figure) == {
        "rank 0 · dense": [50], "rank 0 · urgent": [61], "rank 1 · ids": [1], "rank 1 · urgent": [62],
    }  # fmt: skip


def test_of_many_groups_those_with_least_to_show_share_a_row() -> None:
    named = [(f"group{number}", float(number), 10.0 - number) for number in range(8)]
    figure = step_timeline([rank_rows(0, *named)])
    rows = [f"rank 0 · group{number}" for number in range(5)]
    assert list(figure.layout.yaxis.ticktext) == ["rank 0 · compute", *rows, "rank 0 · other groups"]
    assert transfers(figure)["rank 0 · other groups"] == [5, 6, 7]


@pytest.mark.parametrize("name", ["compute", "copy", "other groups", "<b>bold</b>", "a" * 60])
def test_a_groups_name_is_no_markup_and_no_other_rows(name: str) -> None:
    labels = step_timeline([rank_rows(0, (name, 1, 1))]).layout.yaxis.ticktext
    assert len(set(labels)) == 2
    assert all("<b>" not in label and len(label) < 45 for label in labels)


def test_the_outline_reads_no_trace(tmp_path: Path, rundirs: ModuleType) -> None:
    path = rundirs.write_run(tmp_path, "run", traces=True)
    for trace in path.glob("traces/*/*"):
        trace.write_bytes(b"not a trace")
    run = open_run(path)
    planned = exhibits.outline("timeline", run, {})
    assert planned is not None
    assert planned.choices == {"arm": "balance", "step": "5", "ranks": "0,1"}


def test_a_damaged_trace_is_named_on_the_card(tmp_path: Path, rundirs: ModuleType) -> None:
    path = rundirs.write_run(tmp_path, "run", traces=True)
    trace = path / "traces" / "balance" / "rank-00001.json.gz"
    trace.write_bytes(b"not a trace")
    figure, note, _, _ = drawn(RunStore(tmp_path), {"run": "run", "exhibit": "timeline", "choices": {}})
    assert "rank-00001" in note
    assert figure["layout"]["annotations"][0]["text"] == "Cannot be drawn"


def test_ranks_shown_first_are_those_that_tell_the_story(tmp_path: Path, rundirs: ModuleType) -> None:
    run = open_run(rundirs.write_run(tmp_path, "run", ranks=9, traces=True))
    planned = exhibits.outline("timeline", run, {"arm": "baseline", "step": "5"})
    assert planned is not None
    rows = run.bubbles[(run.bubbles["arm"] == "baseline") & (run.bubbles["step"] == 5)]
    order = rows.sort_values("straggler_ns")["rank"].tolist()
    assert planned.choices["ranks"] == ",".join(map(str, sorted([*order[:2], *order[-2:]])))


def test_a_run_without_traces_has_no_timeline(runs_root: Path, names: dict[str, str]) -> None:
    assert exhibits.build("timeline", RunStore(runs_root).open(names["eight"]), {}) is None
    content, _ = page(RunStore(runs_root), parse(f"/run/{names['eight']}/timeline", ""))
    assert "recorded nothing to show here" in str(content)


@pytest.mark.traces
def test_real_gpu_traces_become_a_timeline(tmp_path: Path) -> None:
    source = TRACES / "dlrm-8xv100"
    if not source.is_dir():
        pytest.skip(f"no traces at {source}; set FREESCALE_TRACES")
    path = tmp_path / "dlrm"
    arm = path / "traces" / "baseline"
    arm.mkdir(parents=True)
    for file in source.glob("*.json.gz"):
        shutil.copy(file, arm / f"rank-{int(file.name[6]):05d}.json.gz")
    manifest = {"schema": 1, "provenance": "measured", "complete": True, "arms": ["baseline"], "world_size": 8}
    rundir.write_json(path / "manifest.json", manifest)
    analyze(path)
    run = open_run(path)
    exhibit = exhibits.build("timeline", run, {"ranks": "0,7"})
    assert exhibit is not None
    transfers = [trace for trace in exhibit.figure.data if trace.name == "Transfer"]
    assert [len(trace.x) for trace in transfers] == [8, 8]
    compute = [trace for trace in exhibit.figure.data if trace.name == "Compute"]
    busy = sum(row[1] for row in compute[0].customdata)
    assert busy == pytest.approx(run.bubbles.set_index("rank").loc[0, "compute_ns"] / 1e6, rel=1e-6)
    assert exhibits.build("blame", run, {}) is not None
