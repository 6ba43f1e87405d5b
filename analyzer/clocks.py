"""How far the ranks' clocks are apart, from the collectives that all ranks leave together.

All participants of a synchronising collective finish at one true instant, so differences between their recorded ends
are differences between clocks, plus noise that medians remove. Ranks of one host share a clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from analyzer.intervals import Int64
from analyzer.matching import Matching

_ROUNDS = 50
_DRIFT_POINTS = 300
_DRIFT_LIMIT = 500e-6
_OUTLIERS = 0.05


@dataclass(frozen=True)
class Clocks:
    """Correction of each rank's clock: `aligned = t + offset + drift · (t - reference)`, in ns.

    `residual_ns` is how far the corrected ends of one collective still disagree: twice the deviation from their middle
    that all but one in twenty stay below. `uncertainty_ns` is how far the corrections themselves may be off: less, the
    more collectives they rest on. Both are 0 where ranks share a host's clock.
    `tied` is False for ranks that no collective ties to the others; their offset is 0 for want of better.
    """

    offset_ns: Int64
    drift: np.ndarray
    reference_ns: int
    residual_ns: int
    uncertainty_ns: int
    tied: np.ndarray
    method: str  # "one host" | "synchronising collectives" | "all-to-all" | "none"

    def to_common(self, rank: int, at_ns: Int64) -> Int64:
        """Instants of a rank's own clock (index of its timeline) on the common clock."""
        moved = np.rint((at_ns - self.reference_ns) * self.drift[rank]).astype(np.int64)
        return at_ns + self.offset_ns[rank] + moved

    def to_own(self, rank: int, at_ns: Int64) -> Int64:
        """Inverse of `to_common`, to the nanosecond."""
        since = at_ns - self.reference_ns - self.offset_ns[rank]
        return self.reference_ns + since - np.rint(since * (self.drift[rank] / (1 + self.drift[rank]))).astype(np.int64)


def fit_clocks(matching: Matching, hosts: Sequence[str | None]) -> Clocks:
    """Estimate clock corrections of the ranks whose timelines were matched; `hosts` names each rank's host if known."""
    ranks = len(hosts)
    none = Clocks(np.zeros(ranks, np.int64), np.zeros(ranks), 0, 0, 0, np.ones(ranks, bool), "none")
    if ranks < 2:
        return none
    if hosts[0] is not None and len(set(hosts)) == 1:
        return Clocks(none.offset_ns, none.drift, 0, 0, 0, none.tied, "one host")
    ends, method = _usable_ends(matching)
    if ends is None:
        return Clocks(none.offset_ns, none.drift, 0, 0, 0, np.zeros(ranks, bool), "none")
    clock_of_rank = _clock_of_rank(hosts)
    return _fit(ends, clock_of_rank, method)


@dataclass(frozen=True)
class _Ends:
    """Recorded ends: of which collective (dense numbers), by which rank, in ns since `origin`."""

    collective: Int64
    rank: Int64
    end: np.ndarray
    origin: int


def _usable_ends(matching: Matching) -> tuple[_Ends | None, str]:
    members, shared = matching.members, (matching.collectives["present"] >= 2).to_numpy()
    for method, kind in (
        ("synchronising collectives", matching.synchronising),
        ("all-to-all", ~matching.synchronising),
    ):
        chosen = members[(shared & kind)[members["collective"]] & members["exact"] & members["known_start"]]
        chosen = chosen[chosen.groupby("collective")["rank"].transform("size") >= 2]
        if len(chosen):
            collective = np.unique(chosen["collective"], return_inverse=True)[1]
            origin = int(chosen["end_ns"].min())
            end = (chosen["end_ns"].to_numpy() - origin).astype(np.float64)
            return _Ends(collective.astype(np.int64), chosen["rank"].to_numpy(), end, origin), method
    return None, "none"


def _clock_of_rank(hosts: Sequence[str | None]) -> Int64:
    """Dense number of the clock each rank uses: one per known host, one per rank of unknown host."""
    seen: dict[object, int] = {}
    return np.array([seen.setdefault(host if host is not None else i, len(seen)) for i, host in enumerate(hosts)])


def _fit(ends: _Ends, clock_of_rank: Int64, method: str) -> Clocks:
    clock = clock_of_rank[ends.rank]
    count = int(clock_of_rank.max()) + 1
    drift = np.zeros(count)
    offset, noise = _fit_offsets(ends, clock, ends.end, count)
    drifting, offset_drifting, noise_drifting = _fit_drift(ends, clock, offset, count)
    span = float(np.ptp(ends.end))
    if noise_drifting < 0.7 * noise and np.abs(drifting).max() * span > 3 * noise_drifting:
        drift, offset, noise = drifting, offset_drifting, noise_drifting
    if not drift.any() and np.abs(offset).max() <= noise:
        offset, noise = np.zeros(count), _noise(ends, clock, np.zeros(count), ends.end)
    tied = _tied(ends, clock, count)
    fewest = int(np.bincount(clock, minlength=count)[tied].min())
    return Clocks(
        np.rint(offset).astype(np.int64)[clock_of_rank],
        drift[clock_of_rank],
        ends.origin,
        int(np.ceil(noise)),
        int(np.ceil(noise / np.sqrt(max(fewest, 1)))),
        tied[clock_of_rank],
        method,
    )


def _fit_offsets(ends: _Ends, clock: Int64, at: np.ndarray, count: int) -> tuple[np.ndarray, float]:
    """Alternate medians: the true end of each collective, then the offset of each clock. Clock 0 is the reference."""
    offset = np.zeros(count)
    for _ in range(_ROUNDS):
        true_end = _median_by(ends.collective, at + offset[clock])
        lag = _median_by(clock, true_end[ends.collective] - at, count)
        step = lag - lag[0] - offset
        offset = offset + step
        if np.abs(step).max() < 0.5:
            break
    return offset, _noise(ends, clock, offset, at)


def _fit_drift(ends: _Ends, clock: Int64, offset: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray, float]:
    """Slope of each clock's lag over time relative to clock 0, the offsets that go with it, and the noise left."""
    drift = np.zeros(count)
    at = ends.end
    for _ in range(2):
        true_end = _median_by(ends.collective, at + offset[clock])
        for c in range(count):
            mine = np.flatnonzero(clock == c)
            if len(mine) < 8:
                continue
            mine = mine[:: max(1, len(mine) // _DRIFT_POINTS)]
            lag = true_end[ends.collective[mine]] - at[mine]
            drift[c] += float(np.clip(_median_slope(ends.end[mine], lag), -_DRIFT_LIMIT, _DRIFT_LIMIT))
        drift -= drift[0]
        at = ends.end * (1 + drift[clock])
        offset, noise = _fit_offsets(ends, clock, at, count)
    return drift, offset, noise


def _median_slope(x: np.ndarray, y: np.ndarray) -> float:
    """Theil and Sen's slope: the median over all pairs of points; 0 without two different x."""
    i, j = np.triu_indices(len(x), 1)
    apart = x[j] != x[i]
    return float(np.median((y[j] - y[i])[apart] / (x[j] - x[i])[apart])) if apart.any() else 0.0


def _noise(ends: _Ends, clock: Int64, offset: np.ndarray, at: np.ndarray) -> float:
    aligned = at + offset[clock]
    deviation = np.abs(aligned - _median_by(ends.collective, aligned)[ends.collective])
    return 2 * float(np.quantile(deviation, 1 - _OUTLIERS, method="higher"))


def _median_by(index: Int64, values: np.ndarray, count: int | None = None) -> np.ndarray:
    """Median of the values of each index; 0 where there is none."""
    count = int(index.max()) + 1 if count is None else count
    order = np.lexsort((values, index))
    ordered = values[order]
    sizes = np.bincount(index, minlength=count)
    first = np.cumsum(sizes) - sizes
    low, high = first + (np.maximum(sizes, 1) - 1) // 2, first + np.maximum(sizes, 1) // 2
    last = len(ordered) - 1
    return np.where(sizes > 0, (ordered[np.minimum(low, last)] + ordered[np.minimum(high, last)]) / 2, 0.0)


def _tied(ends: _Ends, clock: Int64, count: int) -> np.ndarray:
    """Which clocks are connected with clock 0 through shared collectives."""
    tied = np.zeros(count, bool)
    tied[0] = True
    for _ in range(count):
        reached = np.zeros(int(ends.collective.max()) + 1, bool)
        reached[ends.collective[tied[clock]]] = True
        grown = tied.copy()
        grown[clock[reached[ends.collective]]] = True
        if (grown == tied).all():
            break
        tied = grown
    return tied
