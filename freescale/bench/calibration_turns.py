"""Turns of the trainer, as a run takes them, in a calibration: forward and backward where they occur, and whole steps.

What DDP, the hooks and cold caches cost is in them. Timed turns run the blocking schedule. Recorded ones run under the
profiler as a run's do, and their traces show how long calls and exchanges take beside compute, and when it pauses.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor
from torch.profiler import record_function

from freescale.bench.arms import Arm, parse_arm
from freescale.bench.calibration_pieces import WARMUP, Steps, model_amounts
from freescale.bench.calibration_traces import attach
from freescale.bench.config import RunConfig
from freescale.bench.lanes import Lanes
from freescale.bench.profile import profiled_turn
from freescale.bench.stopwatch import RANGE
from freescale.bench.trainer import Trainer
from freescale.overlap.lookup import Lookup
from freescale.overlap.schedule import LossOf, Parts, Schedule
from workloads.batch import JaggedBatch

RECORDED_ARMS = ("baseline", "overlap", "smfree")
"""Exchanges that are waited for, that go on beside compute, and by shared memory."""


class TimedTrainer(Trainer):
    """A trainer that times forward and backward of each step.

    Attributes:
        timed: per step, (start ns, wall ns, CPU ns) of forward and of backward.
    """

    def __init__(self, steps: Steps, lanes: Lanes) -> None:
        super().__init__(steps.workload, lanes, torch.device("cpu"), steps.seed)
        self.timed: list[dict[str, tuple[int, int, int]]] = []

    def _schedule(self, arm: Arm, parts: Parts) -> Schedule:
        return super()._schedule(arm, _TimedParts(self.timed, parts))


class _TimedParts(Parts):
    """The same parts, with forward and backward timed."""

    def __init__(self, timed: list[dict[str, tuple[int, int, int]]], parts: Parts) -> None:
        super().__init__(parts.embedding, parts.dense_optimizer, parts.lanes, parts.hooks, parts.scaler)
        self._timed = timed

    def compute(
        self,
        loss_of: LossOf,
        lookup: Lookup,
        embedded: Mapping[str, Tensor],
        new_window: bool,
        advance: Callable[[], None],
    ) -> None:
        spans: dict[str, tuple[int, int, int]] = {}
        backward = record_function(f"{RANGE}backward")
        begun = (0, 0)

        def timed_loss_of(embedded: Mapping[str, Tensor]) -> Tensor:
            nonlocal begun
            start, start_cpu = time.perf_counter_ns(), time.thread_time_ns()
            with record_function(f"{RANGE}forward"):
                loss = loss_of(embedded)
            begun = time.perf_counter_ns(), time.thread_time_ns()
            spans["forward"] = (start, begun[0] - start, begun[1] - start_cpu)
            backward.__enter__()
            return loss

        super().compute(timed_loss_of, lookup, embedded, new_window, advance)
        backward.__exit__(None, None, None)
        spans["backward"] = (begun[0], time.perf_counter_ns() - begun[0], time.thread_time_ns() - begun[1])
        self._timed.append(spans)


def time_turn(steps: Steps, batches: int, lanes: Lanes, whole: bool) -> None:
    """Time forward, backward and whole steps of the blocking schedule on the batches whose pieces are timed."""
    trainer, watch, fed = TimedTrainer(steps, lanes), steps.watch, steps.batches(batches, whole)
    place = {"preset": steps.workload.name, "whole": whole, "profiled": False, "turn": "baseline"}
    watch.place, watch.on = place, True
    rows = trainer.run_turn(parse_arm("baseline"), fed[:-1], then=fed[-1])
    _note(steps, trainer, fed, "baseline", whole, profiled=False)
    for number, row in list(enumerate(rows))[WARMUP:]:
        watch.place = {**place, "batch": number}
        watch.note("step", row["start_unix_ns"], round(row["step_ms"] * 1e6), round(row["compute_ms"] * 1e6), {})
    watch.on = False


def record_turn(steps: Steps, batches: int, lanes: Lanes, arm: str, trace: Path) -> None:
    """Record a turn of an arm into `trace`, as a run's profiled pass does; note forward, backward and whole steps."""
    trainer, watch, fed = TimedTrainer(steps, lanes), steps.watch, steps.batches(batches, whole=True)
    config = RunConfig(
        preset=steps.workload.name, ranks=steps.world, steps=batches, warmup_steps=WARMUP, profiled_steps=batches
    )
    trace.write_bytes(profiled_turn(trainer, parse_arm(arm), fed, 0, config, lambda: None))
    watch.on = True
    noted = len(watch.rows)
    _note(steps, trainer, fed, arm, whole=True, profiled=True)
    for number in range(WARMUP, WARMUP + batches):
        watch.place = {"preset": steps.workload.name, "batch": number, "whole": True, "profiled": True, "turn": arm}
        watch.note("step", 0, 0, 0, {})
    watch.on = False
    attach(watch.rows[noted:], trace)


def _note(
    steps: Steps, trainer: TimedTrainer, fed: Sequence[JaggedBatch], arm: str, whole: bool, profiled: bool
) -> None:
    """Note forward and backward of each step that counts."""
    place = {"preset": steps.workload.name, "whole": whole, "profiled": profiled, "turn": arm}
    for number in range(WARMUP, len(trainer.timed)):
        steps.watch.place = {**place, "batch": number}
        amounts = model_amounts(steps.workload, fed[number])
        for piece in ("forward", "backward"):
            steps.watch.note(piece, *trainer.timed[number][piece], amounts)
