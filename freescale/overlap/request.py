"""Slots on their way to their owners together with their counts: one exchange where two would do no better.

A rank must know how many slots come before it can receive them, so counts go first. But consecutive batches are much
alike: every rank says how many slots it sends at most, and all leave that much room, and some more, beside the next
batch's counts. What does not fit follows in a second exchange; all slots do, where room for the most would be mostly
padding (tables that live on few ranks).
"""

from __future__ import annotations

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
class Request:
    """A batch's slots under way.

    Attributes:
        wanted: int64, ascending: the slots, owner after owner.
        counts: int64[world, groups]: how many of each owner and group.
        handle: of the first exchange; `room`: slots per rank in it.
    """

    wanted: Tensor
    counts: Tensor
    handle: Handle
    room: int


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


def send(lane: Transport, wanted: Tensor, counts: Tensor, bad: Tensor, room: Room) -> Request:
    """Tell the owners; see `Request`. `bad`, int64[]: IDs of this rank that no table has."""
    each = counts.sum(1)
    message = [counts, torch.stack([bad, each.max(), each.sum()]).expand(len(each), 3)]
    if room.slots and wanted.numel():
        first = (each.cumsum(0) - each).unsqueeze(1) + torch.arange(room.slots, device=wanted.device)
        message.append(wanted[first.clamp_(max=wanted.numel() - 1)])  # beyond an owner's: anything, nobody reads it
    elif room.slots:
        message.append(wanted.new_zeros((len(each), room.slots)))
    ones = [1] * lane.world_size
    return Request(wanted, counts, lane.all_to_all(torch.cat(message, dim=1), ones, ones), room.slots)


def receive(lane: Transport, request: Request, room: Room) -> Exchanges[Asked]:
    """What the others ask of this rank, in one exchange or two."""
    groups, fits = request.counts.shape[1], request.room
    yield request.handle
    heard = request.handle.wait()
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
