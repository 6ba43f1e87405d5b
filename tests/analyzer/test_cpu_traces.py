"""CPU traces: what computes, when a rank arrives and when a collective is over, on cases worked out by hand."""

from __future__ import annotations

from pathlib import Path

import pytest
from kineto_text import AUTOGRAD, MAIN, TraceText

from analyzer import analyze, read_trace
from analyzer.lanes import Lane
from analyzer.timeline import Flag

T0 = 1_700_000_000_000_000_000
US = 1_000
WORKER, OTHER_WORKER = 5001, 5002


def us(*values: float) -> list[int]:
    return [T0 + int(value * US) for value in values]


def cpu_trace(rank: int = 0, world_size: int = 2, **metadata: object) -> TraceText:
    text = TraceText(rank, world_size, **metadata)
    text.metadata["distributedInfo"]["backend"] = "gloo"
    return text


def blocking_step(rank: int, late_us: int) -> TraceText:
    """Compute 100 µs (+ late), a blocking all-to-all that is over at 400, compute to 500, nothing until 520."""
    text = cpu_trace(rank, host_name="box")
    text.step(3, *us(0, 520))
    text.op("aten::mm", *us(0, 100 + late_us))
    call = 100 + late_us
    text.mark("freescale.comm all_to_all group=embedding seq=0 bytes=64", *us(call, call + 10))
    text.op("c10d::alltoall_base_", *us(call + 2, call + 8))
    text.op("aten::empty", *us(call + 3, call + 4))
    text.mark("freescale.wait all_to_all group=embedding seq=0", *us(call + 10, 410))
    text.op("aten::copy_", *us(402, 409))  # unpacking inside the wait
    text.mark("gloo:all_to_all", *us(call + 50, 400), tid=WORKER)
    text.op("aten::add", *us(410, 500))
    return text


def test_a_blocking_collective_splits_into_waiting_and_transfer(tmp_path: Path) -> None:
    for rank, late in ((0, 0), (1, 150)):
        blocking_step(rank, late).write(tmp_path / f"rank{rank}.json")
    tables = analyze(tmp_path).arm().tables
    assert tables.clocks.method == "one host"
    on_time, late = (tables.bubbles[tables.bubbles["rank"] == rank].iloc[0] for rank in (0, 1))
    # rank 0 calls at 100 and waits until rank 1 calls at 250; both are in the call or the wait until 410
    assert on_time["compute_ns"] == (100 + 90) * US
    assert on_time["straggler_ns"] == 150 * US
    assert on_time["exposed_comm_ns"] == (410 - 250) * US
    assert on_time["host_ns"] == 20 * US
    assert late["compute_ns"] == (250 + 90) * US
    assert late["straggler_ns"] == 0
    assert late["exposed_comm_ns"] == 160 * US
    assert late["host_ns"] == 20 * US
    assert tables.blame_ns.tolist() == [[0, 150 * US], [0, 0]]
    collective = tables.collectives.iloc[0]
    assert (collective["group"], collective["op"], collective["ordinal"], collective["bytes"]) == (
        "embedding", "all_to_all", 0, 64,
    )  # fmt: skip
    assert collective["last_rank"] == 1
    assert collective["end_ns"] == T0 + 400 * US
    assert collective["transfer_ns"] == 150 * US


def test_ranges_that_the_profiler_took_for_operators_mean_the_same(tmp_path: Path) -> None:
    for kind in ("annotations", "operators"):
        text = blocking_step(0, 0)
        for event in text.events:
            if kind == "operators" and event["name"].startswith("freescale."):
                event["cat"] = "cpu_op"
        text.write(tmp_path / f"{kind}.json")
    annotations, operators = (read_trace(tmp_path / f"{kind}.json") for kind in ("annotations", "operators"))
    for column in ("start_ns", "end_ns", "lane", "flags"):
        assert getattr(annotations, column).tolist() == getattr(operators, column).tolist(), column


def test_a_span_that_starts_late_is_queueing_and_not_lateness(tmp_path: Path) -> None:
    for rank, picked_up in ((0, 60), (1, 190)):  # both call at 50; rank 1's gloo thread is busy
        text = cpu_trace(rank, host_name="box")
        text.step(1, *us(0, 300))
        text.op("aten::mm", *us(0, 50))
        text.mark("freescale.comm all_to_all group=g seq=5 bytes=1", *us(50, 55))
        text.mark("freescale.wait all_to_all group=g seq=5", *us(55, 300))
        text.mark("gloo:all_to_all", *us(picked_up, 298), tid=WORKER)
        text.write(tmp_path / f"rank{rank}.json")
    bubbles = analyze(tmp_path).arm().tables.bubbles
    assert bubbles["straggler_ns"].tolist() == [0, 0]
    assert bubbles["exposed_comm_ns"].tolist() == [250 * US, 250 * US]


def test_a_wait_inside_autograd_does_not_count_as_compute(tmp_path: Path) -> None:
    text = cpu_trace(world_size=1)
    text.step(1, *us(0, 100))
    text.op("autograd::engine::evaluate_function: _AllToAllBackward", *us(0, 80))
    text.op("_AllToAllBackward", *us(1, 79))  # a function of the model's own: one op, less what it calls and waits for
    text.op("aten::mm", *us(2, 10))
    text.mark("freescale.comm all_to_all group=g seq=1 bytes=1", *us(12, 20))
    text.op("c10d::alltoall_base_", *us(13, 18))
    text.mark("freescale.wait all_to_all group=g seq=1", *us(20, 70))
    text.mark("gloo:all_to_all", *us(15, 69), tid=WORKER)
    text.op("aten::cat", *us(71, 78))
    bubbles = analyze(text.write(tmp_path / "rank0.json")).arm().tables.bubbles
    assert bubbles["compute_ns"].tolist() == [(78 - (70 - 12)) * US]
    assert bubbles["exposed_comm_ns"].tolist() == [(70 - 12) * US]


def test_a_function_of_the_models_own_is_one_op_in_both_directions(tmp_path: Path) -> None:
    text = cpu_trace(world_size=1)
    text.step(1, *us(0, 300))
    text.op("_Attention", *us(0, 100))
    text.op("aten::bmm", *us(10, 20))
    text.op("autograd::engine::evaluate_function: _AttentionBackward", *us(100, 200))
    text.op("_AttentionBackward", *us(105, 195))  # Python between its ops is part of it, as in the forward
    text.op("aten::bmm", *us(110, 120))
    text.op("autograd::engine::evaluate_function: MmBackward0", *us(200, 280))
    text.op("MmBackward0", *us(205, 275))
    text.op("aten::mm", *us(210, 270))
    bubbles = analyze(text.write(tmp_path / "rank0.json")).arm().tables.bubbles
    assert bubbles["compute_ns"].tolist() == [(100 + 90 + 60) * US]
    assert bubbles["host_ns"].tolist() == [50 * US]


def test_waiting_for_ddp_leaves_a_gap_that_its_all_reduce_fills(tmp_path: Path) -> None:
    text = cpu_trace(world_size=1)
    text.step(1, *us(0, 200))
    text.op("autograd::engine::evaluate_function: torch::autograd::AccumulateGrad", *us(0, 50))
    text.op("aten::mul", *us(5, 30))
    text.op("c10d::allreduce_", *us(35, 45))
    text.mark("gloo:all_reduce", *us(60, 150), tid=WORKER)
    text.op("aten::add", *us(150, 180))
    report = analyze(text.write(tmp_path / "rank0.json"))
    bubbles = report.arm().tables.bubbles
    assert bubbles["compute_ns"].tolist() == [(25 + 30) * US]
    assert bubbles["exposed_comm_ns"].tolist() == [(150 - 35) * US]  # from the call to the end of the span
    assert report.arm().tables.collectives["group"].tolist() == ["unnamed"]


def test_ops_of_other_threads_are_not_the_training_threads_compute(tmp_path: Path) -> None:
    text = cpu_trace(world_size=1)
    text.step(1, *us(0, 100))
    text.op("aten::mm", *us(0, 10))
    text.op("aten::mm", *us(0, 90), tid=AUTOGRAD)
    assert analyze(text.write(tmp_path / "rank0.json")).arm().tables.bubbles["compute_ns"].tolist() == [10 * US]


def moved_step(rank: int) -> TraceText:
    """A transport without workers: bytes move in the issuing and in the waiting range of the training thread."""
    text = cpu_trace(rank, host_name="box")
    text.step(1, *us(0, 400))
    text.op("aten::mm", *us(0, 100 + 50 * rank))
    call = 100 + 50 * rank
    text.mark("freescale.comm all_to_all group=bulk seq=7 bytes=256", *us(call, call + 30))
    text.mark("freescale.move all_to_all group=bulk seq=7 bytes=128", *us(call + 5, call + 25))
    text.op("aten::copy_", *us(call + 6, call + 20))
    text.op("aten::mm", *us(200, 250))
    text.mark("freescale.wait all_to_all group=bulk seq=7", *us(260, 300))
    text.mark("freescale.move all_to_all group=bulk seq=7 bytes=128", *us(280, 295))
    return text


def test_a_collective_moved_by_the_ranks_themselves_is_over_with_its_last_move_or_wait(tmp_path: Path) -> None:
    for rank in (0, 1):
        moved_step(rank).write(tmp_path / f"rank{rank}.json")
    report = analyze(tmp_path)
    tables = report.arm().tables
    assert not report.arm().warnings
    assert tables.collectives["rank_end_ns"].tolist() == us(300, 300)
    assert tables.collectives["arrival_ns"].tolist() == us(100, 150)
    # Moving and waiting are communication, even where an op inside copies: rank 0 issues from 100 to 130, before rank 1
    # has arrived; rank 1 from 150 to 180; both wait from 260 to 300.
    assert tables.bubbles["compute_ns"].tolist() == [150 * US, 200 * US]
    assert tables.bubbles["straggler_ns"].tolist() == [30 * US, 0]
    assert tables.bubbles["exposed_comm_ns"].tolist() == [40 * US, (30 + 40) * US]
    # Between them nobody moves anything: what else the thread does then is not the collective's doing.
    assert tables.bubbles["host_ns"].tolist() == [(400 - 150 - 30 - 40) * US, (400 - 200 - 70) * US]


@pytest.mark.parametrize(
    ("span", "late_ns", "end"), [((270, 270), 20_000, 250), ((220, 250), 0, 250), ((60, 60), 9, 90)]
)
def test_an_emulated_link_ends_a_collective_when_it_delivers_not_when_that_is_seen(
    span: tuple[int, int], late_ns: int, end: int, tmp_path: Path
) -> None:
    text = cpu_trace(world_size=1)
    text.step(1, *us(0, 400))
    text.op("aten::mm", *us(0, 10))
    text.mark("freescale.comm all_to_all group=g seq=1 bytes=1", *us(10, 20))
    text.mark("gloo:all_to_all", *us(30, 90), tid=WORKER)
    text.mark(f"freescale.link all_to_all group=g seq=1 late_ns={late_ns}", *us(*span))
    timeline = read_trace(text.write(tmp_path / "rank0.json"))
    assert timeline.end_ns[timeline.collectives[0]] == T0 + end * US


def test_an_emulated_link_is_under_way_although_the_ranks_move_the_bytes_themselves(tmp_path: Path) -> None:
    for rank in (0, 1):
        text = cpu_trace(rank, host_name="box")
        text.step(1, *us(0, 400))
        text.op("aten::mm", *us(0, 100))
        text.mark("freescale.comm all_to_all group=g seq=1 bytes=8", *us(100, 120))
        text.mark("freescale.move all_to_all group=g seq=1 bytes=8", *us(105, 115))
        text.op("aten::mm", *us(150, 300))
        text.mark("freescale.wait all_to_all group=g seq=1", *us(320, 350))
        text.mark("freescale.move all_to_all group=g seq=1 bytes=8", *us(325, 335))
        text.mark("freescale.link all_to_all group=g seq=1 late_ns=140000", *us(340, 341))  # delivered at 200
        text.write(tmp_path / f"rank{rank}.json")
    tables = analyze(tmp_path).arm().tables
    assert tables.collectives["rank_end_ns"].tolist() == us(200, 200)
    # Exposed: from the call at 100 to the op at 150, though the thread did something else from 120 on; and the wait.
    assert tables.bubbles["exposed_comm_ns"].tolist() == [(50 + 30) * US] * 2
    assert tables.bubbles["host_ns"].tolist() == [(400 - 100 - 150 - 80) * US] * 2


def test_calls_without_a_recorded_end_are_counted_and_said(tmp_path: Path) -> None:
    text = cpu_trace(world_size=1)
    text.step(1, *us(0, 100))
    text.op("aten::mm", *us(0, 10))
    text.mark("freescale.comm all_to_all group=g seq=1 bytes=1", *us(10, 20))
    text.mark("freescale.wait all_to_all group=g seq=1", *us(30, 60))
    file = text.write(tmp_path / "rank0.json")
    timeline = read_trace(file)
    row = timeline.collectives[0]
    assert timeline.flags[row] & Flag.INEXACT_END
    assert timeline.end_ns[row] == T0 + 60 * US
    assert any("1 of 1 collectives have no recorded end" in note for note in analyze(file).arm().warnings)


def test_the_step_in_which_the_profiler_stopped_is_left_out(tmp_path: Path) -> None:
    text = cpu_trace(world_size=1)
    text.step(1, *us(0, 100))
    text.op("aten::mm", *us(0, 60))
    text.step(2, *us(100, 103))
    assert analyze(text.write(tmp_path / "rank0.json")).arm().tables.bubbles["step"].tolist() == [1]


@pytest.mark.parametrize(
    ("descriptions", "group"), [(["default_pg", "embedding"], "default_pg"), (["a", "b", "embedding"], "unnamed")]
)
def test_calls_without_a_group_get_the_only_one_that_is_left(
    tmp_path: Path, descriptions: list[str], group: str
) -> None:
    text = cpu_trace(world_size=1)
    text.metadata["distributedInfo"]["pg_config"] = [
        {"pg_name": str(i), "pg_desc": description, "ranks": [0]} for i, description in enumerate(descriptions)
    ]
    text.step(1, *us(0, 100))
    text.mark("freescale.comm all_to_all group=embedding seq=1 bytes=1", *us(10, 20))
    text.op("c10d::barrier", *us(30, 35), tid=MAIN)
    text.mark("gloo:barrier", *us(32, 40), tid=WORKER)
    timeline = read_trace(text.write(tmp_path / "rank0.json"))
    comm = timeline.in_lane(Lane.COMM)
    assert {timeline.groups[i].name for i in timeline.group[comm]} == {"embedding", group}
