"""How many blocks would settle a question that a run left open."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from analyzer.stats import LEVEL, MIN_BLOCKS, MIN_EFFECT, NEUTRAL_BAND, Estimate, student_quantile

POWER = 0.8
MOST_BLOCKS = 10_000


def blocks_needed(effect: Estimate, blocks: int, family: int, floor: float = 0.0) -> int | None:
    """Blocks in all after which an effect of the estimated size is called by its name with a probability of 80 %.

    An effect of at least 1 % must become significant, a smaller one's interval must fit into the neutral band.

    Args:
        effect: relative (0.02 is 2 %), its interval from `blocks` blocks.
        family: how many effects are judged together; the first of Holm's steps divides by it.
        floor: relative noise floor, which falls with the root of the blocks.

    Returns:
        None where there is no interval, or more than 10,000 would be needed.
    """
    if effect.value is None or effect.ci95 is None:
        return None
    size = abs(effect.value)
    margin = (effect.ci95[1] - effect.ci95[0]) / 2
    spread = margin * math.sqrt(blocks) / student_quantile((1 + LEVEL) / 2, blocks - 1)
    if spread == 0:
        return blocks
    if size < MIN_EFFECT:
        room = NEUTRAL_BAND - size
        needed = _smallest(lambda n: student_quantile((1 + LEVEL) / 2, n - 1) * spread / math.sqrt(n) <= room)
        above_floor = blocks * (floor / NEUTRAL_BAND) ** 2
    else:
        needed = _smallest(lambda n: _power(size / spread, n, (1 - LEVEL) / family) >= POWER)
        above_floor = blocks * (floor / size) ** 2
    if needed is None or above_floor > MOST_BLOCKS:
        return None
    return max(needed, math.ceil(above_floor))


def _power(effect_in_spreads: float, blocks: int, alpha: float) -> float:
    """Of the two-sided one-sample t-test; effects in the unexpected direction do not count."""
    from scipy.stats import nct  # takes long to import, and few runs ask

    critical = student_quantile(1 - alpha / 2, blocks - 1)
    shift = effect_in_spreads * math.sqrt(blocks)
    power = float(nct.sf(critical, blocks - 1, shift))
    return power if np.isfinite(power) else float(shift > critical)


def _smallest(enough: Callable[[int], bool]) -> int | None:
    """Smallest number of blocks that is enough, for something that stays enough once it is."""
    low, high = MIN_BLOCKS, MOST_BLOCKS
    if not enough(high):
        return None
    while low < high:
        middle = (low + high) // 2
        if enough(middle):
            high = middle
        else:
            low = middle + 1
    return low
