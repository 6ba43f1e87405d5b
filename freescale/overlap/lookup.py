"""One batch's rows: who wants which, who serves them, and in which order they travel."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from freescale.comm.transport import Transport
from freescale.errors import FreeScaleError
from freescale.overlap.packing import Counts, unpack
from freescale.overlap.request import Rider, Room, receive, send
from freescale.overlap.stages import Exchanges
from freescale.overlap.tables import SlotLayout


@dataclass
class Lookup:
    """The rows of one batch.

    A *requester* wants distinct rows, kept per dimension group in order of slot, that is owner after owner. An *owner*
    serves rows, kept per group requester after requester.

    Attributes:
        positions: feature -> int64, same shape as its IDs: place of each row among the requester's rows of its group.
        wanted: per group, int64, ascending: slots of the requester's rows.
        ask_counts: rows that this rank wants of each owner.
        serve_counts: rows that each rank wants of this one.
        served: per group, int64: local row of each wanted row.
        owned: per group, int64: the distinct rows among `served`, ascending.
        rows: per group, [wanted, dim]: the leaves that autograd collects gradients in; set by `embed`.
    """

    positions: dict[str, Tensor]
    wanted: list[Tensor]
    ask_counts: Counts
    serve_counts: Counts
    served: list[Tensor]
    owned: list[Tensor]
    rows: list[Tensor] = field(default_factory=list)

    def unique_rows(self) -> int:
        """Distinct rows this rank asks for."""
        return sum(map(sum, self.ask_counts))

    def gradients(self) -> list[Tensor]:
        """Per group, [wanted, dim]: gradient of each wanted row after backward, zeros where it got none."""
        return [torch.zeros_like(rows) if rows.grad is None else rows.grad for rows in self.rows]


@dataclass
class Wanted:
    """A batch's distinct rows, of which nobody has been told yet.

    Attributes:
        ids: as given.
        slots: int64, ascending; `edges`, int64[world, groups+1]: where each owner's part of each group begins and ends.
        inverse: int64: place among `slots` of each ID, feature after feature.
        bad: int64[]: how many IDs no table has.
        positions: see `Lookup`; None until `find_positions`.
    """

    ids: Mapping[str, Tensor]
    slots: Tensor
    edges: Tensor
    inverse: Tensor
    bad: Tensor
    positions: dict[str, Tensor] | None = None

    def find_positions(self) -> dict[str, Tensor]:
        """Work out where each ID's row will be, if that has not been done yet."""
        if self.positions is None:
            place = _place_in_group(self.edges, self.slots.numel())
            parts = place[self.inverse].split([values.numel() for values in self.ids.values()])
            self.positions = {name: part.view(self.ids[name].shape) for name, part in zip(self.ids, parts, strict=True)}
        return self.positions


def deduplicate(layout: SlotLayout, features: Mapping[str, str], ids: Mapping[str, Tensor]) -> Wanted:
    """Find a batch's distinct rows; no exchange is needed for that."""
    slots, invalid = [], []
    for feature, values in ids.items():
        last = layout.specs[features[feature]].rows - 1
        inside = values.clamp(0, last)
        invalid.append((inside != values).sum())
        slots.append(layout.slots(features[feature], inside).flatten())
    distinct, inverse = torch.unique(torch.cat(slots), return_inverse=True)
    edges = torch.searchsorted(distinct, layout.group_start.to(distinct.device))
    return Wanted(ids, distinct, edges, inverse, torch.stack(invalid).sum())


def distribute(
    layout: SlotLayout,
    features: Mapping[str, str],
    room: Room,
    transport: Transport,
    wanted: Wanted,
    rider: Rider | None = None,
) -> Exchanges[Lookup]:
    """All-to-all of slots and their counts: afterwards every owner knows which rows are wanted, and by whom.

    Args:
        rider: goes along.

    Raises:
        FreeScaleError: an ID is out of range; on the rank that has it, with table, feature and value, and at the same
            place on all others, so that none of them waits for ever.
    """
    rank, groups = transport.rank, len(layout.dims)
    # The number of bad IDs rides along: finding them costs no exchange and no synchronisation of its own.
    request = send(transport, wanted.slots, wanted.edges.diff(dim=1), wanted.bad, room, rider)
    positions = wanted.find_positions()  # by now at the latest: the request has to travel anyway
    asked = yield from receive(transport, request, room)
    _raise_if_out_of_range(asked.bad, rank, layout, features, wanted.ids)
    by_group = [part.squeeze(1) for part in unpack(asked.slots, asked.counts, [1] * groups)]
    base = layout.group_start[rank].tolist()
    served = [part - base[group] for group, part in enumerate(by_group)]
    ask_counts: Counts = request.counts.tolist()
    of_group = [part.squeeze(1) for part in unpack(wanted.slots, ask_counts, [1] * groups)]
    return Lookup(positions, of_group, ask_counts, asked.counts, served, [torch.unique(rows) for rows in served])


def _place_in_group(edges: Tensor, wanted: int) -> Tensor:
    """int64[wanted]: place of each wanted slot among those of its group (owner after owner)."""
    place = torch.arange(wanted, device=edges.device)
    counts = edges.diff(dim=1)
    if counts.shape[1] == 1:
        return place
    # Rows of a group lie in one run per owner; each run moves to where the group's earlier runs end.
    shift = (counts.cumsum(0) - counts - edges[:, :-1]).flatten()
    return place + shift.repeat_interleave(counts.flatten())


def _raise_if_out_of_range(
    bad: list[int], rank: int, layout: SlotLayout, features: Mapping[str, str], ids: Mapping[str, Tensor]
) -> None:
    if not any(bad):
        return
    if not bad[rank]:
        others = ", ".join(str(other) for other, count in enumerate(bad) if count)
        raise FreeScaleError(f"rank {rank}: rank {others} asks for IDs that no table has; see its message")
    for feature, values in ids.items():
        table = features[feature]
        last = layout.specs[table].rows - 1
        wrong = values[(values < 0) | (values > last)]
        if wrong.numel():
            raise FreeScaleError(
                f"rank {rank}: table {table!r}, feature {feature!r}: ID {int(wrong[0])} is outside 0…{last}; "
                "give the table more rows or map the IDs"
            )
