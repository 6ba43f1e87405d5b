"""All schedules leave bit-identical parameters, optimizer state and losses, on whatever batches and timing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from thread_ranks import run_threads
from torch import nn

from freescale.comm.process_group import open_lanes
from freescale.errors import FreeScaleError
from freescale.overlap.blocking import BlockingSchedule
from freescale.overlap.embedding import ShardedEmbedding
from freescale.overlap.hooks import ComputeHooks
from freescale.overlap.prioritized import PrioritizedSchedule
from freescale.overlap.row_optimizer import RowOptimizer
from freescale.overlap.schedule import EXCHANGE_LANES, Parts, Schedule
from freescale.overlap.tables import TableSpec

Ids = dict[str, torch.Tensor]
SCHEDULES: dict[str, Callable[[Parts], Schedule]] = {
    "blocking": BlockingSchedule,
    "sdd": lambda parts: BlockingSchedule(parts, prefetch_ids=True),
    "prioritized": PrioritizedSchedule,
}
FEATURES = {"item": "item", "shown": "item", "place": "place"}


def tables(sharding: str) -> dict[str, TableSpec]:
    """Two dimensions; `mixed` has one table of each kind."""
    kinds = ("hash", "table") if sharding == "mixed" else (sharding, sharding)
    return {"item": TableSpec(40, 6, kinds[0]), "place": TableSpec(9, 4, kinds[1])}


class Dense(nn.Module):
    """Enough layers for hooks to fire, and every row counts."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({"item": nn.Linear(6, 3), "shown": nn.Linear(6, 3), "place": nn.Linear(4, 3)})
        draw = torch.Generator().manual_seed(0)  # torch's own random state is shared by the threads
        for parameter in self.parameters():
            parameter.data.uniform_(-0.5, 0.5, generator=draw)

    def forward(self, embedded: dict[str, torch.Tensor]) -> torch.Tensor:
        return sum(self.layers[name](rows).tanh().square().sum() for name, rows in embedded.items())


@dataclass(frozen=True)
class Plan:
    """What to train on: batches[step][rank]; steps that only accumulate; steps after which to drain and look."""

    batches: list[list[Ids]]
    optimizer: str = "adagrad"
    sharding: str = "block"
    accumulate: frozenset[int] = frozenset()
    look_after: frozenset[int] = frozenset()
    gaps_after: frozenset[int] = frozenset()


def train(plan: Plan, schedule_name: str, lanes: dict[str, Any], rank: int, world_size: int) -> list[torch.Tensor]:
    """Losses, states seen on the way, and the final parameters and optimizer states of this rank."""
    dense = Dense()
    optimizer = torch.optim.Adam(dense.parameters(), lr=0.01)
    row_optimizer = RowOptimizer(plan.optimizer, lr=0.05)
    embedding = ShardedEmbedding(tables(plan.sharding), FEATURES, rank, world_size, row_optimizer, seed=1)
    schedule = SCHEDULES[schedule_name](Parts(embedding, optimizer, lanes, ComputeHooks(dense)))
    seen = []

    def loss_of(embedded: dict[str, torch.Tensor]) -> torch.Tensor:
        loss = dense(embedded)
        seen.append(loss.detach().clone())
        return loss

    last = len(plan.batches) - 1
    for step, batch in enumerate(plan.batches):
        embedding.lr = 0.05 / (1 + step)  # deferred work must use the rate of its own step
        upcoming = None if step == last or step in plan.gaps_after else plan.batches[step + 1][rank]
        schedule.step(batch[rank], upcoming, loss_of, update=step not in plan.accumulate or step == last)
        if step in plan.look_after:
            schedule.drain()
            seen += [weight.detach().clone() for weight in embedding.weights]
    schedule.stop()
    states = [value for state in embedding.states for value in state.values()]
    return [*seen, *embedding.weights, *states, *dense.parameters()]


def assert_identical(results: list[list[torch.Tensor]]) -> None:
    for other in results[1:]:
        assert len(other) == len(results[0])
        for a, b in zip(results[0], other, strict=True):
            assert a.isfinite().all()
            assert torch.equal(a, b)


def in_threads(plan: Plan, schedule: str, world_size: int, seed: int = 0) -> list[list[torch.Tensor]]:
    def body(open_lane: Any, rank: int) -> list[torch.Tensor]:
        return train(plan, schedule, {name: open_lane(name) for name in EXCHANGE_LANES}, rank, world_size)

    return run_threads(world_size, seed, body)


IDS = st.fixed_dictionaries(
    {
        "item": st.lists(st.integers(0, 39), max_size=12).map(torch.tensor),
        "shown": st.lists(st.integers(0, 39), max_size=3).map(torch.tensor),
        "place": st.lists(st.integers(0, 8), max_size=5).map(torch.tensor),
    }
).map(lambda ids: {name: values.long() for name, values in ids.items()})


@st.composite
def plans(draw: Any, world_size: int) -> Plan:
    steps = draw(st.integers(1, 6))
    batch = st.lists(IDS, min_size=world_size, max_size=world_size)
    batches: list[list[Ids]] = []
    for _ in range(steps):
        repeat = batches and draw(st.booleans()) and draw(st.booleans())
        # A repeated batch: the same rows again, as new objects.
        batches.append([dict(ids) for ids in batches[-1]] if repeat else draw(batch))
    some = st.frozensets(st.integers(0, steps - 1))
    return Plan(
        batches,
        draw(st.sampled_from(["sgd", "adagrad", "adam"])),
        draw(st.sampled_from(["block", "hash", "table", "mixed"])),
        *(draw(some) for _ in range(3)),
    )


@settings(max_examples=60, deadline=None)
@given(data=st.data(), world_size=st.integers(1, 4), seed=st.integers(0, 2**32))
def test_schedules_are_bit_identical_on_any_batches(data: Any, world_size: int, seed: int) -> None:
    """Empty, repeated, single batches; accumulation; drains midway; ends of epochs; every order of arrival."""
    plan = data.draw(plans(world_size))
    results = {name: in_threads(plan, name, world_size, seed) for name in SCHEDULES}
    for rank in range(world_size):
        assert_identical([results[name][rank] for name in SCHEDULES])


def controlled(world_size: int, steps: int, rate: float, sharding_seed: int = 0) -> list[list[Ids]]:
    """Batches of which a share `rate` of the item rows is also in the batch before; duplicates within a batch."""
    draw = torch.Generator().manual_seed(sharding_seed)
    rows = torch.randperm(40, generator=draw)
    batches, now = [], rows[:20]
    for _ in range(steps):
        batches.append(
            [
                {
                    "item": now[torch.randint(20, (30,), generator=draw)],
                    "shown": now[torch.randint(20, (4,), generator=draw)],
                    "place": torch.randint(9, (rank,), generator=draw),
                }
                for rank in range(world_size)
            ]
        )
        kept = now[torch.randperm(20, generator=draw)[: round(20 * rate)]]
        others = rows[~torch.isin(rows, now)]
        now = torch.cat([kept, others[torch.randperm(20, generator=draw)[: 20 - len(kept)]]])
    return batches


RATES = (0.0, 0.12, 0.5, 1.0)


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_fifty_steps_are_bit_identical(world_size: int, rate: float) -> None:
    """Every optimizer × sharding × collision rate, on every number of ranks."""
    for optimizer in ("sgd", "adagrad", "adam"):
        for sharding in ("block", "hash", "table", "mixed"):
            plan = Plan(controlled(world_size, 50, rate), optimizer, sharding)
            results = [in_threads(plan, name, world_size) for name in ("blocking", "prioritized")]
            for rank in range(world_size):
                assert_identical([result[rank] for result in results])


def over_gloo(rank: int, world_size: int) -> int:
    lanes = dict(open_lanes(EXCHANGE_LANES))
    compared = 0
    for optimizer, rate in (("sgd", 0.12), ("adagrad", 0.5), ("adam", 1.0)):
        plan = Plan(controlled(world_size, 50, rate), optimizer, "mixed")
        assert_identical([train(plan, name, lanes, rank, world_size) for name in SCHEDULES])
        compared += 1
    return compared


@pytest.mark.multiprocess
@pytest.mark.parametrize("world_size", [2, 4])
def test_fifty_steps_over_gloo_are_bit_identical(run_ranks: Any, world_size: int) -> None:
    assert run_ranks(over_gloo, world_size, timeout_s=170) == [3] * world_size


def test_a_gradient_deferred_too_long_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The test of the test: without the drain that precedes reading, the results must differ."""
    plan = Plan(controlled(2, 12, 0.5), "adagrad", "block")
    honest = in_threads(plan, "prioritized", 2)

    original = PrioritizedSchedule.drain

    def one_step_too_late(self: PrioritizedSchedule) -> None:
        late = getattr(self, "_late", None)
        self._late, self._deferred = self._deferred, late  # type: ignore[attr-defined]
        original(self)

    monkeypatch.setattr(PrioritizedSchedule, "drain", one_step_too_late)
    planted = in_threads(plan, "prioritized", 2)
    with pytest.raises(AssertionError):
        assert_identical([honest[0], planted[0]])


def test_the_urgent_lane_carries_only_collisions() -> None:
    """Without collisions nothing is urgent, with nothing but collisions everything is."""

    def sent(open_lane: Any, rank: int, rate: float, schedule: str) -> dict[str, int]:
        lanes = {name: _Counting(open_lane(name)) for name in EXCHANGE_LANES}
        batches = controlled(2, 6, rate)
        plan = Plan([[{**ids, "place": torch.tensor([], dtype=torch.long)} for ids in batch] for batch in batches])
        train(plan, schedule, lanes, rank, 2)
        return {name: lane.nbytes for name, lane in lanes.items()}

    without = run_threads(2, 0, lambda lane, rank: sent(lane, rank, 0.0, "prioritized"))
    only = run_threads(2, 0, lambda lane, rank: sent(lane, rank, 1.0, "prioritized"))
    blocking = run_threads(2, 0, lambda lane, rank: sent(lane, rank, 1.0, "blocking"))
    assert all(lanes["urgent"] == 0 and lanes["bulk"] > 0 for lanes in without)
    for lanes, reference in zip(only, blocking, strict=True):
        rows = lanes["bulk"] - reference["ids"]  # the first fetch and the last gradients; IDs travel there too
        assert 0 < rows < lanes["urgent"] / 3


class _Counting:
    """Counts what is sent through a lane."""

    def __init__(self, lane: Any) -> None:
        self.lane, self.nbytes, self.world_size, self.rank = lane, 0, lane.world_size, lane.rank

    def all_to_all(self, send: torch.Tensor, *splits: Any) -> Any:
        self.nbytes += send.nbytes
        return self.lane.all_to_all(send, *splits)


def test_one_batch_of_rows_and_the_deferred_gradients_are_in_flight_and_no_more() -> None:
    batches = [
        {"item": torch.arange(n, n + 8), "shown": torch.tensor([n]), "place": torch.tensor([n % 9])} for n in (0, 4, 20)
    ]
    item_bytes, place_bytes = 6 * 4, 4 * 4

    def body(open_lane: Any, rank: int) -> list[int]:
        embedding = ShardedEmbedding(tables("block"), FEATURES, 0, 1, RowOptimizer("sgd"), seed=1)
        dense = Dense()
        lanes = {name: open_lane(name) for name in EXCHANGE_LANES}
        optimizer = torch.optim.SGD(dense.parameters(), lr=0.1)
        schedule = PrioritizedSchedule(Parts(embedding, optimizer, lanes, ComputeHooks(dense)))
        held = [schedule.in_flight_bytes]
        for now, upcoming in zip(batches, [*batches[1:], None], strict=True):
            schedule.step(now, upcoming, dense)
            held.append(schedule.in_flight_bytes)
        schedule.drain()
        return [*held, schedule.in_flight_bytes]

    (held,) = run_threads(1, 0, body)
    batch = 8 * item_bytes + place_bytes  # `shown` repeats an item
    exclusive = 4 * item_bytes + place_bytes  # of the first batch: items 0 to 3, and its place
    assert held == [0, batch + exclusive, batch + batch, batch, 0]


@pytest.mark.parametrize("long_stretch", [False, True])
def test_what_has_time_leaves_only_ahead_of_a_long_stretch(monkeypatch: pytest.MonkeyPatch, long_stretch: bool) -> None:
    """Deferred gradients with the next IDs, and exclusive rows; without such a stretch, when the compute is over."""
    monkeypatch.setattr(Parts, "opening", _Moment(long_stretch))
    plan = Plan(controlled(1, 6, 0.5))
    meanwhile: list[str] = []

    def body(open_lane: Any, rank: int) -> None:
        bulk = _Counting(open_lane("bulk"))
        compute = Parts.compute

        def watched(self: Parts, *given: Any) -> None:
            before = bulk.nbytes
            compute(self, *given)
            if bulk.nbytes > before:
                meanwhile.append("bulk")

        monkeypatch.setattr(Parts, "compute", watched)
        train(plan, "prioritized", {"ids": open_lane("ids"), "bulk": bulk, "urgent": open_lane("urgent")}, rank, 1)

    run_threads(1, 0, body)
    assert bool(meanwhile) == long_stretch


class _Moment:
    """A good or a bad one for transfers that have time, all along."""

    def __init__(self, good: bool) -> None:
        self.good = good

    def done(self) -> bool:
        return self.good

    def wait(self) -> None:
        pass


@pytest.mark.parametrize("schedule", ["sdd", "prioritized"])
def test_a_batch_that_was_not_announced_is_refused(schedule: str) -> None:
    def surprise(open_lane: Any, rank: int) -> str:
        dense = Dense()
        embedding = ShardedEmbedding(tables("block"), FEATURES, rank, 1, RowOptimizer())
        optimizer = torch.optim.SGD(dense.parameters(), lr=0.1)
        lanes = {name: open_lane(name) for name in EXCHANGE_LANES}
        made = SCHEDULES[schedule](Parts(embedding, optimizer, lanes, ComputeHooks(dense)))
        ((first,), (second,)) = controlled(1, 2, 0.5)
        made.step(first, second, dense)
        with pytest.raises(FreeScaleError, match="ids are not the next_ids of the step before"):
            made.step(first, None, dense)
        return "refused"

    assert run_threads(1, 0, surprise) == ["refused"]
