"""What all schedules share: a step that trains on one batch, and knows the next."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from freescale.comm.transport import Handle, Transport
from freescale.errors import FreeScaleError
from freescale.overlap.embedding import ShardedEmbedding
from freescale.overlap.hooks import ComputeHooks
from freescale.overlap.lookup import Lookup
from freescale.overlap.side_stream import SideStream
from freescale.overlap.stages import Awaited

Ids = Mapping[str, Tensor]
LossOf = Callable[[Mapping[str, Tensor]], Tensor]
EXCHANGE_LANES = ("ids", "bulk", "urgent")
"""Process groups of a schedule: gloo and NCCL run a group's collectives in order, so what is urgent has its own."""


class _Anywhere:
    def done(self) -> bool:
        return True

    def wait(self) -> None:
        return None


ANYWHERE = _Anywhere()


class Schedule(Protocol):
    """An order of exchanges and compute. All schedules leave bit-identical parameters."""

    def step(self, ids: Ids, next_ids: Ids | None, loss_of: LossOf, *, update: bool = True) -> Lookup:
        """Train on one batch; returns which rows it used.

        Args:
            ids: feature -> int64 IDs of this rank's batch. The same object as the `next_ids` of the call before, if
                there was one.
            next_ids: the next batch's IDs, or None at the end. Every rank must give None in the same step.
            loss_of: embedded features -> this rank's loss, scaled so that the *mean* over ranks is the global loss:
                that is what DDP's averaging of dense gradients expects, and embedding gradients are averaged alike.
            update: False accumulates the gradients of this batch; the next step with True updates from all of them.
        """
        ...

    def drain(self) -> None:
        """Apply what is pending. After it, the weights are those of the last finished step: call it before
        evaluation, checkpoints and looking at the state. Every rank calls it at the same place."""
        ...

    @property
    def in_flight_bytes(self) -> int:
        """What is held between two steps beside the weights: rows of the batch ahead, and deferred gradients."""
        ...

    def stop(self) -> None:
        """Drain, and forget the batch announced by the last step's `next_ids` and an unfinished accumulation window:
        training ends, or goes on from other batches."""
        ...


@dataclass
class Parts:
    """What a schedule works with.

    Attributes:
        embedding: this rank's shard.
        dense_optimizer: stepped once per update.
        lanes: transports, by the names in `EXCHANGE_LANES`.
        hooks: on the dense model; they let other exchanges move along during forward and backward.
        scaler: of the loss, for fp16. A step in which any rank's gradients overflow is skipped as a whole, dense
            parameters and rows alike; that is decided before the first gradient is applied.
        side: where the batch ahead is prepared.
    """

    embedding: ShardedEmbedding
    dense_optimizer: torch.optim.Optimizer
    lanes: Mapping[str, Transport]
    hooks: ComputeHooks
    scaler: torch.amp.GradScaler | None = None
    side: SideStream = field(init=False)
    _finite: bool = field(default=True, init=False)

    def __post_init__(self) -> None:
        self.side = SideStream(self.embedding.weights[0].device)

    @property
    def opening(self) -> Awaited:
        """Where a transfer that has time should start. On a GPU anywhere: the host is ahead of what computes."""
        return self.hooks.stretches if self.embedding.weights[0].device.type == "cpu" else ANYWHERE

    @property
    def scale(self) -> float:
        """Embedding gradients are summed over ranks; times this they are averaged, and the loss scale is out again."""
        return 1 / self.lanes["ids"].world_size / (self.scaler.get_scale() if self.scaler else 1)

    def compute(
        self,
        loss_of: LossOf,
        lookup: Lookup,
        embedded: Mapping[str, Tensor],
        new_window: bool,
        advance: Callable[[], None],
    ) -> None:
        """Forward and backward, calling `advance` between layers."""
        if new_window:
            self.dense_optimizer.zero_grad(set_to_none=True)
        with self.hooks.calling(advance):
            loss = loss_of(embedded)
            self.hooks.reached()
            (self.scaler.scale(loss) if self.scaler else loss).backward()
            self.hooks.reached()
        if self.scaler:
            self._finite = self._finite and _all_finite(lookup.gradients())

    def usable(self) -> bool:
        """False if the loss scale was too large and nothing may be updated, on any rank; ask once per update."""
        if self.scaler is None:
            return True
        gradients = self._dense_gradients()
        finite = torch.tensor([self._finite and _all_finite(gradients)], device=gradients[0].device)
        self._finite = True
        usable = bool(self.lanes["urgent"].all_gather(finite.to(torch.uint8)).wait().all())
        if not usable:
            gradients[0].fill_(torch.inf)  # tells the scaler of rows and ranks that it does not see
        return usable

    def step_dense(self) -> None:
        """Step the dense optimizer, unless the gradients were not usable."""
        if self.scaler is None:
            self.dense_optimizer.step()
        else:
            self.scaler.step(self.dense_optimizer)
            self.scaler.update()

    def _dense_gradients(self) -> list[Tensor]:
        of_groups = (group["params"] for group in self.dense_optimizer.param_groups)
        return [p.grad for params in of_groups for p in params if p.grad is not None]


def _all_finite(tensors: Sequence[Tensor]) -> bool:
    return all(bool(tensor.isfinite().all()) for tensor in tensors)


def check_announced(announced: Ids, ids: Ids) -> None:
    """Raise FreeScaleError unless the batch is the one that the step before was told of."""
    if announced is not ids:
        raise FreeScaleError(
            "step: ids are not the next_ids of the step before; pass each batch twice, as the same object"
        )


def fetch_all(parts: Parts, lookup: Lookup) -> list[Tensor]:
    """All rows of a batch, waiting for them."""
    handle = parts.embedding.look_up(parts.lanes["bulk"], lookup.served, lookup.serve_counts, lookup.ask_counts)
    return parts.embedding.received(handle, lookup.ask_counts)


def send_back_all(parts: Parts, lookup: Lookup) -> Handle:
    """All gradients of a batch on their way."""
    return parts.embedding.give_back(parts.lanes["bulk"], lookup.gradients(), lookup.ask_counts, lookup.serve_counts)
