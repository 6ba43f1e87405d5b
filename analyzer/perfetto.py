"""One clock-aligned trace of all ranks for Perfetto: ranks are processes, bubbles coloured slices above the lanes."""

from __future__ import annotations

import gzip
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from analyzer.bubbles import Tables, partition_inputs
from analyzer.errors import AnalyzerError
from analyzer.intervals import Union, overlaps
from analyzer.lanes import Lane
from analyzer.partition import where
from analyzer.scope import Scope
from analyzer.timeline import UNKNOWN, Flag, Timeline

#: Chrome's reserved colour names, the only ones that trace viewers show.
COLOURS = {"straggler": "terrible", "exposed_comm": "bad", "exposed_copy": "olive", "host": "grey"}
_BUBBLES, _STEPS = "bubbles", "steps"
_FIRST_STREAM_TID = 10


def write_merged(file: Path, timelines: Sequence[Timeline], tables: Tables, scope: Scope | None = None) -> None:
    """Write the device intervals (on CPU traces: compute and communication) and bubbles of all ranks into one file.

    Args:
        file: ends in .json or .json.gz; replaced at once, when it is complete.
        timelines: those that `tables` was measured from.
        scope: write only these ranks, and only what overlaps the windows of these steps.

    Raises:
        AnalyzerError: the name ends otherwise, or the file cannot be written.
    """
    if not file.name.endswith((".json", ".json.gz")):
        raise AnalyzerError(f"{file}: a merged trace must end in .json or .json.gz")
    scope, temporary = scope or Scope(), ""
    timelines = scope.limit(timelines)
    try:
        descriptor, temporary = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent)
        with os.fdopen(descriptor, "wb") as raw:
            out = gzip.GzipFile(fileobj=raw, mode="wb", compresslevel=3) if file.suffix == ".gz" else raw
            origin = _origin(timelines, tables)
            out.write(b'{"displayTimeUnit": "ms", "baseTimeNanoseconds": %d, "traceEvents": [\n' % origin)
            for number, event in enumerate(_events(timelines, tables, scope, origin)):
                out.write((",\n" if number else "").encode() + event.encode())
            out.write(b"\n]}\n")
            if out is not raw:
                out.close()
        os.chmod(temporary, 0o644)
        os.replace(temporary, file)
    except OSError as error:
        if temporary and os.path.exists(temporary):
            os.unlink(temporary)
        raise AnalyzerError(f"{file}: cannot be written ({error.strerror or error})") from error


def _origin(timelines: Sequence[Timeline], tables: Tables) -> int:
    """Earliest window on the common clock; times in the file count from it, so that µs with decimals stay exact."""
    starts = [tables.clocks.to_common(r, t.steps.start_ns[:1]) for r, t in enumerate(timelines) if len(t.steps)]
    return int(np.concatenate(starts).min()) if starts else 0


def _events(timelines: Sequence[Timeline], tables: Tables, scope: Scope, origin: int) -> Iterator[str]:
    for r, (rank, timeline) in enumerate(zip(tables.ranks, timelines, strict=True)):
        if not scope.shows(rank):
            continue
        yield _name("process_name", rank, f"rank {rank}")
        yield _name("process_sort_index", rank, rank, key="sort_index")
        yield from _intervals(r, rank, timeline, tables, origin)
        yield from _steps(r, rank, timeline, tables, origin)
        yield from _bubbles(r, rank, timeline, tables, origin)


def _intervals(r: int, rank: int, timeline: Timeline, tables: Tables, origin: int) -> Iterator[str]:
    rows = np.flatnonzero((timeline.lane != Lane.HOST) & ((timeline.flags & Flag.WAIT) == 0))
    windows: Union = (timeline.steps.start_ns, timeline.steps.end_ns)
    rows = rows[np.unique(overlaps(timeline.start_ns[rows], timeline.end_ns[rows], windows)[0])]
    streams, thread = np.unique(timeline.stream[rows], return_inverse=True)
    for tid, stream in enumerate(streams.tolist(), _FIRST_STREAM_TID):
        yield _name("thread_name", rank, f"stream {stream}" if timeline.on_device else f"thread {stream}", tid)
    start = tables.clocks.to_common(r, timeline.start_ns[rows]) - origin
    end = tables.clocks.to_common(r, timeline.end_ns[rows]) - origin
    for row, tid, begin, over in zip(rows.tolist(), thread.tolist(), start.tolist(), end.tolist(), strict=True):
        facts: dict[str, Any] = {"lane": Lane(int(timeline.lane[row])).name.lower()}
        if timeline.op[row] != UNKNOWN:
            facts["op"] = timeline.ops[timeline.op[row]]
            facts["group"] = timeline.groups[timeline.group[row]].name
        if timeline.bytes[row] != UNKNOWN:
            facts["bytes"] = int(timeline.bytes[row])
        yield _slice(timeline.names[timeline.name_id[row]], rank, tid + _FIRST_STREAM_TID, begin, over, facts)


def _steps(r: int, rank: int, timeline: Timeline, tables: Tables, origin: int) -> Iterator[str]:
    yield _name("thread_name", rank, _STEPS, tid=0)
    start = tables.clocks.to_common(r, timeline.steps.start_ns) - origin
    end = tables.clocks.to_common(r, timeline.steps.end_ns) - origin
    for number, begin, over in zip(timeline.steps.number.tolist(), start.tolist(), end.tolist(), strict=True):
        yield _slice(f"step {number}", rank, 0, begin, over, {})


def _bubbles(r: int, rank: int, timeline: Timeline, tables: Tables, origin: int) -> Iterator[str]:
    yield _name("thread_name", rank, _BUBBLES, tid=1)
    inputs = partition_inputs(r, timeline, tables.matching, tables.arrivals, tables.clocks, tables.split)
    for kind, (start, end) in where(*inputs).items():
        begins, overs = (tables.clocks.to_common(r, at) - origin for at in (start, end))
        for begin, over in zip(begins.tolist(), overs.tolist(), strict=True):
            yield _slice(kind, rank, 1, begin, over, {}, COLOURS[kind])


def _slice(
    name: str, rank: int, tid: int, start_ns: int, end_ns: int, facts: dict[str, Any], colour: str | None = None
) -> str:
    event: dict[str, Any] = {"ph": "X", "name": name, "pid": rank, "tid": tid, "args": facts}
    if colour:
        event["cname"] = colour
    times = f', "ts": {_us(start_ns)}, "dur": {_us(end_ns - start_ns)}}}'
    return json.dumps(event)[:-1] + times


def _name(kind: str, rank: int, value: str | int, tid: int = 0, key: str = "name") -> str:
    return json.dumps({"ph": "M", "name": kind, "pid": rank, "tid": tid, "args": {key: value}})


def _us(ns: int) -> str:
    return f"{'-' * (ns < 0)}{abs(ns) // 1000}.{abs(ns) % 1000:03d}"
