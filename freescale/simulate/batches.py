"""What each rank has to do in each step: the samples that a policy gives it, and the embedding rows they need.

The policy is the product's own, called on the same lengths as in a real run; so are the collision sets, where the IDs
of a whole global batch fit into memory. Elsewhere rows come from rates that were measured on a few ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from freescale.balance.balancer import Balancer
from freescale.balance.cost_model import CostModel
from freescale.balance.policies import POLICIES, Costs, Ranks, rounds, variable, zigzag
from freescale.errors import FreeScaleError
from freescale.overlap.contribution import is_in
from freescale.overlap.tables import SlotLayout

Float64 = NDArray[np.float64]
LABELS_UP_TO = 512
"""Ranks up to which groups are labelled to stay at home as in the product; beyond, that alone takes seconds a step."""


@dataclass(frozen=True)
class ModelShape:
    """Sizes of the dense model, as `workloads.ranker.RankerShape` has them.

    Attributes:
        block: rows of a history whose scores are computed at once.
        ids_per_event, ids_per_candidate: features looked up for each.
        sample_bytes: bytes per history event and per candidate that move with a sample.
    """

    embedded_dim: int
    dim: int
    layers: int
    heads: int
    qk_dim: int
    value_dim: int
    head_dim: int
    longest: int
    block: int
    embedding_dim: int
    ids_per_event: int
    ids_per_candidate: int
    sample_bytes: tuple[int, int]

    @property
    def parameters(self) -> int:
        """Of the dense model, less the vectors for features that a candidate lacks: what an all-reduce carries."""
        wide = self.heads * (2 * self.qk_dim + 2 * self.value_dim)
        layer = self.dim * wide + wide + self.heads * self.value_dim * self.dim + self.dim + 2 * self.dim
        layer += self.longest + 1 + 64
        join = self.embedded_dim * self.dim + 3 * self.dim
        return self.layers * layer + join + self.dim * self.head_dim + 2 * self.head_dim + 1


@dataclass(frozen=True)
class Rows:
    """Embedding rows of one step, float64[ranks] each, as far as this rank asks for them or serves them.

    Attributes:
        asked, served: distinct per destination.
        late_asked, late_served: of those, the ones that the batch before uses too (they wait).
        urgent_asked, urgent_served: of those, the ones that the batch after uses too (their gradients go first).
        collision_rate: share of the step's distinct rows that the batch before uses; NaN if not known.
    """

    asked: Float64
    served: Float64
    late_asked: Float64
    late_served: Float64
    urgent_asked: Float64
    urgent_served: Float64
    collision_rate: float


@dataclass(frozen=True)
class Share:
    """Per rank and step, float64[ranks]: amounts of work, in the units that costs are counted in."""

    samples: Float64
    history: Float64
    candidates: Float64
    projection_flop: Float64
    attention_flop: Float64
    scores: Float64
    blocks: Float64
    moved_out: Float64
    moved_in: Float64
    home_bytes: Float64

    @property
    def tokens(self) -> Float64:
        return self.history + self.candidates

    def ids(self, shape: ModelShape) -> Float64:
        return self.history * shape.ids_per_event + self.candidates * shape.ids_per_candidate


def assign(
    lengths: NDArray[np.int64], home: Ranks, ranks: int, policy: str | None, shape: ModelShape, cost_of: CostsOf
) -> Ranks:
    """int64[N], where each sample of a global batch is computed: at home without a policy.

    Raises:
        FreeScaleError: no such policy.
    """
    if policy is None:
        return home
    if policy not in POLICIES:
        raise FreeScaleError(f"policy: {policy!r} is not one of {', '.join(POLICIES)}")
    if ranks <= LABELS_UP_TO:
        sample_bytes = lengths @ np.array(shape.sample_bytes)
        return Balancer(ranks, CostModel(cost_of), policy).assign(lengths, home, sample_bytes)[0]
    cost = cost_of(lengths)
    return {"rounds": rounds, "zigzag": zigzag, "variable": variable}[policy](cost, ranks)


CostsOf = Callable[[NDArray[np.int64]], Costs]


def share_of(lengths: NDArray[np.int64], target: Ranks, home: Ranks, ranks: int, shape: ModelShape) -> Share:
    """Amounts per rank of a global batch with int64[N, 2] lengths."""

    def total(values: NDArray[np.float64] | NDArray[np.int64], where: Ranks) -> Float64:
        return np.bincount(where, weights=values, minlength=ranks).astype(np.float64)

    history, candidates = lengths[:, 0].astype(np.float64), lengths[:, 1].astype(np.float64)
    full, rest = np.divmod(history, shape.block)
    scores = shape.block**2 * full * (full + 1) / 2 + rest * history + candidates * history
    per_token = shape.embedded_dim * shape.dim + shape.layers * shape.dim * shape.heads * (
        2 * shape.qk_dim + 3 * shape.value_dim
    )
    per_candidate = shape.head_dim * (shape.dim + 1)
    per_score = shape.layers * shape.heads * (shape.qk_dim + shape.value_dim)
    sample_bytes = lengths @ np.array(shape.sample_bytes)
    away = np.where(target != home, sample_bytes, 0)
    scores_here = total(scores, target)
    tokens = total(history + candidates, target)
    shown = total(candidates, target)
    return Share(
        samples=np.bincount(target, minlength=ranks).astype(np.float64),
        history=total(history, target),
        candidates=shown,
        projection_flop=2.0 * (tokens * per_token + shown * per_candidate),
        attention_flop=2.0 * scores_here * per_score,
        scores=scores_here * shape.layers * shape.heads,
        blocks=total(full + (rest > 0), target) * shape.layers,
        moved_out=total(away, home),
        moved_in=total(away, target),
        home_bytes=total(sample_bytes, home),
    )


def exact_rows(layout: SlotLayout, slots: Sequence[Sequence[torch.Tensor]]) -> list[Rows]:
    """Rows of consecutive steps from the real sets.

    Args:
        layout: of the sharded tables.
        slots: per step and rank, int64: every slot that the rank's samples use, repeated or not.
    """
    ranks = layout.world_size
    owner_start = layout.group_start[:, 0].contiguous()
    asked = [[torch.unique(of_rank) for of_rank in step] for step in slots]
    owned = [torch.unique(torch.cat(step)) for step in asked]

    def counts(step: int, marked: torch.Tensor | None) -> tuple[Float64, Float64]:
        by_asker, by_owner = np.zeros(ranks), np.zeros(ranks)
        for rank, wanted in enumerate(asked[step]):
            chosen = wanted if marked is None else wanted[is_in(wanted, marked)]
            by_asker[rank] = chosen.numel()
            owner = torch.searchsorted(owner_start, chosen, right=True) - 1
            by_owner += torch.bincount(owner, minlength=ranks).numpy()
        return by_asker, by_owner

    result, none = [], torch.empty(0, dtype=torch.int64)
    for step in range(len(slots)):
        before = owned[step][is_in(owned[step], owned[step - 1])] if step else none
        after = owned[step][is_in(owned[step], owned[step + 1])] if step + 1 < len(slots) else none
        rate = before.numel() / max(owned[step].numel(), 1) if step else float("nan")
        result.append(Rows(*counts(step, None), *counts(step, before), *counts(step, after), rate))
    return result


@dataclass(frozen=True)
class RowRates:
    """How rows follow from IDs where the sets themselves do not fit.

    Attributes:
        scale, power: a rank with n IDs asks for scale * n^power distinct rows.
        late_share: share of the rows asked for that the batch before uses too.
        collision_rate: share of the distinct rows of a global batch that the batch before uses.
    """

    scale: float
    power: float
    late_share: float
    collision_rate: float

    def rows(self, ids: Float64, first: bool, last: bool) -> Rows:
        """Rows of one step; owners serve equal shares, since IDs are scattered over them."""
        asked = np.minimum(self.scale * ids**self.power, ids)
        served = np.full_like(asked, asked.mean())
        late, urgent = (0.0 if first else self.late_share), (0.0 if last else self.late_share)
        rate = float("nan") if first else self.collision_rate
        return Rows(asked, served, asked * late, served * late, asked * urgent, served * urgent, rate)
