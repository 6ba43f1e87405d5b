"""The engine: when every operation of a program begins and ends on every rank.

Operations are evaluated in program order, each in a few vector operations over all ranks. What is evaluated later may
act on what came before: urgent traffic interrupts a bulk transfer, a collective slows the kernel it runs beside. Then
the operations concerned are evaluated again until nothing changes. Nothing acts on its own past, so there is exactly
one such state, and it is the one that an engine going from event to event would find.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from freescale.errors import FreeScaleError
from freescale.simulate.ops import PPM, Collective, Ns, Op, Program, Work
from freescale.simulate.rates import NEVER, PORT_UNITS, Changes, compute_rate, finish, port_rate

_MAX_EVALUATIONS = 400


@dataclass(frozen=True)
class Times:
    """When things happened: a list entry per operation, int64[ranks] ns each.

    Attributes:
        start: of work, when its stream got to it; of a collective, when the rank arrived.
        end: when it was over.
        issued: of a collective, when the rank issued it; of work, its start.
        joined: of a collective, when the last rank of the group arrived; of work, its start.
        did: bool[ranks] per operation: whether this try did its work; True for everything that is no try.
        evaluations: how often an operation was evaluated, all in all.
    """

    start: list[Ns]
    end: list[Ns]
    issued: list[Ns]
    joined: list[Ns]
    did: list[np.ndarray]
    evaluations: int


def run(program: Program) -> Times:
    """Run a program.

    Raises:
        FreeScaleError: it cannot end, because something waits for what never comes.
    """
    return _Engine(program).run()


class _Engine:
    def __init__(self, program: Program) -> None:
        self.ops, self.ranks = program.ops, program.ranks
        count = len(self.ops)
        never = np.full(self.ranks, NEVER, np.int64)
        self.nothing, self.zero = never, np.zeros(self.ranks, np.int64)
        self.everyone, self.nobody = np.ones(self.ranks, bool), np.zeros(self.ranks, bool)
        self.start, self.end = [never] * count, [never] * count
        self.issued, self.joined = [never] * count, [never] * count
        self.done: list[np.ndarray] = [self.nobody] * count  # by this try or an earlier one
        self.did: list[np.ndarray] = [self.nobody] * count  # by this very try
        self.begin: dict[tuple[int, str], Ns] = {}
        self.finish: dict[tuple[int, str], Ns] = {}
        self.evaluated = np.zeros(count, bool)
        self.groups = _Groups(self.ranks)
        self.before, self.dependents = _links(self.ops)
        self.on_port: dict[str, _Spans] = {}
        self.loads = [{load.port: load for load in op.loads} if isinstance(op, Collective) else {} for op in self.ops]
        members: dict[str, list[int]] = defaultdict(list)
        for number, op in enumerate(self.ops):
            for port in self.loads[number]:
                members[port].append(number)
            if isinstance(op, Work) and op.sensitive:
                members["sensitive"].append(number)
            if isinstance(op, Collective) and (op.sm_share or op.byte_share):
                members["disturbing"].append(number)
        self.spans = {name: _Spans(numbers) for name, numbers in members.items()}
        self.spans.setdefault("sensitive", _Spans([]))
        self.spans.setdefault("disturbing", _Spans([]))
        self.dirty: list[int] = []
        self.is_dirty = np.zeros(count, bool)

    def run(self) -> Times:
        evaluations, limit = 0, _MAX_EVALUATIONS * (len(self.ops) + 10)
        for number in range(len(self.ops)):
            self._mark(number)
            self.evaluated[number] = True
            while self.dirty:
                again = heapq.heappop(self.dirty)
                self.is_dirty[again] = False
                evaluations += 1
                if evaluations > limit:
                    raise FreeScaleError("simulation: the program does not settle; report this with the command")
                op = self.ops[again]
                if isinstance(op, Work):
                    self._work(again, op)
                else:
                    self._collective(again, op)
        for number, op in enumerate(self.ops):
            if self.end[number].max() >= NEVER:
                rank = int(np.argmax(self.end[number]))
                raise FreeScaleError(f"simulation: {op.label or 'an operation'} never ends on rank {rank}")
        return Times(self.start, self.end, self.issued, self.joined, self.did, evaluations)

    def _mark(self, number: int) -> None:
        if not self.is_dirty[number]:
            self.is_dirty[number] = True
            heapq.heappush(self.dirty, number)

    def _mark_all(self, numbers: Iterator[int] | list[int]) -> None:
        for number in numbers:
            if self.evaluated[number]:
                self._mark(number)

    def _after(self, number: int, op: Op) -> Ns:
        """When stream or lane and everything it must come after are through with it."""
        ready = self.zero
        before = self.before[number]
        if before >= 0:
            ready = self.end[before]
        for other in op.after:
            ready = np.maximum(ready, self.end[other])
        return ready

    def _work(self, number: int, op: Work) -> None:
        start = self._after(number, op)
        did, done = self.everyone, self.everyone
        if op.polls:
            awaited = self.zero
            for other in op.polls:
                awaited = np.maximum(awaited, np.where(self.done[other], self.end[other], NEVER))
            left = self.everyone if op.tried is None else ~self.done[op.tried]
            did = left if op.waits else left & (awaited < start)
            done = did if op.tried is None else did | self.done[op.tried]
            if op.waits:
                start = np.where(left, np.maximum(start, awaited), start)
        work = np.where(did, op.work_ns, 0)
        end = np.minimum(start + work, NEVER)
        if op.sensitive and work.any():
            end = self._stretched(op, start, work)
        same = self.evaluated[number] and np.array_equal(end, self.end[number])
        same = same and np.array_equal(start, self.start[number]) and np.array_equal(did, self.did[number])
        same = same and np.array_equal(done, self.done[number])
        self.start[number], self.end[number], self.did[number], self.done[number] = start, end, did, done
        self.issued[number] = self.joined[number] = start
        if not same:
            if op.sensitive:
                self.spans["sensitive"].put(number, start, end)
            self._mark_all(self.dependents[number])

    def _stretched(self, op: Work, start: Ns, work: Ns) -> Ns:
        changes = Changes(self.ranks)
        for other in self.spans["disturbing"].after(int(start.min())):
            by = self.ops[other]
            assert isinstance(by, Collective)
            if by.sm_share:
                changes.add(self.start[other], self.end[other], by.sm_share, 0)
            if by.byte_share:
                flowing = np.minimum(self.joined[other] + by.latency_ns, self.end[other])
                changes.add(flowing, self.end[other], 0, by.byte_share)
        bounds, held, drawn = changes.until(start)
        return finish(start, work * PPM, bounds, compute_rate(held, drawn, op.flop_share, op.byte_share))

    def _collective(self, number: int, op: Collective) -> None:
        issued = self.nothing
        for other in op.issued_by:
            issued = np.minimum(issued, np.where(self.did[other], self.end[other], NEVER))
        arrived = np.maximum(issued, self._after(number, op))
        joined = self.groups.last(op.group, arrived)
        ready = np.minimum(joined + op.latency_ns, NEVER)
        over = ready
        changed = []
        for port, load in self.loads[number].items():
            begin, end = self._served(number, op, port, np.broadcast_to(load.work_ns, self.ranks), ready)
            if not self._same_on_port(number, port, begin, end):
                changed.append(port)
            self.begin[number, port], self.finish[number, port] = begin, end
            over = np.maximum(over, end)
        over = self.groups.last(op.group, over)
        moved = not (
            np.array_equal(over, self.end[number])
            and np.array_equal(arrived, self.start[number])
            and np.array_equal(joined, self.joined[number])
        )
        self.start[number], self.end[number], self.issued[number] = arrived, over, issued
        self.joined[number], self.did[number], self.done[number] = joined, self.everyone, self.everyone
        for port in changed:
            spans = self.spans[port]
            self._mark_all(other for other in spans.touching(number) if other != number)
            spans.put(number, ready - 1, self.finish[number, port])  # the instant before decides about chunks
            self._mark_all(other for other in spans.touching(number) if other != number)
        if moved:
            if op.sm_share or op.byte_share:
                disturbing, sensitive = self.spans["disturbing"], self.spans["sensitive"]
                for _ in range(2):  # those it disturbed where it was, and those it disturbs where it is now
                    self._mark_all(sensitive.between(*disturbing.of(number)))
                    disturbing.put(number, arrived, over)
            self._mark_all(self.dependents[number])

    def _same_on_port(self, number: int, port: str, begin: Ns, end: Ns) -> bool:
        key = (number, port)
        if key not in self.begin:
            return False
        return np.array_equal(begin, self.begin[key]) and np.array_equal(end, self.finish[key])

    def _served(self, number: int, op: Collective, port: str, work: Ns, ready: Ns) -> tuple[Ns, Ns]:
        """When the port begins to serve a transfer that is ready, and when it has."""
        others = [other for other in self.spans[port].after(int(ready.min()) - 1) if other != number]
        begin = ready
        below = [other for other in others if self._priority(other) < op.priority]
        just_before = ready - 1
        for other in below:
            starts, ends = self.begin[other, port], self.finish[other, port]
            on_wire = (starts <= just_before) & (ends > ready) & (work > 0)
            if not on_wire.any():
                continue
            for blocker in others:
                if self._priority(blocker) > self._priority(other):
                    running = (self.begin[blocker, port] <= just_before) & (just_before < self.finish[blocker, port])
                    on_wire &= ~running
            chunk = max(self.loads[other][port].chunk_ns, 1)
            boundary = np.minimum(ready + (starts - ready) % chunk, ends)
            begin = np.maximum(begin, np.where(on_wire, boundary, ready))
        changes = Changes(self.ranks)
        for other in others:
            if self._priority(other) >= op.priority:
                above = int(self._priority(other) > op.priority)
                changes.add(self.begin[other, port], self.finish[other, port], above, 1 - above)
        bounds, above_now, equal = changes.until(begin)
        return begin, finish(begin, work * PORT_UNITS, bounds, port_rate(above_now, equal))

    def _priority(self, number: int) -> int:
        op = self.ops[number]
        assert isinstance(op, Collective)
        return op.priority


class _Spans:
    """From when to when operations of one kind last, over all ranks: what may act on what."""

    def __init__(self, numbers: list[int]) -> None:
        self._numbers = np.array(numbers, np.int64)
        self._place = {number: place for place, number in enumerate(numbers)}
        self._low = np.full(len(numbers), NEVER, np.int64)
        self._high = np.full(len(numbers), -1, np.int64)

    def put(self, number: int, begin: Ns, end: Ns) -> None:
        place = self._place[number]
        self._low[place], self._high[place] = begin.min(), end.max()

    def of(self, number: int) -> tuple[int, int]:
        place = self._place[number]
        return int(self._low[place]), int(self._high[place])

    def after(self, at_ns: int) -> list[int]:
        """Those that end after an instant."""
        found: list[int] = self._numbers[(self._high > at_ns) & (self._low < NEVER)].tolist()
        return found

    def between(self, low: int, high: int) -> list[int]:
        found: list[int] = self._numbers[(self._low <= high) & (self._high >= low)].tolist()
        return found

    def touching(self, number: int) -> list[int]:
        return self.between(*self.of(number))


class _Groups:
    """The latest over each rank's group."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._sorted: dict[int, tuple[np.ndarray, np.ndarray, np.ndarray, Ns]] = {}

    def last(self, group: Ns | None, values: Ns) -> Ns:
        if group is None:
            return np.full(self._ranks, values.max(), np.int64)
        key = id(group)
        if key not in self._sorted:
            order = np.argsort(group, kind="stable")
            first = np.flatnonzero(np.diff(group[order], prepend=group[order[0]] - 1))
            member = np.empty(self._ranks, np.int64)
            member[order] = np.repeat(np.arange(first.size), np.diff(np.append(first, self._ranks)))
            self._sorted[key] = order, first, member, group  # the last keeps the id alive
        order, first, member, _ = self._sorted[key]
        return np.maximum.reduceat(values[order], first)[member]


def _links(ops: list[Op]) -> tuple[list[int], list[list[int]]]:
    """(number of the operation before on the same stream or lane, those that look at each operation)."""
    before, dependents = [-1] * len(ops), [[] for _ in ops]  # type: ignore[var-annotated]
    latest: dict[str, int] = {}
    for number, op in enumerate(ops):
        place = f"stream {op.stream}" if isinstance(op, Work) else f"lane {op.lane}"
        before[number] = latest.get(place, -1)
        latest[place] = number
        looked_at = {before[number], *op.after}
        if isinstance(op, Work):
            looked_at |= {*op.polls, -1 if op.tried is None else op.tried}
        else:
            looked_at |= set(op.issued_by)
        for other in looked_at - {-1}:
            dependents[other].append(number)
    return before, dependents
