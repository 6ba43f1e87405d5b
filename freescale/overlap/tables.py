"""Where each embedding row lives: tables, how they are sharded, and the slot numbering that follows from it.

Every row of every table has one *slot*, a number that sorts first by owner rank, then by table (tables of one
dimension side by side), then by the row's place in its owner's shard. One sorted list of slots is therefore at once
grouped by destination, by dimension and by table, so IDs of all tables travel in one all-to-all and are de-duplicated
by one sort.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from freescale.errors import FreeScaleError

SHARDINGS = ("block", "hash", "table")


@dataclass(frozen=True)
class TableSpec:
    """An embedding table of `rows` × `dim`.

    Attributes:
        sharding: `block` (row-wise, rank r owns the rows [r·⌈rows/world⌉, (r+1)·⌈rows/world⌉)), `hash` (row-wise, rank
            id mod world: popular neighbours spread out), or `table` (one rank owns it all; the largest tables are
            placed first, each on the rank that holds the least).
    """

    rows: int
    dim: int
    sharding: str = "block"

    def __post_init__(self) -> None:
        for field in ("rows", "dim"):
            if getattr(self, field) < 1:
                raise FreeScaleError(f"table {field}: {getattr(self, field)}, must be at least 1")
        if self.sharding not in SHARDINGS:
            raise FreeScaleError(f"table sharding: {self.sharding!r} is not one of {', '.join(SHARDINGS)}")


class SlotLayout:
    """Owners and slots of all rows.

    Attributes:
        tables: table names in slot order (by dimension, then as given).
        dims: the distinct dimensions, ascending; *group* g is the tables of dimension dims[g].
        group_start: int64[world, groups+1], first slot of each owner's part of each group; an owner's last entry is
            where the next owner begins.
    """

    def __init__(self, specs: Mapping[str, TableSpec], world_size: int) -> None:
        if not specs:
            raise FreeScaleError("tables: none given; a sharded embedding needs at least one")
        self.specs = dict(specs)
        self.world_size = world_size
        self.tables = sorted(specs, key=lambda name: specs[name].dim)
        self.dims = sorted({spec.dim for spec in specs.values()})
        self._home = _place_whole_tables(specs, world_size)

        slot = 0
        group_start = []
        starts: dict[str, list[int]] = {name: [] for name in self.tables}
        for owner in range(world_size):
            bounds = []
            for dim in self.dims:
                bounds.append(slot)
                for name in self.tables:
                    if specs[name].dim == dim:
                        starts[name].append(slot)
                        slot += self.rows_owned(name, owner)
            group_start.append([*bounds, slot])
        self.group_start = torch.tensor(group_start)
        self._table_start = {name: torch.tensor(values) for name, values in starts.items()}

    def group_of(self, table: str) -> int:
        return self.dims.index(self.specs[table].dim)

    def rows_owned(self, table: str, owner: int) -> int:
        spec = self.specs[table]
        if spec.sharding == "table":
            return spec.rows if owner == self._home[table] else 0
        if spec.sharding == "hash":
            return max(0, -(-(spec.rows - owner) // self.world_size))
        block = self._block_rows(table)
        return max(0, min(spec.rows - owner * block, block))

    def row_ids(self, table: str, owner: int) -> Tensor:
        """int64[rows owned], ascending: which rows of the table the owner holds, in the order it holds them."""
        count = torch.arange(self.rows_owned(table, owner))
        sharding = self.specs[table].sharding
        if sharding == "table":
            return count
        if sharding == "hash":
            return count * self.world_size + owner
        return count + owner * self._block_rows(table)

    def place_in_weight(self, table: str, owner: int) -> slice:
        """Which rows of `owner`'s weight of the table's group belong to the table."""
        start = int(self._table_start[table][owner] - self.group_start[owner, self.group_of(table)])
        return slice(start, start + self.rows_owned(table, owner))

    def slots(self, table: str, ids: Tensor) -> Tensor:
        """int64 slots of the rows `ids` (int64, any shape) of `table`; IDs must be in range."""
        starts = self._table_start[table].to(ids.device)
        sharding = self.specs[table].sharding
        if sharding == "table":
            return ids + starts[self._home[table]]
        if sharding == "hash":
            place = torch.div(ids, self.world_size, rounding_mode="floor")
            return starts[ids - place * self.world_size] + place
        owner = torch.div(ids, self._block_rows(table), rounding_mode="floor")
        return starts[owner] + (ids - owner * self._block_rows(table))

    def _block_rows(self, table: str) -> int:
        return -(-self.specs[table].rows // self.world_size)


def _place_whole_tables(specs: Mapping[str, TableSpec], world_size: int) -> dict[str, int]:
    whole = {name: spec.rows * spec.dim for name, spec in specs.items() if spec.sharding == "table"}
    held = [0] * world_size
    home = {}
    for name in sorted(whole, key=lambda table: -whole[table]):
        home[name] = held.index(min(held))
        held[home[name]] += whole[name]
    return home


_INIT_BLOCK_ROWS = 65_536


def initial_rows(seed: int, table_index: int, spec: TableSpec, rows: Tensor, dtype: torch.dtype) -> Tensor:
    """Initial weights [len(rows), dim] of the table's rows `rows` (int64, ascending), uniform in ±1/√dim.

    Drawn in fixed blocks from generators seeded by (seed, table, block), so that a row starts the same however many
    ranks share the table.
    """
    bound = spec.dim**-0.5
    weights = torch.empty(len(rows), spec.dim, dtype=dtype)
    for block in torch.unique(rows // _INIT_BLOCK_ROWS).tolist():
        first = block * _INIT_BLOCK_ROWS
        generator = torch.Generator().manual_seed((seed * 1_000_003 + table_index) * 1_000_003 + block)
        values = torch.empty(min(_INIT_BLOCK_ROWS, spec.rows - first), spec.dim)
        values.uniform_(-bound, bound, generator=generator)
        begin, end = torch.searchsorted(rows, torch.tensor([first, first + _INIT_BLOCK_ROWS])).tolist()
        weights[begin:end] = values[rows[begin:end] - first].to(dtype)
    return weights
