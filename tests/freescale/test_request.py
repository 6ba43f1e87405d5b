"""Slots reach their owners with their counts, in one exchange where the ranks agreed on enough room, else in two."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from thread_ranks import ThreadTransport, run_threads
from torch import Tensor

from freescale.overlap.request import Asked, Rider, Room, receive, send

GROUPS = 2
Sizes = list[list[list[int]]]
"""[rank][owner][group]: how many slots."""


def slots_of(rank: int, sizes: list[list[int]]) -> Tensor:
    """Owner after owner, group after group; each slot says who sent it to whom."""
    told = [
        torch.arange(count) + 1_000_000 * rank + 10_000 * owner + 1_000 * group
        for owner, of_owner in enumerate(sizes)
        for group, count in enumerate(of_owner)
    ]
    return torch.cat(told)


def ask(
    lane: ThreadTransport, room: Room, sizes: list[list[int]], bad: int = 0, rider: Rider | None = None
) -> tuple[Asked, int]:
    """What the others ask of this rank, and in how many exchanges it came."""
    request = send(lane, slots_of(lane.rank, sizes), torch.tensor(sizes), torch.tensor(bad), room, rider)
    chain, exchanges = receive(lane, request, room), 0
    while True:
        try:
            next(chain).wait()
            exchanges += 1
        except StopIteration as stop:
            return stop.value, exchanges


def steps(batches: list[Sizes], seed: int = 0) -> list[list[tuple[Asked, int, int]]]:
    """Per rank and batch: what came, exchanges, and room afterwards."""

    def rank_program(open_lane: Any, rank: int) -> list[tuple[Asked, int, int]]:
        lane, room, seen = open_lane("ids"), Room(), []
        for sizes in batches:
            seen.append((*ask(lane, room, sizes[rank]), room.slots))
        return seen

    return run_threads(len(batches[0]), seed, rank_program)


def batches_of(world: int) -> st.SearchStrategy[Sizes]:
    of_owner = st.lists(st.integers(0, 40), min_size=GROUPS, max_size=GROUPS)
    of_rank = st.lists(of_owner, min_size=world, max_size=world)
    return st.lists(of_rank, min_size=world, max_size=world)


@given(
    st.integers(1, 4).flatmap(lambda world: st.lists(batches_of(world), min_size=1, max_size=5)),
    st.integers(0, 99),
)
@settings(deadline=None, max_examples=60)
def test_owners_get_every_slot_in_order_whatever_fits(batches: list[Sizes], seed: int) -> None:
    per_rank = steps(batches, seed)
    for number, sizes in enumerate(batches):
        assert len({(seen[number][1], seen[number][2]) for seen in per_rank}) == 1, "ranks disagree on the room"
        for owner, seen in enumerate(per_rank):
            asked = seen[number][0]
            assert asked.counts == [of_rank[owner] for of_rank in sizes]
            expected = [
                slots_of(rank, of_rank).split([sum(counts) for counts in of_rank])[owner]
                for rank, of_rank in enumerate(sizes)
            ]
            assert asked.slots.tolist() == torch.cat(expected).tolist()


@given(
    st.integers(1, 4).flatmap(lambda world: st.tuples(batches_of(world), batches_of(world))),
    st.sampled_from([torch.bfloat16, torch.float32, torch.float64]),
    st.booleans(),
    st.integers(0, 99),
)
@settings(deadline=None, max_examples=60)
def test_rows_that_ride_along_arrive_as_they_were_and_so_do_the_slots(
    sizes: tuple[Sizes, Sizes], dtype: torch.dtype, rides: bool, seed: int
) -> None:
    asks, rows = sizes[0], [[sum(of_owner) for of_owner in of_rank] for of_rank in sizes[1]]

    def flat_of(rank: int) -> Tensor:
        return torch.randn(sum(rows[rank]), generator=torch.Generator().manual_seed(rank)).to(dtype)

    def rank_program(open_lane: Any, rank: int) -> tuple[Asked, Tensor]:
        lane = open_lane("bulk")
        rider = Rider(flat_of(rank), rows[rank], [of_rank[rank] for of_rank in rows], lane.all_to_all)
        asked, _ = ask(lane, Room(), asks[rank], rider=rider if rides else None)
        return asked, rider.wait()

    for owner, (asked, arrived) in enumerate(run_threads(len(asks), seed, rank_program)):
        assert asked.counts == [of_rank[owner] for of_rank in asks]
        assert torch.equal(arrived, torch.cat([flat_of(rank).split(rows[rank])[owner] for rank in range(len(asks))]))


def alike(count: int, world: int = 2) -> Sizes:
    return [[[count, 0] for _ in range(world)] for _ in range(world)]


def test_from_the_second_batch_on_one_exchange_is_enough() -> None:
    exchanges = [seen for _, seen, _ in steps([alike(100), alike(110), alike(95), alike(100)])[0]]
    assert exchanges == [2, 1, 1, 1]


def test_a_batch_that_is_larger_than_the_room_needs_two_and_makes_more() -> None:
    seen = steps([alike(100), alike(126), alike(150)])[0]
    assert [exchanges for _, exchanges, _ in seen] == [2, 2, 1]
    assert [room for _, _, room in seen] == [125, 157, 187]


def test_after_smaller_batches_the_room_shrinks_slowly_and_is_never_more_than_half_padding() -> None:
    rooms = [room for _, _, room in steps([alike(160), alike(90), alike(90), alike(160)])[0]]
    assert rooms == [200, 2 * 90, 180 * 15 // 16, 200]


def test_tables_on_one_rank_leave_no_room() -> None:
    lopsided = [[[100, 0], [0, 0], [0, 0]] for _ in range(3)]
    assert [(exchanges, room) for _, exchanges, room in steps([lopsided, lopsided])[0]] == [(2, 0), (2, 0)]


def test_nothing_at_all_is_asked_in_one_exchange() -> None:
    assert [(seen, room) for _, seen, room in steps([alike(0), alike(0)])[0]] == [(1, 0), (1, 0)]


@pytest.mark.parametrize("culprit", [0, 1])
def test_bad_ids_are_told_to_all_and_no_slots_follow(culprit: int) -> None:
    def rank_program(open_lane: Any, rank: int) -> tuple[Asked, int]:
        return ask(open_lane("ids"), Room(), [[3, 1], [2, 2]], bad=7 if rank == culprit else 0)

    for asked, exchanges in run_threads(2, 0, rank_program):
        assert (exchanges, asked.slots.numel()) == (1, 0)
        assert asked.bad == [7 if rank == culprit else 0 for rank in range(2)]
