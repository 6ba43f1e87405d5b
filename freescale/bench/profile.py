"""The profiled pass: turns under torch.profiler, for the mechanism only (profilers move the answer).

Every block is profiled, so that what the traces show has as many independent repetitions as the timing has. A rank
leaves one trace per arm, in which the steps of all blocks follow one another.
"""

from __future__ import annotations

import gc
import gzip
import os
import re
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from torch.profiler import ProfilerActivity, profile

from freescale.bench.arms import Arm
from freescale.bench.config import RunConfig
from freescale.bench.settling import STEP, settled_schedule, without_settling
from freescale.bench.trainer import Trainer
from freescale.errors import FreeScaleError
from workloads.batch import JaggedBatch

_decode = msgspec.json.decode
_CORRELATION = re.compile(rb'("(?:correlation|External id|id)":\s*)(\d+)')
_CORRELATIONS = 1 << 32  # more than one process counts


def profiled_turn(
    trainer: Trainer,
    arm: Arm,
    batches: Sequence[JaggedBatch],
    block: int,
    config: RunConfig,
    step_done: Callable[[], None],
) -> bytes:
    """Run a turn on a block's first `config.steps_in_profile` batches, recording the last `profiled_steps` of them.

    Returns:
        The rank's Kineto trace, gzipped JSON. Its `freescale` entry holds the arm and, for each recorded step, the
        profiler's number, block, number in the turn, tokens and samples of this rank.
    """
    rows, trace = _recorded(trainer, arm, batches, config, step_done)
    gc.collect()  # the profiler is in a cycle, with 100 MB of events whose size Python's collector does not see
    first = block * config.steps_in_profile
    recorded = [
        {"step": first + row["step"], "block": block, "turn_step": row["step"]}
        | {name: row[name] for name in ("tokens", "samples")}
        for row in rows[config.steps_in_profile - config.profiled_steps :]
    ]
    trace["traceEvents"] = _renumber(without_settling(trace["traceEvents"]), first)
    facts = {"arm": arm.name, "steps": recorded, "pid": os.getpid()}
    return gzip.compress(msgspec.json.encode({"freescale": facts, **trace}), compresslevel=5)


def _recorded(
    trainer: Trainer, arm: Arm, batches: Sequence[JaggedBatch], config: RunConfig, step_done: Callable[[], None]
) -> tuple[list[dict[str, Any]], dict[str, msgspec.Raw]]:
    """(Rows of the turn, its trace)."""
    activities = [ProfilerActivity.CPU]
    if trainer.device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    unrecorded = config.steps_in_profile - config.profiled_steps
    with tempfile.TemporaryDirectory(prefix="freescale-trace-") as folder:
        file = Path(folder) / "trace.json"
        with profile(
            activities=activities,
            schedule=settled_schedule(unrecorded - 2, 2, config.profiled_steps),
            on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(file)),
        ) as profiler:

            def after_step() -> None:
                step_done()
                profiler.step()

            steps = config.steps_in_profile
            rows = trainer.run_turn(arm, batches[:steps], after_step, then=batches[steps])
        return rows, msgspec.json.decode(file.read_bytes(), type=dict[str, msgspec.Raw])


def merge(traces: Sequence[bytes]) -> bytes:
    """One trace with the steps of several, recorded one after the other by one rank.

    Processes that took the rank's place when the run was resumed appear as the first one: same process and thread
    number, other correlations.
    """
    events: list[msgspec.Raw] = []
    steps: list[dict[str, Any]] = []
    head: dict[str, Any] = {}
    processes: list[int] = []
    for number, compressed in enumerate(traces):
        trace = msgspec.json.decode(gzip.decompress(compressed), type=dict[str, msgspec.Raw])
        base, facts = _decode(trace.get("baseTimeNanoseconds", b"0")), _decode(trace["freescale"])
        if number == 0:
            head = dict(trace)
        elif base != _decode(head.get("baseTimeNanoseconds", b"0")):
            raise FreeScaleError(
                "trace: the profiler changed its time base between blocks; delete the run's parts/ and resume it"
            )
        pid = facts["pid"]
        if pid not in processes:
            processes.append(pid)
        place, content = processes.index(pid), trace["traceEvents"]
        if place:
            content = _as_process(content, pid, processes[0], place)
        events += msgspec.json.decode(content, type=list[msgspec.Raw])
        steps += facts["steps"]
    merged = {**_decode(head["freescale"]), "steps": steps}
    return gzip.compress(msgspec.json.encode({**head, "freescale": merged, "traceEvents": events}), compresslevel=5)


def _as_process(events: msgspec.Raw, pid: int, first: int, place: int) -> msgspec.Raw:
    """Events that process `pid`, the rank's number `place`, recorded, as if process `first` had."""
    renamed = re.sub(rb'("(?:pid|tid)":\s*)%d\b' % pid, rb"\g<1>%d" % first, bytes(events))

    def apart(match: re.Match[bytes]) -> bytes:
        return b"%s%d" % (match[1], int(match[2]) + place * _CORRELATIONS)

    return msgspec.Raw(_CORRELATION.sub(apart, renamed))


def _renumber(events: msgspec.Raw, first: int) -> msgspec.Raw:
    """Profiler step n becomes first + n: numbers stay unique when the blocks' traces are put together."""

    def later(match: re.Match[bytes]) -> bytes:
        return b'"ProfilerStep#%d"' % (first + int(match[1]))

    return msgspec.Raw(STEP.sub(later, bytes(events)))
