"""Rows of several dimensions in one all-to-all: per rank, its rows of each dimension group, as one flat tensor."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

Counts = list[list[int]]
"""[world][groups]: rows per rank and dimension group."""


def pack(parts: Sequence[Tensor], counts: Counts) -> Tensor:
    """1-D: the rows of `parts` (one [rows, dim] or [rows] tensor per group, rank after rank) grouped by rank first."""
    if len(parts) == 1:
        return parts[0].reshape(-1)
    split = [part.split([of_rank[group] for of_rank in counts]) for group, part in enumerate(parts)]
    return torch.cat([split[group][rank].reshape(-1) for rank in range(len(counts)) for group in range(len(parts))])


def unpack(flat: Tensor, counts: Counts, dims: Sequence[int]) -> list[Tensor]:
    """The inverse of `pack`: one [rows, dim] tensor per group, rank after rank."""
    if len(dims) == 1:
        return [flat.view(-1, dims[0])]
    pieces = flat.split([rows * dim for of_rank in counts for rows, dim in zip(of_rank, dims, strict=True)])
    return [torch.cat(pieces[group :: len(dims)]).view(-1, dim) for group, dim in enumerate(dims)]


def elements(counts: Counts, dims: Sequence[int]) -> list[int]:
    """Per rank, the length of its part of a packed tensor."""
    return [sum(rows * dim for rows, dim in zip(of_rank, dims, strict=True)) for of_rank in counts]


def of_group(counts: Counts, group: int) -> list[int]:
    """Rows per rank of one group."""
    return [of_rank[group] for of_rank in counts]


def count_marked(marks: Sequence[Tensor], counts: Counts) -> Counts:
    """How many of each rank's rows in each group are marked; `marks`: one bool[rows] tensor per group."""
    counted = []
    for group, mark in enumerate(marks):
        ends = torch.tensor(of_group(counts, group)).cumsum(0)
        upto = torch.nn.functional.pad(mark.cumsum(0), (1, 0)).cpu()[ends]
        counted.append(torch.diff(upto, prepend=upto.new_zeros(1)).tolist())
    return [[counted[group][rank] for group in range(len(marks))] for rank in range(len(counts))]
