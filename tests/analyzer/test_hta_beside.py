"""HTA beside ours on real traces: the numbers that mean the same agree, the others are explained."""

from __future__ import annotations

from pathlib import Path

import pytest
from kineto_text import TraceText

from analyzer import AnalyzerError, analyze

pytestmark = pytest.mark.traces


@pytest.mark.parametrize(
    ("folder", "ranks", "rounding"),
    [
        ("dlrm-8xv100", [1, 7], 0.0),  # whole microseconds: no difference at all
        ("sampled-2of128", [0, 1], 0.0),
        ("nccl-args-1of2", [0], 1.0),  # HTA rounds both ends of each of thousands of intervals
        ("ns-resolution", [0], 1.0),
    ],
)
def test_our_compute_and_busy_time_are_htas(traces: Path, folder: str, ranks: list[int], rounding: float) -> None:
    report = analyze(traces / folder, ranks=ranks, hta=True)
    hta = report.as_json()["hta"]
    assert hta["ranks"] == ranks
    ours = report.arm().tables.bubbles.groupby("rank").sum(numeric_only=True) / 1e3
    for row in hta["temporal"]:
        mine = ours.loc[row["rank"]]
        busy = mine["window_ns"] - mine["host_ns"]
        intervals = 6000 if rounding else 0
        assert row["kernel_time_us"] == pytest.approx(mine["window_ns"], abs=2)
        assert row["compute_time_us"] == pytest.approx(mine["compute_ns"], abs=1 + rounding * intervals)
        assert row["compute_time_us"] + row["non_compute_time_us"] == pytest.approx(busy, abs=1 + rounding * intervals)
    explained = [note for note in hta["differences"] if "rounds times to whole µs" in note]
    assert bool(explained) == bool(rounding)


def test_waiting_is_named_as_the_difference(traces: Path) -> None:
    report = analyze(traces / "dlrm-8xv100", hta=True)
    hta = report.as_json()["hta"]
    assert hta["ranks"] == [1, 7]  # the rank that waits most, and the one it waits for
    assert any(
        "rank 1: HTA's non-compute time holds 10.8" in note and "straggler" in note for note in hta["differences"]
    )
    assert [path["rank"] for path in hta["critical_path"]] == [1, 7]
    assert all(sum(path["bound_by"].values()) == pytest.approx(1) for path in hta["critical_path"])
    assert {row["idle_category"] for row in hta["idle"]} <= {"host_wait", "kernel_wait", "other"}


def test_without_device_events_hta_cannot_help_and_says_so(tmp_path: Path) -> None:
    text = TraceText(world_size=1)
    text.op("aten::mm", 10**18, 10**18 + 1000)
    with pytest.raises(AnalyzerError, match="HTA looks at device events"):
        analyze(text.write(tmp_path / "rank0.json"), hta=True)
