"""Zipf-popular row IDs, with a chosen share of each global batch's unique rows already used by the batch before it.

Popular rows are the ones that come back: the head of the popularity order is in every batch, and the rest of a batch
is a window that moves on by its own width each step, so that it never meets the previous one. The share of the head
is then the collision rate, exactly, in every step. A window is computed from the step number alone, so any rank can
make its part of any batch without having made another.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from freescale.errors import FreeScaleError
from workloads import hashing


@dataclass(frozen=True)
class ZipfRows:
    """Rows of one table as the tokens of each step's global batch use them.

    Attributes:
        rows: rows of the table.
        exponent: of the popularity law, p(k) proportional to k^-exponent.
        seed: which table of this kind.
        collision_rate: share of the unique rows of step n's global batch that step n-1's also used, 0 to 1;
            None draws every token from the popularity law and lets collisions fall where they may.
        unique_share: unique rows of a global batch per token, with a collision rate. Cut to what the table can hold:
            a batch and its successor together need (2 - collision_rate) times as many rows as one batch.
    """

    rows: int
    exponent: float
    seed: int
    collision_rate: float | None = None
    unique_share: float = 0.4

    def __post_init__(self) -> None:
        if self.rows < 1:
            raise FreeScaleError(f"rows: {self.rows}, expected at least 1")
        if not 0 <= self.exponent <= 4:
            raise FreeScaleError(f"zipf_exponent: {self.exponent}, expected 0 to 4")
        if self.collision_rate is not None and not 0 <= self.collision_rate <= 1:
            raise FreeScaleError(f"collision_rate: {self.collision_rate}, expected 0 to 1, or none for natural")
        if not 0 < self.unique_share <= 1:
            raise FreeScaleError(f"unique_share: {self.unique_share}, expected more than 0, up to 1")

    def ids(self, step: int, tokens: NDArray[np.int64], total: int, usual: int) -> NDArray[np.int64]:
        """Row IDs of some of a global batch's tokens.

        Args:
            step: number of the global batch.
            tokens: int64[T], places within the global batch, 0 <= place < total.
            total: tokens of this global batch.
            usual: tokens of a usual global batch, the same in every step: unique_share of it is the number of unique
                rows, so that batches of different lengths agree on it. A batch with fewer tokens than that uses fewer
                rows, and only there does the collision rate deviate.

        Returns:
            int64[T], 0 <= id < rows.
        """
        return self._scattered(self.popularity(step, tokens, total, usual))

    def popularity(self, step: int, tokens: NDArray[np.int64], total: int, usual: int) -> NDArray[np.int64]:
        """The same rows as `ids` by their place in the order of popularity, int64[T], 0 <= place < rows.

        With a collision rate, the first `head(usual)` places are the rows that every usual batch uses.
        """
        draws = hashing.uniform(hashing.key(self.seed, "draw", step), tokens)
        if self.collision_rate is None:
            return zipf_rank(draws, self.rows, self.exponent)
        full, full_head = self._unique(usual, self.collision_rate), self.head(usual)
        unique = min(full, total)
        head = round(unique * self.collision_rate)
        # Every row once, then the rest by popularity; which token gets which is a permutation of the batch's places.
        place = hashing.permute(hashing.key(self.seed, "place", step), tokens, total)
        popularity = np.where(place < unique, place, zipf_rank(draws, unique, self.exponent))
        window = step * (full - full_head)
        tail = full_head + (window + popularity - head) % max(self.rows - full_head, 1)
        return np.where(popularity < head, popularity, tail)

    def head(self, usual: int) -> int:
        """How many rows every batch of `usual` tokens uses; 0 without a collision rate."""
        if self.collision_rate is None:
            return 0
        return round(self._unique(usual, self.collision_rate) * self.collision_rate)

    def _unique(self, usual: int, collision_rate: float) -> int:
        return max(1, min(round(self.unique_share * usual), int(self.rows / (2.0 - collision_rate))))

    def _scattered(self, rank: NDArray[np.int64]) -> NDArray[np.int64]:
        """Popularity order to row IDs, so that popular rows do not all live on the first rank."""
        return hashing.permute(hashing.key(self.seed, "scatter"), rank, self.rows)


def zipf_rank(share: NDArray[np.float64], ranks: int, exponent: float) -> NDArray[np.int64]:
    """int64 ranks in [0, ranks) from uniform numbers in (0, 1): a power law on [1, ranks + 1), rounded down.

    Close to Zipf's law (exact in the tail, the head a little flatter) and needs no table of `ranks` probabilities.
    """
    power = 1.0 - exponent
    if abs(power) < 1e-9:
        position = np.exp(share * np.log(ranks + 1.0))
    else:
        position = (1.0 + share * ((ranks + 1.0) ** power - 1.0)) ** (1.0 / power)
    return np.minimum(position.astype(np.int64) - 1, ranks - 1)


def measured_collision_rate(ids_before: NDArray[np.int64], ids_now: NDArray[np.int64]) -> float:
    """Share of the unique rows of a batch that the batch before it used too; NaN for a batch without rows."""
    now = np.unique(ids_now)
    if not now.size:
        return float("nan")
    return float(np.isin(now, np.unique(ids_before), assume_unique=True).mean())
