"""Which rows of two consecutive batches collide: the next batch reads what this one is about to update.

Owners find out with sorted sets, in O(batch); a mask over the table would cost O(table).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from freescale.comm.transport import Transport
from freescale.overlap.contribution import is_in
from freescale.overlap.lookup import Lookup
from freescale.overlap.packing import Counts, count_marked, elements, pack, unpack
from freescale.overlap.stages import Exchanges


@dataclass
class Parting:
    """Places (int64, ascending) of what is marked, and of the rest: known in advance, nobody waits for a mask."""

    marked: Tensor
    rest: Tensor

    @classmethod
    def by(cls, marks: Tensor) -> Parting:
        """Of bool[n]."""
        return cls(marks.nonzero().squeeze(1), (~marks).nonzero().squeeze(1))


@dataclass
class Split:
    """A batch's rows, parted into those that are marked and the rest; for the requester and for the owner.

    Attributes:
        asked: per group, of the rows that this rank wants.
        served: per group, of the rows that this rank serves.
        ask_counts, serve_counts: how many are marked, for each rank and group.
    """

    asked: list[Parting]
    served: list[Parting]
    ask_counts: Counts
    serve_counts: Counts


def colliding_rows(now: Sequence[Lookup], after: Lookup) -> list[Tensor]:
    """Per group, int64, ascending: rows owned here that `after` uses and any of `now` does too."""
    colliding = []
    for group, owned in enumerate(after.owned):
        used = torch.zeros_like(owned, dtype=torch.bool)
        for lookup in now:
            used |= is_in(owned, lookup.owned[group])
        colliding.append(owned[used])
    return colliding


def tell_requesters(lane: Transport, rows: Sequence[Tensor], lookups: Sequence[Lookup]) -> Exchanges[list[Split]]:
    """Split several batches by the owners' `rows` (per group, ascending) in one all-to-all of a byte per row."""
    groups = len(rows)
    served = [[is_in(wanted, among) for wanted, among in zip(lookup.served, rows, strict=True)] for lookup in lookups]
    send_counts = _side_by_side([lookup.serve_counts for lookup in lookups])
    recv_counts = _side_by_side([lookup.ask_counts for lookup in lookups])
    marks = [mark.to(torch.uint8) for of_lookup in served for mark in of_lookup]
    ones = [1] * (groups * len(lookups))
    told = lane.all_to_all(pack(marks, send_counts), elements(send_counts, ones), elements(recv_counts, ones))
    yield told
    asked = [mark.squeeze(1).to(torch.bool) for mark in unpack(told.wait(), recv_counts, ones)]
    return [
        Split(
            [Parting.by(marks) for marks in of_lookup],
            [Parting.by(marks) for marks in served[number]],
            count_marked(of_lookup, lookup.ask_counts),
            count_marked(served[number], lookup.serve_counts),
        )
        for number, lookup in enumerate(lookups)
        for of_lookup in [asked[number * groups : (number + 1) * groups]]
    ]


def marked_of(tensors: Sequence[Tensor], parted: Sequence[Parting]) -> list[Tensor]:
    """Per group, the rows that are marked."""
    return [tensor.index_select(0, by.marked) for tensor, by in zip(tensors, parted, strict=True)]


def rest_of(tensors: Sequence[Tensor], parted: Sequence[Parting]) -> list[Tensor]:
    """Per group, the others."""
    return [tensor.index_select(0, by.rest) for tensor, by in zip(tensors, parted, strict=True)]


def put_together(parted: Sequence[Parting], marked: Sequence[Tensor], others: Sequence[Tensor]) -> list[Tensor]:
    """Per group, [rows, dim]: the inverse of `marked_of` and `rest_of`."""
    whole = []
    for by, some, many in zip(parted, marked, others, strict=True):
        rows = many.new_empty((some.shape[0] + many.shape[0], many.shape[1]))
        whole.append(rows.index_copy_(0, by.rest, many).index_copy_(0, by.marked, some))
    return whole


def rest(counts: Counts, marked: Counts) -> Counts:
    """Counts of the rows that are not marked."""
    return [[n - m for n, m in zip(row, marks, strict=True)] for row, marks in zip(counts, marked, strict=True)]


def _side_by_side(several: Sequence[Counts]) -> Counts:
    """The groups of several batches as if they were groups of one."""
    return [[count for counts in several for count in counts[rank]] for rank in range(len(several[0]))]
