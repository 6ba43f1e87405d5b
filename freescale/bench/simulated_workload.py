"""A workload as the simulator wants it: sizes of its model, its samples' lengths, and the embedding rows they need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray

from freescale.balance.policies import Ranks
from freescale.errors import FreeScaleError
from freescale.overlap.tables import SlotLayout
from freescale.simulate.batches import CostsOf, ModelShape, RowRates, Rows, Share, assign, exact_rows, share_of
from workloads.batch import JaggedBatch
from workloads.config import HISTORY_ONLY
from workloads.hstu_attention import BLOCK
from workloads.registry import Workload
from workloads.synthetic import SyntheticStream

EXACT_UP_TO_IDS = 1_000_000
"""IDs of all steps up to which rows are counted from the real sets."""
_ID_BYTES, _TIME_BYTES, _LABEL_BYTES = 8, 8, 8  # of a candidate, label and weight have four each
_SAMPLED_RANKS = 3


def shape_of(workload: Workload) -> ModelShape:
    """Sizes of a workload's model."""
    shape = workload.config.ranker_shape()
    features = workload.config.features
    shown = sum(name not in HISTORY_ONLY for name in features)
    return ModelShape(
        embedded_dim=shape.embedded_dim,
        dim=shape.dim,
        layers=shape.layers,
        heads=shape.heads,
        qk_dim=shape.qk_dim,
        value_dim=shape.value_dim,
        head_dim=shape.head_dim,
        longest=shape.longest,
        block=BLOCK,
        embedding_dim=workload.config.embedding_dim,
        ids_per_event=len(features),
        ids_per_candidate=shown,
        sample_bytes=(len(features) * _ID_BYTES + _TIME_BYTES, shown * _ID_BYTES + _TIME_BYTES + _LABEL_BYTES),
    )


@dataclass
class SimulatedBatches:
    """Global batches first … first + steps - 1 of a workload on `ranks` ranks, one more on either side for collisions.

    Attributes:
        rates: how rows follow from IDs, as measured; passed on, they are not measured again.

    Raises:
        FreeScaleError: the workload has no generated batches.
    """

    workload: Workload
    ranks: int
    first: int
    steps: int
    rates: RowRates | None = None
    shape: ModelShape = field(init=False)

    def __post_init__(self) -> None:
        if not isinstance(self.workload.stream, SyntheticStream):
            raise FreeScaleError("simulate: only generated workloads, not --data: a log has no batches for more ranks")
        self.shape = shape_of(self.workload)
        self._lengths = [self._lengths_of(step) for step in self._all]
        self._home = np.repeat(np.arange(self.ranks), self.workload.config.samples_per_rank)

    @property
    def _all(self) -> range:
        return range(max(self.first - 1, 0), self.first + self.steps + 1)

    def lengths_at_home(self, step: int) -> list[NDArray[np.int64]]:
        """Per rank, int64[samples, 2]: lengths of its samples in one of the steps, counted from 0, before balancing."""
        lengths = self._lengths[self.first - self._all.start + step]
        return [lengths[self._home == rank] for rank in range(self.ranks)]

    def under(self, policy: str | None, cost: CostsOf | None = None) -> tuple[list[Share], list[Rows]]:
        """Amounts of each step, and of the one after the last, with samples where the policy puts them.

        Args:
            cost: of samples, for the policy; the workload's own, the FLOPs, by default.
        """
        cost = cost or self.workload.cost
        targets = [assign(lengths, self._home, self.ranks, policy, self.shape, cost) for lengths in self._lengths]
        shares = [
            share_of(lengths, target, self._home, self.ranks, self.shape)
            for lengths, target in zip(self._lengths, targets, strict=True)
        ]
        skip = self.first - self._all.start
        if sum(float(share.ids(self.shape).sum()) for share in shares) <= EXACT_UP_TO_IDS:
            return shares[skip:], self._exact(targets)[skip:]
        rates = self._measured_rates(shares[0])
        rows = [
            rates.rows(share.ids(self.shape), first=number == 0 and skip == 0, last=number == len(shares) - 1)
            for number, share in enumerate(shares)
        ]
        return shares[skip:], rows[skip:]

    def _lengths_of(self, step: int) -> NDArray[np.int64]:
        stream = cast(SyntheticStream, self.workload.stream)
        samples = stream.samples_per_rank * self.ranks
        return stream.sample_lengths(step * samples, samples)

    def _exact(self, targets: Sequence[Ranks]) -> list[Rows]:
        layout = SlotLayout(self.workload.tables(), self.ranks)
        slots = []
        for step, target in zip(self._all, targets, strict=True):
            parts: list[list[torch.Tensor]] = [[] for _ in range(self.ranks)]
            for home in range(self.ranks):
                batch = self.workload.batch(step, home, self.ranks)
                self._spread(batch, torch.from_numpy(target), layout, parts)
            empty = torch.empty(0, dtype=torch.int64)
            slots.append([torch.cat(part) if part else empty for part in parts])
        return exact_rows(layout, slots)

    def _spread(
        self, batch: JaggedBatch, target: torch.Tensor, layout: SlotLayout, parts: list[list[torch.Tensor]]
    ) -> None:
        tables = self.workload.feature_tables()
        of_sample = target[batch.sample_id]
        for name, ids in batch.ids().items():
            axis = 0 if name in batch.history else 1
            rank_of_row = of_sample.repeat_interleave(batch.lengths[:, axis])
            slots = layout.slots(tables[name], ids)
            for rank in of_sample.unique().tolist():
                parts[rank].append(slots[rank_of_row == rank])

    def _measured_rates(self, share: Share) -> RowRates:
        """Rates of the item table, measured on ranks with few, usual and many tokens; the other tables are small."""
        if self.rates is None:
            stream = cast(SyntheticStream, self.workload.stream)
            if stream.items.collision_rate is None:
                raise FreeScaleError(
                    "simulate: a natural collision rate needs the real ID sets, which are too large here"
                )
            tokens = share.tokens.astype(np.int64)
            total, usual = int(tokens.sum()), stream.usual_tokens(self.ranks)
            order = np.argsort(tokens)
            chosen = order[np.linspace(0, self.ranks - 1, min(_SAMPLED_RANKS, self.ranks)).astype(int)]
            step, counts, late = self._all.start + 1, [], []
            place = np.concatenate([[0], np.cumsum(tokens)])
            for rank in chosen.tolist():
                mine = np.arange(place[rank], place[rank + 1])
                distinct = np.unique(stream.items.popularity(step, mine, total, usual))
                counts.append((float(share.ids(self.shape)[rank]), float(distinct.size)))
                late.append(float((distinct < stream.items.head(usual)).mean()))
            ids_of, rows_of = np.array(counts).T
            power = 1.0 if np.ptp(ids_of) == 0 else float(np.polyfit(np.log(ids_of), np.log(rows_of), 1)[0])
            scale = float(np.exp(np.mean(np.log(rows_of) - power * np.log(ids_of))))
            self.rates = RowRates(scale, power, float(np.mean(late)), stream.items.collision_rate)
        return self.rates
