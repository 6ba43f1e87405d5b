"""Writes small Kineto traces, so that tests say what is in them. Times are integer ns; µs appear only in the JSON."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

HOST_PID, MAIN, AUTOGRAD = 4242, 4242, 4300


def microseconds(ns: int) -> str:
    """The JSON number of `ns` in µs with all its digits, which no float has; unquoted when the text is written."""
    return f"#{'-' * (ns < 0)}{abs(ns) // 1000}.{abs(ns) % 1000:03d}#"


class TraceText:
    """One rank's trace in the making."""

    def __init__(self, rank: int | None = 0, world_size: int = 1, **metadata: Any) -> None:
        self.events: list[dict[str, Any]] = []
        self.metadata: dict[str, Any] = {"schemaVersion": 1}
        if rank is not None:
            self.metadata["distributedInfo"] = {"backend": "nccl", "rank": rank, "world_size": world_size}
        self.metadata |= metadata
        self._correlation = 0

    def event(self, cat: str, name: str, start: int, end: int, tid: Any, pid: Any = HOST_PID, **args: Any) -> None:
        self.events.append(
            {
                "ph": "X",
                "cat": cat,
                "name": name,
                "pid": pid,
                "tid": tid,
                "ts": microseconds(start),
                "dur": microseconds(end - start),
                "args": args,
            }
        )

    def step(self, number: int, start: int, end: int, tid: Any = MAIN) -> None:
        self.event("user_annotation", f"ProfilerStep#{number}", start, end, tid)

    def op(self, name: str, start: int, end: int, tid: Any = MAIN, **args: Any) -> None:
        self.event("cpu_op", name, start, end, tid, **args)

    def mark(self, name: str, start: int, end: int, tid: Any = MAIN) -> None:
        self.event("user_annotation", name, start, end, tid)

    def kernel(
        self,
        name: str,
        start: int,
        end: int,
        stream: int = 7,
        launched: int | None = None,
        cat: str = "kernel",
        args: dict[str, Any] | None = None,
    ) -> None:
        """A device interval; `launched` is when the main thread launched it, just before `start` if not given."""
        self._correlation += 1
        launched = start - 1000 if launched is None else launched
        self.event("cuda_runtime", "cudaLaunchKernel", launched, launched + 500, MAIN, correlation=self._correlation)
        facts = {"device": 0, "stream": stream, "correlation": self._correlation, **(args or {})}
        self.events.append(
            {
                "ph": "X",
                "cat": cat,
                "name": name,
                "pid": 0,
                "tid": stream,
                "ts": microseconds(start),
                "dur": microseconds(end - start),
                "args": facts,
            }
        )

    def text(self) -> str:
        document = json.dumps({**self.metadata, "traceEvents": self.events, "traceName": "t.json"}, indent=1)
        return re.sub(r'"#(-?[0-9.]+)#"', r"\1", document)

    def write(self, path: Path) -> Path:
        """Write as .json or .json.gz, whichever the name says."""
        content = self.text().encode()
        path.write_bytes(gzip.compress(content, 1) if path.suffix == ".gz" else content)
        return path
