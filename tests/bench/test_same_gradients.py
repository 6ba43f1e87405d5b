"""Balancing leaves training mathematically unchanged: same loss, same gradients, whoever holds which sample."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from freescale.balance.exchange import SampleExchange
from freescale.bench.arms import parse_arm, parse_arms
from freescale.bench.feed import Feed, Ready
from freescale.bench.lanes import open_for
from freescale.bench.trainer import Trainer
from freescale.overlap.blocking import BlockingSchedule
from freescale.overlap.row_optimizer import RowOptimizer
from freescale.overlap.schedule import Parts
from workloads import registry
from workloads.batch import select
from workloads.losses import bce_sum

TOLERANCE = 1e-10
CPU = torch.device("cpu")


def gradients(rank: int, world_size: int, ragged: bool) -> dict[str, dict[str, Any]]:
    """For each arm, one fp64 step: losses, dense gradients, and this rank's embedding rows with their gradients."""
    captured: list[tuple[torch.Tensor, torch.Tensor]] = []

    def capture(self: RowOptimizer, weight: Any, state: Any, rows: Any, gradient: Any, lr: Any) -> None:
        captured.append((rows, gradient.clone()))

    RowOptimizer.update_rows = capture  # type: ignore[method-assign, assignment]
    config = replace(registry.preset("hstu-tiny"), samples_per_rank=6)
    workload = registry.build(config, seed=3)
    trainer = Trainer(workload, open_for([], CPU), CPU, seed=3, dtype=torch.float64)
    batch = workload.batch(0, rank, world_size)
    if ragged:  # a last batch: rank 0 is full, rank 1 has two samples, the others none
        batch = select(batch, range({0: 6, 1: 2}.get(rank, 0)))

    draw = torch.Generator().manual_seed(rank)
    batch = replace(batch, weights=torch.rand(batch.weights.shape, generator=draw) + 0.5)  # a weighted loss
    result = {}
    for name in ("baseline", "balance"):
        captured.clear()
        (row,) = trainer.run_turn(parse_arm(name), [batch])
        (embedding,) = captured
        dense = [parameter.grad.clone() for parameter in trainer.dense.parameters()]
        result[name] = {"row": row, "dense": dense, "rows": embedding[0], "embedding": embedding[1]}
    return result


@pytest.mark.multiprocess
@pytest.mark.parametrize("world_size", [2, 4])
@pytest.mark.parametrize("ragged", [False, True], ids=["full", "ragged"])
def test_balance_and_baseline_compute_the_same_gradients(run_ranks: Any, world_size: int, ragged: bool) -> None:
    moved = 0
    for arms in run_ranks(gradients, world_size, ragged):
        baseline, balance = arms["baseline"], arms["balance"]
        assert balance["row"]["loss"] == pytest.approx(baseline["row"]["loss"], rel=TOLERANCE)
        assert torch.equal(balance["rows"], baseline["rows"])
        assert float(baseline["embedding"].abs().max()) > 1e-6
        torch.testing.assert_close(balance["embedding"], baseline["embedding"], rtol=0, atol=TOLERANCE)
        for with_balance, without in zip(balance["dense"], baseline["dense"], strict=True):
            torch.testing.assert_close(with_balance, without, rtol=0, atol=TOLERANCE)
        moved += balance["row"]["moved_bytes"]
        assert baseline["row"]["moved_bytes"] == 0
    assert moved > 0  # otherwise the two arms were the same program


def accumulated(rank: int, world_size: int) -> dict[str, dict[str, Any]]:
    """The same over a window of three batches before one update, the last of which leaves rank 0 alone with samples."""
    captured: list[tuple[torch.Tensor, torch.Tensor]] = []

    def capture(self: RowOptimizer, weight: Any, state: Any, rows: Any, gradient: Any, lr: Any) -> None:
        captured.append((rows, gradient.clone()))

    RowOptimizer.update_rows = capture  # type: ignore[method-assign, assignment]
    workload = registry.build(replace(registry.preset("hstu-tiny"), samples_per_rank=6), seed=3)
    trainer = Trainer(workload, open_for([], CPU), CPU, seed=3, dtype=torch.float64)
    batches = [workload.batch(number, rank, world_size) for number in range(3)]
    batches[-1] = select(batches[-1], range(6 if rank == 0 else 0))
    data = trainer.lanes.reference["data"]
    result: dict[str, dict[str, Any]] = {}
    for name in ("baseline", "balance"):
        captured.clear()
        optimizer = torch.optim.SGD(trainer.dense.parameters(), lr=0.0)
        schedule = BlockingSchedule(Parts(trainer.embedding, optimizer, trainer.lanes.reference, trainer.hooks))
        exchange = SampleExchange(data, trainer.balancer.assign, 6) if name == "balance" else None
        feed = Feed(batches, lambda lengths: 0.0, data, exchange, CPU, 1)
        moved = 0
        for number in range(3):
            ready = feed.take()
            moved += ready.moved_bytes

            def loss_of(embedded: Any, ready: Ready = ready, feed: Feed = feed) -> torch.Tensor:
                batch = ready.batch
                loss = bce_sum(trainer.dense(embedded, batch), batch.labels, batch.weights)
                feed.advance()
                return loss * (world_size / ready.weight_sum)

            schedule.step(ready.ids, None, loss_of, update=number == 2)
        (embedding,) = captured
        dense = [parameter.grad.clone() for parameter in trainer.dense.parameters()]
        result[name] = {"dense": dense, "rows": embedding[0], "embedding": embedding[1], "moved": moved}
    return result


@pytest.mark.multiprocess
def test_balance_and_baseline_accumulate_the_same_gradients(run_ranks: Any) -> None:
    ranks = run_ranks(accumulated, 2)
    for arms in ranks:
        baseline, balance = arms["baseline"], arms["balance"]
        assert torch.equal(balance["rows"], baseline["rows"])
        assert float(baseline["embedding"].abs().max()) > 1e-6
        torch.testing.assert_close(balance["embedding"], baseline["embedding"], rtol=0, atol=TOLERANCE)
        for with_balance, without in zip(balance["dense"], baseline["dense"], strict=True):
            torch.testing.assert_close(with_balance, without, rtol=0, atol=TOLERANCE)
    assert sum(arms["balance"]["moved"] for arms in ranks) > 0 == sum(arms["baseline"]["moved"] for arms in ranks)


def bounds(rank: int, world_size: int) -> list[dict[str, float]]:
    workload = registry.build(registry.preset("hstu-tiny"), seed=3)
    trainer = Trainer(workload, open_for([], CPU), CPU, seed=3)
    batches = [workload.batch(step, rank, world_size) for step in range(3)]
    turns = [trainer.run_turn(parse_arm("baseline"), batches) for _ in range(2)]
    assert [row["loss"] for row in turns[0]] == [row["loss"] for row in turns[1]]
    return turns[0]


@pytest.mark.multiprocess
def test_a_turn_starts_from_the_same_state_every_time(run_ranks: Any) -> None:
    first, second = run_ranks(bounds, 2)
    assert [row["loss"] for row in first] == [row["loss"] for row in second]
    assert [row["collision_rate"] for row in first][1:] == [row["collision_rate"] for row in second][1:]


def every_arm(rank: int, world_size: int) -> dict[str, list[float]]:
    arms = parse_arms("baseline,sdd,overlap,smfree,overlap+smfree,balance,balance+smfree,balance+overlap,freescale")
    workload = registry.build(registry.preset("hstu-tiny"), seed=3)
    lanes = open_for(arms, CPU)
    trainer = Trainer(workload, lanes, CPU, seed=3)
    batches = [workload.batch(step, rank, world_size) for step in range(6)]
    losses = {arm.name: [row["loss"] for row in trainer.run_turn(arm, batches)] for arm in arms}
    lanes.close()
    return losses


@pytest.mark.multiprocess
@pytest.mark.parametrize("world_size", [1, 2])
def test_arms_without_balance_are_bit_identical_and_those_with_it_agree(run_ranks: Any, world_size: int) -> None:
    ranks = run_ranks(every_arm, world_size)
    assert all(losses == ranks[0] for losses in ranks)
    for name, losses in ranks[0].items():
        if "balance" in name or name == "freescale":
            assert losses == pytest.approx(ranks[0]["baseline"], rel=1e-5)
        else:
            assert losses == ranks[0]["baseline"]
