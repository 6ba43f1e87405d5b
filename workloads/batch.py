"""The jagged batch: one rank's samples, each a user history (UIH) of its own length and a few candidates to rank.

Nothing is padded. A *jagged axis* has a number of rows per sample: axis 0 is the history, axis 1 the candidates, and
every per-row tensor lies packed along one of them, sample after sample.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from workloads.ragged import ragged_tensor

HISTORY, CANDIDATES = 0, 1
CANDIDATE_PREFIX = "candidate_"


@dataclass(frozen=True)
class JaggedBatch:
    """B samples with T history events and C candidates in all, in time order.

    Attributes:
        sample_id: int64[B], position in the global batch (time order); unique across ranks.
        lengths: int64[B, 2], history events and candidates of each sample.
        history: feature name -> int64[T] embedding IDs of the history events.
        history_time: int64[T], seconds, ascending within a sample.
        candidates: feature name -> int64[C] embedding IDs of the candidates.
        candidate_time: int64[C], seconds, when the candidate was shown; never before the history's last event.
        labels: float32[C], 1 for a positive outcome, else 0.
        weights: float32[C], weight of each candidate in the loss.
    """

    sample_id: Tensor
    lengths: Tensor
    history: dict[str, Tensor]
    history_time: Tensor
    candidates: dict[str, Tensor]
    candidate_time: Tensor
    labels: Tensor
    weights: Tensor

    def __post_init__(self) -> None:
        samples = self.sample_id.numel()
        if tuple(self.lengths.shape) != (samples, 2):
            raise ValueError(f"lengths: shape {tuple(self.lengths.shape)}, expected ({samples}, 2)")
        rows = self.lengths.sum(0).tolist() if samples else [0, 0]
        for name, (axis, values) in self.jagged_values().items():
            if values.shape[0] != rows[axis]:
                raise ValueError(f"{name}: {values.shape[0]} rows, but lengths[:, {axis}] add up to {rows[axis]}")

    @property
    def samples(self) -> int:
        return self.sample_id.numel()

    @property
    def tokens(self) -> int:
        """History events and candidates: the rows that the dense model computes on."""
        return self.history_time.numel() + self.candidate_time.numel()

    def ids(self) -> dict[str, Tensor]:
        """Every feature to be looked up: history features under their own name, candidates with the prefix."""
        return {**self.history, **{CANDIDATE_PREFIX + name: ids for name, ids in self.candidates.items()}}

    # The three below are the exchange protocol of freescale.balance: what it needs to move samples between ranks.

    def sample_lengths(self) -> Tensor:
        """int64[B, 2]: rows per sample along each jagged axis."""
        return self.lengths

    def jagged_values(self) -> dict[str, tuple[int, Tensor]]:
        """name -> (jagged axis, packed values with one row per unit of that axis)."""
        return {
            **{f"history.{name}": (HISTORY, ids) for name, ids in self.history.items()},
            "history_time": (HISTORY, self.history_time),
            **{f"candidates.{name}": (CANDIDATES, ids) for name, ids in self.candidates.items()},
            "candidate_time": (CANDIDATES, self.candidate_time),
            "labels": (CANDIDATES, self.labels),
            "weights": (CANDIDATES, self.weights),
        }

    def with_samples(self, sample_id: Tensor, lengths: Tensor, values: Mapping[str, Tensor]) -> JaggedBatch:
        """A batch of the same kind holding other samples: the inverse of `jagged_values` after an exchange."""
        return JaggedBatch(
            sample_id=sample_id,
            lengths=lengths,
            history={name: values[f"history.{name}"] for name in self.history},
            history_time=values["history_time"],
            candidates={name: values[f"candidates.{name}"] for name in self.candidates},
            candidate_time=values["candidate_time"],
            labels=values["labels"],
            weights=values["weights"],
        )

    def to(self, device: torch.device) -> JaggedBatch:
        values = {name: tensor.to(device, non_blocking=True) for name, (_, tensor) in self.jagged_values().items()}
        return self.with_samples(self.sample_id.to(device), self.lengths.to(device), values)


def offsets(lengths: Tensor) -> Tensor:
    """int64[B] lengths -> int64[B+1] offsets, starting at 0."""
    return torch.nn.functional.pad(lengths.cumsum(0), (1, 0))


def select(batch: JaggedBatch, order: Sequence[int] | Tensor) -> JaggedBatch:
    """The samples at positions `order` of `batch`, in that order (an empty order gives an empty batch)."""
    order = torch.as_tensor(order, dtype=torch.int64, device=batch.lengths.device)
    values = {}
    for name, (axis, packed) in batch.jagged_values().items():
        starts = offsets(batch.lengths[:, axis])[:-1]
        values[name] = packed[ragged_tensor(starts[order], batch.lengths[order, axis])]
    return batch.with_samples(batch.sample_id[order], batch.lengths[order], values)
