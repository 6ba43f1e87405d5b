"""Partition policies: which rank computes which sample of the global batch.

A policy is a pure function of the samples' costs. Every rank calls it on the same gathered numbers and gets the same
answer, so nothing has to be agreed on; ties are therefore broken by position, never by the order a sort happens to
leave.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from freescale.errors import FreeScaleError

Costs = NDArray[np.float64]
Ranks = NDArray[np.int64]


def zigzag(costs: Costs, world_size: int) -> Ranks:
    """Fixed batch size, the paper's way: sort by cost, deal there and back (i, 2n-1-i, 2n+i, 4n-1-i, ...).

    Args:
        costs: float64[N], any finite non-negative unit, in global sample order. N need not be divisible.
        world_size: number of ranks, n.

    Returns:
        int64[N], the rank of each sample. Counts per rank differ by at most one.

    Raises:
        FreeScaleError: costs are not a finite, non-negative vector, or there is no rank.

    Source: FreeScale (arXiv 2604.24073), fixed-batch-size balancing, with ranks counted from 0.
    """
    check(costs, world_size)
    place = np.arange(costs.size)
    lap, column = np.divmod(place, world_size)
    ranks = np.empty(costs.size, dtype=np.int64)
    ranks[descending(costs)] = np.where(lap % 2 == 0, column, world_size - 1 - column)
    return ranks


def descending(costs: Costs) -> NDArray[np.int64]:
    """int64[N], positions from the dearest sample to the cheapest; equal costs in order of position."""
    return np.argsort(-costs, kind="stable")


def check(costs: Costs, world_size: int) -> None:
    """Refuse what no policy can partition."""
    if world_size < 1:
        raise FreeScaleError(f"world_size: {world_size}, expected at least 1")
    if costs.ndim != 1:
        raise FreeScaleError(f"costs: shape {costs.shape}, expected one cost per sample")
    bad = np.flatnonzero(~(np.isfinite(costs) & (costs >= 0)))
    if bad.size:
        raise FreeScaleError(f"costs: sample {bad[0]} costs {costs[bad[0]]}, expected a finite number of at least 0")
