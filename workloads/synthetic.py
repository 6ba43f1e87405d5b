"""Synthetic batches: jagged histories with a planted taste model behind the labels, endless and without files.

Everything about a sample is a function of (seed, its number in the stream), and everything about a token of (seed,
step, its place in the global batch), so a rank makes its own samples only, in any order, the same ones in every arm.

The planted model. Each sample has a taste vector and each category a position in the same space; affinity is their
product plus the category's own appeal. Actions in the history show the affinity through noise, and a candidate's label
is drawn with a probability that rises with it: what a model can learn is there to be learned, and no more.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from freescale.errors import FreeScaleError
from workloads import hashing
from workloads.batch import CANDIDATES, HISTORY, JaggedBatch
from workloads.ids import ZipfRows, zipf_rank
from workloads.lengths import LengthDistribution
from workloads.ragged import ragged_array

_EPOCH_S = 1_700_000_000
_ARRIVAL_S = 2
_SESSION_SHARE = 1 / 12
_BREAK_MEDIAN_S, _BREAK_SPREAD = 8 * 3600.0, 1.0
_IN_SESSION_MEAN_S = 45.0
_TASTE_DIM = 4
_CATEGORY_EXPONENT, _SURFACE_EXPONENT = 0.8, 1.0
_MAX_SESSIONS = 1 << 20


@dataclass(frozen=True)
class SyntheticStream:
    """An endless, deterministic stream of global batches.

    Attributes:
        lengths: distribution of history lengths.
        items: rows of the item table and how batches use them.
        category_rows, action_rows, surface_rows: rows of the other tables.
        samples_per_rank: B; the global batch of step n on R ranks is samples n*B*R to (n+1)*B*R - 1.
        min_candidates, max_candidates: candidates per sample, uniform between the two.
        seed: of everything except the item rows, which have their own.
    """

    lengths: LengthDistribution
    items: ZipfRows
    category_rows: int
    action_rows: int
    surface_rows: int
    samples_per_rank: int
    min_candidates: int
    max_candidates: int
    seed: int
    _tokens_per_sample: float = field(init=False, repr=False)
    _appeal: NDArray[np.float64] = field(init=False, repr=False)
    _position: NDArray[np.float64] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        tokens = self.lengths.mean() + (self.min_candidates + self.max_candidates) / 2
        object.__setattr__(self, "_tokens_per_sample", tokens)
        category = np.arange(self.category_rows)
        axis = np.arange(self.category_rows * _TASTE_DIM)
        object.__setattr__(self, "_appeal", hashing.normal(hashing.key(self.seed, "appeal"), category))
        position = hashing.normal(hashing.key(self.seed, "position"), axis).reshape(-1, _TASTE_DIM)
        object.__setattr__(self, "_position", position)

    def batch(self, step: int, rank: int, world_size: int) -> JaggedBatch:
        """Rank `rank`'s samples of the global batch of `step`: the consecutive ones from rank * samples_per_rank on.

        Raises:
            FreeScaleError: a rank outside 0 <= rank < world_size, or a negative step.
        """
        check_place(step, rank, world_size)
        share = self.samples_per_rank
        first = step * share * world_size
        length = self.sample_lengths(first, share * world_size)
        own = slice(rank * share, (rank + 1) * share)
        starts = np.cumsum(length.sum(1)) - length.sum(1)
        history, candidates = length[own].T
        token = ragged_array(starts[own], history)
        shown = ragged_array(starts[own] + history, candidates)
        sample = first + np.arange(own.start, own.stop)
        arrival = _EPOCH_S + _ARRIVAL_S * sample
        history_time, session = self._times(step, token, history, arrival)

        total, usual = int(length.sum()), self.usual_tokens(world_size)
        items, candidate_items = (self.items.ids(step, places, total, usual) for places in (token, shown))
        taste = self._taste(sample)
        affinity = self._affinity(np.repeat(taste, history, axis=0), items)
        appetite = self._affinity(np.repeat(taste, candidates, axis=0), candidate_items)
        return JaggedBatch(
            sample_id=torch.arange(own.start, own.stop),
            lengths=torch.from_numpy(np.stack([history, candidates], axis=1)),
            history={
                "item": torch.from_numpy(items),
                "category": torch.from_numpy(self.category_of(items)),
                "action": torch.from_numpy(self._actions(step, token, affinity)),
                "surface": torch.from_numpy(self._surface(np.repeat(sample, history), session)),
            },
            history_time=torch.from_numpy(history_time),
            candidates={
                "item": torch.from_numpy(candidate_items),
                "category": torch.from_numpy(self.category_of(candidate_items)),
                "surface": torch.from_numpy(np.repeat(self._surface(sample, np.zeros_like(sample)), candidates)),
            },
            candidate_time=torch.from_numpy(np.repeat(arrival, candidates)),
            labels=torch.from_numpy(self._labels(step, shown, appetite)),
            weights=torch.ones(shown.size),
        )

    def steps_available(self, world_size: int) -> int | None:
        """There is no end."""
        return None

    def describe(self) -> dict[str, Any]:
        """The manifest's entry on the data."""
        return {
            "data": None,
            "history": {
                "distribution": self.lengths.name,
                "source": self.lengths.source,
                "median": self.lengths.median,
                "mean": round(self.lengths.mean(), 1),
                "min": self.lengths.minimum,
                "max": self.lengths.cap,
            },
            "candidates": {"min": self.min_candidates, "max": self.max_candidates},
            "zipf_exponent": self.items.exponent,
            "requested_collision_rate": self.items.collision_rate,
            "unique_share": self.items.unique_share,
        }

    def usual_tokens(self, world_size: int) -> int:
        """Tokens of a global batch of usual length, the same in every step."""
        return round(self.samples_per_rank * world_size * self._tokens_per_sample)

    def sample_lengths(self, first: int, samples: int) -> NDArray[np.int64]:
        """int64[samples, 2], history and candidate counts of the stream's samples from number `first` on."""
        number = first + np.arange(samples)
        lengths = np.empty((samples, 2), dtype=np.int64)
        lengths[:, HISTORY] = self.lengths.quantile(hashing.uniform(hashing.key(self.seed, "length"), number))
        choices = self.max_candidates - self.min_candidates + 1
        draw = hashing.uniform(hashing.key(self.seed, "candidates"), number)
        lengths[:, CANDIDATES] = self.min_candidates + (draw * choices).astype(np.int64)
        return lengths

    def category_of(self, items: NDArray[np.int64]) -> NDArray[np.int64]:
        """int64, the category of each item: fixed, and Zipf-sized."""
        draw = hashing.uniform(hashing.key(self.seed, "category"), items)
        return zipf_rank(draw, self.category_rows, _CATEGORY_EXPONENT)

    def _taste(self, sample: NDArray[np.int64]) -> NDArray[np.float64]:
        axis = sample[:, None] * _TASTE_DIM + np.arange(_TASTE_DIM)
        return hashing.normal(hashing.key(self.seed, "taste"), axis)

    def _affinity(self, taste: NDArray[np.float64], items: NDArray[np.int64]) -> NDArray[np.float64]:
        category = self.category_of(items)
        match = np.einsum("td,td->t", taste, self._position[category]) / _TASTE_DIM**0.5
        return match + self._appeal[category]

    def _actions(self, step: int, token: NDArray[np.int64], affinity: NDArray[np.float64]) -> NDArray[np.int64]:
        noise = hashing.normal(hashing.key(self.seed, "action", step), token)
        shown = 1.0 / (1.0 + np.exp(-(affinity + 0.5 * noise)))
        return np.minimum((shown * self.action_rows).astype(np.int64), self.action_rows - 1)

    def _labels(self, step: int, token: NDArray[np.int64], affinity: NDArray[np.float64]) -> NDArray[np.float32]:
        chance = 1.0 / (1.0 + np.exp(1.0 - 1.5 * affinity))
        return (hashing.uniform(hashing.key(self.seed, "label", step), token) < chance).astype(np.float32)

    def _surface(self, sample: NDArray[np.int64], session: NDArray[np.int64]) -> NDArray[np.int64]:
        """One surface per session; session 0 is the running one, in which the candidates are shown."""
        draw = hashing.uniform(hashing.key(self.seed, "surface"), sample * _MAX_SESSIONS + session)
        return zipf_rank(draw, self.surface_rows, _SURFACE_EXPONENT)

    def _times(
        self, step: int, token: NDArray[np.int64], history: NDArray[np.int64], arrival: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """int64[T] seconds and int64[T] sessions counted back from the sample's arrival, of every history event."""
        draw = hashing.uniform(hashing.key(self.seed, "gap", step), token)
        away = hashing.uniform(hashing.key(self.seed, "session", step), token) < _SESSION_SHARE
        pause = _BREAK_MEDIAN_S * np.exp(_BREAK_SPREAD * hashing.normal(hashing.key(self.seed, "away", step), token))
        gap = np.where(away, pause, -_IN_SESSION_MEAN_S * np.log(draw)).astype(np.int64) + 1
        session = _from_the_right(away.astype(np.int64), history)
        return np.repeat(arrival, history) - _from_the_right(gap, history), session


def check_place(step: int, rank: int, world_size: int) -> None:
    """Refuse a place in the stream that does not exist."""
    if step < 0:
        raise FreeScaleError(f"step: {step}, expected at least 0")
    if not 0 <= rank < world_size:
        raise FreeScaleError(f"rank: {rank} of {world_size} ranks, expected 0 to {world_size - 1}")


def _from_the_right(values: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Within each group, the sum of a value and all values after it."""
    total = np.cumsum(values)
    end = np.cumsum(counts)
    last = np.repeat(np.concatenate([[0], total])[end], counts)
    return last - total + values
