"""One rank's training state, and the turn: some steps of one arm, measured, from the same initial state every time."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

from freescale.balance.exchange import SampleExchange
from freescale.balance.policies import zigzag
from freescale.bench.arms import Arm
from freescale.bench.feed import Feed, Ready
from freescale.comm.process_group import ProcessGroupTransport
from freescale.comm.transport import Handle
from freescale.overlap.blocking import blocking_step
from freescale.overlap.embedding import ShardedEmbedding
from freescale.overlap.row_optimizer import RowOptimizer
from workloads.batch import JaggedBatch
from workloads.losses import bce_sum, normalized_entropy
from workloads.registry import Workload

LANES = ("data", "embedding", "dense")


@dataclass
class _Step:
    """What a step leaves to be worked out after the turn, off the clock."""

    ready: Ready
    step_ns: int
    compute_ns: int
    start_unix_ns: int
    sums: Handle
    served: list[Tensor]


class Trainer:
    """Sharded embedding, data-parallel dense model and their optimizers on one rank.

    Args:
        lanes: transports named in `LANES`.
        beat: called several times a step, a sign of life.
    """

    def __init__(
        self,
        workload: Workload,
        lanes: Mapping[str, ProcessGroupTransport],
        device: torch.device,
        seed: int,
        beat: Callable[[], None] = lambda: None,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.workload, self.lanes, self.device, self.beat = workload, lanes, device, beat
        self.rank, self.world_size = lanes["data"].rank, lanes["data"].world_size
        self.embedding = ShardedEmbedding(
            workload.tables(),
            workload.feature_tables(),
            lanes["embedding"],
            RowOptimizer("adagrad"),
            seed=seed,
            dtype=dtype,
            device=device,
        )
        self.dense = DistributedDataParallel(
            workload.dense_model(dtype).to(device), process_group=lanes["dense"].process_group
        )
        self._initial = [value.detach().clone() for value in self._all_state()]

    def restore(self) -> None:
        """Back to the initial state, exactly."""
        with torch.no_grad():
            for value, initial in zip(self._all_state(), self._initial, strict=True):
                value.copy_(initial)

    def run_turn(
        self, arm: Arm, batches: Sequence[JaggedBatch], after_step: Callable[[], None] = lambda: None
    ) -> list[dict[str, float]]:
        """Train on `batches` (this rank's part of each global batch) from the initial state.

        Returns:
            A row per step with the step columns of steps.parquet, the same on every rank where it is global.
        """
        self.restore()
        optimizer = torch.optim.Adam(self.dense.parameters(), lr=1e-3)
        feed = Feed(batches, self.workload, self.lanes["data"], self._exchange(arm, batches))
        steps = []
        while True:
            start_unix_ns, start_ns, start_cpu_ns = time.time_ns(), time.perf_counter_ns(), time.thread_time_ns()
            ready = feed.take()
            if ready is None:
                break
            sums, served = self._train(ready, optimizer, feed)
            if self.device.type == "cuda":
                torch.cuda.synchronize(self.device)
            step_ns, cpu_ns = time.perf_counter_ns() - start_ns, time.thread_time_ns() - start_cpu_ns
            steps.append(_Step(ready, step_ns, cpu_ns, start_unix_ns, sums, served))
            after_step()
        return self._rows(steps)

    def _train(self, ready: Ready, optimizer: torch.optim.Optimizer, feed: Feed) -> tuple[Handle, list[Tensor]]:
        batch = ready.batch.to(self.device)
        sums: list[Handle] = []
        self.beat()

        def loss_of(embedded: dict[str, Tensor]) -> Tensor:
            logits = self.dense(embedded, batch)
            loss = bce_sum(logits, batch.labels, batch.weights)
            statistics = torch.stack(
                [loss.detach().double(), (batch.weights * batch.labels).sum().double(), batch.weights.sum().double()]
            )
            sums.append(self.lanes["data"].all_gather(statistics))
            # DDP averages over ranks, so this makes the average the mean over the global batch.
            return loss * (self.world_size / ready.weight_sum)

        def after_forward() -> None:
            self.beat()
            feed.advance()

        lookup = blocking_step(self.embedding, optimizer, batch.ids(), loss_of, after_forward)
        self.beat()
        return sums[0], lookup.served

    def _exchange(self, arm: Arm, batches: Sequence[JaggedBatch]) -> SampleExchange[JaggedBatch] | None:
        if not arm.balance:
            return None
        max_samples = max(self.workload.max_samples, *(batch.samples for batch in batches))
        return SampleExchange(self.lanes["data"], zigzag, self.workload.cost, max_samples)

    def _all_state(self) -> list[Tensor]:
        states = [value for state in self.embedding.states for value in state.values()]
        return [*self.embedding.weights, *states, *self.dense.parameters()]

    def _rows(self, steps: Sequence[_Step]) -> list[dict[str, float]]:
        rates = self._collision_rates([step.served for step in steps])
        rows = []
        for number, (step, rate) in enumerate(zip(steps, rates, strict=True)):
            loss_sum, positives, weight = step.sums.wait().sum(0).tolist()
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
                    "loss": loss_sum / weight,
                    "normalized_entropy": normalized_entropy(loss_sum, positives, weight),
                    "collision_rate": rate,
                    "start_unix_ns": step.start_unix_ns,
                }
            )
        return rows

    def _collision_rates(self, served: Sequence[list[Tensor]]) -> list[float]:
        """Share of each step's distinct rows, over all ranks, that the step before used too; NaN for the first."""
        counts = torch.zeros(len(served), 2, dtype=torch.float64, device=self.device)
        before: list[Tensor] | None = None
        for number, groups in enumerate(served):
            now = [torch.unique(rows) for rows in groups]
            counts[number, 0] = sum(rows.numel() for rows in now)
            if before is not None:
                counts[number, 1] = sum(int(torch.isin(a, b).sum()) for a, b in zip(now, before, strict=True))
            before = now
        total = self.lanes["data"].all_gather(counts).wait().sum(0).tolist()
        return [float("nan") if n == 0 or not rows else hit / rows for n, (rows, hit) in enumerate(total)]
