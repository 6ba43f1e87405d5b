"""The batches of one turn, ahead of their time: lengths gathered and samples moved while earlier batches compute."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from freescale.balance.exchange import Announced, Moving, SampleExchange
from freescale.comm.transport import Handle, Transport
from workloads.batch import JaggedBatch


@dataclass
class Ready:
    """A batch to train on.

    Attributes:
        batch: on the training device.
        ids: its embedding IDs by feature; the same object every time.
        weight_sum: total candidate weight of the global batch, what the loss is divided by.
        predicted_cost: ms that computing this rank's samples should take; NaN while the cost model has not learned.
        moved_bytes: what this rank sent to others to balance this batch, of the batch_bytes that it had.
    """

    batch: JaggedBatch
    weight_sum: float
    predicted_cost: float
    moved_bytes: int
    batch_bytes: int
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
        predict_ms: int64[B, 2] lengths of a rank's samples -> ms that computing them should take.
        lane: for the announcements.
        depth: 1, or 2 for a schedule that must know batch N+1 before batch N computes.
    """

    def __init__(
        self,
        batches: Sequence[JaggedBatch],
        predict_ms: Callable[[NDArray[np.int64]], float],
        lane: Transport,
        exchange: SampleExchange[JaggedBatch] | None,
        device: torch.device,
        depth: int,
    ) -> None:
        self.lane = lane
        self._predict_ms, self._exchange, self._device = predict_ms, exchange, device
        self._rest: Iterator[JaggedBatch] = iter(batches)
        self._ahead: deque[_Ahead] = deque()
        for _ in range(depth):
            self._announce()
        self.advance()

    def take(self) -> Ready:
        """The next batch; there must be one."""
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

    def stop(self) -> None:
        """Wait for what is under way, and give it up."""
        self.advance()
        while self._ahead:
            self._receive(self._ahead.popleft())

    def _announce(self) -> None:
        batch = next(self._rest, None)
        if batch is not None:
            weight_sum = batch.weights.sum(dtype=torch.float64).view(1)
            announced = self._exchange.announce(batch) if self._exchange is not None else None
            self._ahead.append(_Ahead(batch, self.lane.all_gather(weight_sum), announced))

    def _receive(self, ahead: _Ahead) -> Ready:
        if ahead.ready is None:
            batch, moved_bytes = ahead.batch, 0
            if ahead.moving is not None and self._exchange is not None:
                batch, moved_bytes = self._exchange.receive(ahead.moving), ahead.moving.moved_bytes
            batch_bytes = sum(values.nbytes for _, values in ahead.batch.jagged_values().values())
            cost = self._predict_ms(batch.lengths.cpu().numpy())
            weight_sum = float(ahead.weight_sums.wait().sum())
            ahead.ready = Ready(batch.to(self._device), weight_sum, cost, moved_bytes, batch_bytes)
        return ahead.ready
