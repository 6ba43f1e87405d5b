"""The chunked GPU paths: rounds tile every part exactly once, bulk never goes whole, kernels are found out."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from freescale.comm.copy_engine import refuse_kernels
from freescale.comm.engine_check import kernel_names
from freescale.comm.staging import SLOTS, Round, StagedTransport, plan_rounds
from freescale.comm.transport import Handle
from freescale.errors import FreeScaleError


@st.composite
def exchanges(draw: st.DrawFn) -> tuple[int, list[list[int]], int]:
    """Rank count, bytes from each rank to each, and a chunk size."""
    world_size = draw(st.integers(1, 4))
    sizes = st.one_of(st.just(0), st.integers(0, 100))
    matrix = [[draw(sizes) for _ in range(world_size)] for _ in range(world_size)]
    return world_size, matrix, draw(st.integers(1, 40))


@given(exchanges(), st.integers(0, 10))
def test_rounds_tile_every_part_once_and_agree_between_ranks(
    exchange: tuple[int, list[list[int]], int], first: int
) -> None:
    world_size, matrix, chunk = exchange
    largest = max((matrix[a][b] for a in range(world_size) for b in range(world_size) if a != b), default=0)
    plans = [
        plan_rounds(matrix[rank], [row[rank] for row in matrix], largest, chunk, rank, False, first)
        for rank in range(world_size)
    ]
    assert len({len(plan) for plan in plans}) == 1, "every rank takes part in the same rounds"
    for sender in range(world_size):
        for receiver in range(world_size):
            if sender == receiver:
                assert all(one.out[sender] == (0, 0) and one.into[sender] == (0, 0) for one in plans[sender])
                continue
            sent = [one.out[receiver] for one in plans[sender]]
            received = [one.into[sender] for one in plans[receiver]]
            assert [end - begin for begin, end in sent] == [end - begin for begin, end in received]
            covered = [place for begin, end in sent for place in range(begin, end)]
            begin = sum(matrix[sender][:receiver])
            assert covered == list(range(begin, begin + matrix[sender][receiver]))
            place = sum(row[receiver] for row in matrix[:sender])
            covered = [place for begin, end in received for place in range(begin, end)]
            assert covered == list(range(place, place + matrix[sender][receiver]))
    for plan in plans:
        assert [one.number for one in plan] == list(range(first, first + len(plan)))
        for one in plan:
            assert all(end - begin <= one.largest <= chunk for begin, end in (*one.out, *one.into))


class Recorder:
    """A mover that notes what is under way, and holds each round until it is let go."""

    engine = "recorder"

    def __init__(self) -> None:
        self.staged: list[int] = []
        self.exchanged: list[int] = []
        self.let_go = threading.Semaphore(0)
        self.most_ahead = 0

    def begin(self, send: torch.Tensor, result: torch.Tensor) -> None: ...

    def stage(self, one: Round, send: torch.Tensor) -> None:
        self.staged.append(one.number)
        self.most_ahead = max(self.most_ahead, len(self.staged) - len(self.exchanged))

    def exchange(self, one: Round) -> None:
        assert self.let_go.acquire(timeout=30)
        self.exchanged.append(one.number)

    def deliver(self, one: Round, result: torch.Tensor) -> None: ...

    def keep(self, target: torch.Tensor, source: torch.Tensor) -> None: ...

    def finish(self) -> Any:
        return None

    def join(self, mark: Any) -> None: ...

    def close(self) -> None: ...


class Alone:
    """A host lane of two ranks of which only this one exists."""

    group, rank, world_size, engine = "lane", 0, 2, "alone"

    def all_gather(self, send: torch.Tensor) -> Handle:
        return Handle("all_gather", self.group, 0, 0, self.engine, torch.stack([send, send]), lambda: None)

    def all_to_all(self, send: torch.Tensor, send_splits: Any, recv_splits: Any) -> Handle:
        raise AssertionError("not used")

    def close(self) -> None: ...


def staged(mover: Recorder) -> StagedTransport:
    return StagedTransport("lane", Alone(), mover, torch.device("cpu"), chunk_bytes=10)


def test_issuing_does_not_wait_and_at_most_two_chunks_are_under_way() -> None:
    mover = Recorder()
    lane = staged(mover)
    handle = lane.all_to_all(torch.zeros(95, dtype=torch.uint8), [0, 95], [0, 95])
    assert not handle.done()
    for _ in range(10):
        mover.let_go.release()
    handle.wait()
    assert mover.exchanged == list(range(10))
    assert mover.most_ahead <= 2 <= SLOTS
    lane.close()


def test_an_urgent_lane_passes_a_bulk_one_that_is_stuck_halfway() -> None:
    bulk_mover, urgent_mover = Recorder(), Recorder()
    bulk, urgent = staged(bulk_mover), staged(urgent_mover)
    stuck = bulk.all_to_all(torch.zeros(95, dtype=torch.uint8), [0, 95], [0, 95])
    bulk_mover.let_go.release()
    urgent_mover.let_go.release()
    urgent.all_to_all(torch.zeros(5, dtype=torch.uint8), [0, 5], [0, 5]).wait()
    assert not stuck.done()
    for _ in range(9):
        bulk_mover.let_go.release()
    stuck.wait()
    bulk.close()
    urgent.close()


def test_a_failure_on_the_lane_s_thread_reaches_the_waiter_and_every_later_call() -> None:
    class Failing(Recorder):
        def exchange(self, one: Round) -> None:
            raise FreeScaleError("the cable is out")

    lane = staged(Failing())
    for _ in range(2):
        with pytest.raises(FreeScaleError, match="the cable is out"):
            lane.all_to_all(torch.zeros(5, dtype=torch.uint8), [0, 5], [0, 5]).wait()
    lane.close()


def test_a_tensor_of_another_device_is_refused() -> None:
    lane = StagedTransport("lane", Alone(), Recorder(), torch.device("cuda", 0), chunk_bytes=10)
    with pytest.raises(FreeScaleError, match="recorder lane 'lane' moves tensors of cuda:0, not cpu"):
        lane.all_gather(torch.zeros(1))
    lane.close()


def test_kernels_are_told_from_copies() -> None:
    events = [
        ("DeviceType.CUDA", "Memcpy PtoP (Device -> Device)"),
        ("DeviceType.CUDA", "Memset (Device)"),
        ("DeviceType.CPU", "ncclAllToAll"),
        ("DeviceType.CUDA", "freescale.comm all_to_all group=bulk seq=0 bytes=8"),
        ("DeviceType.CUDA", "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"),
    ]
    assert kernel_names(events) == ["ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"]


class Echo(Alone):
    """Delivers what `received` says."""

    def __init__(self, received: int) -> None:
        self.received = received

    def all_to_all(self, send: torch.Tensor, send_splits: Any, recv_splits: Any) -> Handle:
        return Handle("all_to_all", "lane", 0, 0, "echo", torch.full_like(send, self.received), lambda: None)


def _refusals(rank: int, world_size: int) -> list[str]:
    def caught(received: int, kernel: str) -> str:
        def profile(call: Any) -> list[str]:
            call()
            return [kernel] if kernel and rank == 0 else []

        try:
            refuse_kernels("zero_cta", Echo(received), torch.device("cpu"), profile)
        except FreeScaleError as error:
            return str(error)
        return ""

    return [caught(0, ""), caught(0, "ncclDevKernel_SendRecv"), caught(1, "")]


@pytest.mark.multiprocess
def test_a_fall_back_to_kernels_on_one_rank_is_refused_on_all(run_ranks: Any) -> None:
    for fine, kernel, wrong in run_ranks(_refusals, 2):
        assert fine == ""
        assert kernel.startswith("rank 0: zero_cta: the kernel ncclDevKernel_SendRecv moved the bytes")
        assert wrong.startswith("rank 0: zero_cta: the test transfer brought wrong bytes")
