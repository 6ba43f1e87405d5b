"""How much longer compute takes while something else runs: the same kernel with it and alone, side by side.

Same means name and grid (or input shapes) on the same rank. Intervals that are only partly overlapped say nothing and
are left out. Units of resampling are whole steps of a rank, because kernels within one are not independent.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analyzer.intervals import Union, covered, merge, subtract
from analyzer.lanes import Lane
from analyzer.stats import estimate, exp
from analyzer.timeline import Flag, Timeline

KINDS = ("sm_using", "sm_free", "copies")
_MOSTLY = 0.9  # of an interval that must be overlapped to count as contended


@dataclass(frozen=True)
class Contention:
    """Slowdown of compute (1.1: ten percent longer) under one kind of company; None without a pair."""

    slowdown: float | None
    ci95: tuple[float, float] | None
    pairs: int  # contended intervals for which the same kernel also ran alone


def measure_contention(timelines: Sequence[Timeline]) -> dict[str, Contention]:
    """Slowdown by KINDS: communication that uses the device's compute units, that does not, and plain copies.

    The last is the memory-bandwidth contention that communication by copies would have too.
    """
    found: dict[str, tuple[list[np.ndarray], list[np.ndarray]]] = {kind: ([], []) for kind in KINDS}
    for number, timeline in enumerate(timelines):
        for kind, (excess, unit) in _pairs_of_rank(timeline).items():
            found[kind][0].append(excess)
            found[kind][1].append(unit + (number << 32))
    return {
        kind: _estimate(np.concatenate(excess or [np.empty(0)]), np.concatenate(unit or [np.empty(0, np.int64)]))
        for kind, (excess, unit) in found.items()
    }


def _pairs_of_rank(timeline: Timeline) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """By kind: (log of each contended duration over the mean of the same kernel alone, step of each)."""
    rows = np.flatnonzero(
        (timeline.lane == Lane.COMPUTE)
        & (timeline.shape >= 0)
        & ((timeline.flags & Flag.PARTIAL) == 0)
        & (timeline.end_ns > timeline.start_ns)
    )
    start, end = timeline.start_ns[rows], timeline.end_ns[rows]
    company = {kind: covered(union, start, end) / (end - start) for kind, union in _company(timeline).items()}
    any_company = sum(company.values())
    key = timeline.name_id[rows].astype(np.int64) << 32 | timeline.shape[rows]
    index = np.unique(key, return_inverse=True)[1]
    log_duration = np.log((end - start).astype(np.float64))
    alone = any_company == 0
    runs_alone = np.bincount(index, alone, minlength=int(index.max(initial=-1)) + 1)
    mean_alone = np.bincount(index, np.where(alone, log_duration, 0.0)) / np.maximum(runs_alone, 1)
    result = {}
    for kind, share in company.items():
        contended = (share >= _MOSTLY) & (any_company == share) & (runs_alone[index] > 0)
        result[kind] = log_duration[contended] - mean_alone[index[contended]], timeline.step[rows[contended]]
    return result


def _company(timeline: Timeline) -> dict[str, Union]:
    comm = timeline.lane == Lane.COMM
    free = (timeline.flags & Flag.SM_FREE) != 0
    unions = {
        "sm_using": _union(timeline, comm & ~free & ((timeline.flags & (Flag.WAIT | Flag.BY_HAND)) == 0)),
        "sm_free": _union(timeline, comm & free),
        "copies": _union(timeline, timeline.lane == Lane.COPY),
    }
    unions["copies"] = subtract(unions["copies"], unions["sm_free"])
    return unions


def _union(timeline: Timeline, mask: np.ndarray) -> Union:
    return merge(timeline.start_ns[mask], timeline.end_ns[mask])


def _estimate(excess: np.ndarray, unit: np.ndarray) -> Contention:
    if len(excess) == 0:
        return Contention(None, None, 0)
    index = np.unique(unit, return_inverse=True)[1]
    means = np.bincount(index, excess) / np.bincount(index)
    slowdown = exp(estimate(float(means.mean()), means))
    return Contention(slowdown.value, slowdown.ci95, len(excess))
