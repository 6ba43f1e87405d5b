"""Embedding tables sharded over ranks, as stages that a schedule puts in order.

A step of one rank asks for its batch's distinct rows (*requester*) and serves the rows it holds (*owner*):

    distribute_ids   all-to-all of counts and slots: every owner learns which rows are wanted, and by whom
    fetch_rows       owners look the rows up, all-to-all of rows
    embed            rows per feature, through autograd
    return_gradients all-to-all of each distinct row's gradient back to its owner
    update           owners sum what came back, in rank order, and update each row once

IDs are de-duplicated per destination before they travel, so a row crosses the network once per rank and direction.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from freescale.comm.transport import Handle, Transport
from freescale.errors import FreeScaleError
from freescale.overlap.row_optimizer import RowOptimizer
from freescale.overlap.tables import SlotLayout, TableSpec, initial_rows


@dataclass
class Lookup:
    """One batch's rows: who wants which, and where they go.

    Attributes:
        positions: feature -> int64, same shape as its IDs: place of each row in the requester's rows of its group.
        ask_counts: [world][groups] rows that this rank wants of each owner.
        serve_counts: [world][groups] rows that each rank wants of this one.
        served: per group, int64 local rows wanted, requester after requester (each one's ascending).
    """

    positions: dict[str, Tensor]
    ask_counts: list[list[int]]
    serve_counts: list[list[int]]
    served: list[Tensor]
    rows: list[Tensor] = field(default_factory=list)

    def unique_rows(self) -> int:
        """Distinct rows this rank asks for."""
        return sum(map(sum, self.ask_counts))


class ShardedEmbedding(nn.Module):
    """This rank's shard of many tables.

    Args:
        tables: name -> TableSpec.
        features: feature -> table it looks up; several features may share a table.
        transport: lane for the exchanges.
        optimizer: how rows are updated.
        seed: of the initial weights, which do not depend on the number of ranks.
    """

    def __init__(
        self,
        tables: Mapping[str, TableSpec],
        features: Mapping[str, str],
        transport: Transport,
        optimizer: RowOptimizer,
        *,
        seed: int = 0,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
    ) -> None:
        super().__init__()
        for feature, table in features.items():
            if table not in tables:
                raise FreeScaleError(
                    f"feature {feature!r}: table {table!r} does not exist; tables are {', '.join(tables)}"
                )
        self.features = dict(features)
        self.transport = transport
        self.optimizer = optimizer
        self.layout = SlotLayout(tables, transport.world_size)
        self.weights = nn.ParameterList()
        order = {name: index for index, name in enumerate(tables)}
        for dim in self.layout.dims:
            pieces = [
                initial_rows(
                    seed,
                    order[name],
                    tables[name],
                    self.layout.first_row(name, transport.rank),
                    self.layout.rows_owned(name, transport.rank),
                    dtype,
                )
                for name in self.layout.tables
                if tables[name].dim == dim
            ]
            self.weights.append(nn.Parameter(torch.cat(pieces).to(device), requires_grad=False))
        self.states = [optimizer.new_state(weight) for weight in self.weights]

    def distribute_ids(self, ids: Mapping[str, Tensor]) -> Lookup:
        """All-to-all of counts, then of slots. `ids`: feature -> int64 of any shape."""
        layout, rank, world = self.layout, self.transport.rank, self.transport.world_size
        slots = {feature: layout.slots(self.features[feature], feature, values) for feature, values in ids.items()}
        wanted, inverse = torch.unique(torch.cat([s.flatten() for s in slots.values()]), return_inverse=True)
        edges = torch.searchsorted(wanted, layout.group_start.to(wanted.device))  # [world, groups+1]
        counts = edges.diff(dim=1)
        counted = self.transport.all_to_all(counts.contiguous(), [1] * world, [1] * world)

        place = self._place_in_group(wanted, edges)
        parts = place[inverse].split([values.numel() for values in ids.values()])
        positions = {feature: part.view(ids[feature].shape) for feature, part in zip(ids, parts, strict=True)}

        serve_counts = counted.wait().tolist()
        ask_counts = counts.tolist()
        asked = self.transport.all_to_all(wanted, [sum(c) for c in ask_counts], [sum(c) for c in serve_counts]).wait()
        served = self._by_group(asked, serve_counts)
        base = layout.group_start[rank].tolist()
        return Lookup(positions, ask_counts, serve_counts, [s - base[g] for g, s in enumerate(served)])

    def fetch_rows(self, lookup: Lookup) -> Handle:
        """Look up the rows that others want and send them; the result is one flat tensor, owner after owner."""
        found = [weight.index_select(0, rows) for weight, rows in zip(self.weights, lookup.served, strict=True)]
        return self._exchange(found, lookup.serve_counts, lookup.ask_counts)

    def embed(self, lookup: Lookup, fetched: Tensor) -> dict[str, Tensor]:
        """feature -> [*ids.shape, dim]. The rows become leaves of autograd, kept in `lookup.rows` per group."""
        lookup.rows = [rows.requires_grad_() for rows in self._unflatten(fetched, lookup.ask_counts)]
        return {
            feature: F.embedding(place, lookup.rows[self._group_of(feature)])
            for feature, place in lookup.positions.items()
        }

    def return_gradients(self, lookup: Lookup) -> Handle:
        """Send each distinct row's gradient to its owner; a row that got none sends zeros."""
        gradients = [torch.zeros_like(rows) if rows.grad is None else rows.grad for rows in lookup.rows]
        return self._exchange(gradients, lookup.ask_counts, lookup.serve_counts)

    @torch.no_grad()
    def update(self, lookup: Lookup, returned: Tensor, *, scale: float = 1.0, lr: float | None = None) -> None:
        """Sum the gradients of each row over ranks, multiply by `scale`, and update the row once."""
        for group, gradients in enumerate(self._unflatten(returned, lookup.serve_counts)):
            rows, total = self._sum_by_row(
                lookup.served[group], gradients, [counts[group] for counts in lookup.serve_counts]
            )
            self.optimizer.update_rows(self.weights[group], self.states[group], rows, total.mul_(scale), lr)

    def table_shard(self, table: str) -> Tensor:
        """[rows owned, dim]: this rank's rows of one table, sharing memory with the weights."""
        return self.weights[self.layout.dims.index(self.layout.specs[table].dim)][
            self.layout.table_rows(table, self.transport.rank)
        ]

    @staticmethod
    def _sum_by_row(served: Tensor, gradients: Tensor, counts: list[int]) -> tuple[Tensor, Tensor]:
        rows, inverse = torch.unique(served, return_inverse=True)
        total = gradients.new_zeros((rows.numel(), gradients.shape[1]))
        # One requester's rows are distinct, so adding requester by requester has one order of summation, on any device.
        for place, part in zip(inverse.split(counts), gradients.split(counts), strict=True):
            total.index_add_(0, place, part)
        return rows, total

    def _group_of(self, feature: str) -> int:
        return self.layout.dims.index(self.layout.specs[self.features[feature]].dim)

    def _place_in_group(self, wanted: Tensor, edges: Tensor) -> Tensor:
        """int64 per wanted slot: its place among the wanted rows of its group (owner after owner)."""
        place = torch.arange(wanted.numel(), device=wanted.device)
        if len(self.layout.dims) == 1:
            return place
        counts = edges.diff(dim=1)
        # Rows of a group lie in one run per owner; each run moves to where the group's earlier runs end.
        new_start = counts.cumsum(0) - counts
        shift = (new_start - edges[:, :-1]).flatten()
        return place + shift.repeat_interleave(counts.flatten())

    def _exchange(self, parts: list[Tensor], send_counts: list[list[int]], recv_counts: list[list[int]]) -> Handle:
        """All-to-all of rows of all groups as one flat tensor: per rank, its rows of each group in turn."""
        dims = self.layout.dims
        if len(parts) == 1:
            flat = parts[0].reshape(-1)
        else:
            split = [part.split([c[g] for c in send_counts]) for g, part in enumerate(parts)]
            flat = torch.cat([split[g][r].reshape(-1) for r in range(len(send_counts)) for g in range(len(dims))])
        elements = [
            [sum(count * dim for count, dim in zip(c, dims, strict=True)) for c in counts]
            for counts in (send_counts, recv_counts)
        ]
        return self.transport.all_to_all(flat, *elements)

    def _unflatten(self, flat: Tensor, counts: list[list[int]]) -> list[Tensor]:
        """The flat tensor of `_exchange` as one [rows, dim] tensor per group."""
        dims = self.layout.dims
        if len(dims) == 1:
            return [flat.view(-1, dims[0])]
        pieces = flat.split([c * dim for row in counts for c, dim in zip(row, dims, strict=True)])
        return [torch.cat(pieces[g :: len(dims)]).view(-1, dim) for g, dim in enumerate(dims)]

    def _by_group(self, slots: Tensor, counts: list[list[int]]) -> list[Tensor]:
        groups = len(self.layout.dims)
        if groups == 1:
            return [slots]
        pieces = slots.split([c for row in counts for c in row])
        return [torch.cat(pieces[g::groups]) for g in range(groups)]
