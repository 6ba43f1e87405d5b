"""A loss scale for fp16: a step that overflows on one rank is skipped on all, rows and dense parameters alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from thread_ranks import run_threads
from torch import nn

from freescale.overlap.blocking import BlockingSchedule
from freescale.overlap.embedding import ShardedEmbedding
from freescale.overlap.hooks import ComputeHooks
from freescale.overlap.prioritized import PrioritizedSchedule
from freescale.overlap.row_optimizer import RowOptimizer
from freescale.overlap.schedule import EXCHANGE_LANES, Parts, Schedule
from freescale.overlap.tables import TableSpec

SCHEDULES: dict[str, Callable[[Parts], Schedule]] = {"blocking": BlockingSchedule, "prioritized": PrioritizedSchedule}
STEPS, WORLD = 6, 2


def train(
    schedule_name: str, scaled: bool, overflow: tuple[int, int] | None, accumulate: int = 1
) -> list[list[list[torch.Tensor]]]:
    """Per rank, the weights after each step (drained), then the loss scales. `overflow`: (step, rank) of one."""

    def body(open_lane: Any, rank: int) -> list[list[torch.Tensor]]:
        draw = torch.Generator().manual_seed(rank)
        embedding = ShardedEmbedding({"t": TableSpec(12, 4)}, {"f": "t"}, rank, WORLD, RowOptimizer("adagrad"), seed=1)
        dense = nn.Linear(4, 1, bias=False)
        dense.weight.data.fill_(0.5)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10) if scaled else None
        optimizer = torch.optim.Adam(dense.parameters(), lr=0.1)
        lanes = {name: open_lane(name) for name in EXCHANGE_LANES}
        schedule = SCHEDULES[schedule_name](Parts(embedding, optimizer, lanes, ComputeHooks(dense), scaler))
        batches = [{"f": torch.randint(12, (5,), generator=draw)} for _ in range(STEPS)]
        seen, scales = [], []
        for step, batch in enumerate(batches):
            factor = 1e38 if overflow == (step, rank) else 1.0

            def loss_of(embedded: Any, factor: float = factor) -> torch.Tensor:
                return dense(embedded["f"]).tanh().sum() * factor

            upcoming = batches[step + 1] if step + 1 < STEPS else None
            schedule.step(batch, upcoming, loss_of, update=(step + 1) % accumulate == 0)
            if accumulate == 1:
                schedule.drain()
            seen.append([*(weight.detach().clone() for weight in embedding.weights), dense.weight.detach().clone()])
            scales.append(torch.tensor(scaler.get_scale() if scaler else 1.0))
        schedule.stop()
        return [*seen, [weight.detach().clone() for weight in embedding.weights], scales]

    return run_threads(WORLD, 0, body)


def assert_equal(one: Any, other: Any) -> None:
    for of_rank, of_other in zip(one, other, strict=True):
        for now, then in zip(of_rank, of_other, strict=True):
            assert all(torch.equal(a, b) for a, b in zip(now, then, strict=True))


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_power_of_two_changes_nothing_while_nothing_overflows(schedule: str) -> None:
    with_scale, without = train(schedule, True, None), train(schedule, False, None)
    assert_equal([rank[:-1] for rank in with_scale], [rank[:-1] for rank in without])


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("rank", range(WORLD))
def test_an_overflow_on_one_rank_skips_the_step_on_all(schedule: str, rank: int) -> None:
    for seen in train(schedule, True, (2, rank)):
        *weights, _, scales = seen
        assert all(torch.equal(after, before) for after, before in zip(weights[2], weights[1], strict=True))
        assert not any(torch.equal(after, before) for after, before in zip(weights[3], weights[2], strict=True))
        assert [float(scale) for scale in scales] == [1024, 1024, 512, 512, 512, 512]
        assert all(weight.isfinite().all() for weight in weights[-1])


@pytest.mark.parametrize("overflow", [None, (0, 1), (3, 0), (5, 1)])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_schedules_skip_alike(overflow: tuple[int, int] | None, accumulate: int) -> None:
    blocking = train("blocking", True, overflow, accumulate)
    prioritized = train("prioritized", True, overflow, accumulate)
    last = slice(None) if accumulate == 1 else slice(-2, None)
    assert_equal([rank[last] for rank in blocking], [rank[last] for rank in prioritized])
