"""What a calibration reads in traces, against traces written by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from freescale.bench.calibration_traces import attach, exchanges, pause_ns
from freescale.bench.stopwatch import RANGE


def span(category: str, name: str, start_us: float, end_us: float, thread: int = 1) -> dict[str, Any]:
    return {
        "ph": "X", "cat": category, "name": name, "pid": 1, "tid": thread, "ts": start_us, "dur": end_us - start_us
    }  # fmt: skip


def trace(file: Path, rank: int, *events: dict[str, Any]) -> Path:
    head = {"schemaVersion": 1, "distributedInfo": {"backend": "gloo", "rank": rank, "world_size": 2}}
    file.write_text(json.dumps({**head, "host_name": "here", "traceEvents": list(events)}))
    return file


def a_step(late_us: float) -> list[dict[str, Any]]:
    """1 ms: forward with two ops and a call between them, backward that ends by waiting for its reduction."""
    return [
        span("user_annotation", "ProfilerStep#3", 0, 1_000),
        span("user_annotation", f"{RANGE}forward", 100, 400),
        span("cpu_op", "aten::mm", 110, 200),
        span("user_annotation", "freescale.comm all_gather group=data seq=0 bytes=64", 210 + late_us, 250 + late_us),
        span("user_annotation", "gloo:all_gather", 250 + late_us, 330, thread=2),
        span("cpu_op", "aten::add", 300, 390),
        span("user_annotation", f"{RANGE}backward", 400, 900),
        span("cpu_op", "aten::mm", 400, 600),
        span("user_annotation", "freescale.comm all_reduce group=dense seq=0 bytes=400", 620, 640),
        span("user_annotation", "gloo:all_reduce", 640, 880, thread=3),
        span("cpu_op", "aten::mul", 890, 900),
        span("cpu_op", "aten::add", 940, 1_000),
    ]


def test_pieces_are_busy_outside_calls_and_waits_and_pause_where_no_op_computes(tmp_path: Path) -> None:
    rows = [{"piece": piece} for piece in ("forward", "backward", "step")]
    attach(rows, trace(tmp_path / "rank-0.json", 0, *a_step(0)))
    forward, backward, step = rows
    assert (forward["busy_ns"], forward["pause_ns"]) == (260_000, 80_000)  # 300 less the call; ops take 180
    # 500 less the call of 20 and the wait from 640 to 880; ops take 210
    assert (backward["busy_ns"], backward["pause_ns"]) == (240_000, 30_000)
    assert (step["busy_ns"], step["pause_ns"]) == (700_000, 250_000)  # 1,000 less 40, 20 and 240; ops take 450


def test_a_pause_lasts_from_op_to_op_within_forward_or_backward(tmp_path: Path) -> None:
    assert pause_ns(trace(tmp_path / "rank-0.json", 0, *a_step(0))) == 10_000  # calls and waits are in the other gaps
    more = [*a_step(0), span("cpu_op", "aten::relu", 395, 398), span("cpu_op", "aten::exp", 605, 615)]
    assert pause_ns(trace(tmp_path / "rank-0.json", 0, *more)) == pytest.approx((5_000 + 2_000 + 5_000) / 3)


def test_exchanges_are_timed_from_the_last_call(tmp_path: Path) -> None:
    traces = [trace(tmp_path / f"rank-{rank}.json", rank, *a_step(5 * rank)) for rank in range(2)]
    rows = {(row["group"], row["rank"]): row for row in exchanges(traces)}
    assert set(rows) == {("data", 0), ("data", 1), ("dense", 0), ("dense", 1)}
    gathered = rows["data", 0]
    assert (gathered["op"], gathered["nbytes"], gathered["issue_ns"]) == ("all_gather", 64.0, 40_000)
    assert gathered["transfer_ns"] == 330_000 - 215_000
    assert gathered["exposed_ns"] == 300_000 - 215_000
    reduced = rows["dense", 1]
    assert (reduced["transfer_ns"], reduced["exposed_ns"]) == (880_000 - 620_000, 880_000 - 620_000)
