"""The batches of one turn, ahead of their time: lengths gathered and samples moved while earlier batches compute."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from freescale.balance.exchange import Announced, Moving, SampleExchange
from freescale.comm.transport import Handle, Transport
from workloads.batch import JaggedBatch
from workloads.registry import Workload


@dataclass
class Ready:
    """A batch to train on.

    Attributes:
        batch: on the training device.
        ids: its embedding IDs by feature; the same object every time.
        weight_sum: total candidate weight of the global batch, what the loss is divided by.
        predicted_cost: of this rank's samples, in the cost model's unit.
        moved_bytes: what this rank sent to others to balance this batch.
    """

    batch: JaggedBatch
    weight_sum: float
    predicted_cost: float
    moved_bytes: int
    ids: dict[str, Tensor] = field(init=False)

    def __post_init__(self) -> None:
        self.ids = self.batch.ids()


@dataclass
class _Ahead:
    batch: JaggedBatch
    weight_sums: Handle
    announced: Announced[JaggedBatch] | None
    moving: Moving[JaggedBatch] | None = None
    ready: Ready | None = None


class Feed:
    """Hands out `batches` in order, and prepares `depth` of them in advance.

    `take` gives the next batch and announces a later one; `advance`, called when lengths have had time to arrive
    (after the forward pass), sends its samples on their way. Without an exchange, batches stay as they are.

    The gathered weight sums make the loss exact with any split of the samples; every arm gathers them, in advance.

    Args:
        depth: 1, or 2 for a schedule that must know batch N+1 before batch N computes.
    """

    def __init__(
        self,
        batches: Sequence[JaggedBatch],
        workload: Workload,
        lane: Transport,
        exchange: SampleExchange[JaggedBatch] | None,
        device: torch.device,
        depth: int,
    ) -> None:
        self._workload, self._lane, self._exchange, self._device = workload, lane, exchange, device
        self._rest: Iterator[JaggedBatch] = iter(batches)
        self._ahead: deque[_Ahead] = deque()
        for _ in range(depth):
            self._announce()
        self.advance()

    def take(self) -> Ready | None:
        """The next batch, or None after the last."""
        if not self._ahead:
            return None
        ready = self._receive(self._ahead.popleft())
        self._announce()
        return ready

    def upcoming(self) -> Ready | None:
        """The batch that `take` will give next, None if there is none."""
        return self._receive(self._ahead[0]) if self._ahead else None

    def advance(self) -> None:
        """Send the samples of batches that have been announced."""
        for ahead in self._ahead:
            if self._exchange is not None and ahead.announced is not None:
                ahead.moving, ahead.announced = self._exchange.move(ahead.announced), None

    def _announce(self) -> None:
        batch = next(self._rest, None)
        if batch is not None:
            weight_sum = batch.weights.sum(dtype=torch.float64).view(1)
            announced = self._exchange.announce(batch) if self._exchange is not None else None
            self._ahead.append(_Ahead(batch, self._lane.all_gather(weight_sum), announced))

    def _receive(self, ahead: _Ahead) -> Ready:
        if ahead.ready is None:
            batch, moved_bytes = ahead.batch, 0
            if ahead.moving is not None and self._exchange is not None:
                batch, moved_bytes = self._exchange.receive(ahead.moving), ahead.moving.moved_bytes
            cost = float(self._workload.cost(batch.lengths.cpu().numpy()).sum())
            weight_sum = float(ahead.weight_sums.wait().sum())
            ahead.ready = Ready(batch.to(self._device), weight_sum, cost, moved_bytes)
        return ahead.ready
