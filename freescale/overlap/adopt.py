"""An existing model adopts sharded tables: its `nn.Embedding` and `nn.EmbeddingBag` modules are found and replaced.

Each becomes a stand-in that takes the rows of its IDs from what the schedule has fetched for the current batch. The
model's code does not change; what changes is that the IDs of a batch are named before its forward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from freescale.errors import FreeScaleError
from freescale.overlap.embedding import ShardedEmbedding
from freescale.overlap.row_optimizer import RowOptimizer
from freescale.overlap.schedule import Ids, Schedule
from freescale.overlap.tables import TableSpec

Batch = TypeVar("Batch")


def shard_embeddings(
    model: nn.Module,
    optimizer: RowOptimizer,
    *,
    sharding: str | Mapping[str, str] = "block",
    process_group: dist.ProcessGroup | None = None,
) -> ShardedEmbedding:
    """Move the model's embedding tables into one `ShardedEmbedding`, and leave stand-ins in their places.

    Tables and features are named by the modules' names in `model.named_modules()`; a step's IDs are therefore a
    mapping from module name to the IDs that the module will be called with (in one tensor, of any shape). Weights are
    kept. Collective only in that every rank must do the same; call it before wrapping the model in DDP.

    Args:
        sharding: see `TableSpec.sharding`, for all tables or by module name.
        process_group: ranks that share the tables; default: all, one without `torch.distributed`.

    Raises:
        FreeScaleError: no embeddings, or one that cannot be sharded exactly (max_norm, scale_grad_by_freq, tied
            weights); names the module.
    """
    found = {name: m for name, m in model.named_modules() if isinstance(m, (nn.Embedding, nn.EmbeddingBag))}
    if not found:
        raise FreeScaleError("model: has no nn.Embedding or nn.EmbeddingBag; build a ShardedEmbedding yourself")
    weights: dict[int, str] = {}
    for name, module in found.items():
        _refuse_inexact(name, module)
        if id(module.weight) in weights:
            raise FreeScaleError(
                f"model: {name} and {weights[id(module.weight)]} share a weight; use one module for both"
            )
        weights[id(module.weight)] = name
    distributed = dist.is_available() and dist.is_initialized()
    first = next(iter(found.values())).weight
    kinds = {name: sharding if isinstance(sharding, str) else sharding.get(name, "block") for name in found}
    embedding = ShardedEmbedding(
        {name: TableSpec(m.num_embeddings, m.embedding_dim, kinds[name]) for name, m in found.items()},
        {name: name for name in found},
        dist.get_rank(process_group) if distributed else 0,
        dist.get_world_size(process_group) if distributed else 1,
        optimizer,
        dtype=first.dtype,
        device=first.device,
    )
    for name, module in found.items():
        with torch.no_grad():
            embedding.table_shard(name).copy_(module.weight[embedding.layout.row_ids(name, embedding.rank)])
        parent, _, child = name.rpartition(".")
        stand_in: nn.Module
        if isinstance(module, nn.Embedding):
            stand_in = ShardedLookup(embedding, name, module.padding_idx)
        else:
            stand_in = ShardedBag(embedding, name, module.mode, module.padding_idx, module.include_last_offset)
        setattr(model.get_submodule(parent), child, stand_in)
    return embedding


def steps(
    schedule: Schedule,
    batches: Iterable[Batch],
    ids_of: Callable[[Batch], Ids],
    loss_of: Callable[[Batch], Tensor],
    accumulate: int = 1,
) -> Iterator[tuple[Batch, Tensor]]:
    """Train on `batches`, one ahead; yields each batch with its detached loss once its step is done.

    Args:
        ids_of: the batch's IDs by feature (after `shard_embeddings`: by module name).
        loss_of: the batch's loss on this rank; DDP averages over ranks.
        accumulate: batches per update; the last window may be shorter.

    When it ends, or is left early, what the schedule had deferred is applied.
    """
    stream = iter(batches)
    batch = next(stream, None)
    ids = ids_of(batch) if batch is not None else None
    number = 0
    try:
        while batch is not None and ids is not None:
            upcoming = next(stream, None)
            upcoming_ids = ids_of(upcoming) if upcoming is not None else None
            losses: list[Tensor] = []

            def remembered(_: Mapping[str, Tensor], now: Batch = batch, losses: list[Tensor] = losses) -> Tensor:
                losses.append(loss_of(now))
                return losses[-1]

            number += 1
            schedule.step(ids, upcoming_ids, remembered, update=number % accumulate == 0 or upcoming is None)
            yield batch, losses[-1].detach()
            batch, ids = upcoming, upcoming_ids
    finally:
        schedule.stop()


class ShardedLookup(nn.Module):
    """Stands in for an `nn.Embedding`."""

    def __init__(self, embedding: ShardedEmbedding, table: str, padding_idx: int | None) -> None:
        super().__init__()
        # Not a submodule: the shard's weights are neither the model's parameters nor DDP's business.
        self._embedding = [embedding]
        self.table, self.padding_idx = table, padding_idx

    def forward(self, ids: Tensor) -> Tensor:
        """[*ids.shape, dim]; every ID must have been announced to the schedule's step."""
        embedding = self._embedding[0]
        rows = F.embedding(embedding.places(self.table, ids), embedding.current_rows(self.table))
        if self.padding_idx is None:
            return rows
        return torch.where((ids == self.padding_idx).unsqueeze(-1), rows.detach(), rows)

    def extra_repr(self) -> str:
        return f"{self.table!r}, padding_idx={self.padding_idx}"


class ShardedBag(nn.Module):
    """Stands in for an `nn.EmbeddingBag` (sum or mean)."""

    def __init__(
        self, embedding: ShardedEmbedding, table: str, mode: str, padding_idx: int | None, include_last_offset: bool
    ) -> None:
        super().__init__()
        self._embedding = [embedding]
        self.table, self.mode, self.padding_idx = table, mode, padding_idx
        self.include_last_offset = include_last_offset

    def forward(self, ids: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None) -> Tensor:
        """[bags, dim]; arguments as for `nn.EmbeddingBag`."""
        embedding = self._embedding[0]
        places = embedding.places(self.table, ids)
        padding = None
        rows = embedding.current_rows(self.table)
        if self.padding_idx is not None:
            padding = rows.shape[0]  # a place of its own, which the bag leaves out
            places = torch.where(ids == self.padding_idx, padding, places)
            rows = torch.cat([rows, rows.new_zeros(1, rows.shape[1])])
        return F.embedding_bag(
            places,
            rows,
            offsets,
            mode=self.mode,
            per_sample_weights=per_sample_weights,
            include_last_offset=self.include_last_offset,
            padding_idx=padding,
        )

    def extra_repr(self) -> str:
        return f"{self.table!r}, mode={self.mode!r}, padding_idx={self.padding_idx}"


def _refuse_inexact(name: str, module: nn.Embedding | nn.EmbeddingBag) -> None:
    if module.max_norm is not None:
        raise FreeScaleError(f"model: {name} has max_norm, which rewrites rows while they are read; remove it")
    if module.scale_grad_by_freq:
        raise FreeScaleError(f"model: {name} has scale_grad_by_freq, whose counts would have to be global; remove it")
    if not module.weight.requires_grad:
        raise FreeScaleError(f"model: {name} is frozen; replace it after training starts, or shard only what trains")
    if isinstance(module, nn.EmbeddingBag) and module.mode not in ("sum", "mean"):
        raise FreeScaleError(f"model: {name} has mode {module.mode!r}; only sum and mean can be sharded")
