"""The emulated link delivers when a real one of that bandwidth and latency would have: pure arithmetic, fake clock."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from freescale.comm import segment
from freescale.comm.emulated_link import EmulatedLink, Ports, _lane_bytes
from freescale.comm.link_model import Link, Port, shared_finish_ns
from freescale.comm.transport import Handle
from freescale.errors import FreeScaleError


def exact_finish(starts: list[int], sizes: list[int], rate: Fraction) -> list[Fraction]:
    """Processor sharing, event by event in exact arithmetic: the oracle."""
    left = {i: Fraction(size) for i, size in enumerate(sizes)}
    finish = [Fraction(0)] * len(sizes)
    now = Fraction(min(starts, default=0))
    while left:
        active = [i for i in left if starts[i] <= now]
        coming = [Fraction(starts[i]) for i in left if starts[i] > now]
        if not active:
            now = min(coming)
            continue
        share = rate / len(active)
        step = min(left[i] / share for i in active)
        if coming:
            step = min(step, min(coming) - now)
        now += step
        for i in active:
            left[i] -= step * share
            if left[i] == 0:
                finish[i] = now
                del left[i]
    return finish


transfers = st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 50_000)), max_size=12)


@given(transfers, st.sampled_from([Fraction(1, 8), Fraction(1), Fraction(25, 2)]))
def test_concurrent_transfers_share_the_bandwidth_equally(chosen: list[tuple[int, int]], rate: Fraction) -> None:
    starts, sizes = [start for start, _ in chosen], [size for _, size in chosen]
    got = shared_finish_ns(starts, sizes, float(rate))
    for mine, exact in zip(got, exact_finish(starts, sizes, rate), strict=True):
        assert abs(mine - exact) <= 1


def test_hand_computed_transfers() -> None:
    assert shared_finish_ns([0], [100], 1.0) == [100]
    assert shared_finish_ns([0, 0], [100, 100], 1.0) == [200, 200]
    assert shared_finish_ns([0, 50], [100, 100], 1.0) == [150, 200]  # 50 alone, then half speed, then alone again
    assert shared_finish_ns([0, 500], [100, 100], 1.0) == [100, 600]


@given(transfers, st.integers(0, 12))
def test_forgetting_what_has_ended_changes_no_other_end(chosen: list[tuple[int, int]], split: int) -> None:
    chosen = sorted(chosen)
    early, late = chosen[:split], chosen[split:]
    link = Link(gbit_per_s=8)
    whole, pruned = Port(link), Port(link)
    numbers = [(whole.add(*one), pruned.add(*one)) for one in early]
    if late:
        pruned.forget([mine for _, mine in numbers], horizon_ns=late[0][0])
    for one in late:
        a, b = whole.add(*one), pruned.add(*one)
        assert abs(whole.finish_ns(a) - pruned.finish_ns(b)) <= 1


class World:
    """Two ranks in one process: their links, a clock that only sleeping moves, transports that deliver at once."""

    def __init__(self, link: Link, lanes: int = 2) -> None:
        self.now = 1_000_000_000
        self.boards = [segment.create(lanes * _lane_bytes(2)) for _ in range(2)]
        ports = [Ports(link, rank, self.boards, now_ns=lambda: self.now) for rank in range(2)]
        self.lanes = [
            [EmulatedLink(_Instant(rank), ports[rank], lane, sleep_s=self.sleep) for lane in range(lanes)]
            for rank in range(2)
        ]

    def sleep(self, seconds: float) -> None:
        self.now += max(1, round(seconds * 1e9))

    def exchange(self, rank: int, lane: int, nbytes: int) -> Handle:
        """`nbytes` to the peer and back."""
        splits = [0, nbytes] if rank == 0 else [nbytes, 0]
        return self.lanes[rank][lane].all_to_all(torch.empty(nbytes, dtype=torch.uint8), splits, splits)

    def ends_ms(self, handle: Handle, begin: int) -> float:
        handle.wait()
        return (self.now - begin) / 1e6


class _Instant:
    group, world_size, engine = "lane", 2, "instant"

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def all_to_all(self, send: torch.Tensor, send_splits: Any, recv_splits: Any) -> Handle:
        return Handle("all_to_all", self.group, 0, 0, self.engine, send, lambda: None)

    def all_gather(self, send: torch.Tensor) -> Handle:
        return Handle("all_gather", self.group, 0, 0, self.engine, send, lambda: None)

    def close(self) -> None: ...


ONE_GIGABIT = Link(gbit_per_s=1.0, latency_us=50.0)  # 125,000 bytes take 1 ms


def test_one_exchange_takes_its_bytes_over_the_bandwidth_plus_the_latency_both_ways_at_once() -> None:
    world = World(ONE_GIGABIT)
    begin = world.now
    mine, theirs = world.exchange(0, 0, 1_250_000), world.exchange(1, 0, 1_250_000)
    assert world.ends_ms(mine, begin) == pytest.approx(10.05)
    assert world.ends_ms(theirs, begin) == pytest.approx(10.05), "full duplex: no second turn"
    assert world.lanes[0][0].overruns == 0


def test_two_lanes_of_one_rank_share_its_link() -> None:
    world = World(ONE_GIGABIT)
    begin = world.now
    handles = [world.exchange(rank, lane, 1_250_000) for lane in range(2) for rank in range(2)]
    assert world.ends_ms(handles[0], begin) == pytest.approx(20.05)
    assert world.ends_ms(handles[2], begin) == pytest.approx(20.05)


def test_a_small_call_shares_with_a_bulk_one_under_way() -> None:
    world = World(ONE_GIGABIT)
    begin = world.now
    bulk = [world.exchange(rank, 0, 1_250_000) for rank in range(2)]
    world.now += 2_000_000
    urgent = [world.exchange(rank, 1, 125_000) for rank in range(2)]
    assert world.ends_ms(urgent[0], begin) == pytest.approx(4.05)  # 1 ms of bytes at half speed from 2 ms on
    assert world.ends_ms(bulk[0], begin) == pytest.approx(11.05)
    assert world.ends_ms(bulk[1], begin) == pytest.approx(11.05)


def test_nothing_flows_before_both_sides_have_issued() -> None:
    world = World(ONE_GIGABIT)
    begin = world.now
    early = world.exchange(0, 0, 125_000)
    world.now += 5_000_000
    late = world.exchange(1, 0, 125_000)
    assert world.ends_ms(late, begin) == pytest.approx(6.05)
    assert world.ends_ms(early, begin) == pytest.approx(6.05)


def test_a_call_the_machine_delivered_too_late_is_counted() -> None:
    world = World(ONE_GIGABIT)
    handles = [world.exchange(rank, 0, 1250) for rank in range(2)]
    world.now += 50_000_000
    handles[0].wait()
    assert world.lanes[0][0].overruns == 1
    assert world.lanes[0][0].emulated
    assert "emulating 1 Gb/s, 50 µs" in world.lanes[0][0].engine


@pytest.mark.parametrize(("gbit_per_s", "latency_us"), [(0.0, 1.0), (-1.0, 1.0), (1.0, -0.1), (float("nan"), 0.0)])
def test_impossible_links_are_refused(gbit_per_s: float, latency_us: float) -> None:
    with pytest.raises(FreeScaleError, match="link: "):
        Link(gbit_per_s, latency_us)
