"""Learns how fast each rank really is, so that a slow one gets proportionally less work (VBS's AutoTune).

A rank's speed is the work it was given divided by the time it took. That ratio hardly depends on how much it was given,
so smoothing it approaches the truth from one side and does not swing: unlike nudging shares up and down.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from freescale.errors import FreeScaleError


class AutoTune:
    """Relative speeds of the ranks, from gathered measurements; the same on every rank that observes the same numbers.

    Args:
        world_size: number of ranks.
        gain: share of the remaining difference that one observation closes, more than 0, up to 1.
        ignore: relative differences up to here count as equal speed: noise is not worth moving samples for.
        limit: the most that a rank may be taken to be faster or slower than the average.
    """

    def __init__(self, world_size: int, gain: float = 0.3, ignore: float = 0.03, limit: float = 8.0) -> None:
        if not 0 < gain <= 1:
            raise FreeScaleError(f"gain: {gain}, expected more than 0, up to 1")
        if limit < 1 or ignore < 0:
            raise FreeScaleError(f"limit: {limit}, ignore: {ignore}; expected at least 1 and at least 0")
        self._gain, self._ignore, self._limit = gain, math.log1p(ignore), math.log(limit)
        self._log_speed = np.zeros(world_size)

    @property
    def speed(self) -> NDArray[np.float64]:
        """float64[world_size], geometric mean about 1; for `freescale.balance.policies.variable`."""
        settled = np.where(np.abs(self._log_speed) <= self._ignore, 0.0, self._log_speed)
        return np.asarray(np.exp(settled), dtype=np.float64)

    def observe(self, load: NDArray[np.float64], busy_ms: NDArray[np.float64]) -> None:
        """Take in one step.

        Args:
            load: float64[world_size], cost of the samples that each rank had.
            busy_ms: float64[world_size], how long each computed, waiting not included. A rank without work or time says
                nothing, and keeps its speed.
        """
        seen = np.isfinite(load) & np.isfinite(busy_ms) & (load > 0) & (busy_ms > 0)
        if seen.sum() < 2:
            return
        measured = np.log(load[seen] / busy_ms[seen])
        # Compare with the same ranks' current mean, so that ranks without work do not shift the others.
        measured += self._log_speed[seen].mean() - measured.mean()
        self._log_speed[seen] += self._gain * (measured - self._log_speed[seen])
        self._log_speed = np.clip(self._log_speed - self._log_speed.mean(), -self._limit, self._limit)

    def state_dict(self) -> dict[str, list[float]]:
        """For a checkpoint."""
        return {"log_speed": self._log_speed.tolist()}

    def load_state_dict(self, state: dict[str, list[float]]) -> None:
        """Restore `state_dict`; a different number of ranks starts afresh, as other ranks have other speeds."""
        if len(state["log_speed"]) == self._log_speed.size:
            self._log_speed = np.array(state["log_speed"], dtype=np.float64)
