"""Timeline: the analyzer's only view of a trace.

One rank's intervals as parallel numpy columns, whatever they came from: a GPU, the CPU with gloo, or a simulator.
Readers build it; everything after reads only this.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntFlag

import numpy as np
from numpy.typing import NDArray

from analyzer.errors import AnalyzerError
from analyzer.intervals import Int64
from analyzer.lanes import Lane

#: Value of `Timeline.group` and of `ordinal`, `bytes`, `correlation`, `step`, `op` where the trace does not say.
UNKNOWN = -1


class Flag(IntFlag):
    """Facts about a row that are true or not; stored in `Timeline.flags`."""

    WAIT = 1  #: not a collective itself: the host waits for (group, ordinal), or moves its bytes
    INEXACT_END = 2  #: the trace does not record when the collective ended here; `end_ns` is an upper bound
    SM_FREE = 4  #: moves bytes without the device's compute units
    PARTIAL = 8  #: a piece of an op that a wait or a call interrupts; its length means nothing by itself
    ORPHAN = 16  #: a worker's span without the call that issued it: when this rank arrived is not known
    BY_HAND = 32  #: no worker moves the bytes: nothing is active here but the rows of (group, ordinal) flagged WAIT


@dataclass(frozen=True)
class Group:
    """A process group as the trace names it; `ranks` is empty when the trace does not list them.

    Where it names none, the collectives of one device stream are taken for one group, and `stream` is that stream.
    """

    name: str
    ranks: tuple[int, ...] = ()
    stream: int | None = None

    @classmethod
    def of_stream(cls, stream: int) -> Group:
        return cls(f"stream {stream}", stream=stream)


@dataclass(frozen=True)
class StepFacts:
    """What the job itself wrote down about one profiled step of this rank; None where it did not."""

    block: int | None = None
    tokens: int | None = None
    samples: int | None = None


@dataclass(frozen=True)
class TraceInfo:
    """What a trace says about itself; None where it does not."""

    path: str = ""
    rank: int | None = None
    world_size: int | None = None
    host: str | None = None
    device: str = "cpu"  # cpu | cuda | rocm | mtia
    device_name: str | None = None
    backend: str | None = None
    step_facts: dict[int, StepFacts] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Steps:
    """Windows in ascending, disjoint order: the profiler's own step numbers and [start, end) in ns, all int64."""

    number: Int64
    start_ns: Int64
    end_ns: Int64

    def __len__(self) -> int:
        return len(self.number)

    def containing(self, at_ns: Int64) -> Int64:
        """Number of the step whose window holds each instant, UNKNOWN where none does."""
        i = np.searchsorted(self.start_ns, at_ns, side="right") - 1
        inside = (i >= 0) & (at_ns < self.end_ns[np.maximum(i, 0)]) if len(self) else np.zeros(len(at_ns), bool)
        return np.where(inside, self.number[np.maximum(i, 0)] if len(self) else UNKNOWN, UNKNOWN)


@dataclass(frozen=True)
class Timeline:
    """One rank's intervals in ascending `start_ns`; every column has the same length n.

    Times are integer nanoseconds of that rank's own clock. `stream` is the device stream of a device interval and the
    index of the thread of a host one. `step` is the profiler step that launched the interval. `op` indexes `ops` and
    `group` indexes `groups`, both only for the COMM lane; a collective is identified by (group, ordinal) where the
    trace recorded it. `shape` tells apart calls of the same name with different grids or input shapes; it is the same
    for the same ones on every rank.
    """

    start_ns: Int64
    end_ns: Int64
    lane: NDArray[np.uint8]
    name_id: NDArray[np.int32]
    stream: Int64
    step: Int64
    correlation: Int64
    bytes: Int64
    group: NDArray[np.int32]
    ordinal: Int64
    op: NDArray[np.int32]
    shape: NDArray[np.int32]
    flags: NDArray[np.uint8]
    names: tuple[str, ...]
    groups: tuple[Group, ...]
    ops: tuple[str, ...]
    steps: Steps
    info: TraceInfo = field(default_factory=TraceInfo)

    def __len__(self) -> int:
        return len(self.start_ns)

    def in_lane(self, lane: Lane) -> NDArray[np.bool_]:
        return self.lane == lane

    @property
    def collectives(self) -> NDArray[np.intp]:
        """Rows that are collectives (the COMM lane without the waits for them)."""
        return np.flatnonzero((self.lane == Lane.COMM) & ((self.flags & Flag.WAIT) == 0))

    @property
    def on_device(self) -> bool:
        return self.info.device != "cpu"


_COLUMNS = {
    "start_ns": (np.int64, None),
    "end_ns": (np.int64, None),
    "lane": (np.uint8, None),
    "name_id": (np.int32, None),
    "stream": (np.int64, UNKNOWN),
    "step": (np.int64, UNKNOWN),
    "correlation": (np.int64, UNKNOWN),
    "bytes": (np.int64, UNKNOWN),
    "group": (np.int32, UNKNOWN),
    "ordinal": (np.int64, UNKNOWN),
    "op": (np.int32, UNKNOWN),
    "shape": (np.int32, UNKNOWN),
    "flags": (np.uint8, 0),
}


class TimelineBuilder:
    """Collects blocks of rows and the symbols they use, then sorts them into a Timeline."""

    def __init__(self, names: list[str] | None = None) -> None:
        self._blocks: list[dict[str, np.ndarray]] = []
        self._names = list(names or [])
        self._name_ids: dict[str, int] = {name: i for i, name in enumerate(self._names)}
        self._groups: dict[Group, int] = {}
        self._ops: dict[str, int] = {}

    def name_id(self, name: str) -> int:
        if name not in self._name_ids:
            self._name_ids[name] = len(self._names)
            self._names.append(name)
        return self._name_ids[name]

    def group_id(self, group: Group) -> int:
        return self._groups.setdefault(group, len(self._groups))

    def op_id(self, op: str) -> int:
        return self._ops.setdefault(op, len(self._ops))

    def add(self, **columns: object) -> None:
        """Add rows: arrays of one length, or scalars for all rows; columns left out hold UNKNOWN (flags: none).

        Raises:
            AnalyzerError: an interval ends before it starts; the reader that made it is at fault.
        """
        start = np.asarray(columns["start_ns"], np.int64)
        block = {}
        for column, (dtype, default) in _COLUMNS.items():
            value = columns.pop(column, default)
            block[column] = np.broadcast_to(np.asarray(value, dtype), start.shape)
        if columns:
            raise TypeError(f"unknown timeline columns: {', '.join(columns)}")
        if (block["end_ns"] < block["start_ns"]).any():
            raise AnalyzerError("an interval ends before it starts")
        self._blocks.append(block)

    def build(self, steps: Steps, info: TraceInfo) -> Timeline:
        starts = [block["start_ns"] for block in self._blocks]
        order = np.argsort(np.concatenate(starts) if starts else np.empty(0, np.int64), kind="stable")
        place = np.empty(len(order), np.intp)
        place[order] = np.arange(len(order))
        places = np.split(place, np.cumsum([len(start) for start in starts]))
        columns = {column: np.empty(len(order), dtype) for column, (dtype, _) in _COLUMNS.items()}
        for block, rows in zip(self._blocks, places, strict=False):  # after the last block there is an empty rest
            for column, values in block.items():
                columns[column][rows] = values
        return Timeline(
            **columns,
            names=tuple(self._names),
            groups=tuple(self._groups),
            ops=tuple(self._ops),
            steps=steps,
            info=info,
        )
