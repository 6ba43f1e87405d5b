"""`freescale.capture`: three lines in any PyTorch training loop leave a run directory to analyse.

    with freescale.capture("runs", steps=4) as capture:
        for batch in loader:
            train_step(batch)
            capture.step(tokens=batch.tokens)

Every rank records the same steps. Outside them a step costs one look at the clock; after them, nothing.
"""

from __future__ import annotations

import datetime
import gzip
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch.profiler import ProfilerAction, ProfilerActivity, profile, schedule

from analyzer import rundir
from freescale.bench.collect import bring_to_rank_0, gather_rows, steps_table
from freescale.bench.machine import git_commit, machine, versions
from freescale.bench.settling import settled_schedule, without_settling
from freescale.errors import FreeScaleError

ARM = "capture"


class capture:
    """Record `steps` steps of this job on every rank.

    Call `step()` at the end of each training step, on every rank equally often. The run directory is written as soon
    as the last step has been recorded (or on leaving, if the loop ends earlier), by rank 0, which collects the other
    ranks' traces over a process group of its own; ranks on other hosts need no common file system.

    Args:
        out: folder that the run directory is made in.
        steps: steps to record.
        wait: steps before them that are timed, but not profiled: the first of a job tell little, so skip a few.
        warmup: steps after the wait in which the profiler warms up. From two on, the last of them is recorded and
            left out: the first recorded step is slower than it should be.
        tokens: called at the end of each step, gives the tokens this rank computed on; or give them to `step`.
        name: of the job, part of the run directory's name.
        record_shapes: record input shapes, which lets the analyzer compare equal work; costs some time in the
            recorded steps.

    Attributes:
        run: the run directory once it has been written, on rank 0; None elsewhere.

    Raises:
        FreeScaleError: a number is out of range, or two captures are active at once.
    """

    _active = False

    def __init__(
        self,
        out: str | Path = "runs",
        *,
        steps: int = 4,
        wait: int = 10,
        warmup: int = 2,
        tokens: Callable[[], int] | None = None,
        name: str = "job",
        record_shapes: bool = False,
    ) -> None:
        for field, value, low in (("steps", steps, 1), ("wait", wait, 0), ("warmup", warmup, 1)):
            if value < low:
                raise FreeScaleError(f"capture {field}: {value}, must be at least {low}")
        if not name or "/" in name or name.startswith("."):
            raise FreeScaleError(f"capture name: {name!r}, must be usable in a file name")
        self.run: Path | None = None
        self._out, self._name, self._tokens = Path(out), name, tokens
        self._steps, self._wait, self._warmup = steps, wait, warmup
        self._record_shapes = record_shapes
        self._rows: list[dict[str, Any]] = []
        self._written = False

    def __enter__(self) -> capture:
        if capture._active:
            raise FreeScaleError("capture: another one is active in this process; leave it first")
        capture._active = True
        self._distributed = dist.is_available() and dist.is_initialized()
        self._rank = dist.get_rank() if self._distributed else 0
        self._world_size = dist.get_world_size() if self._distributed else 1
        self._backend = dist.get_backend() if self._distributed else "none"
        self._group = dist.new_group(backend="gloo", group_desc="freescale_capture") if self._distributed else None
        self._scratch = tempfile.TemporaryDirectory(prefix="freescale-capture-")
        self._trace = Path(self._scratch.name) / "trace.json"
        activities = [ProfilerActivity.CPU]
        if torch.cuda.is_available():
            activities.append(ProfilerActivity.CUDA)
        self._profiler = profile(
            activities=activities,
            schedule=self._schedule(),
            on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(self._trace)),
            record_shapes=self._record_shapes,
        )
        self._profiler.start()
        self._profiling = True
        self._step_began_ns = time.perf_counter_ns()
        return self

    def step(self, tokens: int | None = None, samples: int | None = None) -> None:
        """Mark the end of a training step.

        Args:
            tokens: that this rank computed on in this step; overrides the constructor's function.
            samples: that this rank computed on in this step.
        """
        if self._written:
            return
        now_ns = time.perf_counter_ns()
        if tokens is None and self._tokens is not None:
            tokens = self._tokens()
        number = len(self._rows)
        self._rows.append(
            {
                "block": 0,
                "arm": ARM,
                "position": 0,
                "step": number,
                "rank": self._rank,
                # Profiled steps are slower than others, so they give no step time.
                "warmup": self._wait > 0 and number >= self._wait,
                "step_ms": (now_ns - self._step_began_ns) / 1e6,
                "samples": samples or 0,
                "tokens": tokens or 0,
                "candidates": 0,
                "moved_bytes": 0,
                "batch_bytes": 0,
                "start_unix_ns": time.time_ns() - (now_ns - self._step_began_ns),
            }
        )
        self._profiler.step()
        if len(self._rows) == self._wait + self._warmup + self._steps:
            self._stop_profiler()
            self._write()
        self._step_began_ns = time.perf_counter_ns()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        try:
            self._stop_profiler()
            # After an error the other ranks may be anywhere: collecting from them could wait for ever.
            if not self._written and error is None:
                self._write()
        finally:
            capture._active = False
            self._scratch.cleanup()

    @property
    def _settles(self) -> bool:
        return self._warmup >= 2

    def _schedule(self) -> Callable[[int], ProfilerAction]:
        if self._settles:
            return settled_schedule(self._wait, self._warmup, self._steps)
        return schedule(wait=self._wait, warmup=self._warmup, active=self._steps, repeat=1)

    def _stop_profiler(self) -> None:
        if self._profiling:
            self._profiling = False
            self._profiler.stop()

    def _write(self) -> None:
        self._written = True
        trace = self._trace_with_facts()
        rows = gather_rows(self._rows, self._group) if self._group else self._rows
        hosts = gather_rows([{"host": socket.gethostname()}], self._group) if self._group else []
        run = self._make_run(rows, [row["host"] for row in hosts]) if self._rank == 0 else None
        for source in range(self._world_size):
            held = trace
            if self._group:
                held = bring_to_rank_0(trace, source, self._group) or b""
            if run and held:
                rundir.write_bytes(run / rundir.TRACES / ARM / f"rank-{source:05d}.json.gz", held)
        if run:
            rundir.update_manifest(run, complete=True)
            self.run = run

    def _trace_with_facts(self) -> bytes:
        recorded = [
            {
                "step": row["step"],
                "block": 0,
                "turn_step": row["step"],
                "tokens": row["tokens"],
                "samples": row["samples"],
            }
            for row in self._rows[self._wait + self._warmup :]
        ]
        if not recorded or not self._trace.exists():
            return b""
        trace = msgspec.json.decode(self._trace.read_bytes(), type=dict[str, msgspec.Raw])
        if self._settles:
            trace["traceEvents"] = without_settling(trace["traceEvents"])
        rank = {"rank": self._rank, "world_size": self._world_size, "backend": self._backend}
        head = {
            "distributedInfo": rank,  # Kineto leaves it out where there is no process group
            "host_name": socket.gethostname(),
            **trace,
            "freescale": {"arm": ARM, "steps": recorded},
        }
        return gzip.compress(msgspec.json.encode(head), compresslevel=5)

    def _make_run(self, rows: list[dict[str, Any]], hosts: list[str]) -> Path:
        now = datetime.datetime.now(datetime.timezone.utc)
        run = rundir.make_run(self._out, f"{now:%Y%m%dT%H%M%SZ}-{self._name}-{self._backend}x{self._world_size}")
        too_few = len(self._rows) < self._wait + self._warmup + self._steps
        manifest = {
            "schema": rundir.SCHEMA,
            "provenance": "measured",
            "complete": False,
            "created_utc": now.isoformat(timespec="seconds"),
            "command": sys.argv,
            "seed": None,
            "workload": {"preset": self._name},
            "world_size": self._world_size,
            "backend": self._backend,
            "device": "cuda" if torch.cuda.is_available() else "cpu",
            "arms": [ARM],
            "blocks": 1,
            "steps_per_turn": len(self._rows),
            "warmup_steps": self._warmup,
            "profiled_steps": self._steps,
            "hosts": hosts,
            "machine": machine(),
            "versions": versions(),
            "git_commit": git_commit(),
            "warnings": [
                f"the loop ended after {len(self._rows)} steps, of the {self._wait} + {self._warmup} + {self._steps} "
                "that capture was to wait, warm up and record"
            ]
            if too_few
            else [],
        }
        rundir.write_json(run / rundir.MANIFEST, manifest)
        if rows:
            rundir.write_parquet(run / rundir.STEPS, steps_table(rows))
        return run
