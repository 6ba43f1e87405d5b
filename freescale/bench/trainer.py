"""One rank's training state, and the turn: some steps of one arm, measured, from the same initial state every time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from freescale.balance.balancer import Balancer
from freescale.balance.cost_model import CostModel, work_of
from freescale.balance.exchange import SampleExchange
from freescale.bench.arms import Arm
from freescale.bench.feed import Feed, Ready
from freescale.bench.lanes import Lanes
from freescale.comm.dense_hook import annotated_all_reduce
from freescale.comm.transport import Handle, Transport
from freescale.overlap.blocking import BlockingSchedule
from freescale.overlap.contribution import is_in
from freescale.overlap.embedding import ShardedEmbedding
from freescale.overlap.hooks import ComputeHooks
from freescale.overlap.lookup import Lookup
from freescale.overlap.prioritized import PrioritizedSchedule
from freescale.overlap.row_optimizer import RowOptimizer
from freescale.overlap.schedule import Parts, Schedule
from workloads.batch import JaggedBatch
from workloads.losses import bce_sum, normalized_entropy
from workloads.registry import Workload


@dataclass
class _Step:
    """What a step leaves to be worked out after the turn, off the clock."""

    ready: Ready
    step_ns: int
    compute_ns: int
    start_unix_ns: int
    sums: Handle
    owned: list[Tensor]
    row_bytes: int
    in_flight_bytes: int


def dense_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """Of the dense parameters, in few operations, as torch does by itself on a GPU only."""
    return torch.optim.Adam(model.parameters(), lr=1e-3, foreach=True)


class Trainer:
    """Sharded embedding, data-parallel dense model and their optimizers on one rank.

    Args:
        policy: of the balance layer, see `freescale.balance.policies.POLICIES`.
        beat: called several times a step, a sign of life.
    """

    def __init__(
        self,
        workload: Workload,
        lanes: Lanes,
        device: torch.device,
        seed: int,
        policy: str = "rounds",
        beat: Callable[[], None] = lambda: None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.workload, self.lanes, self.device, self.beat = workload, lanes, device, beat
        self.rank, self.world_size = lanes.reference["data"].rank, lanes.reference["data"].world_size
        self.balancer = Balancer(self.world_size, CostModel(workload.cost), policy)
        self.embedding = ShardedEmbedding(
            workload.tables(),
            workload.feature_tables(),
            self.rank,
            self.world_size,
            RowOptimizer("adagrad"),
            seed=seed,
            dtype=dtype,
            device=device,
        )
        self.dense = DistributedDataParallel(workload.dense_model(dtype).to(device), process_group=lanes.dense)
        self.dense.register_comm_hook(None, annotated_all_reduce(lanes.dense, "dense"))
        self.hooks = ComputeHooks(self.dense.module)
        self._initial = [value.detach().clone() for value in self._all_state()]

    def restore(self) -> None:
        """Back to the initial state, exactly."""
        with torch.no_grad():
            for value, initial in zip(self._all_state(), self._initial, strict=True):
                value.copy_(initial)

    def run_turn(
        self,
        arm: Arm,
        batches: Sequence[JaggedBatch],
        after_step: Callable[[], None] = lambda: None,
        then: JaggedBatch | None = None,
    ) -> list[dict[str, Any]]:
        """Train on `batches` (this rank's part of each global batch) from the initial state.

        Args:
            then: the batch that would come next. It is prepared during the last step, as in the middle of training,
                and given up: a schedule that works ahead would otherwise have a last step that is too easy.

        Returns:
            A row per step with the step columns of steps.parquet, the same on every rank where it is global.
        """
        self.restore()
        optimizer = dense_optimizer(self.dense)
        lanes = self.lanes.of(arm)
        schedule = self._schedule(arm, Parts(self.embedding, optimizer, lanes, self.hooks))
        fed = [*batches, then] if then is not None else batches
        exchange = self._exchange(arm, lanes["data"], fed)
        predict = self.balancer.costs.predicted_ms
        feed = Feed(fed, predict, lanes["data"], exchange, self.device, arm.batches_ahead)
        steps: list[_Step] = []
        while len(steps) < len(batches):
            start_unix_ns, start_ns, start_cpu_ns = time.time_ns(), time.perf_counter_ns(), time.thread_time_ns()
            ready = feed.take()
            sums, lookup = self._train(ready, schedule, feed, arm, steps[-1] if steps else None)
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
            step_ns, cpu_ns = time.perf_counter_ns() - start_ns, time.thread_time_ns() - start_cpu_ns
            held = self.embedding.row_bytes(lookup), schedule.in_flight_bytes
            steps.append(_Step(ready, step_ns, cpu_ns, start_unix_ns, sums, lookup.owned, *held))
            after_step()
        schedule.stop()
        feed.stop()
        return self._rows(steps)

    def _train(
        self, ready: Ready, schedule: Schedule, feed: Feed, arm: Arm, before: _Step | None
    ) -> tuple[Handle, Lookup]:
        batch = ready.batch
        sums: list[Handle] = []
        self.beat()
        if before is not None:
            self._learn(before.sums)

        def loss_of(embedded: Mapping[str, Tensor]) -> Tensor:
            logits = self.dense(embedded, batch)
            loss = bce_sum(logits, batch.labels, batch.weights)
            sums.append(self._share(feed.lane, loss.detach(), batch, before))
            feed.advance()
            self.beat()
            # DDP averages over ranks, so this makes the average the mean over the global batch.
            return loss * (self.world_size / ready.weight_sum)

        upcoming = feed.upcoming() if arm.batches_ahead > 1 else None
        lookup = schedule.step(ready.ids, upcoming.ids if upcoming else None, loss_of)
        self.beat()
        return sums[0], lookup

    def _share(self, lane: Transport, loss: Tensor, batch: JaggedBatch, before: _Step | None) -> Handle:
        """Gather this step's loss sums, and the work and time of the step before, for the cost model."""
        weights = batch.weights.double()  # sums in fp32 would depend on who holds which sample
        loss_sums = torch.stack([loss.double(), (weights * batch.labels).sum(), weights.sum()])
        busy_ms, work = float("nan"), np.zeros(4)
        if before is not None and self.device.type == "cpu":
            busy_ms, work = before.compute_ns / 1e6, work_of(before.ready.batch.lengths.numpy())
        return lane.all_gather(torch.cat([loss_sums, loss_sums.new_tensor([busy_ms, *work])]))

    def _learn(self, sums: Handle) -> None:
        gathered = sums.wait().cpu().numpy()
        self.balancer.observe(gathered[:, 4:], gathered[:, 3])

    def _schedule(self, arm: Arm, parts: Parts) -> Schedule:
        return PrioritizedSchedule(parts) if arm.overlap else BlockingSchedule(parts, prefetch_ids=arm.prefetch_ids)

    def _exchange(
        self, arm: Arm, lane: Transport, batches: Sequence[JaggedBatch]
    ) -> SampleExchange[JaggedBatch] | None:
        if not arm.balance:
            return None
        max_samples = max(self.workload.max_samples, *(batch.samples for batch in batches))
        return SampleExchange(lane, self.balancer.assign, max_samples)

    def _all_state(self) -> list[Tensor]:
        states = [value for state in self.embedding.states for value in state.values()]
        return [*self.embedding.weights, *states, *self.dense.parameters()]

    def _rows(self, steps: Sequence[_Step]) -> list[dict[str, Any]]:
        rates = self._collision_rates([step.owned for step in steps])
        rows = []
        for number, (step, rate) in enumerate(zip(steps, rates, strict=True)):
            loss_sum, positives, weight = step.sums.wait()[:, :3].sum(0).tolist()
            batch = step.ready.batch
            rows.append(
                {
                    "step": number,
                    "step_ms": step.step_ns / 1e6,
                    "compute_ms": step.compute_ns / 1e6 if self.device.type == "cpu" else float("nan"),
                    "wait_ms": (step.step_ns - step.compute_ns) / 1e6 if self.device.type == "cpu" else float("nan"),
                    "samples": batch.samples,
                    "tokens": batch.tokens,
                    "candidates": batch.candidate_time.numel(),
                    "predicted_cost": step.ready.predicted_cost,
                    "moved_bytes": step.ready.moved_bytes,
                    "batch_bytes": step.ready.batch_bytes,
                    "row_bytes": step.row_bytes,
                    "in_flight_bytes": step.in_flight_bytes,
                    "loss": loss_sum / weight,
                    "normalized_entropy": normalized_entropy(loss_sum, positives, weight),
                    "collision_rate": rate,
                    "start_unix_ns": step.start_unix_ns,
                }
            )
        return rows

    def _collision_rates(self, owned: Sequence[list[Tensor]]) -> list[float]:
        """Share of each step's distinct rows, over all ranks, that the step before used too; NaN for the first."""
        counts = torch.zeros(len(owned), 2, dtype=torch.float64, device=self.device)
        for number, now in enumerate(owned):
            counts[number, 0] = sum(rows.numel() for rows in now)
            if number:
                counts[number, 1] = sum(int(is_in(a, b).sum()) for a, b in zip(now, owned[number - 1], strict=True))
        total = self.lanes.reference["data"].all_gather(counts).wait().sum(0).tolist()
        return [hit / rows if number and rows else float("nan") for number, (rows, hit) in enumerate(total)]
