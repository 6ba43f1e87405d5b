"""Estimates from blocks: the unit of resampling is the block, because steps inside one are not independent.

Intervals and p-values are Student's over block values. At the few blocks of a run that covers as stated, where the
percentile and BCa bootstraps cover 85 % instead of 95 % (measured: docs/method.md). Fewer than three blocks give no
interval at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MIN_BLOCKS = 3
LEVEL = 0.95
LOSS_TOLERANCE = 1e-5
MIN_EFFECT = 0.01
NEUTRAL_BAND = 0.02

Float64 = NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """A value, its 95 % interval, and the p-value of no effect; the latter two are None where not estimable."""

    value: float | None
    ci95: tuple[float, float] | None = None
    p: float | None = None

    def as_json(self) -> dict[str, object]:
        return {"value": self.value, "ci95": None if self.ci95 is None else list(self.ci95)}


def estimate(value: float, blocks: Float64) -> Estimate:
    """A value whose error is that of the mean of `blocks`.

    Args:
        value: the estimate; its null hypothesis is 0.
        blocks: float64[blocks], one independent contribution per block: for a mean the values themselves, for a
            smooth function of means its first-order terms (delta method). Only their spread matters.
    """
    count = len(blocks)
    if count < MIN_BLOCKS or not np.isfinite(value):
        return Estimate(value if np.isfinite(value) else None)
    error = float(blocks.std(ddof=1)) / np.sqrt(count)
    margin = student_quantile((1 + LEVEL) / 2, count - 1) * error
    if error == 0:
        return Estimate(value, (value, value), 1.0 if value == 0 else 0.0)
    p = 2 * student_tail(abs(value) / error, count - 1)
    return Estimate(value, (value - margin, value + margin), p)


def speedup(baseline: Float64, arm: Float64) -> Estimate:
    """How many times faster `arm` is: exp of the mean log-ratio of paired block values (float64[blocks], same unit).

    Source: the mean of logs treats a ratio and its inverse alike, so that swapping the arms inverts the result.
    """
    if len(baseline) == 0 or (baseline <= 0).any() or (arm <= 0).any():
        return Estimate(None)
    log_ratio = np.log(baseline) - np.log(arm)
    return exp(estimate(float(log_ratio.mean()), log_ratio))


def welch(a: Float64, b: Float64) -> Estimate:
    """mean(a) − mean(b) of two independent sets of block values, of any two spreads.

    Source: Welch, The generalization of Student's problem (1947).
    """
    if len(a) == 0 or len(b) == 0:
        return Estimate(None)
    value = float(a.mean() - b.mean())
    if min(len(a), len(b)) < MIN_BLOCKS:
        return Estimate(value)
    of_a, of_b = float(a.var(ddof=1)) / len(a), float(b.var(ddof=1)) / len(b)
    error = float(np.sqrt(of_a + of_b))
    if error == 0:
        return Estimate(value, (value, value), 1.0 if value == 0 else 0.0)
    freedom = (of_a + of_b) ** 2 / (of_a**2 / (len(a) - 1) + of_b**2 / (len(b) - 1))
    margin = student_quantile((1 + LEVEL) / 2, freedom) * error
    return Estimate(value, (value - margin, value + margin), 2 * student_tail(abs(value) / error, freedom))


def exp(log_ratio: Estimate) -> Estimate:
    """The ratio of an estimated log-ratio; its null hypothesis is 1."""
    if log_ratio.value is None:
        return log_ratio
    interval = None if log_ratio.ci95 is None else (_exp(log_ratio.ci95[0]), _exp(log_ratio.ci95[1]))
    return Estimate(_exp(log_ratio.value), interval, log_ratio.p)


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """p-values corrected for their number, so that any of them is below 0.05 by chance in 5 % of families.

    None stays None and does not count. Source: Holm, A Simple Sequentially Rejective Multiple Test Procedure (1979).
    """
    known = sorted((p, index) for index, p in enumerate(p_values) if p is not None)
    corrected: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for rank, (p, index) in enumerate(known):
        largest = max(largest, min(1.0, (len(known) - rank) * p))
        corrected[index] = largest
    return corrected


def verdict(effect: Estimate, loss_is_wrong: bool, p_corrected: float | None, floor: float = 0.0) -> str:
    """improvement | neutral | regression | inconclusive | wrong, for a relative gain (0.02 is 2 % better).

    Wrong results come first. A gain or a loss must be significant after correction, at least 1 %, and above the noise
    floor; an interval within 2 % of no change is neutral, if the noise floor is there too.

    Args:
        floor: what two arms without a difference seem to differ by, relative.
    """
    if loss_is_wrong:
        return "wrong"
    if effect.value is None or effect.ci95 is None or p_corrected is None:
        return "inconclusive"
    if p_corrected <= 1 - LEVEL and abs(effect.value) >= max(floor, MIN_EFFECT):
        return "improvement" if effect.value > 0 else "regression"
    low, high = effect.ci95
    if low >= -NEUTRAL_BAND and high <= NEUTRAL_BAND and floor <= NEUTRAL_BAND:
        return "neutral"
    return "inconclusive"


def gain(ratio: Estimate) -> Estimate:
    """A speed-up as a relative gain."""
    if ratio.value is None:
        return ratio
    interval = None if ratio.ci95 is None else (ratio.ci95[0] - 1, ratio.ci95[1] - 1)
    return Estimate(ratio.value - 1, interval, ratio.p)


def student_quantile(probability: float, freedom: float) -> float:
    """Value that Student's t stays below with this probability."""
    from scipy.special import stdtrit  # scipy.stats takes as long to import as many traces to analyse

    return float(stdtrit(freedom, probability))


def student_tail(value: float, freedom: float) -> float:
    """Probability that Student's t is above a value."""
    from scipy.special import stdtr

    return float(stdtr(freedom, -value))


def _exp(value: float) -> float:
    return float(np.exp(value))
