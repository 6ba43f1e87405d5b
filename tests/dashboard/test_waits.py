"""Who waited for whom: against waits worked out by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from dashboard import exhibits, waits
from dashboard.data import RunStore
from dashboard.figures import waits as figures

MS = 1_000_000


def collective(
    step: int, op: str, ordinal: int, arrivals_ms: list[float], ends_ms: float, **more: object
) -> pd.DataFrame:
    """One collective as the analyzer writes it, a row per rank."""
    arrival = (np.array(arrivals_ms) * MS).astype("int64")
    return pd.DataFrame(
        {
            "arm": "baseline",
            "step": step,
            "group": "0",
            "op": op,
            "ordinal": ordinal,
            "matched": True,
            "rank": np.arange(len(arrival)),
            "bytes": 1000,
            "arrival_ns": arrival,
            "rank_end_ns": int(ends_ms * MS),
            "wait_ns": arrival.max() - arrival,
            "last_rank": int(arrival.argmax()),
            "first_arrival_ns": arrival.min(),
            "last_arrival_ns": arrival.max(),
            "end_ns": int(ends_ms * MS),
            "transfer_ns": int(ends_ms * MS) - arrival.max(),
            **more,
        }
    )


@pytest.fixture
def frame() -> pd.DataFrame:
    """Two steps of three ranks. Step 0: rank 2 is 5 and 3 ms behind the others, then rank 0 is 2 and 2 ms behind.
    Step 1: rank 2 is 1 and 1 ms behind."""
    return pd.concat(
        [
            collective(0, "all_to_all", 0, [0, 2, 5], 7),
            collective(0, "all_reduce", 1, [12, 10, 10], 13),
            collective(1, "all_to_all", 2, [100, 100, 101], 104),
            collective(1, "all_reduce", 3, [110, 110, 110], 111, matched=False, last_rank=-1, bytes=-1),
        ],
        ignore_index=True,
    )


def test_each_wait_is_charged_to_the_last_rank(frame: pd.DataFrame) -> None:
    found = waits.blame(frame, "baseline")
    assert found is not None
    # victim × culprit, over 2 steps
    np.testing.assert_allclose(found.ms, np.array([[0, 0, 5 + 1], [2, 0, 3 + 1], [2, 0, 0]]) / 2)
    assert found.times_last.tolist() == [1, 0, 2]
    assert found.collectives == 3
    assert found.charged_ms.tolist() == [2, 0, 5]
    assert found.waited_ms.tolist() == [3, 3, 1]


def test_nobody_is_blamed_where_nothing_matched(frame: pd.DataFrame) -> None:
    assert waits.blame(frame.assign(matched=False), "baseline") is None
    assert waits.blame(frame, "no such arm") is None
    assert waits.blame(pd.DataFrame(), "baseline") is None


def test_lateness_is_behind_the_first_and_averaged_over_steps(frame: pd.DataFrame) -> None:
    found = waits.skew(frame, "baseline")
    assert found is not None
    assert found.places == ["all_to_all 1 · 0", "all_reduce 1 · 0"]
    np.testing.assert_allclose(found.ms, [[0, 2], [1, 0], [(5 + 1) / 2, 0]])


def test_each_collective_is_one_row(frame: pd.DataFrame) -> None:
    table = waits.each(frame, "baseline")
    assert table["ranks"].tolist() == [3, 3, 3, 3]
    assert table["skew_ms"].tolist() == [5, 2, 1, 0]
    assert table["transfer_ms"].tolist() == [2, 1, 3, 1]
    assert table["bytes"].tolist()[:3] == [1000, 1000, 1000]
    assert np.isnan(table["bytes"].tolist()[3])


def test_kinds_are_totals_per_step_the_costliest_first(frame: pd.DataFrame) -> None:
    table = waits.kinds(frame, "baseline").set_index("op")
    assert table.index.tolist() == ["all_to_all", "all_reduce"]
    assert table.loc["all_to_all", "transfer_ms"] == (2 + 3) / 2
    assert table.loc["all_to_all", "wait_ms"] == pytest.approx(((5 + 3 + 0) / 3 + (1 + 1 + 0) / 3) / 2)
    assert table.loc["all_reduce", "matched"] == 0.5
    assert table.loc["all_reduce", "bytes"] == 500  # one of the two steps' is not known


def test_the_matrix_shows_the_blame_and_leaves_zeros_blank(frame: pd.DataFrame) -> None:
    found = waits.blame(frame, "baseline")
    assert found is not None
    heat, *written = figures.blame_matrix(found).data
    np.testing.assert_allclose(heat.z, found.ms)
    cells = {(y, x): text for trace in written for x, y, text in zip(trace.x, trace.y, trace.text, strict=True)}
    assert cells == {("0", "2"): "3.0", ("1", "0"): "1.0", ("1", "2"): "2.0", ("2", "0"): "1.0"}


def test_of_many_ranks_the_worst_culprits_are_shown(runs_root: Path, names: dict[str, str]) -> None:
    run = RunStore(runs_root).open(names["large"])
    found = waits.blame(run.collectives, "baseline")
    assert found is not None
    heat = figures.blame_matrix(found).data[0]
    assert heat.z.shape[0] == 256
    assert heat.z.shape[1] <= figures.CULPRITS_SHOWN
    charged = heat.z.sum(axis=0)
    assert list(charged) == sorted(charged, reverse=True)
    assert int(heat.x[0]) == int(np.argmax(found.charged_ms))


def test_tokens_against_compute_draws_the_timed_steps(runs_root: Path, names: dict[str, str]) -> None:
    run = RunStore(runs_root).open(names["plain"])
    exhibit = exhibits.build("tokens-compute", run, {})
    assert exhibit is not None
    assert [trace.name for trace in exhibit.figure.data] == ["baseline", "balance"]
    rows = run.steps[(run.steps["arm"] == "baseline") & ~run.steps["warmup"]]
    np.testing.assert_allclose(exhibit.figure.data[0].x, rows["tokens"])
    np.testing.assert_allclose(exhibit.figure.data[0].y, rows["compute_ms"], rtol=1e-6)
    assert exhibit.table.rows[0]["r"] == pytest.approx(np.corrcoef(rows["tokens"], rows["compute_ms"])[0, 1])


def test_arms_without_a_prediction_are_left_out(runs_root: Path, names: dict[str, str]) -> None:
    exhibit = exhibits.build("predicted-measured", RunStore(runs_root).open(names["plain"]), {})
    assert exhibit is not None
    assert [trace.name for trace in exhibit.figure.data] == ["balance"]


def test_collectives_of_unknown_size_are_not_drawn_by_size(frame: pd.DataFrame, runs_root: Path) -> None:
    table = waits.each(frame, "baseline")
    known = table[table["matched"].astype(bool) & (table["bytes"] > 0)]
    from dashboard.figures.collectives import size_against_transfer

    figure = size_against_transfer(known)
    assert sum(len(trace.x) for trace in figure.data) == 3
    assert {trace.name for trace in figure.data} == {"all_to_all", "all_reduce"}
