"""What a sample costs, learned from how long ranks take: a*L^2 + b*L + c*candidates + d, never negative.

Every rank fits the same gathered numbers and so has the same model. A rank's time is the sum over its samples, so
sums are all that has to be gathered. Balancing does not starve the fit: ranks of equal predicted cost still have
different mixes of long and short samples, and their times show whether the mix was priced right.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls
from scipy.special import fdtrc

from freescale.balance.policies import Costs
from freescale.errors import FreeScaleError

_CHANCE = 0.001
_RECENT = 16
_DRIFT = 2.0
_ACCURATE_ERROR = 0.1
_OUTLIER = 3.0
_CLEARINGS = 3
_MAD_TO_SIGMA = 1.4826


@dataclass(frozen=True)
class Fit:
    """One fit to the window.

    Attributes:
        per_unit: float64, ms per L^2, per row of each jagged axis (L, candidates, ...) and per sample; all >= 0.
        per_step_ms: what a rank needs whatever its samples; 0 where the window cannot tell it from the cost of a
            sample, because every rank always had equally many.
        r2: share of the variance of rank times that it explains.
        median_error: median of |predicted - measured| / measured.
        rows: rank times it was fitted to, outliers left out.
        chance: how likely so much would be explained if the times had nothing to do with the samples (F test).
        pace: median of measured / predicted over the latest rank times: a machine's speed drifts within a window.
    """

    per_unit: NDArray[np.float64]
    per_step_ms: float
    r2: float
    median_error: float
    rows: int
    chance: float
    pace: float

    @property
    def explains(self) -> bool:
        """Whether to trust it: what it explains is no accident, or there is hardly anything to explain.

        A bar on r2 itself would turn a good model down where the machine is noisy.
        """
        return self.chance <= _CHANCE or self.median_error <= _ACCURATE_ERROR


class CostModel:
    """Costs of samples: from the prior at first, from measurements later, from tokens when neither explains them.

    Args:
        prior: int64[N, axes] lengths -> float64[N] relative costs, such as the model's FLOPs. Axis 0 is the history.
        window: rank times (steps x ranks) that are kept.
        least: rank times before the first fit.

    Call it with int64[N, axes] lengths for float64[N] costs: in ms once fitted, before that in the prior's unit.
    """

    def __init__(self, prior: Callable[[NDArray[np.int64]], Costs], window: int = 512, least: int = 12) -> None:
        if not 1 <= least <= window:
            raise FreeScaleError(f"least: {least}, expected 1 to window, which is {window}")
        self._prior, self._least = prior, least
        self._work: deque[NDArray[np.float64]] = deque(maxlen=window)
        self._busy_ms: deque[float] = deque(maxlen=window)
        self.fit: Fit | None = None

    def __call__(self, lengths: NDArray[np.int64]) -> Costs:
        if self.fit is None:
            return self._prior(lengths)
        if not self.fit.explains:
            return lengths.sum(axis=1).astype(np.float64)
        return _terms(lengths) @ self.fit.per_unit

    @property
    def source(self) -> str:
        """Where costs come from now: `prior`, `fit` or `tokens` (a fit that does not explain the times)."""
        if self.fit is None:
            return "prior"
        return "fit" if self.fit.explains else "tokens"

    def predicted_ms(self, lengths: NDArray[np.int64]) -> float:
        """Compute time of a rank with these samples; NaN while there is no fit that explains the times."""
        if self.fit is None or not self.fit.explains:
            return float("nan")
        return float(self(lengths).sum() + self.fit.per_step_ms) * self.fit.pace

    def observe(self, work: NDArray[np.float64], busy_ms: NDArray[np.float64]) -> None:
        """Take in one step of all ranks.

        Args:
            work: float64[ranks, axes + 2], each rank's `work_of`, gathered.
            busy_ms: float64[ranks], how long each computed, waiting not included. Times that are not positive numbers
                are passed over.
        """
        for row, busy in zip(work, busy_ms, strict=True):
            if np.isfinite(busy) and busy > 0:
                self._work.append(row)
                self._busy_ms.append(float(busy))

    def refit(self) -> Fit | None:
        """Fit the window, if it is large enough; returns the fit in use."""
        if len(self._busy_ms) >= self._least:
            self.fit = _fit(np.array(self._work), np.array(self._busy_ms))
        return self.fit


def work_of(lengths: NDArray[np.int64]) -> NDArray[np.float64]:
    """float64[axes + 2] of a rank's int64[B, axes] lengths: sum of L^2, sum of each axis, number of samples."""
    return _terms(lengths).sum(axis=0)


def _terms(lengths: NDArray[np.int64]) -> NDArray[np.float64]:
    """float64[N, axes + 2] per sample."""
    rows = lengths.astype(np.float64)
    return np.column_stack([rows[:, 0] ** 2, rows, np.ones(len(rows))])


def _fit(work: NDArray[np.float64], busy_ms: NDArray[np.float64]) -> Fit:
    all_work, all_ms = work, busy_ms
    coefficients = _solve(work, busy_ms)
    for _ in range(_CLEARINGS):  # again and again without the steps that something else disturbed
        residual = np.abs(all_ms - _predict(all_work, coefficients))
        usual = residual <= _OUTLIER * max(_MAD_TO_SIGMA * float(np.median(residual)), 1e-9 * float(all_ms.max()))
        work, busy_ms = all_work[usual], all_ms[usual]
        coefficients = _solve(work, busy_ms)
    residual = busy_ms - _predict(work, coefficients)
    spread = float(((busy_ms - busy_ms.mean()) ** 2).sum())
    r2 = 1.0 - float((residual**2).sum()) / spread if spread > 0 else 0.0
    return Fit(
        per_unit=coefficients[:-1],
        per_step_ms=float(coefficients[-1]),
        r2=r2,
        median_error=float(np.median(np.abs(residual) / busy_ms)),
        rows=busy_ms.size,
        chance=_chance(r2, int((coefficients[:-1] > 0).sum()), busy_ms.size),
        pace=_pace(all_ms[-_RECENT:], _predict(all_work[-_RECENT:], coefficients)),
    )


def _pace(measured_ms: NDArray[np.float64], predicted_ms: NDArray[np.float64]) -> float:
    ratio = measured_ms[predicted_ms > 0] / predicted_ms[predicted_ms > 0]
    drifted = ratio[(ratio > 1 / _DRIFT) & (ratio < _DRIFT)]  # beyond it something happened that will not last
    return float(np.median(drifted)) if drifted.size else 1.0


def _chance(r2: float, terms: int, rows: int) -> float:
    """p of the F test that none of the terms has anything to do with the times."""
    free = rows - terms - 1
    if r2 <= 0 or terms == 0 or free <= 0:
        return 1.0
    return float(fdtrc(terms, free, r2 / terms / ((1 - r2) / free))) if r2 < 1 else 0.0


def _solve(work: NDArray[np.float64], busy_ms: NDArray[np.float64]) -> NDArray[np.float64]:
    """Non-negative coefficients of the work columns and a constant, the columns scaled to the same size."""
    columns = np.column_stack([work, np.ones(len(work))])
    if np.ptp(work[:, -1]) == 0:
        columns[:, -1] = 0.0  # equally many samples everywhere: a constant would only repeat their column
    scale = np.linalg.norm(columns, axis=0)
    scale[scale == 0] = 1.0
    solution, _ = nnls(columns / scale, busy_ms)
    return np.asarray(solution / scale, dtype=np.float64)


def _predict(work: NDArray[np.float64], coefficients: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(work @ coefficients[:-1] + coefficients[-1], dtype=np.float64)
