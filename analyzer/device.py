"""Events of a GPU trace → Timeline: lanes from kernel names, facts from collective arguments, windows from launches."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from analyzer import lanes
from analyzer.intervals import Int64
from analyzer.kineto import CollectiveArgs, Events
from analyzer.lanes import Lane
from analyzer.spans import Rows, add_host_rows, enclosing, profiler_steps, rows_named
from analyzer.timeline import UNKNOWN, Flag, Group, Steps, Timeline, TimelineBuilder, TraceInfo

_BEFORE_ALL = np.iinfo(np.int64).min
_ELEMENT_BYTES = {
    "byte": 1, "char": 1, "int8": 1, "uint8": 1, "bool": 1, "float8_e4m3fn": 1, "float8_e5m2": 1,
    "short": 2, "half": 2, "bfloat16": 2, "float16": 2,
    "int": 4, "float": 4, "float32": 4, "int32": 4,
    "long": 8, "double": 8, "int64": 8, "float64": 8,
}  # fmt: skip


def build_timeline(events: Events, info: TraceInfo, groups: dict[str, Group]) -> Timeline:
    """Timeline of a trace with device intervals. `groups` maps the trace's own group names to groups."""
    builder = TimelineBuilder(events.names)
    spans, _ = profiler_steps(events)
    add_host_rows(builder, events, lanes.LAUNCH_CATEGORIES | lanes.ANNOTATION_CATEGORIES, spans)
    device = np.flatnonzero(events.of(lanes.DEVICE_CATEGORIES))
    lane, op = _classify(events, device)
    launched_by = _launches(events, device)
    launched_ns = np.where(launched_by >= 0, events.start_ns[launched_by], _BEFORE_ALL)
    launch_thread = np.where(launched_by >= 0, events.thread[launched_by], np.int32(UNKNOWN))
    step = spans.containing(launched_ns)
    facts = _CommunicationFacts(events, launch_thread, launched_ns, groups)
    communicates = (lane == Lane.COMM) | ((lane == Lane.COPY) & facts.inside_collective)

    for is_comm in (False, True):
        chosen = np.flatnonzero(communicates == is_comm)
        rows = device[chosen]
        columns = {
            "start_ns": events.start_ns[rows],
            "end_ns": events.end_ns[rows],
            "lane": np.where(is_comm, np.uint8(Lane.COMM), lane[chosen]),
            "name_id": events.name_id[rows],
            "stream": np.where(events.stream[rows] >= 0, events.stream[rows], events.thread[rows]),
            "step": step[chosen],
            "correlation": events.correlation[rows],
            "bytes": events.bytes[rows],
            "shape": events.shape[rows],
        }
        if is_comm:
            columns["flags"] = np.where(lane[chosen] == Lane.COPY, int(Flag.SM_FREE), 0)
            columns |= facts.columns(builder, chosen, rows, op[chosen], columns["stream"])
        builder.add(**columns)
    return builder.build(_windows(events, device, lane, step, spans), info)


def _classify(events: Events, device: Rows) -> tuple[NDArray[np.uint8], NDArray[np.object_]]:
    """Lane and collective name of each device row, looked up once per distinct category and name."""
    names = len(events.names) + 1
    key = events.category[device].astype(np.int64) * names + events.name_id[device]
    occurs = np.zeros(len(events.categories) * names, bool)
    occurs[key] = True
    lane, op = np.zeros(len(occurs), np.uint8), np.full(len(occurs), "", object)
    for k in np.flatnonzero(occurs).tolist():
        lane[k], op[k] = lanes.device_class(events.categories[k // names], events.names[k % names])
    return lane[key], op[key]


def _launches(events: Events, device: Rows) -> Int64:
    """Row of the host call that put each device row there, by correlation id; -1 if the trace lacks it."""
    calls = np.flatnonzero(events.of(lanes.LAUNCH_CATEGORIES) & (events.correlation >= 0))
    if len(calls) == 0:
        return np.full(len(device), -1, np.int64)
    calls = calls[np.argsort(events.correlation[calls], kind="stable")]
    wanted = events.correlation[device]
    i = np.minimum(np.searchsorted(events.correlation[calls], wanted), len(calls) - 1)
    return np.where((events.correlation[calls[i]] == wanted) & (wanted >= 0), calls[i], -1)


class _CommunicationFacts:
    """What is known about collectives beside their kernels' names: arguments, and the host ranges they start in."""

    def __init__(self, events: Events, thread: NDArray[np.int32], at_ns: Int64, groups: dict[str, Group]) -> None:
        self._events, self._groups = events, groups
        self._marks = {
            i: m for i, name in enumerate(events.names) if (m := lanes.mark(name)) and m.verb in ("comm", "move")
        }
        self._ops = {i: o for i, name in enumerate(events.names) if (o := lanes.launch_op(name))}
        self._mark_row = enclosing(
            events, rows_named(events, lanes.ANNOTATION_CATEGORIES, set(self._marks)), thread, at_ns
        )
        self._op_row = enclosing(events, rows_named(events, lanes.ANNOTATION_CATEGORIES, set(self._ops)), thread, at_ns)
        self.inside_collective = (self._mark_row >= 0) | (self._op_row >= 0)

    def columns(
        self, builder: TimelineBuilder, chosen: Rows, rows: Rows, op: NDArray[np.object_], stream: Int64
    ) -> dict[str, np.ndarray]:
        """op, group, ordinal and bytes of the communication rows `rows`, at positions `chosen` of the device rows."""
        described = [self._describe(*row) for row in zip(chosen, rows, op, stream, strict=True)]
        return {
            "op": np.array([builder.op_id(op) for op, _, _, _ in described], np.int32),
            "group": np.array([builder.group_id(group) for _, group, _, _ in described], np.int32),
            "ordinal": np.array([ordinal for _, _, ordinal, _ in described], np.int64),
            "bytes": np.array([size for _, _, _, size in described], np.int64),
        }

    def _describe(self, position: int, row: int, op: str, stream: int) -> tuple[str, Group, int, int]:
        events = self._events
        if self._mark_row[position] >= 0:
            mark = self._marks[int(events.name_id[self._mark_row[position]])]
            return mark.op, self._group(mark.group), mark.seq, mark.bytes
        if events.collective[row] >= 0:
            args = events.collectives[events.collective[row]]
            op = lanes.canonical_op(args.name)
            group = Group.of_stream(int(stream)) if args.group is None else self._group(args.group, args.description)
            if op in ("send", "recv") and args.source is not None and args.destination is not None:
                return self._message(group, args)
            return op, group, UNKNOWN if args.seq is None else args.seq, _sent_bytes(args)
        if self._op_row[position] >= 0 and op in ("", "send_recv", "unknown"):
            op = self._ops[int(events.name_id[self._op_row[position]])]
        return op or "unknown", Group.of_stream(int(stream)), UNKNOWN, int(events.bytes[row])

    @staticmethod
    def _message(group: Group, args: CollectiveArgs) -> tuple[str, Group, int, int]:
        """A send or receive between two known ranks; their sequence numbers differ, so order will match them."""
        assert args.source is not None
        assert args.destination is not None
        pair = Group(f"{group.name} {args.source}→{args.destination}", (args.source, args.destination))
        return lanes.POINT_TO_POINT, pair, UNKNOWN, _sent_bytes(args)

    def _group(self, name: str, description: str | None = None) -> Group:
        return self._groups.get(name) or Group(description or name)


def _sent_bytes(args: CollectiveArgs) -> int:
    element = _ELEMENT_BYTES.get((args.dtype or "").lower())
    return UNKNOWN if element is None or args.in_elements is None else args.in_elements * element


def _windows(events: Events, device: Rows, lane: NDArray[np.uint8], step: Int64, spans: Steps) -> Steps:
    """Windows from the first compute interval launched in a step to the first one launched in the next.

    Only compute marks a boundary, because a pipeline prefetches on side streams. The first window of a recording opens
    with its earliest device interval, the last closes with the end of its last one; where step numbers jump, one
    recording ends and another begins. Without steps the trace is one window, 0.
    """
    if len(device) == 0:
        return Steps(*np.empty((3, 0), np.int64))
    start, end = events.start_ns[device], events.end_ns[device]
    computes = lane == Lane.COMPUTE
    if not (computes & (step != UNKNOWN)).any():  # no launches recorded: where a kernel runs must do for where it began
        step = spans.containing(start)
    computes &= step != UNKNOWN
    if not computes.any():
        return Steps(np.zeros(1, np.int64), start.min(keepdims=True), end.max(keepdims=True))
    number, index = np.unique(step[computes], return_inverse=True)
    opening = np.full(len(number), np.iinfo(np.int64).max)
    np.minimum.at(opening, index, start[computes])
    order = np.argsort(opening, kind="stable")
    number, opening = number[order], opening[order]
    begins = np.append(True, ~_recorded_together(number[:-1], number[1:], spans))
    recording_start = spans.start_ns[np.searchsorted(spans.number, number[begins])]
    recording = np.searchsorted(recording_start, start, side="right") - 1
    recording = np.maximum(recording, 0)  # what the device still did for the step before the first belongs to the first
    first = np.full(len(recording_start), np.iinfo(np.int64).max)
    last = np.full(len(recording_start), np.iinfo(np.int64).min)
    np.minimum.at(first, recording, start)
    np.maximum.at(last, recording, end)
    opening[begins] = first
    closing = np.append(opening[1:], 0)
    closing[np.append(begins[1:], True)] = last
    return Steps(number, opening, closing)


def _recorded_together(number: Int64, following: Int64, spans: Steps) -> NDArray[np.bool_]:
    """Whether nothing is missing between two steps: every number between them has a span too."""
    place = np.searchsorted(spans.number, number)
    return np.searchsorted(spans.number, following) - place == following - number
