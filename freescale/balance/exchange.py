"""The exchange: every rank learns every sample's length, computes the same map, and the samples move.

It is built to run one step ahead. `announce` gathers the lengths of batch N+1, `move` computes the map and sends the
samples, `receive` hands over the balanced batch; a training loop calls the three at different moments of step N, on a
lane of their own, so that nothing waits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from freescale.balance.balancer import Assign
from freescale.balance.policies import Costs
from freescale.comm.transport import Handle, Transport
from freescale.errors import FreeScaleError


class MovableBatch(Protocol):
    """What a batch must offer for its samples to move between ranks.

    A batch holds samples in time order. Each *jagged axis* has a number of rows per sample (history events,
    candidates, …), and every value tensor lies packed along one of the axes, sample after sample.
    """

    @property
    def sample_id(self) -> Tensor:
        """int64[B], place of each sample in the global batch: unique across ranks, ascending within one."""
        ...

    def sample_lengths(self) -> Tensor:
        """int64[B, axes], rows per sample along each jagged axis."""
        ...

    def jagged_values(self) -> Mapping[str, tuple[int, Tensor]]:
        """name -> (jagged axis, values packed along it). Same names, axes, dtypes and trailing shapes on every rank."""
        ...

    def with_samples(self: BatchT, sample_id: Tensor, lengths: Tensor, values: Mapping[str, Tensor]) -> BatchT:
        """A batch of the same kind that holds these samples instead."""
        ...


BatchT = TypeVar("BatchT", bound=MovableBatch)


@dataclass
class Announced(Generic[BatchT]):
    """A batch whose lengths are being gathered."""

    batch: BatchT
    gathered: Handle


@dataclass
class Moving(Generic[BatchT]):
    """A batch whose samples are on their way.

    Attributes:
        sample_id, lengths: of the samples this rank will hold, in time order.
        cost: float64[B], predicted cost of those samples.
        moved_bytes: what this rank sends to others.
    """

    batch: BatchT
    handle: Handle
    arrival: Tensor
    sample_id: Tensor
    lengths: Tensor
    cost: Costs
    moved_bytes: int


class SampleExchange(Generic[BatchT]):
    """Moves samples so that every rank computes about as long.

    Args:
        transport: lane for the exchange.
        assign: decides which sample goes where; the same on every rank, as `Balancer.assign` is.
        max_samples: the largest number of samples a rank ever brings.
    """

    def __init__(self, transport: Transport, assign: Assign, max_samples: int) -> None:
        self.transport, self.assign, self.max_samples = transport, assign, max_samples

    def announce(self, batch: BatchT) -> Announced[BatchT]:
        """Start gathering the lengths of `batch`'s samples (on the CPU: the map is computed there)."""
        lengths = batch.sample_lengths()
        samples, axes = lengths.shape
        if samples > self.max_samples:
            raise FreeScaleError(
                f"rank {self.transport.rank}: a batch of {samples} samples, but max_samples is {self.max_samples}"
            )
        table = lengths.new_full((self.max_samples, axes + 1), -1)
        table[:samples, 0] = batch.sample_id
        table[:samples, 1:] = lengths
        return Announced(batch, self.transport.all_gather(table))

    def move(self, announced: Announced[BatchT]) -> Moving[BatchT]:
        """Compute the map and start sending the samples."""
        batch, rank = announced.batch, self.transport.rank
        table = announced.gathered.wait().cpu().numpy()
        home, row = np.nonzero(table[:, :, 0] >= 0)
        known = table[home, row]
        in_time = np.argsort(known[:, 0], kind="stable")
        home, known = home[in_time], known[in_time]
        sample_bytes = known[:, 1:] @ _bytes_per_row(batch.jagged_values(), known.shape[1] - 1)
        target, cost = self.assign(known[:, 1:], home, sample_bytes)

        splits = np.zeros((2, self.transport.world_size), dtype=np.int64)
        np.add.at(splits[0], target[home == rank], sample_bytes[home == rank])
        np.add.at(splits[1], home[target == rank], sample_bytes[target == rank])

        packed = _pack(batch, torch.from_numpy(target[home == rank]), self.transport.world_size)
        handle = self.transport.all_to_all(packed, splits[0].tolist(), splits[1].tolist())

        mine = np.flatnonzero(target == rank)
        arrival = mine[np.argsort(home[mine], kind="stable")]  # samples arrive home rank after home rank
        device = batch.sample_id.device
        return Moving(
            batch=batch,
            handle=handle,
            arrival=torch.from_numpy(np.column_stack([home[arrival], known[arrival]])).to(device),
            sample_id=torch.from_numpy(known[mine, 0]).to(device),
            lengths=torch.from_numpy(known[mine, 1:]).to(device),
            cost=cost[mine],
            moved_bytes=int(splits[0].sum() - splits[0][rank]),
        )

    def receive(self, moving: Moving[BatchT]) -> BatchT:
        """Wait for the samples, and put them in time order."""
        packed = moving.handle.wait()
        return _unpack(moving, packed, self.transport.world_size)


def _row_bytes(tensor: Tensor) -> int:
    return tensor.element_size() * math.prod(tensor.shape[1:])


def _bytes_per_row(values: Mapping[str, tuple[int, Tensor]], axes: int) -> np.ndarray:
    """int64[axes]: bytes of all values of one row, per jagged axis."""
    total = np.zeros(axes, dtype=np.int64)
    for axis, tensor in values.values():
        total[axis] += _row_bytes(tensor)
    return total


def _pack(batch: MovableBatch, target: Tensor, world_size: int) -> Tensor:
    """uint8: for each target rank, the values (in order of name) of the samples that go there."""
    lengths = batch.sample_lengths()
    by_name = []
    for axis, tensor in (value for _, value in sorted(batch.jagged_values().items())):
        row_target = target.to(tensor.device).repeat_interleave(lengths[:, axis])
        order = row_target.argsort(stable=True)
        counts = torch.bincount(row_target, minlength=world_size).tolist()
        by_name.append([_as_bytes(part) for part in tensor[order].split(counts)])
    return torch.cat([parts[rank] for rank in range(world_size) for parts in by_name])


def _unpack(moving: Moving[BatchT], packed: Tensor, world_size: int) -> BatchT:
    home, sample_id, lengths = moving.arrival[:, 0], moving.arrival[:, 1], moving.arrival[:, 2:]
    values = sorted(moving.batch.jagged_values().items())
    per_home = torch.zeros((world_size, lengths.shape[1]), dtype=torch.int64, device=home.device)
    per_home.index_add_(0, home, lengths)
    rows = per_home.tolist()

    splits = [rows[r][axis] * _row_bytes(tensor) for r in range(world_size) for _, (axis, tensor) in values]
    pieces = packed.split(splits)
    in_time = sample_id.argsort()
    received = {}
    for index, (name, (axis, tensor)) in enumerate(values):
        # A copy per piece: a byte offset inside the packed buffer need not be aligned for the wider dtype.
        flat = torch.cat(pieces[index :: len(values)]).view(tensor.dtype).view(-1, *tensor.shape[1:])
        received[name] = flat[_rows_in_order(lengths[:, axis], in_time)]
    return moving.batch.with_samples(moving.sample_id, moving.lengths, received)


def _rows_in_order(lengths: Tensor, order: Tensor) -> Tensor:
    """Positions of the packed rows of samples `order`, when sample i has `lengths[i]` rows."""
    starts = lengths.cumsum(0) - lengths
    chosen = lengths[order]
    within = torch.arange(int(chosen.sum()), device=lengths.device)
    within -= (chosen.cumsum(0) - chosen).repeat_interleave(chosen)
    return starts[order].repeat_interleave(chosen) + within


def _as_bytes(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8)
