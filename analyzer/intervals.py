"""Exact arithmetic on sets of half-open integer intervals, as pairs of sorted int64 arrays.

A *union* below is a pair `(starts, ends)` of disjoint, non-empty intervals in ascending order.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]
Union = tuple[Int64, Int64]

EMPTY: Union = (np.empty(0, np.int64), np.empty(0, np.int64))
_FAR = np.int64(1) << 62


def merge(starts: Int64, ends: Int64) -> Union:
    """Union of any intervals, in any order; touching ones fuse, empty ones vanish."""
    keep = ends > starts
    if not keep.any():
        return EMPTY
    starts, ends = starts[keep], ends[keep]
    order = np.argsort(starts, kind="stable")
    starts, reach = starts[order], np.maximum.accumulate(ends[order])
    first = np.empty(len(starts), bool)
    first[0] = True
    np.greater(starts[1:], reach[:-1], out=first[1:])
    last = np.append(first[1:], True)
    return starts[first], reach[last]


def overlaps(starts: Int64, ends: Int64, union: Union) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Index pairs (i, j) for which interval i, from any list, overlaps interval j of `union`."""
    low = np.searchsorted(union[1], starts, side="right")
    high = np.searchsorted(union[0], ends, side="left")
    counts = np.maximum(high - low, 0)
    counts[ends <= starts] = 0
    left = np.repeat(np.arange(len(starts)), counts)
    within = np.arange(len(left)) - np.repeat(np.cumsum(counts) - counts, counts)
    return left, np.repeat(low, counts) + within


def intersect(a: Union, b: Union) -> Union:
    """What two unions share. Intervals of `a` that merely touch stay apart."""
    i, j = overlaps(a[0], a[1], b)
    return np.maximum(a[0][i], b[0][j]), np.minimum(a[1][i], b[1][j])


def subtract(a: Union, b: Union) -> Union:
    """What of `a` is not in `b`. Intervals of `a` that merely touch stay apart."""
    outside = np.append(-_FAR, b[1]), np.append(b[0], _FAR)
    keep = outside[1] > outside[0]
    return intersect(a, (outside[0][keep], outside[1][keep]))


def total(union: Union) -> int:
    """Length of a union."""
    return int((union[1] - union[0]).sum())


def covered(union: Union, starts: Int64, ends: Int64) -> Int64:
    """Length of `union` inside each interval [start, end); 0 where end ≤ start."""
    return np.where(ends > starts, _covered_before(union, ends) - _covered_before(union, starts), 0)


def _covered_before(union: Union, at: Int64) -> Int64:
    if len(union[0]) == 0:
        return np.zeros(len(at), np.int64)
    before = np.append(np.int64(0), np.cumsum(union[1] - union[0]))
    i = np.searchsorted(union[0], at, side="right")
    return before[i] - np.maximum(union[1][np.maximum(i - 1, 0)] - at, 0) * (i > 0)
