"""Gradients on their way back to the rows' owners, and their sum in one fixed order.

A floating-point sum depends on its order, so there is only one: batch after batch of an accumulation window, requester
after requester. It is the same whether a row's gradients came back at once or in two parts, on any schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from freescale.overlap.packing import Counts, count_marked, of_group


class Coming(Protocol):
    """What brings gradients: a handle, or an exchange that has yet to begin."""

    def wait(self) -> Tensor: ...


@dataclass(frozen=True)
class Contribution:
    """Gradients of (part of) one batch at the owner, on their way or there.

    Attributes:
        rows: per group, int64[n]: local rows, requester after requester; each requester's are distinct.
        counts: rows of each requester and group.
        coming: per group, [m, dim], once they have come; of those only what is marked (`marks`, per group, bool[m]),
            if anything is.
    """

    rows: list[Tensor]
    counts: Counts
    coming: Callable[[], list[Tensor]]
    marks: list[Tensor] | None = None

    def gradients(self) -> list[Tensor]:
        """Per group, [n, dim], waiting for them."""
        came = self.coming()
        if self.marks is None:
            return came
        return [gradient[mark] for gradient, mark in zip(came, self.marks, strict=True)]

    def where(self, chosen: Sequence[Tensor]) -> Contribution:
        """The part of it for rows that are in `chosen` (per group, int64, ascending)."""
        return self._marked([is_in(rows, among) for rows, among in zip(self.rows, chosen, strict=True)])

    def where_not(self, chosen: Sequence[Tensor]) -> Contribution:
        """The rest."""
        return self._marked([~is_in(rows, among) for rows, among in zip(self.rows, chosen, strict=True)])

    def _marked(self, marks: list[Tensor]) -> Contribution:
        rows = [rows[mark] for rows, mark in zip(self.rows, marks, strict=True)]
        return Contribution(rows, count_marked(marks, self.counts), self.gradients, marks)


@dataclass
class Sums:
    """Sums of each row's gradients. Where each gradient goes is worked out before any has to be there.

    Attributes:
        rows: per group, the distinct rows (int64[k], ascending).
        places: per contribution, group and requester, int64: where in `rows` each gradient goes.
    """

    contributions: Sequence[Contribution]
    rows: list[Tensor] = field(init=False)
    places: list[list[tuple[Tensor, ...]]] = field(init=False)

    def __post_init__(self) -> None:
        by_group = zip(*(one.rows for one in self.contributions), strict=True)
        self.rows = [torch.unique(torch.cat(rows)) for rows in by_group]
        self.places = [
            [
                torch.searchsorted(among, rows).split(of_group(one.counts, group))
                for group, (among, rows) in enumerate(zip(self.rows, one.rows, strict=True))
            ]
            for one in self.contributions
        ]

    def totals(self) -> list[Tensor]:
        """Per group, [k, dim], waiting for gradients that have not come yet."""
        totals: list[Tensor] = []
        for contribution, places in zip(self.contributions, self.places, strict=True):
            gradients = contribution.gradients()
            totals = totals or [
                part.new_zeros((rows.numel(), part.shape[1])) for rows, part in zip(self.rows, gradients, strict=True)
            ]
            for group, (total, gradient) in enumerate(zip(totals, gradients, strict=True)):
                counts = of_group(contribution.counts, group)
                # One requester's rows are distinct, so no two additions of a call meet: the order is fixed anywhere.
                for place, part in zip(places[group], gradient.split(counts), strict=True):
                    total.index_add_(0, place, part)
        return totals


def is_in(rows: Tensor, among: Tensor) -> Tensor:
    """bool, same shape as `rows`: which are in the sorted set `among`."""
    if among.numel() == 0:
        return torch.zeros_like(rows, dtype=torch.bool)
    found = torch.searchsorted(among, rows).clamp_(max=among.numel() - 1)
    return among[found] == rows
