"""Every nanosecond of a step window gets exactly one class: compute, straggler, exposed_comm, exposed_copy or host.

Where nothing computes (a *gap*), one of the active collectives decides: the one that let compute go on, which is the
latest to end at or before the gap's end, or failing that the one that ends last. Before its last rank arrived the gap
is straggler, after that exposed communication. All arithmetic is on integers, so the five add up exactly.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from analyzer.intervals import Int64, Union, covered, intersect, merge, overlaps, subtract

#: `last_arrival_ns` of communication that no other rank's could be matched with: all of it is exposed.
UNMATCHED = np.iinfo(np.int64).min
#: A collective whose end is recorded this long after compute went on still let it go on.
LAUNCH_LATENCY_NS = 10_000


@dataclass(frozen=True)
class Communication:
    """Communication intervals of one rank, int64[m] each, in any order, overlapping or not.

    `last_arrival_ns` is on the same clock as the others, or UNMATCHED.
    """

    start_ns: Int64
    end_ns: Int64
    last_arrival_ns: Int64


@dataclass(frozen=True)
class Partition:
    """int64[windows] each, in ns; the first five add up to the window. The last two are int64[communication rows]."""

    compute_ns: Int64
    straggler_ns: Int64
    exposed_comm_ns: Int64
    exposed_copy_ns: Int64
    host_ns: Int64
    overlapped_comm_ns: Int64  # communication while compute is active; beside the five, not one of them
    row_straggler_ns: Int64  # straggler time that each row decided
    row_exposed_ns: Int64  # exposed_comm time that each row decided


def partition(windows: Union, compute: Union, communication: Communication, copies: Union) -> Partition:
    """Classify every instant of every window.

    Args:
        windows: disjoint ascending intervals; they may touch.
        compute: union of the compute intervals.
        communication: the communication intervals.
        copies: union of the copies that are not part of a collective.
    """
    gaps = subtract(windows, compute)
    window_of_gap = _index_in(windows, gaps[0])
    count = len(windows[0])
    comm = merge(communication.start_ns, communication.end_ns)
    visible = _visible(gaps, communication)
    straggler = _sum_by(window_of_gap[visible.gap], visible.straggler_ns, count)
    exposed = _sum_by(window_of_gap[visible.gap], visible.exposed_ns, count)
    free_copies = subtract(intersect(gaps, copies), comm)
    copy = _sum_by(_index_in(windows, free_copies[0]), free_copies[1] - free_copies[0], count)
    gap_total = _sum_by(window_of_gap, gaps[1] - gaps[0], count)
    overlapped = intersect(intersect(windows, compute), comm)
    return Partition(
        compute_ns=windows[1] - windows[0] - gap_total,
        straggler_ns=straggler,
        exposed_comm_ns=exposed,
        exposed_copy_ns=copy,
        host_ns=gap_total - straggler - exposed - copy,
        overlapped_comm_ns=_sum_by(_index_in(windows, overlapped[0]), overlapped[1] - overlapped[0], count),
        row_straggler_ns=_sum_by(visible.row, visible.straggler_ns, len(communication.start_ns)),
        row_exposed_ns=_sum_by(visible.row, visible.exposed_ns, len(communication.start_ns)),
    )


def where(windows: Union, compute: Union, communication: Communication, copies: Union) -> dict[str, Union]:
    """The same, as intervals: where straggler, exposed_comm, exposed_copy and host are; compute is the rest."""
    gaps = subtract(windows, compute)
    visible = _visible(gaps, communication)
    over = np.maximum(visible.end, visible.middle)
    decided = {
        name: merge(
            *(
                np.concatenate(ends)
                for ends in zip(
                    merge(start[~visible.outlives], end[~visible.outlives]),
                    subtract(merge(start[visible.outlives], end[visible.outlives]), visible.first_half),
                    strict=True,
                )
            )
        )
        for name, start, end in (
            ("straggler", visible.start, visible.middle),
            ("exposed_comm", visible.middle, over),
        )
    }
    free = subtract(gaps, merge(communication.start_ns, communication.end_ns))
    return {**decided, "exposed_copy": intersect(free, copies), "host": subtract(free, copies)}


@dataclass(frozen=True)
class _Visible:
    """Parts of gaps that one communication row decides: straggler from start to middle, exposed from there to end.

    Of rows that outlive their gap, the parts inside `first_half`, where other rows are active, do not count.
    """

    gap: Int64
    row: Int64
    start: Int64
    middle: Int64
    end: Int64
    outlives: NDArray[np.bool_]
    first_half: Union

    @property
    def straggler_ns(self) -> Int64:
        return self._length(self.start, self.middle)

    @property
    def exposed_ns(self) -> Int64:
        return self._length(self.middle, self.end)

    def _length(self, start: Int64, end: Int64) -> Int64:
        end = np.maximum(start, end)
        return end - start - covered(self.first_half, start, end) * self.outlives


def _visible(gaps: Union, communication: Communication) -> _Visible:
    """Give each instant of each gap to the active row of the highest priority.

    Rows of a gap that end by the gap's end come first, later ends before earlier, then the others, later ends first.
    In that order a row is hidden from the earliest start among the rows before it in its half, because each of those
    ends later than it does; and a row of the second half is hidden wherever a row of the first half is active.
    """
    row, gap = overlaps(communication.start_ns, communication.end_ns, gaps)
    end = communication.end_ns[row]
    outlives = end > gaps[1][gap] + LAUNCH_LATENCY_NS
    order = np.lexsort((row, -end, outlives, gap))
    row, gap, outlives = row[order], gap[order], outlives[order]
    start = np.maximum(communication.start_ns[row], gaps[0][gap])
    end = np.minimum(communication.end_ns[row], gaps[1][gap])
    end_visible = np.minimum(end, gaps[0][gap] + _smallest_before(start - gaps[0][gap], gap * 2 + outlives))
    middle = np.clip(communication.last_arrival_ns[row], start, np.maximum(end_visible, start))
    first_half = merge(start[~outlives], end[~outlives])
    return _Visible(gap, row, start, middle, end_visible, outlives, first_half)


def _smallest_before(values: Int64, half: Int64) -> Int64:
    """Smallest of the non-negative values that stand earlier in the same `half` (ascending); huge for the first."""
    if len(values) == 0:
        return values
    first = np.append(True, half[1:] != half[:-1])
    drop = (np.cumsum(first) - 1) * (values.max() + 1)  # makes each half start below the one before it
    running = np.minimum.accumulate(values - drop) + drop
    return np.where(first, np.int64(1) << 61, np.append(np.int64(0), running[:-1]))


def _index_in(windows: Union, at_ns: Int64) -> Int64:
    return np.searchsorted(windows[0], at_ns, side="right") - 1


def _sum_by(index: Int64, values: Int64, count: int) -> Int64:
    total = np.zeros(count, np.int64)
    np.add.at(total, index, values)
    return total
