"""Which worker span belongs to which issuing call, on one rank of a CPU job.

gloo runs a collective on a worker thread and records nothing but its name there. What is certain: a span starts after
its call, ends before the wait for it returns, a thread serves one process group, and a group starts its collectives in
the order of issue. A call is paired only when these leave one possibility; anything else is left unpaired and counted.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

NEVER = 1 << 62
UNNAMED, UNNAMED_IN_BACKWARD = "?", "?backward"  #: groups of calls whose group the trace does not name
_WAKE_UP_SLACK_NS = 100_000  # a worker may record the end of its span just after it woke the waiter


@dataclass(frozen=True)
class Call:
    """A collective issued by a thread. Calls of one `group` start in order; those of UNNAMED may be of several groups.

    `done_by_ns` is when the wait for it returned, NEVER if the trace does not say.
    """

    op: str
    group: str
    start_ns: int
    done_by_ns: int = NEVER


@dataclass(frozen=True)
class Span:
    """A collective executed by worker thread `thread`."""

    op: str
    thread: int
    start_ns: int
    end_ns: int


def pair_calls(calls: Sequence[Call], spans: Sequence[Span]) -> list[int]:
    """Index of the span of each call, -1 where none or more than one is possible.

    Both sequences are in ascending start.
    """
    state = _Pairing(calls, spans)
    while state.pair_waited_calls() or state.pair_in_order():
        pass
    state.pair_the_rest()
    return state.span_of


class _Pairing:
    def __init__(self, calls: Sequence[Call], spans: Sequence[Span]) -> None:
        self.calls, self.spans = calls, spans
        self.span_of = [-1] * len(calls)
        self._call_of = [-1] * len(spans)
        self._group_of_thread: dict[int, str] = {}
        self._by_op: dict[str, list[int]] = defaultdict(list)
        for i, span in enumerate(spans):
            self._by_op[span.op].append(i)
        self._starts = {op: [spans[i].start_ns for i in rows] for op, rows in self._by_op.items()}
        self._of_group: dict[str, list[int]] = defaultdict(list)
        for i, call in enumerate(calls):
            if call.group not in (UNNAMED, UNNAMED_IN_BACKWARD):
                self._of_group[call.group].append(i)

    def pair_waited_calls(self) -> bool:
        """Pair every call that has one possible span before its wait returned. True if any was."""
        progress = False
        for group, members in self._of_group.items():
            for i, (earliest, latest) in zip(members, self._order_bounds(members), strict=True):
                call = self.calls[i]
                if self.span_of[i] >= 0 or call.done_by_ns == NEVER:
                    continue
                possible = self._possible(call, group, max(earliest, call.start_ns), min(latest, call.done_by_ns))
                if len(possible) == 1:
                    self._pair(i, possible[0])
                    progress = True
        return progress

    def pair_in_order(self) -> bool:
        """Between two paired calls of a group, pair the others one to one if its threads hold exactly as many spans."""
        progress = False
        for group, members in self._of_group.items():
            threads = {t for t, owner in self._group_of_thread.items() if owner == group}
            run: list[int] = []
            after = -NEVER
            for i in [*members, None]:
                if i is not None and self.span_of[i] < 0:
                    run.append(i)
                    continue
                before = NEVER if i is None else self.spans[self.span_of[i]].start_ns
                if run and after > -NEVER and before < NEVER:
                    progress |= self._pair_run(run, threads, after, before)
                run, after = [], before
        return progress

    def pair_the_rest(self) -> None:
        """Replay issues and starts in time: a start is certain when one call is outstanding, or all of one group."""
        for op, rows in self._by_op.items():
            open_spans = [s for s in rows if self._call_of[s] < 0]
            waiting = [i for i, call in enumerate(self.calls) if call.op == op and self.span_of[i] < 0]
            complete = len(waiting) == sum(self._serves_any(s, waiting) for s in open_spans)
            queue: list[int] = []
            doubt = False  # once it is unclear which call left the queue, it stays so until the queue is empty
            issued = iter([*waiting, None])
            upcoming = next(issued)
            for s in open_spans:
                span = self.spans[s]
                while upcoming is not None and self.calls[upcoming].start_ns <= span.start_ns:
                    queue.append(upcoming)
                    upcoming = next(issued)
                eligible = [i for i in queue if self._thread_may_serve(span.thread, self.calls[i].group)]
                if not eligible:
                    continue
                first = eligible[0]
                queue.remove(first)
                one_group = len({self.calls[i].group for i in eligible} | {UNNAMED}) == 2
                doubt = doubt or (len(eligible) > 1 and not (complete and one_group))
                certain = not doubt
                doubt = doubt and bool(queue)
                if certain and span.end_ns <= self.calls[first].done_by_ns + _WAKE_UP_SLACK_NS:
                    self._pair(first, s)

    def _serves_any(self, s: int, waiting: list[int]) -> bool:
        span = self.spans[s]
        return any(
            self.calls[i].start_ns <= span.start_ns and self._thread_may_serve(span.thread, self.calls[i].group)
            for i in waiting
        )

    def _order_bounds(self, members: list[int]) -> list[tuple[int, int]]:
        """Exclusive bounds on each call's span start, from the paired calls issued before and after it."""
        lower, upper = [-NEVER] * len(members), [NEVER] * len(members)
        for k in range(1, len(members)):
            previous = self.span_of[members[k - 1]]
            lower[k] = self.spans[previous].start_ns if previous >= 0 else lower[k - 1]
        for k in range(len(members) - 2, -1, -1):
            following = self.span_of[members[k + 1]]
            upper[k] = self.spans[following].start_ns if following >= 0 else upper[k + 1]
        return list(zip(lower, upper, strict=True))

    def _possible(self, call: Call, group: str, earliest: int, latest: int) -> list[int]:
        rows, starts = self._by_op.get(call.op, []), self._starts.get(call.op, [])
        candidates = rows[bisect_left(starts, earliest) : bisect_right(starts, latest)]
        return [
            s
            for s in candidates
            if self._call_of[s] < 0
            and self.spans[s].end_ns <= call.done_by_ns + _WAKE_UP_SLACK_NS
            and self._thread_may_serve(self.spans[s].thread, group)
        ]

    def _thread_may_serve(self, thread: int, group: str) -> bool:
        return group not in self._of_group or self._group_of_thread.get(thread, group) == group

    def _pair_run(self, run: list[int], threads: set[int], after: int, before: int) -> bool:
        between = [
            s
            for s, span in enumerate(self.spans)
            if self._call_of[s] < 0 and span.thread in threads and after < span.start_ns < before
        ]
        fits = len(between) == len(run) and all(
            self.spans[s].op == self.calls[i].op
            and self.calls[i].start_ns <= self.spans[s].start_ns
            and self.spans[s].end_ns <= self.calls[i].done_by_ns + _WAKE_UP_SLACK_NS
            for i, s in zip(run, between, strict=True)
        )
        if fits:
            for i, s in zip(run, between, strict=True):
                self._pair(i, s)
        return fits

    def _pair(self, i: int, s: int) -> None:
        self.span_of[i], self._call_of[s] = s, i
        group = self.calls[i].group
        if group in self._of_group:
            self._group_of_thread.setdefault(self.spans[s].thread, group)
