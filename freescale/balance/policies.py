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

POLICIES = ("rounds", "zigzag", "variable")
"""By name, the default first."""


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


def rounds(costs: Costs, world_size: int) -> Ranks:
    """Fixed batch size, near-optimal: each round of `world_size` samples, dearest first, goes to the ranks in ascending
    load, so the dearest sample of a round meets the least loaded rank.

    Args and returns as for `zigzag`; counts per rank differ by at most one.

    Raises:
        FreeScaleError: as for `zigzag`.
    """
    check(costs, world_size)
    order = descending(costs)
    ranks = np.empty(costs.size, dtype=np.int64)
    load = np.zeros(world_size)
    for start in range(0, costs.size, world_size):
        samples = order[start : start + world_size]
        least = np.argsort(load, kind="stable")[: samples.size]
        ranks[samples] = least
        load[least] += costs[samples]
    return ranks


def variable(
    costs: Costs,
    world_size: int,
    *,
    speed: NDArray[np.float64] | None = None,
    tokens: NDArray[np.int64] | None = None,
    token_cap: int | None = None,
) -> Ranks:
    """Variable batch size: samples, dearest first, each to the rank that would be free first; no rank stays empty.

    Counts per rank are whatever comes out, so the loss must be divided by the global weight, not by a rank's share.

    Args:
        costs: float64[N], in global sample order.
        world_size: number of ranks.
        speed: float64[world_size], relative speeds such as `AutoTune.speed`; equal if not given.
        tokens: int64[N], rows that a sample occupies in memory; needed with a cap.
        token_cap: the most tokens a rank may hold.

    Returns:
        int64[N], the rank of each sample. With at least as many samples as ranks, every rank has one.

    Raises:
        FreeScaleError: costs or speeds that cannot be used, or samples that do not fit under the cap.

    The greedy rule is longest-processing-time-first (Graham 1969), at most 4/3 of the optimum for equal speeds. It is
    worked out for many samples at once: as long as the next rank in line is not overtaken by one just served.
    """
    check(costs, world_size)
    speed = np.ones(world_size) if speed is None else np.asarray(speed, dtype=np.float64)
    if speed.shape != (world_size,) or not (np.isfinite(speed) & (speed > 0)).all():
        raise FreeScaleError(f"speed: {speed}, expected {world_size} positive numbers")
    if token_cap is None:
        tokens, token_cap = np.zeros(costs.size, dtype=np.int64), 0
    else:
        _check_tokens(costs, tokens, token_cap, world_size)
    assert tokens is not None
    ranks = _longest_first(costs, speed, tokens, token_cap)
    if ranks is None:  # balancing the cost filled some rank too early; balancing the tokens leaves the most room
        ranks = _longest_first(tokens.astype(np.float64), np.ones(world_size), tokens, token_cap)
    if ranks is None:
        raise FreeScaleError(
            f"token_cap: {token_cap} on {world_size} ranks leaves no room for {int(tokens.sum())} tokens as they are "
            f"divided into samples; raise the cap"
        )
    return ranks


def _check_tokens(costs: Costs, tokens: NDArray[np.int64] | None, token_cap: int, world_size: int) -> None:
    if tokens is None or tokens.shape != costs.shape:
        raise FreeScaleError("tokens: with a token_cap, expected the tokens of each sample")
    if tokens.size and int(tokens.max()) > token_cap:
        raise FreeScaleError(f"token_cap: {token_cap}, but one sample has {int(tokens.max())} tokens; raise the cap")
    if int(tokens.sum()) > token_cap * world_size:
        raise FreeScaleError(
            f"token_cap: {token_cap} on {world_size} ranks, but the batch has {int(tokens.sum())} tokens; raise the cap"
        )


def _longest_first(costs: Costs, speed: NDArray[np.float64], tokens: NDArray[np.int64], token_cap: int) -> Ranks | None:
    """Greedy assignment under the cap, or None where it runs out of room."""
    order = descending(costs)
    cost, token = costs[order], tokens[order]
    placed = np.empty(costs.size, dtype=np.int64)
    busy, room = np.zeros(speed.size), np.full(speed.size, token_cap, dtype=np.int64)
    line = np.argsort(-speed, kind="stable")  # the first round serves every rank, the fastest with the dearest
    start = 0
    while start < costs.size:
        served = min(line.size, costs.size - start)
        free_at = busy[line[:served]] + cost[start : start + served] / speed[line[:served]]
        if start:
            overtaken = busy[line[1:served]] > np.minimum.accumulate(free_at)[:-1]
            served = 1 + int(np.argmax(overtaken)) if overtaken.any() else served
        fits = token[start : start + served] <= room[line[:served]]
        if not fits[0]:
            line = line[room[line] >= token[start]][:1]
            if not line.size:
                return None
            served, free_at = 1, busy[line] + cost[start] / speed[line]
        elif not fits.all():
            served = int(np.argmin(fits))
        chosen = line[:served]
        placed[start : start + served] = chosen
        busy[chosen] = free_at[:served]
        room[chosen] -= token[start : start + served]
        start += served
        line = np.argsort(busy, kind="stable")
    ranks = np.empty(costs.size, dtype=np.int64)
    ranks[order] = placed
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
