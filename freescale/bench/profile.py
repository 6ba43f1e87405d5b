"""The profiled pass: the same turn under torch.profiler, for the mechanism only (profilers move the answer)."""

from __future__ import annotations

import gzip
import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from torch.profiler import ProfilerActivity, profile, schedule

from freescale.bench.arms import Arm
from freescale.bench.config import RunConfig
from freescale.bench.trainer import Trainer
from workloads.batch import JaggedBatch


def profiled_turn(
    trainer: Trainer, arm: Arm, batches: Sequence[JaggedBatch], config: RunConfig, step_done: Callable[[], None]
) -> bytes:
    """Run a turn with its last `profiled_steps` steps recorded.

    Returns:
        The rank's Kineto trace, gzipped JSON, with a `freescale` entry: arm, and rank, tokens and samples per step.
    """
    activities = [ProfilerActivity.CPU]
    if trainer.device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    with tempfile.TemporaryDirectory(prefix="freescale-trace-") as folder:
        file = Path(folder) / "trace.json"
        with profile(
            activities=activities,
            schedule=schedule(wait=config.warmup_steps, warmup=1, active=config.profiled_steps, repeat=1),
            on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(file)),
        ) as profiler:

            def after_step() -> None:
                step_done()
                profiler.step()

            rows = trainer.run_turn(arm, batches, after_step)
        facts = {
            "arm": arm.name,
            "steps": [row["step"] for row in rows],
            "tokens": [row["tokens"] for row in rows],
            "samples": [row["samples"] for row in rows],
        }
        text = file.read_text(encoding="utf-8")
    # The profiler writes metadata before the steps are known, so ours is put at the head of the object here.
    head, brace, rest = text.partition("{")
    return gzip.compress(f'{head}{brace}"freescale": {json.dumps(facts)},{rest}'.encode(), compresslevel=5)
