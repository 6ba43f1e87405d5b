"""Events of a CPU trace → Timeline: what the training thread computes, calls and waits for, and when gloo was done.

On a CPU a rank arrives at a collective when it issues the call, and the collective is over there when the worker's
span ends, or the last `freescale.move` of a transport without workers. Blocking leaves no event: compute is what is
left of the training thread's ops once calls, waits and moves are taken out.
"""

from __future__ import annotations

from collections import defaultdict

import numpy as np

from analyzer import lanes
from analyzer.intervals import EMPTY, Int64, Union, merge, overlaps, subtract
from analyzer.kineto import Events
from analyzer.lanes import Lane, Mark
from analyzer.pairing import NEVER, UNNAMED, UNNAMED_IN_BACKWARD, Call, Span, pair_calls
from analyzer.spans import Rows, add_host_rows, profiler_steps, rows_named
from analyzer.timeline import UNKNOWN, Flag, Group, Steps, Timeline, TimelineBuilder, TraceInfo

#: Name of the group of collectives that a trace of several groups does not assign to one.
UNNAMED_GROUP = "unnamed"


def build_timeline(events: Events, info: TraceInfo, groups: dict[str, Group]) -> tuple[Timeline, list[str]]:
    """(Timeline, warnings) of a trace without device intervals. `groups` maps group names to groups."""
    spans, thread = profiler_steps(events)
    if thread < 0:
        thread = _busiest_thread(events)
    builder = TimelineBuilder(events.names)
    add_host_rows(builder, events, lanes.HOST_CATEGORIES, spans)
    ranges = _Ranges(events)
    ops = _ops_of_thread(events, thread)
    blocked = ranges.blocking(thread)
    _add_compute(builder, events, _leaf_most(events, ops), blocked, spans)
    warnings = _Collectives(events, ranges, groups, spans).add_to(builder)
    return builder.build(_windows(events, spans, ops), info), warnings


def _busiest_thread(events: Events) -> int:
    rows = np.flatnonzero(events.of(lanes.OP_CATEGORIES))
    if len(rows) == 0:
        return -1
    busy = np.zeros(len(events.threads), np.int64)
    np.add.at(busy, events.thread[rows], events.end_ns[rows] - events.start_ns[rows])
    return int(busy.argmax())


def _ops_of_thread(events: Events, thread: int) -> Rows:
    """Dispatcher ops of a thread, parents before children."""
    rows = np.flatnonzero(events.of(lanes.OP_CATEGORIES) & (events.thread == thread))
    return rows[np.lexsort((-events.end_ns[rows], events.start_ns[rows]))]


def _leaf_most(events: Events, ops: Rows) -> Rows:
    """The outermost ops that compute: autograd's wrappers give way to the ops inside them, if there are any."""
    container = np.array([lanes.is_container(name) for name in events.names] + [False])
    has_child = np.append(events.start_ns[ops[1:]] < events.end_ns[ops[:-1]], False)
    ops = ops[~(container[events.name_id[ops]] & has_child)]
    if len(ops) == 0:
        return ops
    reach = np.maximum.accumulate(events.end_ns[ops])
    return ops[np.append(True, events.start_ns[ops[1:]] >= reach[:-1])]


def _add_compute(builder: TimelineBuilder, events: Events, ops: Rows, blocked: Union, spans: Steps) -> None:
    """Add each op, less the time in which it calls, waits or moves."""
    start, end = events.start_ns[ops], events.end_ns[ops]
    interrupted = np.zeros(len(ops), bool)
    interrupted[overlaps(start, end, blocked)[0]] = True
    pieces = subtract((start, end), blocked)
    parent = np.searchsorted(start, pieces[0], side="right") - 1
    builder.add(
        start_ns=pieces[0],
        end_ns=pieces[1],
        lane=int(Lane.COMPUTE),
        name_id=events.name_id[ops[parent]],
        stream=events.thread[ops[parent]],
        step=spans.containing(pieces[0]),
        shape=events.shape[ops[parent]],
        flags=np.where(interrupted[parent], int(Flag.PARTIAL), 0),
    )


def _windows(events: Events, spans: Steps, ops: Rows) -> Steps:
    """The `ProfilerStep` spans, less empty ones (the profiler stops in one); without steps one window, number 0."""
    if len(spans) == 0:
        host = events.of(lanes.HOST_CATEGORIES)
        if not host.any():
            return spans
        return Steps(
            np.zeros(1, np.int64), events.start_ns[host].min(keepdims=True), events.end_ns[host].max(keepdims=True)
        )
    used = np.isin(spans.number, spans.containing(events.start_ns[ops]))
    if not used.any():
        return spans
    return Steps(spans.number[used], spans.start_ns[used], spans.end_ns[used])


class _Ranges:
    """Issuing calls, waits, moves and worker spans, as rows of `events`."""

    def __init__(self, events: Events) -> None:
        self.events = events
        self.marks = {i: m for i, name in enumerate(events.names) if (m := lanes.mark(name))}
        by_verb: dict[str, set[int]] = defaultdict(set)
        for i, mark in self.marks.items():
            by_verb[mark.verb].add(i)
        annotations = lanes.ANNOTATION_CATEGORIES
        self.issues = rows_named(events, annotations, by_verb["comm"])
        self.waits = rows_named(events, annotations, by_verb["wait"])
        self.moves = rows_named(events, annotations, by_verb["move"])
        self.links = rows_named(events, annotations, by_verb["link"])
        self.call_ops = {i: op for i, name in enumerate(events.names) if (op := lanes.call_op(name))}
        self.calls = self._outermost(rows_named(events, lanes.OP_CATEGORIES, set(self.call_ops)))
        wait_ops = {i for i, name in enumerate(events.names) if lanes.is_wait_op(name)}
        self.wait_ops = rows_named(events, lanes.OP_CATEGORIES, wait_ops)
        self.span_ops = {i: op for i, name in enumerate(events.names) if (op := lanes.span_op(name))}
        self.worker_spans = rows_named(events, annotations, set(self.span_ops))

    def _outermost(self, calls: Rows) -> Rows:
        """Calls that are neither inside another call nor inside one of our issuing ranges, which stand for them."""
        events, keep = self.events, np.ones(len(calls), bool)
        for thread in np.unique(events.thread[calls]):
            mine = np.flatnonzero(events.thread[calls] == thread)
            rows = calls[mine]
            issues = self.issues[events.thread[self.issues] == thread]
            inside = np.zeros(len(rows), bool)
            inside[overlaps(events.start_ns[rows], events.end_ns[rows], _union(events, issues))[0]] = True
            reach = np.append(np.iinfo(np.int64).min, np.maximum.accumulate(events.end_ns[rows])[:-1])
            keep[mine] = ~inside & (events.start_ns[rows] >= reach)
        return calls[keep]

    def blocking(self, thread: int) -> Union:
        """Time in which `thread` calls, waits or moves."""
        rows = np.concatenate([self.issues, self.calls, self.waits, self.wait_ops, self.moves])
        return _union(self.events, rows[self.events.thread[rows] == thread]) if len(rows) else EMPTY

    def mark(self, row: int) -> Mark:
        return self.marks[int(self.events.name_id[row])]


def _union(events: Events, rows: Rows) -> Union:
    return merge(events.start_ns[rows], events.end_ns[rows])


class _Collectives:
    """Adds one row per collective, from the issuing call to its end here, and one per wait."""

    def __init__(self, events: Events, ranges: _Ranges, groups: dict[str, Group], spans: Steps) -> None:
        self.events, self.ranges, self.groups, self.spans = events, ranges, groups, spans
        self._waits = self._by_identity(ranges.waits)
        self._moves = self._by_identity(ranges.moves)
        self._links = self._by_identity(ranges.links)

    def _by_identity(self, rows: Rows) -> dict[tuple[str, int], list[int]]:
        found: dict[tuple[str, int], list[int]] = defaultdict(list)
        for row in rows.tolist():
            mark = self.ranges.mark(row)
            found[mark.group, mark.seq].append(row)
        return found

    def add_to(self, builder: TimelineBuilder) -> list[str]:
        """Add the rows; return warnings about calls without a known end."""
        events, ranges = self.events, self.ranges
        issued = np.concatenate([ranges.issues, ranges.calls])
        issued = issued[np.argsort(events.start_ns[issued], kind="stable")].astype(np.int64)
        annotated = set(ranges.issues.tolist())
        in_backward = self._in_backward(issued)
        unnamed = self._name_of_unnamed()

        calls, facts = [], []
        for row, backward in zip(issued.tolist(), in_backward, strict=True):
            if row in annotated:
                mark = ranges.mark(row)
                waits = self._waits.get((mark.group, mark.seq), [])
                done_by = max((int(events.end_ns[w]) for w in waits), default=NEVER)
                group, facts_of = mark.group, (mark.op, mark.group, mark.seq, mark.bytes)
            else:
                op = ranges.call_ops[int(events.name_id[row])]
                group, done_by = (UNNAMED_IN_BACKWARD if backward else UNNAMED), NEVER
                facts_of = (op, unnamed, UNKNOWN, UNKNOWN)
            calls.append(Call(facts_of[0], group, int(events.start_ns[row]), done_by))
            facts.append(facts_of)

        moved = [bool(self._moves.get((group, seq))) for _, group, seq, _ in facts]
        workers = [
            Span(ranges.span_ops[int(events.name_id[row])], int(events.thread[row]),
                 int(events.start_ns[row]), int(events.end_ns[row]))
            for row in ranges.worker_spans.tolist()
        ]  # fmt: skip
        by_worker = [i for i, has_moves in enumerate(moved) if not has_moves]
        span_of = dict(zip(by_worker, pair_calls([calls[i] for i in by_worker], workers), strict=True))

        ends, flags = [], []
        for i, row in enumerate(issued.tolist()):
            held_up = [self._delivered_ns(link) for link in self._links.get((facts[i][1], facts[i][2]), [])]
            # Over an emulated link a collective goes on after the transport underneath is done, whoever moves its
            # bytes; bytes that a rank takes over long after that keep nothing busy in between.
            moved_alone = moved[i] and not held_up
            end, exact = self._end(row, facts[i], moved_alone, workers, span_of.get(i, -1))
            if held_up:
                end = max(held_up) if moved[i] else max(end, *held_up)
                exact |= moved[i]
            ends.append(end)
            flags.append((0 if exact else int(Flag.INEXACT_END)) | (int(Flag.BY_HAND) if moved_alone else 0))
        self._add_rows(builder, issued, np.array(ends, np.int64), facts, np.array(flags, np.uint8))
        by_hand = [row for row, has_moves in zip(issued.tolist(), moved, strict=True) if has_moves]
        self._add_waits(builder, [*ranges.waits.tolist(), *ranges.moves.tolist(), *by_hand])
        orphans = sorted(set(range(len(workers))) - set(span_of.values()))
        self._add_orphans(builder, [workers[i] for i in orphans], ranges.worker_spans[orphans], unnamed)
        inexact = sum(1 for flag in flags if flag & Flag.INEXACT_END)
        return [f"{inexact} of {len(flags)} collectives have no recorded end"] if inexact else []

    def _delivered_ns(self, link: int) -> int:
        """When an emulated link had delivered: a wait for it ends then, or it is found done later."""
        late_ns = self.ranges.mark(link).late_ns
        return int(self.events.start_ns[link]) - late_ns if late_ns else int(self.events.end_ns[link])

    def _end(
        self, row: int, facts: tuple[str, str, int, int], moved: bool, workers: list[Span], span: int
    ) -> tuple[int, bool]:
        """(end in ns, whether the trace records it) of one collective on this rank."""
        events = self.events
        waits = [int(events.end_ns[w]) for w in self._waits.get((facts[1], facts[2]), [])]
        if span >= 0:
            return workers[span].end_ns, True
        if moved:
            return max([*waits, *(int(events.end_ns[m]) for m in self._moves[facts[1], facts[2]])]), True
        return max([*waits, int(events.end_ns[row])]), False

    def _add_rows(
        self,
        builder: TimelineBuilder,
        rows: Int64,
        ends: Int64,
        facts: list[tuple[str, str, int, int]],
        flags: np.ndarray,
    ) -> None:
        events = self.events
        builder.add(
            start_ns=events.start_ns[rows],
            end_ns=np.maximum(ends, events.start_ns[rows]),
            lane=int(Lane.COMM),
            name_id=events.name_id[rows],
            stream=events.thread[rows],
            step=self.spans.containing(events.start_ns[rows]),
            op=np.array([builder.op_id(op) for op, _, _, _ in facts], np.int32),
            group=np.array([builder.group_id(self._group(group)) for _, group, _, _ in facts], np.int32),
            ordinal=np.array([seq for _, _, seq, _ in facts], np.int64),
            bytes=np.array([size for _, _, _, size in facts], np.int64),
            flags=flags,
        )

    def _add_waits(self, builder: TimelineBuilder, rows: list[int]) -> None:
        marks = [self.ranges.mark(row) for row in rows]
        self._add_rows(
            builder,
            np.array(rows, np.int64),
            self.events.end_ns[rows] if rows else np.empty(0, np.int64),
            [(m.op, m.group, m.seq, UNKNOWN) for m in marks],
            np.full(len(rows), int(Flag.WAIT), np.uint8),
        )

    def _add_orphans(self, builder: TimelineBuilder, spans: list[Span], rows: Rows, unnamed: str) -> None:
        facts = [(span.op, unnamed, UNKNOWN, UNKNOWN) for span in spans]
        ends = np.array([span.end_ns for span in spans], np.int64)
        orphan = np.full(len(spans), int(Flag.ORPHAN), np.uint8)
        self._add_rows(builder, rows.astype(np.int64), ends, facts, orphan)

    def _in_backward(self, issued: Int64) -> list[bool]:
        """Whether each call happens inside autograd's backward pass."""
        events = self.events
        nodes = {i for i, name in enumerate(events.names) if lanes.is_container(name)}
        rows = rows_named(events, lanes.OP_CATEGORIES, nodes)
        result = np.zeros(len(issued), bool)
        for thread in np.unique(events.thread[issued]):
            mine = np.flatnonzero(events.thread[issued] == thread)
            backward = _union(events, rows[events.thread[rows] == thread])
            start = events.start_ns[issued[mine]]
            result[mine[overlaps(start, start + 1, backward)[0]]] = True
        return result.tolist()

    def _name_of_unnamed(self) -> str:
        """The one group of the job that no range names, if there is one; else UNNAMED_GROUP."""
        named = {mark.group for mark in self.ranges.marks.values()}
        others = set(self.groups) - named
        return others.pop() if len(others) == 1 else UNNAMED_GROUP

    def _group(self, name: str) -> Group:
        return self.groups.get(name) or Group(name)
