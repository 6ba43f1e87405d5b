"""Intervals from blocks: the unit of resampling is the block, because steps inside one are not independent.

A percentile bootstrap cannot see beyond the few blocks it resamples, so its interval is widened to Student's where
that is wider. Fewer than three blocks give no interval at all.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

MIN_BLOCKS = 3
RESAMPLES = 2000
LEVEL = 0.95

Float64 = NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """A value and its 95 % interval; `ci95` is None where it cannot be estimated."""

    value: float | None
    ci95: tuple[float, float] | None = None

    def as_json(self) -> dict[str, object]:
        return {"value": self.value, "ci95": None if self.ci95 is None else list(self.ci95)}


def speedup(baseline: Float64, arm: Float64, seed: int = 0) -> Estimate:
    """How many times faster `arm` is: exp of the mean log-ratio of paired block values (float64[blocks], same unit).

    Source: the mean of logs treats a ratio and its inverse alike, so that swapping the arms inverts the result.
    """
    if len(baseline) == 0 or (baseline <= 0).any() or (arm <= 0).any():
        return Estimate(None)
    log_ratio = np.log(baseline) - np.log(arm)
    interval = mean_interval(log_ratio, seed)
    value = float(np.exp(log_ratio.mean()))
    return Estimate(value, None if interval is None else (float(np.exp(interval[0])), float(np.exp(interval[1]))))


def mean_interval(blocks: Float64, seed: int = 0) -> tuple[float, float] | None:
    """95 % interval of the mean of independent block values, float64[blocks]."""
    return interval(
        blocks, lambda chosen: blocks[chosen].mean(axis=1), float(blocks.mean()) if len(blocks) else 0, seed
    )


def interval(
    blocks: Float64, statistic: Callable[[NDArray[np.intp]], Float64], centre: float, seed: int = 0
) -> tuple[float, float] | None:
    """95 % interval of a statistic of whole blocks.

    Args:
        blocks: one value per block, on the scale of the statistic; their spread gives Student's interval.
        statistic: from chosen blocks, intp[resamples, blocks], to its value for each resample.
        centre: the statistic of the blocks as they are.
        seed: makes the resampling repeatable.
    """
    count = len(blocks)
    if count < MIN_BLOCKS:
        return None
    chosen = np.random.default_rng(seed).integers(0, count, size=(RESAMPLES, count))
    low, high = np.quantile(statistic(chosen), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    from scipy.special import stdtrit  # takes longer to import than all else here

    margin = float(stdtrit(count - 1, (1 + LEVEL) / 2) * blocks.std(ddof=1) / np.sqrt(count))
    return min(float(low), centre - margin), max(float(high), centre + margin)


def verdict(ratio: Estimate, loss_max_rel: float | None) -> str:
    """improvement | neutral | regression | inconclusive | wrong, from a speed-up and the largest relative loss gap.

    Wrong results come first; a gain or a loss must be at least 1 % and its interval must exclude none; an interval
    within 2 % of no change is neutral.
    """
    if loss_max_rel is not None and loss_max_rel > LOSS_TOLERANCE:
        return "wrong"
    if ratio.value is None or ratio.ci95 is None:
        return "inconclusive"
    low, high = ratio.ci95
    if low > 1 and ratio.value >= 1 + MIN_EFFECT:
        return "improvement"
    if high < 1 and ratio.value <= 1 - MIN_EFFECT:
        return "regression"
    if low >= 1 - NEUTRAL_BAND and high <= 1 + NEUTRAL_BAND:
        return "neutral"
    return "inconclusive"


LOSS_TOLERANCE = 1e-5
MIN_EFFECT = 0.01
NEUTRAL_BAND = 0.02
