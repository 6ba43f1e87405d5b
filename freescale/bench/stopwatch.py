"""What a calibration times: pieces of work on this thread, and exchanges on lanes that say when their calls began.

While the profiler records, every piece is a range in the trace too, so that what it computed can be told from the
pauses between its ops.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.profiler import record_function

from freescale.comm.transport import Handle, Transport

RANGE = "calibrated piece "
"""What the name of a piece begins with in a trace."""


class Stopwatch:
    """Collects (piece, amounts, wall ns, this thread's CPU ns), and where in the calibration that was."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.on = False
        self.place: dict[str, Any] = {}
        self._seen: dict[str, int] = {}

    @contextmanager
    def piece(self, name: str, **amounts: float) -> Iterator[None]:
        if not self.on:
            yield
            return
        with record_function(RANGE + name):
            start, start_cpu = time.perf_counter_ns(), time.thread_time_ns()
            yield
            cpu_ns, ns = time.thread_time_ns() - start_cpu, time.perf_counter_ns() - start
        self.note(name, start, ns, cpu_ns, amounts)

    def note(self, name: str, start_ns: int, ns: int, cpu_ns: int, amounts: Mapping[str, float]) -> None:
        """Add a row; its ordinal is the same on every rank."""
        if self.on:
            ordinal = self._seen[name] = self._seen.get(name, -1) + 1
            row = {"piece": name, "ordinal": ordinal, "start_ns": start_ns, "ns": ns, "cpu_ns": cpu_ns}
            self.rows.append({**row, "amounts": dict(amounts), **self.place})

    def amend(self, **amounts: float) -> None:
        """Amounts of the last piece that are only known after it."""
        if self.on:
            self.rows[-1]["amounts"] |= amounts

    def wait(self, handle: Handle) -> None:
        """Wait for an exchange, and take its time since it was issued."""
        handle.wait()
        ns, amounts = time.perf_counter_ns() - handle.issued_ns, {"nbytes": float(handle.sent_bytes)}
        self.note(f"{handle.engine} exchange", handle.issued_ns, ns, 0, amounts)


class TimedLane:
    """A lane whose handles say when the issuing call began, not when it returned: gloo may be done by then. How long
    the calls took goes to the stopwatch."""

    def __init__(self, lane: Transport, watch: Stopwatch) -> None:
        self._lane, self._watch = lane, watch
        self.group, self.rank, self.world_size, self.engine = lane.group, lane.rank, lane.world_size, lane.engine

    def all_to_all(self, send: Tensor, send_splits: Sequence[int], recv_splits: Sequence[int]) -> Handle:
        begun_ns, begun_cpu_ns = time.perf_counter_ns(), time.thread_time_ns()
        return self._since(begun_ns, begun_cpu_ns, self._lane.all_to_all(send, send_splits, recv_splits))

    def all_gather(self, send: Tensor) -> Handle:
        begun_ns, begun_cpu_ns = time.perf_counter_ns(), time.thread_time_ns()
        return self._since(begun_ns, begun_cpu_ns, self._lane.all_gather(send))

    def close(self) -> None:
        self._lane.close()

    def _since(self, begun_ns: int, begun_cpu_ns: int, handle: Handle) -> Handle:
        cpu_ns, ns = time.thread_time_ns() - begun_cpu_ns, time.perf_counter_ns() - begun_ns
        amounts = {"nbytes": float(handle.sent_bytes)}
        self._watch.note(f"{self.engine} call {self.group}", begun_ns, ns, cpu_ns, amounts)
        handle.issued_ns = begun_ns
        return handle
