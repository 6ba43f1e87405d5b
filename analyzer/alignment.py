"""Aligning sequences of collectives of which events are missing, by when they ended.

All ranks leave a collective at nearly one instant, so between two ranks the ends of the same collectives differ by one
constant, the offset of their clocks. That constant is found by vote; a vote that chance could explain counts for
nothing. With it, two events are the same collective if kind and step agree, their intervals overlap, their ends agree,
and no other event comes close.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import lgamma, log

import numpy as np
from numpy.typing import NDArray

from analyzer.intervals import Int64

VOTE_WIDTH_NS = 100_000
_END_TOLERANCE_NS = 20_000
_END_TOLERANCE_SHARE = 0.05  # of the shorter of two intervals; large collectives end less exactly
_FARTHEST_CLOCKS_NS = 1_000_000_000
_CHANCE = 1e-3


@dataclass(frozen=True)
class Sequence:
    """Collectives of one rank in the order of their starts, int64[n] each; `kind` holds equal numbers for equal ops."""

    start_ns: Int64
    end_ns: Int64
    kind: Int64
    step: Int64

    def __len__(self) -> int:
        return len(self.start_ns)

    def shifted(self, offset_ns: int) -> Sequence:
        return Sequence(self.start_ns + offset_ns, self.end_ns + offset_ns, self.kind, self.step)


def find_offset(a: Sequence, b: Sequence) -> int | None:
    """What to add to b's times so that its ends agree with a's, in ns; None if no vote is better than chance."""
    i, j = _comparable(a, b)
    lag = a.end_ns[i] - b.end_ns[j]
    lag = np.sort(lag[np.abs(lag) <= _FARTHEST_CLOCKS_NS])
    if len(lag) < 3:
        return None
    votes = np.searchsorted(lag, lag + VOTE_WIDTH_NS, side="right") - np.arange(len(lag))
    best = int(votes.argmax())
    if _log_chance(len(lag), int(votes[best]), max(int(lag[-1] - lag[0]), VOTE_WIDTH_NS)) > log(_CHANCE):
        return None
    return int(np.median(lag[best : best + votes[best]]))


def _log_chance(candidates: int, votes: int, span_ns: int) -> float:
    """Log of (a bound on) the probability that so many of so many random lags fall this close together."""
    if votes < 2:
        return 0.0
    ways = lgamma(candidates + 1) - lgamma(votes + 1) - lgamma(candidates - votes + 1)
    return ways + log(votes) + (votes - 1) * log(VOTE_WIDTH_NS / span_ns)


def pair_up(a: Sequence, b: Sequence) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Index pairs (i in a, j in b) of the same collectives, both ascending; the clocks must agree already."""
    i, j = _comparable(a, b)
    if len(i) == 0:
        return i, j
    gap = np.abs(a.end_ns[i] - b.end_ns[j])
    shorter = np.minimum(a.end_ns[i] - a.start_ns[i], b.end_ns[j] - b.start_ns[j])
    tolerance = np.maximum(_END_TOLERANCE_NS, (shorter * _END_TOLERANCE_SHARE).astype(np.int64))
    overlap = np.minimum(a.end_ns[i], b.end_ns[j]) > np.maximum(a.start_ns[i], b.start_ns[j])
    near = gap <= 2 * tolerance
    alone = (np.bincount(i[near], minlength=len(a))[i] == 1) & (np.bincount(j[near], minlength=len(b))[j] == 1)
    good = np.flatnonzero(near & alone & overlap & (gap <= tolerance))
    good = good[np.argsort(i[good], kind="stable")]
    ascending = _longest_ascending(j[good])
    return i[good][ascending], j[good][ascending]


def _comparable(a: Sequence, b: Sequence) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """All index pairs of equal kind and step."""
    key_a, key_b = a.kind << np.int64(40) | (a.step + 1), b.kind << np.int64(40) | (b.step + 1)
    order = np.argsort(key_b, kind="stable")
    low = np.searchsorted(key_b[order], key_a, side="left")
    counts = np.searchsorted(key_b[order], key_a, side="right") - low
    i = np.repeat(np.arange(len(a)), counts)
    within = np.arange(len(i)) - np.repeat(np.cumsum(counts) - counts, counts)
    return i, order[np.repeat(low, counts) + within]


def _longest_ascending(values: NDArray[np.intp]) -> NDArray[np.intp]:
    """Positions of a longest strictly ascending subsequence (the order of collectives is the same everywhere)."""
    tails: list[int] = []
    previous = np.full(len(values), -1)
    tail_values: list[int] = []
    for position, value in enumerate(values.tolist()):
        place = int(np.searchsorted(tail_values, value)) if tail_values else 0
        if place == len(tails):
            tails.append(position)
            tail_values.append(value)
        else:
            tails[place], tail_values[place] = position, value
        previous[position] = tails[place - 1] if place else -1
    chosen = []
    at = tails[-1] if tails else -1
    while at >= 0:
        chosen.append(at)
        at = int(previous[at])
    return np.array(chosen[::-1], np.intp)
