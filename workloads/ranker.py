"""The model: looked-up embeddings of a jagged batch in, one logit per candidate out.

The dense part (`SequenceRanker`) knows nothing of tables, so that they can be sharded, fetched early or held locally
(`LocalRanker`, an ordinary PyTorch model with `nn.Embedding`) around the same network.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from workloads.batch import CANDIDATE_PREFIX, CANDIDATES, HISTORY, JaggedBatch, offsets
from workloads.hstu import HSTULayer
from workloads.hstu_attention import JaggedLayout
from workloads.ragged import ragged_tensor


@dataclass(frozen=True)
class RankerShape:
    """Sizes of a `SequenceRanker`.

    Attributes:
        features: name and embedding width of each history feature, in the order in which they are joined. Candidates
            have the same features, except those in `history_only`.
        history_only: features that a candidate cannot have yet, such as the user's action on it.
        dim, layers, heads, qk_dim, value_dim: of the HSTU stack.
        head_dim: hidden width of the scoring network.
        longest: the longest history, in events.
    """

    features: tuple[tuple[str, int], ...]
    history_only: tuple[str, ...]
    dim: int
    layers: int
    heads: int
    qk_dim: int
    value_dim: int
    head_dim: int
    longest: int

    @property
    def embedded_dim(self) -> int:
        return sum(width for _, width in self.features)


class SequenceRanker(nn.Module):
    """Scores every candidate against its sample's history."""

    def __init__(self, shape: RankerShape) -> None:
        super().__init__()
        self.shape = shape
        widths = dict(shape.features)
        self.absent = nn.ParameterDict(
            {name: nn.Parameter(torch.empty(widths[name]).normal_(std=0.02)) for name in shape.history_only}
        )
        self.join = nn.Linear(shape.embedded_dim, shape.dim)
        self.layers = nn.ModuleList(
            HSTULayer(shape.dim, shape.heads, shape.qk_dim, shape.value_dim, shape.longest) for _ in range(shape.layers)
        )
        self.score = nn.Sequential(
            nn.LayerNorm(shape.dim), nn.Linear(shape.dim, shape.head_dim), nn.SiLU(), nn.Linear(shape.head_dim, 1)
        )

    def forward(self, embedded: Mapping[str, Tensor], batch: JaggedBatch) -> Tensor:
        """Logits [C], in the order of the batch's candidates.

        Args:
            embedded: for each name of `batch.ids()`, [rows, width] embeddings in that feature's row order.
            batch: its lengths and times are read, its IDs are not.

        A batch without samples gives no logits, connected to every parameter, so that its rank takes part in the
        gradient exchange.
        """
        order = _packing(batch.lengths)
        history = torch.cat([embedded[name] for name, _ in self.shape.features], dim=1)
        candidates = torch.cat([self._candidate(name, embedded, batch) for name, _ in self.shape.features], dim=1)
        tokens = self.join(torch.cat([history, candidates]).index_select(0, order))
        time = torch.cat([batch.history_time, batch.candidate_time])[order]
        layout = JaggedLayout.of(batch.lengths, time)
        for layer in self.layers:
            tokens = layer(tokens, layout)
        return self.score(tokens.index_select(0, layout.candidate_rows)).squeeze(1)

    def _candidate(self, name: str, embedded: Mapping[str, Tensor], batch: JaggedBatch) -> Tensor:
        if name in self.absent:
            return self.absent[name].expand(batch.candidate_time.numel(), -1)
        return embedded[CANDIDATE_PREFIX + name]


class LocalRanker(nn.Module):
    """The whole model in one process: an `nn.Embedding` per table and the dense part.

    Args:
        tables: table name -> (rows, width).
        feature_tables: name of `batch.ids()` -> table that it is looked up in.
        dense: the network around which the tables are put.
    """

    def __init__(
        self, tables: Mapping[str, tuple[int, int]], feature_tables: Mapping[str, str], dense: SequenceRanker
    ) -> None:
        super().__init__()
        self.embeddings = nn.ModuleDict({name: nn.Embedding(rows, width) for name, (rows, width) in tables.items()})
        self.feature_tables = dict(feature_tables)
        self.dense = dense

    def forward(self, batch: JaggedBatch) -> Tensor:
        """Logits [C], in the order of the batch's candidates."""
        looked_up = {name: self.embeddings[self.feature_tables[name]](ids) for name, ids in batch.ids().items()}
        logits: Tensor = self.dense(looked_up, batch)
        return logits


def _packing(lengths: Tensor) -> Tensor:
    """int64[T], where each packed row (each history, then its candidates) lies in all histories and all candidates."""
    history, candidates = lengths[:, HISTORY], lengths[:, CANDIDATES]
    first = offsets(history + candidates)[:-1]
    packed = torch.cat([ragged_tensor(first, history), ragged_tensor(first + history, candidates)])
    order = torch.empty_like(packed)
    order[packed] = torch.arange(packed.numel(), device=packed.device)
    return order
