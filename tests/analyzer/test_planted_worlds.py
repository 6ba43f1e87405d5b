"""Worlds with planted waits, clocks and losses: the analyzer gives back what was planted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kineto_text import TraceText
from planted import EPOCH, Clock, World, worlds

from analyzer import analyze
from analyzer.bubbles import CLASSES, Tables, measure
from analyzer.matching import match

MICROSECOND = 1_000
few = settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])


def measured(world: World) -> Tables:
    return measure([world.timeline(rank) for rank in range(world.ranks)])


def by_collective(world: World, tables: Tables) -> dict[int, pd.DataFrame]:
    """Rows of collectives.parquet by the index of the planted collective. Its op and ordinal identify it."""
    found = {}
    for (group, op), index in _planted_order(world).items():
        rows = tables.collectives[(tables.collectives["group"] == group) & (tables.collectives["op"] == op)]
        for ordinal, of_one in rows.groupby("ordinal"):
            found[index[int(ordinal)]] = of_one
    return found


def _planted_order(world: World) -> dict[tuple[str, str], dict[int, int]]:
    order: dict[tuple[str, str], dict[int, int]] = {}
    for index, met in enumerate(world.met):
        place = order.setdefault((met.group, met.op), {})
        place[met.seq if world.numbered else len(place)] = index
    return order


def assert_true_waits(world: World, tables: Tables) -> None:
    allowed = MICROSECOND + tables.clocks.residual_ns
    found = by_collective(world, tables)
    assert len(found) == len(world.met)
    for index, rows in found.items():
        met = world.met[index]
        assert rows["matched"].all()
        for rank, wait in zip(rows["rank"], rows["wait_ns"], strict=True):
            assert abs(wait - met.wait_ns(rank)) <= allowed, (index, rank, wait, met.wait_ns(rank))


@few
@given(worlds())
def test_waits_come_back_within_a_microsecond_and_the_stated_residual(world: World) -> None:
    tables = measured(world)
    assert_true_waits(world, tables)
    assert (tables.bubbles[list(CLASSES)].sum(axis=1) == tables.bubbles["window_ns"]).all()


@few
@given(worlds(max_ranks=16, max_offset_ns=0, max_drift=0.0, max_jitter_ns=0))
def test_on_true_clocks_waits_and_blame_are_exact(world: World) -> None:
    world.one_host = True
    tables = measured(world)
    assert_true_waits(world, tables)
    blame = np.zeros((world.ranks, world.ranks), np.int64)
    for met in world.met:
        for rank in range(world.ranks):
            blame[rank, met.last_rank] += met.wait_ns(rank)
    assert tables.blame_ns.tolist() == blame.tolist()


@few
@given(worlds(numbered=True))
def test_offsets_and_drift_come_back(world: World) -> None:
    clocks = measured(world).clocks
    assert clocks.method == "synchronising collectives"
    at = [met.end_ns[0] for met in world.met if met.op != "all_to_all"]
    for rank in range(world.ranks):
        for true_ns in at:
            ours = clocks.to_common(rank, np.array([world.clocks[rank].reads(true_ns)]))[0]
            reference = clocks.to_common(0, np.array([world.clocks[0].reads(true_ns)]))[0]
            assert abs(ours - reference) <= MICROSECOND + clocks.residual_ns + world.jitter_ns


@few
@given(worlds(max_ranks=12, may_miss=True))
def test_with_events_missing_nothing_is_paired_wrongly(world: World) -> None:
    timelines = [world.timeline(rank) for rank in range(world.ranks)]
    matching = match(timelines)
    truth = {}  # (rank, own start) → planted collective
    for index, met in enumerate(world.met):
        for rank in world.seen(index):
            truth[rank, world.clocks[rank].reads(met.arrival_ns[rank])] = index
    for _, members in matching.members.groupby("collective"):
        assert len({truth[key] for key in zip(members["rank"], members["start_ns"], strict=True)}) == 1


@few
@given(worlds(max_ranks=12, numbered=True, may_miss=True))
def test_with_numbers_missing_events_cost_only_themselves(world: World) -> None:
    found = by_collective(world, measured(world))
    for index in range(len(world.met)):
        seen = world.seen(index)
        if seen:
            assert found[index]["rank"].tolist() == seen
            assert found[index]["matched"].all() == (len(seen) == world.ranks and world.ranks > 1)


@few
@given(worlds(max_ranks=8, numbered=False, may_miss=True, max_drift=0.0, max_jitter_ns=1_000), st.booleans())
def test_without_numbers_most_of_what_is_left_is_still_matched(world: World, one_host: bool) -> None:
    if one_host:
        world.clocks, world.one_host = [Clock()] * world.ranks, True
    whole = [index for index in range(len(world.met)) if len(world.seen(index)) == world.ranks]
    found = measured(world).collectives
    if one_host and whole:  # unknown clocks may leave too few votes to be sure of anything
        assert found.drop_duplicates(["group", "op", "ordinal"])["matched"].sum() >= len(whole) * 2 // 3


def test_files_of_a_world_give_the_same_as_its_timelines(tmp_path: Path) -> None:
    clocks = [Clock(), Clock(4_999_000, 15e-6), Clock(-5_000_000, -20e-6)]
    world = World(3, clocks, jitter_ns=500, numbered=True)
    rng = np.random.default_rng(7)
    plan = [
        [
            (op, group, [int(x) for x in rng.integers(50_000, 900_000, 3)], 100_000)
            for op, group in (("all_to_all", "embedding"), ("all_reduce", "dense"), ("all_gather", "embedding"))
        ]
        for _ in range(3)
    ]
    world.run(plan, 7)
    tables = analyze(world.write(tmp_path)).arm().tables
    assert_true_waits(world, tables)
    direct = measured(world)
    pd.testing.assert_frame_equal(
        tables.collectives.drop(columns="group"), direct.collectives.drop(columns="group"), check_dtype=False
    )
    assert set(tables.collectives["group"]) == {"dense", "embedding"}


def test_when_clocks_cannot_be_set_waiting_is_not_split_from_transfer() -> None:
    # GIVEN ends that disagree by far more than ranks wait
    world = World(4, [Clock()] * 4, jitter_ns=400_000, numbered=True)
    rng = np.random.default_rng(3)
    plan = [[("all_reduce", "dense", [100_000 + int(x) for x in rng.integers(0, 2_000, 4)], 50_000)] * 4] * 3
    world.run(plan, 3)
    for met in world.met:  # ranks meet again at once: the waits are short, the ends uncertain
        assert met.last_arrival_ns - min(met.arrival_ns.values()) <= 420_000
    for index, met in enumerate(world.met):
        base = EPOCH + index * 1_000_000
        for rank in range(4):
            met.arrival_ns[rank] = base + rank * 500
            met.end_ns[rank] = base + 300_000 + int(rng.integers(0, 400_000))
    tables = measured(world)
    assert not tables.split
    assert (tables.bubbles["straggler_ns"] == 0).all()
    assert any("waiting is not told apart from transfer" in warning for warning in tables.warnings)
    assert (tables.bubbles[list(CLASSES)].sum(axis=1) == tables.bubbles["window_ns"]).all()


def test_streams_that_stand_for_groups_need_not_have_one_number_on_all_ranks(tmp_path: Path) -> None:
    world = World(3, [Clock()] * 3, jitter_ns=0, numbered=False)
    world.run([[("all_reduce", "dense", [60_000, 90_000, 200_000], 50_000)] * 3] * 2, 1)
    for rank, stream in enumerate((20, 84, 7)):
        text = TraceText(rank, 3)
        for step, start, end in world.compute[rank]:
            text.kernel(f"gemm{step}", start, end, stream=99)
        for met in world.met:
            text.kernel("ncclKernel_AllReduce_RING_LL_Sum_float(x)", met.arrival_ns[rank], met.end_ns[rank], stream)
        text.step(0, EPOCH, world.compute[rank][-1][2])
        text.write(tmp_path / f"rank{rank}.json")
    tables = analyze(tmp_path).arm().tables
    assert len(tables.collectives) == 3 * len(world.met)
    assert tables.collectives["matched"].all()
    assert tables.collectives["wait_ns"].tolist() == [met.wait_ns(rank) for met in world.met for rank in range(3)]
