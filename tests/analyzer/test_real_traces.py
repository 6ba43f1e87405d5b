"""Traces that nobody here made, against what independent tools say about them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from analyzer import analyze, read_trace
from analyzer.bubbles import CLASSES
from analyzer.lanes import Lane

pytestmark = pytest.mark.traces


def test_dlrm_host_time_is_the_idle_time_that_hta_finds(traces: Path) -> None:
    bubbles = analyze(traces / "dlrm-8xv100").arm().tables.bubbles
    assert bubbles["rank"].tolist() == list(range(8))
    idle_us = np.array([6419, 6428, 7046, 8145, 8887, 9121, 7051, 8308])
    assert np.abs(bubbles["host_ns"] / 1e3 - idle_us).max() <= 1
    assert (bubbles[list(CLASSES)].sum(axis=1) == bubbles["window_ns"]).all()


def test_dlrm_collectives_are_matched_by_order_and_the_late_ranks_named(traces: Path) -> None:
    tables = analyze(traces / "dlrm-8xv100").arm().tables
    collectives = tables.collectives
    assert collectives["matched"].all()
    one_each = collectives.drop_duplicates(["op", "ordinal"])
    assert one_each["op"].value_counts().to_dict() == {"all_to_all": 5, "all_reduce": 3}
    assert one_each["last_rank"].value_counts().to_dict() == {7: 5, 5: 2, 4: 1}
    skew_us = (one_each["last_arrival_ns"] - one_each["first_arrival_ns"]) / 1e3
    assert skew_us.min() == pytest.approx(125, abs=5)
    assert skew_us.max() == pytest.approx(7624, abs=5)
    assert tables.clocks.residual_ns <= 7_000


def test_dlrm_headline_names_victim_culprit_and_lateness(traces: Path) -> None:
    text = analyze(traces / "dlrm-8xv100").headline
    assert text.startswith("58 % of rank 1's step waits")
    assert "rank 7, which starts its all-to-all up to 7.6 ms late" in text


def test_sampled_ranks_share_exactly_the_collectives_that_end_together(traces: Path) -> None:
    report = analyze(traces / "sampled-2of128")
    shared = report.arm().tables.collectives.groupby(["group", "op", "ordinal"]).filter(lambda rows: len(rows) == 2)
    pairs = [rows for _, rows in shared.groupby(["group", "op", "ordinal"])]
    assert len(pairs) == 5
    for rows in pairs:
        assert np.ptp(rows["rank_end_ns"]) <= 0.01 * (rows["rank_end_ns"] - rows["arrival_ns"]).min()
        assert rows["arrival_ns"].max() < rows["rank_end_ns"].min()
    assert (report.arm().tables.collectives["last_rank"] == -1).all()  # 126 ranks could have been later
    assert any("126 of 128 ranks have no trace here" in note for note in report.arm().warnings)


def test_collective_arguments_give_group_and_bytes(traces: Path) -> None:
    report = analyze(traces / "nccl-args-1of2")
    collectives = report.arm().tables.collectives
    assert set(collectives["group"]) == {"default_pg"}
    assert set(collectives["op"]) == {"all_reduce", "broadcast"}
    assert (collectives["bytes"] > 0).all()
    assert report.arm().tables.bubbles["step"].tolist() == [4, 5, 6]


def test_nanoseconds_survive(traces: Path) -> None:
    timeline = read_trace(next((traces / "ns-resolution").iterdir()))
    kernels = timeline.in_lane(Lane.COMPUTE)
    assert (timeline.start_ns[kernels] % 1000 != 0).mean() > 0.9
    stream = timeline.stream[kernels]
    for one in np.unique(stream):  # kernels of one stream never overlap, not by a nanosecond
        mine = np.flatnonzero(kernels)[stream == one]
        assert (timeline.start_ns[mine[1:]] >= timeline.end_ns[mine[:-1]]).all()


def test_gloo_spans_without_calls_are_communication_that_could_not_be_matched(traces: Path) -> None:
    report = analyze(traces / "gloo-cpu-only")
    assert report.arm().world_size == 300
    bubble = report.arm().tables.bubbles.iloc[0]
    assert bubble["exposed_comm_ns"] > 0
    assert bubble["straggler_ns"] == 0
    assert any("10 of 10 collectives could not be matched" in note for note in report.arm().warnings)


@pytest.mark.parametrize(
    ("folder", "rank", "note"),
    [
        ("no-rank", 0, "does not say which rank it is; taken as rank 0"),
        ("no-distributed-info", 0, "does not say which rank it is; taken as rank 0"),
        ("no-gpu", 0, None),
        ("rocm", 0, "does not say which rank it is"),
    ],
)
def test_missing_facts_are_said_and_the_rest_is_analysed(
    traces: Path, folder: str, rank: int, note: str | None
) -> None:
    report = analyze(traces / folder)
    assert report.arm().tables.ranks == [rank]
    assert (report.arm().tables.bubbles["window_ns"] > 0).all()
    assert note is None or any(note in warning for warning in report.arm().warnings)


def test_hip_names_make_a_rocm_timeline(traces: Path) -> None:
    timeline = read_trace(next((traces / "rocm").iterdir()))
    assert timeline.info.device == "rocm"
    assert timeline.in_lane(Lane.COMPUTE).sum() == 14
    assert timeline.in_lane(Lane.COPY).sum() == 2
