"""Gradients on their way back to the rows' owners, and their sum in one fixed order.

A floating-point sum depends on its order, so there is only one: batch after batch of an accumulation window, requester
after requester. It is the same whether a row's gradients came back at once or in two parts, on any schedule.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from freescale.overlap.packing import Counts, count_marked, of_group


@dataclass(frozen=True)
class Contribution:
    """Gradients of (part of) one batch at the owner.

    Attributes:
        rows: per group, int64[n]: local rows, requester after requester; each requester's are distinct.
        gradients: per group, [n, dim].
        counts: rows of each requester and group.
    """

    rows: list[Tensor]
    gradients: list[Tensor]
    counts: Counts

    def where(self, chosen: Sequence[Tensor]) -> Contribution:
        """The part of it for rows that are in `chosen` (per group, int64, ascending)."""
        return self._marked([is_in(rows, among) for rows, among in zip(self.rows, chosen, strict=True)])

    def where_not(self, chosen: Sequence[Tensor]) -> Contribution:
        """The rest."""
        return self._marked([~is_in(rows, among) for rows, among in zip(self.rows, chosen, strict=True)])

    def _marked(self, marks: Sequence[Tensor]) -> Contribution:
        rows = [rows[mark] for rows, mark in zip(self.rows, marks, strict=True)]
        gradients = [gradient[mark] for gradient, mark in zip(self.gradients, marks, strict=True)]
        return Contribution(rows, gradients, count_marked(marks, self.counts))


def sum_by_row(contributions: Sequence[Contribution], group: int) -> tuple[Tensor, Tensor]:
    """Distinct rows (int64[k], ascending) of a group, and the sum of each one's gradients ([k, dim])."""
    rows = torch.unique(torch.cat([contribution.rows[group] for contribution in contributions]))
    like = contributions[0].gradients[group]
    total = like.new_zeros((rows.numel(), like.shape[1]))
    for contribution in contributions:
        counts = of_group(contribution.counts, group)
        places = torch.searchsorted(rows, contribution.rows[group])
        # One requester's rows are distinct, so no two additions of a call meet: the order is fixed on any device.
        for place, part in zip(places.split(counts), contribution.gradients[group].split(counts), strict=True):
            total.index_add_(0, place, part)
    return rows, total


def is_in(rows: Tensor, among: Tensor) -> Tensor:
    """bool, same shape as `rows`: which are in the sorted set `among`."""
    if among.numel() == 0:
        return torch.zeros_like(rows, dtype=torch.bool)
    found = torch.searchsorted(among, rows).clamp_(max=among.numel() - 1)
    return among[found] == rows
