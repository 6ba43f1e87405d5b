"""Embedding tables sharded over ranks, as pieces that a schedule puts in order.

deduplicate       which rows the batch needs                                (`lookup`)
distribute        told to their owners
look_up → embed   owners read rows and send them; rows per feature, through autograd
give_back         each distinct row's gradient travels to its owner
update            owners sum what came back and update each row once
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from freescale.comm.transport import Handle, Transport
from freescale.errors import FreeScaleError
from freescale.overlap.contribution import Coming, Contribution
from freescale.overlap.lookup import Lookup, Wanted, deduplicate, distribute
from freescale.overlap.packing import Counts, elements, pack, unpack
from freescale.overlap.request import Rider, Room
from freescale.overlap.row_optimizer import RowOptimizer
from freescale.overlap.stages import Exchanges
from freescale.overlap.tables import SlotLayout, TableSpec, initial_rows


class Embedded(Mapping[str, Tensor]):
    """feature -> its rows, [*ids.shape, dim], made when asked for."""

    def __init__(self, embedding: ShardedEmbedding, lookup: Lookup) -> None:
        self._embedding, self._lookup = embedding, lookup

    def __getitem__(self, feature: str) -> Tensor:
        group = self._embedding.layout.group_of(self._embedding.features[feature])
        return F.embedding(self._lookup.positions[feature], self._lookup.rows[group])

    def __iter__(self) -> Iterator[str]:
        return iter(self._lookup.positions)

    def __len__(self) -> int:
        return len(self._lookup.positions)


class ShardedEmbedding(nn.Module):
    """This rank's shard of many tables.

    Args:
        tables: name -> TableSpec.
        features: feature -> table it looks up; several features may share a table.
        rank, world_size: of the group that the tables are sharded over.
        optimizer: how rows are updated.
        seed: of the initial weights, which do not depend on the number of ranks.
        dtype: of the weights: float32, float64, or bfloat16 with the optimizer's state and arithmetic in float32.

    Attributes:
        layout: owners and slots of all rows.
        weights: one Parameter [rows owned, dim] per dimension group, updated by `update`, never by a torch optimizer.
        states: the optimizer's state per group.
        lr: learning rate of the next update; change it between steps for a schedule.
        current: the batch that was embedded last.
        room: for slots beside their counts, agreed with the other ranks.
    """

    def __init__(
        self,
        tables: Mapping[str, TableSpec],
        features: Mapping[str, str],
        rank: int,
        world_size: int,
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
        self.features, self.rank = dict(features), rank
        self.optimizer, self.lr = optimizer, optimizer.lr
        self.layout = SlotLayout(tables, world_size)
        self.weights = nn.ParameterList()
        order = {name: index for index, name in enumerate(tables)}
        for group in range(len(self.layout.dims)):
            pieces = [
                initial_rows(seed, order[name], tables[name], self.layout.row_ids(name, rank), dtype)
                for name in self.layout.tables
                if self.layout.group_of(name) == group
            ]
            self.weights.append(nn.Parameter(torch.cat(pieces).to(device), requires_grad=False))
        self.states = [optimizer.new_state(weight) for weight in self.weights]
        self.current: Lookup | None = None
        self.room = Room()

    def deduplicate(self, ids: Mapping[str, Tensor]) -> Wanted:
        """Which rows a batch needs."""
        return deduplicate(self.layout, self.features, ids)

    def distribute(self, lane: Transport, wanted: Wanted, rider: Rider | None = None) -> Exchanges[Lookup]:
        """Tell their owners; see `lookup.distribute`."""
        return distribute(self.layout, self.features, self.room, lane, wanted, rider)

    def look_up(self, lane: Transport, rows: Sequence[Tensor], send_counts: Counts, recv_counts: Counts) -> Handle:
        """Read local `rows` (per group, int64, requester after requester) and send them; see `received`."""
        found = [weight.index_select(0, wanted) for weight, wanted in zip(self.weights, rows, strict=True)]
        return self._exchange(lane, found, send_counts, recv_counts)

    def received(self, handle: Handle, recv_counts: Counts) -> list[Tensor]:
        """Per group, [rows, dim]: what `look_up` brought, owner after owner."""
        return unpack(handle.wait(), recv_counts, self.layout.dims)

    def embed(self, lookup: Lookup, rows: list[Tensor]) -> Embedded:
        """feature -> [*ids.shape, dim]. `rows` (per group, what was wanted) become the leaves of autograd."""
        lookup.rows = [of_group.requires_grad_() for of_group in rows]
        self.current = lookup
        return Embedded(self, lookup)

    def places(self, table: str, ids: Tensor) -> Tensor:
        """int64, same shape as `ids`: their places among the current batch's rows of the table's group.

        Raises:
            FreeScaleError: no batch is current, or an ID was not announced for it.
        """
        if self.current is None:
            raise FreeScaleError(f"table {table!r}: no current batch; look rows up inside a schedule's step")
        wanted = self.current.wanted[self.layout.group_of(table)]
        slots = self.layout.slots(table, ids)
        places = torch.searchsorted(wanted, slots).clamp_(max=max(wanted.numel() - 1, 0))
        missing = wanted[places] != slots if wanted.numel() else torch.ones_like(slots, dtype=torch.bool)
        if missing.any():
            value = int(ids[missing][0])
            raise FreeScaleError(f"table {table!r}: ID {value} was not announced; add it to the step's ids")
        return places

    def current_rows(self, table: str) -> Tensor:
        """[wanted, dim]: the current batch's rows of the table's group, leaves of autograd."""
        assert self.current is not None
        return self.current.rows[self.layout.group_of(table)]

    def give_back(
        self, lane: Transport, gradients: Sequence[Tensor], send_counts: Counts, recv_counts: Counts
    ) -> Handle:
        """Send gradients (per group, [rows, dim], owner after owner) to the rows' owners; see `contribution`."""
        return self._exchange(lane, gradients, send_counts, recv_counts)

    def rider(self, lane: Transport, gradients: Sequence[Tensor], send_counts: Counts, recv_counts: Counts) -> Rider:
        """Gradients as for `give_back`, that have time; they go over `lane` if nothing takes them along."""
        return Rider(*self._packed(gradients, send_counts, recv_counts), lane.all_to_all)

    def contribution(self, sent: Coming, rows: list[Tensor], recv_counts: Counts) -> Contribution:
        """What `give_back` brings, for these rows (per group, requester after requester)."""
        return Contribution(rows, recv_counts, lambda: unpack(sent.wait(), recv_counts, self.layout.dims))

    @torch.no_grad()
    def update(self, rows: Sequence[Tensor], gradients: Sequence[Tensor], scale: float, lr: float) -> None:
        """Update each row once.

        Args:
            rows: per group, int64[k]: distinct local rows.
            gradients: per group, [k, dim]: summed over the step; multiplied by `scale` in place.
        """
        for weight, state, of_group, summed in zip(self.weights, self.states, rows, gradients, strict=True):
            self.optimizer.update_rows(weight, state, of_group, summed.mul_(scale), lr)

    def row_bytes(self, lookup: Lookup) -> int:
        """Bytes of the rows that this rank wants in a batch."""
        of_dim = zip(lookup.wanted, self.layout.dims, self.weights, strict=True)
        return sum(wanted.numel() * dim * weight.element_size() for wanted, dim, weight in of_dim)

    def table_shard(self, table: str) -> Tensor:
        """[rows owned, dim]: this rank's rows of one table, in the order of `layout.row_ids`, sharing their memory."""
        return self.weights[self.layout.group_of(table)][self.layout.place_in_weight(table, self.rank)]

    def _exchange(self, lane: Transport, parts: Sequence[Tensor], send_counts: Counts, recv_counts: Counts) -> Handle:
        return lane.all_to_all(*self._packed(parts, send_counts, recv_counts))

    def _packed(
        self, parts: Sequence[Tensor], send_counts: Counts, recv_counts: Counts
    ) -> tuple[Tensor, list[int], list[int]]:
        """What an all-to-all takes: the rows, and elements to and from each rank."""
        dims = self.layout.dims
        return pack(parts, send_counts), elements(send_counts, dims), elements(recv_counts, dims)
