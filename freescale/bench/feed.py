"""The batches of one turn, always one step ahead: lengths gathered and samples moved for N+1 while N computes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from workloads.registry import Workload

from freescale.balance.exchange import Moving, SampleExchange
from freescale.comm.transport import Handle, Transport
from workloads.batch import JaggedBatch


@dataclass
class Ready:
    """A batch to train on.

    Attributes:
        weight_sum: total candidate weight of the global batch, what the loss is divided by.
        predicted_cost: of this rank's samples, in the cost model's unit.
        moved_bytes: what this rank sent to others to balance this batch.
    """

    batch: JaggedBatch
    weight_sum: float
    predicted_cost: float
    moved_bytes: int


@dataclass
class _Ahead:
    batch: JaggedBatch
    weight_sums: Handle
    moving: Moving[JaggedBatch] | None = None


class Feed:
    """Hands out `batches` in order.

    `take` gives batch N and announces N+1; `advance`, called when lengths have had time to arrive (after the forward
    pass), sends N+1's samples on their way. Without an exchange, batches stay as they are.

    The gathered weight sums make the loss exact with any split of the samples; every arm gathers them, one step ahead.
    """

    def __init__(
        self,
        batches: Sequence[JaggedBatch],
        workload: Workload,
        lane: Transport,
        exchange: SampleExchange[JaggedBatch] | None,
    ) -> None:
        self._workload, self._lane, self._exchange = workload, lane, exchange
        self._rest = iter(batches)
        self._ahead: _Ahead | None = None
        self._announced = None
        self._announce_next()
        self.advance()

    def take(self) -> Ready | None:
        """The next batch, or None after the last."""
        ahead = self._ahead
        if ahead is None:
            return None
        if ahead.moving is not None and self._exchange is not None:
            batch, moved_bytes = self._exchange.receive(ahead.moving), ahead.moving.moved_bytes
        else:
            batch, moved_bytes = ahead.batch, 0
        weight_sum = float(ahead.weight_sums.wait().sum())
        self._announce_next()
        cost = float(self._workload.cost(batch.lengths.cpu().numpy()).sum())
        return Ready(batch, weight_sum, cost, moved_bytes)

    def advance(self) -> None:
        """Send the next batch's samples, if there is one and an exchange."""
        if self._ahead is not None and self._announced is not None and self._exchange is not None:
            self._ahead.moving = self._exchange.move(self._announced)
            self._announced = None

    def _announce_next(self) -> None:
        batch = next(self._rest, None)
        if batch is None:
            self._ahead = None
            return
        weight_sum = batch.weights.sum(dtype=torch.float64).view(1)
        self._ahead = _Ahead(batch, self._lane.all_gather(weight_sum))
        if self._exchange is not None:
            self._announced = self._exchange.announce(batch)
