"""The baseline schedule: every exchange blocks, nothing is prefetched, nothing is deferred."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from freescale.overlap.embedding import Lookup, ShardedEmbedding


def blocking_step(
    embedding: ShardedEmbedding,
    dense_optimizer: torch.optim.Optimizer,
    ids: Mapping[str, Tensor],
    loss_of: Callable[[dict[str, Tensor]], Tensor],
    after_forward: Callable[[], None] = lambda: None,
) -> Lookup:
    """One training step; returns which rows it used.

    Args:
        ids: feature -> int64 IDs of this rank's batch.
        loss_of: embedded features -> this rank's loss, scaled so that the *mean* over ranks is the global loss: that
            is what DDP's averaging of dense gradients expects, and embedding gradients are averaged alike.
        after_forward: called between forward and backward, a moment to move other exchanges along.
    """
    lookup = embedding.distribute_ids(ids)
    embedded = embedding.embed(lookup, embedding.fetch_rows(lookup).wait())
    loss = loss_of(embedded)
    after_forward()
    dense_optimizer.zero_grad(set_to_none=True)
    loss.backward()
    returned = embedding.return_gradients(lookup).wait()
    embedding.update(lookup, returned, scale=1 / embedding.transport.world_size)
    dense_optimizer.step()
    return lookup
