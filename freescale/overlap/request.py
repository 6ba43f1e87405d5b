"""Slots on their way to their owners together with their counts: one exchange where two would do no better.

A rank must know how many slots come before it can receive them, so counts go first. But consecutive batches are much
alike: every rank says how many slots it sends at most, and all leave that much room, and some more, beside the next
batch's counts. What does not fit follows in a second exchange; all slots do, where room for the most would be mostly
padding (tables that live on few ranks). Rows that go to their owners too, and have time, may ride along.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from freescale.comm.transport import Handle, Transport
from freescale.overlap.packing import Counts
from freescale.overlap.stages import Exchanges


class Room:
    """How many slots each rank may send to each other one beside the counts: the same on all ranks, which agree on it
    by what they tell each other with every batch."""

    def __init__(self) -> None:
        self.slots = 0

    def agree(self, most: int, total: int, world_size: int) -> None:
        """After a batch in which a rank sent another `most` slots at most, and all together sent `total`."""
        enough, half_padding = most + most // 4, 2 * total // world_size**2
        # Room for the largest of late: a batch that does not fit costs an exchange more.
        self.slots = min(max(enough, self.slots * 15 // 16), half_padding) if enough <= half_padding else 0


@dataclass
class Rider:
    """Packed rows that have time: they go with a batch's slots, or by themselves if they are waited for before that.

    Attributes:
        flat: 1-D, rank after rank; `send`, `receive`: elements to and from each rank.
        alone: begins an exchange of just these.
        arrived: 1-D, rank after rank, what the others sent.
    """

    flat: Tensor
    send: list[int]
    receive: list[int]
    alone: Callable[[Tensor, list[int], list[int]], Handle]
    arrived: Tensor | None = None

    def wait(self) -> Tensor:
        """What the others sent."""
        if self.arrived is None:
            self.arrived = self.alone(self.flat, self.send, self.receive).wait()
        return self.arrived

    def beside(self, lane: Transport, message: Tensor) -> Handle:
        """Send `message` (int64[world, n], a row per rank) and this in one exchange; see `part`."""
        told = message.view(self.flat.dtype)  # only copied, so whatever bits it has stay as they are
        width = told.shape[1]
        both = [piece for pair in zip(told, self.flat.split(self.send), strict=True) for piece in pair]
        return lane.all_to_all(torch.cat(both), [width + n for n in self.send], [width + n for n in self.receive])

    def part(self, received: Tensor) -> Tensor:
        """int64[world, n]: the messages in what `beside` brought; this has arrived then, too."""
        width = (received.numel() - sum(self.receive)) // len(self.receive)
        pieces = received.split([width + n for n in self.receive])
        self.arrived = torch.cat([piece[width:] for piece in pieces])
        return torch.stack([piece[:width] for piece in pieces]).view(torch.int64)


@dataclass
class Request:
    """A batch's slots under way.

    Attributes:
        wanted: int64, ascending: the slots, owner after owner.
        counts: int64[world, groups]: how many of each owner and group.
        handle: of the first exchange; `room`: slots per rank in it; `rider`: what rides along in it.
    """

    wanted: Tensor
    counts: Tensor
    handle: Handle
    room: int
    rider: Rider | None = None


@dataclass
class Asked:
    """What the other ranks want of this one.

    Attributes:
        counts: per requester and group.
        bad: per requester, IDs that no table has.
        slots: int64, requester after requester; empty if any ID is bad.
    """

    counts: Counts
    bad: list[int]
    slots: Tensor


def send(
    lane: Transport, wanted: Tensor, counts: Tensor, bad: Tensor, room: Room, rider: Rider | None = None
) -> Request:
    """Tell the owners; see `Request`. `bad`, int64[]: IDs of this rank that no table has."""
    each = counts.sum(1)
    message = [counts, torch.stack([bad, each.max(), each.sum()]).expand(len(each), 3)]
    if room.slots and wanted.numel():
        first = (each.cumsum(0) - each).unsqueeze(1) + torch.arange(room.slots, device=wanted.device)
        message.append(wanted[first.clamp_(max=wanted.numel() - 1)])  # beyond an owner's: anything, nobody reads it
    elif room.slots:
        message.append(wanted.new_zeros((len(each), room.slots)))
    told, ones = torch.cat(message, dim=1), [1] * lane.world_size
    handle = lane.all_to_all(told, ones, ones) if rider is None else rider.beside(lane, told)
    return Request(wanted, counts, handle, room.slots, rider)


def receive(lane: Transport, request: Request, room: Room) -> Exchanges[Asked]:
    """What the others ask of this rank, in one exchange or two."""
    groups, fits = request.counts.shape[1], request.room
    yield request.handle
    heard = request.handle.wait()
    if request.rider is not None:
        heard = request.rider.part(heard)
    told = heard[:, : groups + 3].tolist()
    most = max(row[groups + 1] for row in told)
    room.agree(most, sum(row[groups + 2] for row in told), lane.world_size)
    asked = Asked([row[:groups] for row in told], [row[groups] for row in told], request.wanted[:0])
    if any(asked.bad):
        return asked
    incoming = [sum(row) for row in asked.counts]
    parts = [row[groups + 3 :][: min(n, fits)] for row, n in zip(heard, incoming, strict=True)]
    if most > fits:
        outgoing = request.counts.sum(1).tolist()
        left = torch.cat([mine[fits:] for mine in request.wanted.split(outgoing)])
        beyond = [max(n - fits, 0) for n in incoming]
        second = lane.all_to_all(left, [max(n - fits, 0) for n in outgoing], beyond)
        yield second
        rest = second.wait().split(beyond)
        parts = [piece for pair in zip(parts, rest, strict=True) for piece in pair]
    asked.slots = torch.cat(parts)
    return asked
