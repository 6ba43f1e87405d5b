"""One rank of a simulation as a Kineto trace, so that whatever reads real traces reads it too.

On a GPU: kernels on streams with their launches, collectives with their arguments, copies for what needs no SM. On a
CPU: ops of the training thread, the ranges that our transports write, and the worker spans of gloo.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from typing import Any

import numpy as np

from freescale.bench.simulated_times import Recording, between_pauses, by_hand, group_name, issuer, waits
from freescale.simulate.ops import Collective, Work

_HOST_THREAD, _PROCESS = 1, 1
_KERNEL = {"all_to_all": "SendRecv", "all_gather": "AllGather_RING_LL", "all_reduce": "AllReduce_Sum_f32_RING_LL"}
_NCCL = {"all_to_all": "alltoallv", "all_gather": "_allgather_base", "all_reduce": "allreduce"}


class RankTrace:
    """Collects the recordings of one rank of one arm, one after the other, and writes them as one trace."""

    def __init__(self, arm: str, rank: int, ranks: int, gpu: bool, sm_free: bool) -> None:
        self.rank, self.ranks, self.gpu, self.sm_free = rank, ranks, gpu, sm_free
        self._arm = arm
        self._events: list[str] = []
        self._steps: list[dict[str, Any]] = []
        self._groups: dict[str, list[int]] = {}
        self._seq: dict[str, int] = {}
        self._base = 0  # correlations are numbers of operations, and each recording has its own

    def add(self, recording: Recording, first_number: int, offset_ns: int, facts: Sequence[dict[str, Any]]) -> None:
        """Add a recording.

        Args:
            first_number: the profiler's number of its first step.
            offset_ns: added to all times, so that recordings follow one another.
            facts: per step: block, turn_step, tokens and samples of this rank.
        """
        self._offset = offset_ns
        written, times, rank = recording.written, recording.times, self.rank
        starts = [int(times.start[written.first[step]][rank]) for step in recording.steps]
        ends = [*starts[1:], int(times.end[written.last[recording.steps[-1]]][rank])]
        for number, (start, end) in enumerate(zip(starts, ends, strict=True)):
            self._complete("user_annotation", f"ProfilerStep#{first_number + number}", start, end, _HOST_THREAD)
            self._steps.append({"step": first_number + number, **facts[number]})
        for number, op in enumerate(written.program.ops):
            if op.step in recording.steps and isinstance(op, Work):
                self._work(recording, number, op)
        for place, number in enumerate(recording.collectives.tolist()):
            self._collective(recording, place, number)
        self._base += len(written.program.ops)

    def as_bytes(self) -> bytes:
        """The trace, gzipped JSON."""
        distributed = {
            "backend": "nccl" if self.gpu else "gloo",
            "rank": self.rank,
            "world_size": self.ranks,
            "pg_config": [
                {"pg_name": name, "pg_desc": name, "ranks": ranks} for name, ranks in sorted(self._groups.items())
            ],
        }
        head = {
            "schemaVersion": 1,
            "provenance": "simulated",
            "host_name": "simulated",
            "distributedInfo": distributed,
            "freescale": {"arm": self._arm, "steps": self._steps},
        }
        text = json.dumps(head)[:-1] + ', "traceEvents": [\n' + ",\n".join(self._events) + "\n]}"
        return gzip.compress(text.encode(), compresslevel=5)

    def _work(self, recording: Recording, number: int, op: Work) -> None:
        times, rank = recording.times, self.rank
        start, end = int(times.start[number][rank]), int(times.end[number][rank])
        end -= _at(op.issue_ns, rank) if times.did[number][rank] else 0
        if end <= start or op.kind == "wait":
            return
        if op.stream == "host":
            category = "cpu_op" if op.kind == "compute" else "cuda_runtime"
            if self.gpu:
                self._complete(
                    "cuda_runtime", "cudaLaunchKernel", start, end, _HOST_THREAD, {"correlation": self._base + number}
                )
            elif op.kind == "compute":
                one_piece = [np.array([value], np.int64) for value in (start, end, op.pause_ppm)]
                parts = between_pauses(one_piece[0], one_piece[1], one_piece[2], recording.written.pause_ns)
                for begin, until in zip(*parts, strict=True):
                    if until > begin:
                        self._complete(category, f"simulated::{op.label}", int(begin), int(until), _HOST_THREAD)
            return
        # The launch is the operation that the kernel comes after; both carry its number.
        self._complete(
            "kernel", f"simulated_{op.label}", start, end, 7, {"correlation": self._base + op.after[0], "stream": 7}
        )

    def _collective(self, recording: Recording, place: int, number: int) -> None:
        op = recording.written.program.ops[number]
        assert isinstance(op, Collective)
        rank = self.rank
        group = self._group(op)
        seq = self._seq.get(group, 0)
        self._seq[group] = seq + 1
        call, arrival = int(recording.call[place, rank]), int(recording.arrival[place, rank])
        end, sent = int(recording.end[place, rank]), _at(op.sent_bytes, rank)
        by = issuer(recording.written, recording.times, number, rank)
        issued = int(recording.times.end[by][rank])
        mark = f"{op.label} group={group} seq={seq}"
        if not self.gpu:
            self._complete("user_annotation", f"freescale.comm {mark} bytes={sent}", call, issued, _HOST_THREAD)
            if by_hand(recording.written, number):
                self._complete("user_annotation", f"freescale.move {mark} bytes={sent}", call, issued, _HOST_THREAD)
            else:
                self._complete("user_annotation", f"gloo:{op.label}", issued, end, f"worker {op.lane}")
            self._waits(recording, number, mark)
            return
        stream = 20 + sorted(["bulk", "data", "dense", "ids", "urgent"]).index(op.lane)
        facts = {"correlation": self._base + number, "stream": stream}
        if self.sm_free and op.label != "all_reduce":
            self._complete("user_annotation", f"freescale.comm {mark} bytes={sent}", call, issued, _HOST_THREAD)
            self._complete("cuda_runtime", "cudaMemcpyAsync", call, issued, _HOST_THREAD, facts)
            self._complete("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", arrival, end, stream, facts)
            return
        self._complete("cuda_runtime", "cudaLaunchKernel", call, issued, _HOST_THREAD, facts)
        arguments = {
            "Collective name": _NCCL[op.label],
            "Process Group Name": group,
            "Process Group Description": group,
            "Seq": seq,
            "In msg nelems": sent,
            "dtype": "Byte",
        }
        name = f"ncclDevKernel_{_KERNEL[op.label]}(simulated)"
        self._complete("kernel", name, arrival, end, stream, facts | arguments)

    def _waits(self, recording: Recording, number: int, mark: str) -> None:
        """Ranges of the training thread's waits for a collective, from when it got there to the collective's end."""
        for begun, until in waits(recording.written, recording.times, number, recording.steps):
            if until[self.rank] > begun[self.rank]:
                begin, end = int(begun[self.rank]), int(until[self.rank])
                self._complete("user_annotation", f"freescale.wait {mark}", begin, end, _HOST_THREAD)

    def _group(self, op: Collective) -> str:
        name, members = group_name(op, self.rank)
        self._groups.setdefault(name, members.tolist() or list(range(self.ranks)))
        return name

    def _complete(
        self, category: str, name: str, start: int, end: int, thread: int | str, args: dict[str, Any] | None = None
    ) -> None:
        event = {"ph": "X", "cat": category, "name": name, "pid": _PROCESS, "tid": thread}
        if args:
            event["args"] = args
        times = f', "ts": {_micro(start + self._offset)}, "dur": {_micro(end - start)}}}'
        self._events.append(json.dumps(event)[:-1] + times)


def _at(values: Any, rank: int) -> int:
    return int(values if np.ndim(values) == 0 else values[rank])


def _micro(ns: int) -> str:
    return f"{ns // 1000}.{ns % 1000:03d}"
