"""Policy, cost model and labels in one object: what decides, on every rank alike, where each sample goes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from freescale.balance.autotune import AutoTune
from freescale.balance.cost_model import CostModel
from freescale.balance.labels import keep_home
from freescale.balance.policies import POLICIES, Costs, Ranks, rounds, variable, zigzag
from freescale.errors import FreeScaleError

_REFIT_EVERY = 4


class Assign(Protocol):
    """Where the samples of a global batch go."""

    def __call__(self, lengths: NDArray[np.int64], home: Ranks, sample_bytes: NDArray[np.int64]) -> tuple[Ranks, Costs]:
        """Rank and predicted cost of each sample.

        Args:
            lengths: int64[N, axes], rows per sample, in global sample order.
            home: int64[N], the rank that has the sample.
            sample_bytes: int64[N], what moving it would cost.
        """
        ...


@dataclass
class Balancer:
    """Assigns samples, and learns from how long the ranks took. Every rank must call it with the same numbers.

    Attributes:
        world_size: number of ranks.
        costs: what a sample costs.
        policy: `rounds` and `zigzag` keep the number of samples per rank; `variable` does not, knows faster and slower
            ranks, and needs losses that are divided by the global weight.
        token_cap: the most rows (over all axes) that a rank may get, for its memory; `variable` only.
    """

    world_size: int
    costs: CostModel
    policy: str = POLICIES[0]
    token_cap: int | None = None
    speeds: AutoTune = field(init=False)
    _seen: int = 0

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise FreeScaleError(f"policy: {self.policy!r} is not one of {', '.join(POLICIES)}")
        if self.token_cap is not None and self.policy != "variable":
            raise FreeScaleError(f"token_cap: {self.policy} keeps samples per rank, not tokens; use policy variable")
        self.speeds = AutoTune(self.world_size)

    def assign(self, lengths: NDArray[np.int64], home: Ranks, sample_bytes: NDArray[np.int64]) -> tuple[Ranks, Costs]:
        """See `Assign`."""
        cost = self.costs(lengths)
        if self.policy == "variable":
            speed = self.speeds.speed
            tokens = lengths.sum(axis=1) if self.token_cap is not None else None
            ranks = variable(cost, self.world_size, speed=speed, tokens=tokens, token_cap=self.token_cap)
            if np.ptp(speed) > 0:
                return ranks, cost  # a group is meant for the rank of that speed
        else:
            ranks = (rounds if self.policy == "rounds" else zigzag)(cost, self.world_size)
        return keep_home(ranks, home, sample_bytes, self.world_size), cost

    def observe(self, work: NDArray[np.float64], busy_ms: NDArray[np.float64]) -> None:
        """Take in one step of all ranks, gathered.

        Args:
            work: float64[ranks, axes + 2], each rank's `cost_model.work_of`.
            busy_ms: float64[ranks], how long each computed, waiting not included; NaN where not measured.
        """
        if self.costs.fit is not None and self.costs.fit.explains:
            self.speeds.observe(work @ self.costs.fit.per_unit, busy_ms)
        self.costs.observe(work, busy_ms)
        self._seen += 1
        if self._seen % _REFIT_EVERY == 0:
            self.costs.refit()
