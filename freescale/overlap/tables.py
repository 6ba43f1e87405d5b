"""Where each embedding row lives: tables, how they are sharded, and the slot numbering that follows from it.

Every row of every table has one *slot*, a number that sorts first by owner rank, then by table (tables of one
dimension side by side), then by row. One sorted list of slots is therefore at once grouped by destination, by
dimension and by table, so IDs of all tables travel in one all-to-all and are de-duplicated by one sort.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from freescale.errors import FreeScaleError

_INIT_BLOCK_ROWS = 65_536


@dataclass(frozen=True)
class TableSpec:
    """An embedding table of `rows` × `dim`."""

    rows: int
    dim: int

    def __post_init__(self) -> None:
        for field in ("rows", "dim"):
            if getattr(self, field) < 1:
                raise FreeScaleError(f"table {field}: {getattr(self, field)}, must be at least 1")


class SlotLayout:
    """Row-wise block sharding: rank r owns rows [r·⌈rows/world⌉, (r+1)·⌈rows/world⌉) of every table.

    Attributes:
        tables: table names in slot order (by dimension, then by name given).
        dims: the distinct dimensions, ascending; *group* g is the tables of dimension dims[g].
        owner_start: int64[world+1], first slot of each owner.
        group_start: int64[world, groups+1], first slot of each owner's part of each group.
    """

    def __init__(self, specs: Mapping[str, TableSpec], world_size: int) -> None:
        if not specs:
            raise FreeScaleError("tables: none given; a sharded embedding needs at least one")
        self.specs = dict(specs)
        self.world_size = world_size
        self.tables = sorted(specs, key=lambda name: specs[name].dim)
        self.dims = sorted({spec.dim for spec in specs.values()})
        self._block_rows = {name: -(-spec.rows // world_size) for name, spec in specs.items()}

        slot = 0
        owner_start, group_start = [], []
        self._table_start: dict[str, list[int]] = {name: [] for name in self.tables}
        for owner in range(world_size):
            owner_start.append(slot)
            starts = []
            for dim in self.dims:
                starts.append(slot)
                for name in self.tables:
                    if specs[name].dim == dim:
                        self._table_start[name].append(slot)
                        slot += self.rows_owned(name, owner)
            group_start.append([*starts, slot])
        self.owner_start = torch.tensor([*owner_start, slot])
        self.group_start = torch.tensor(group_start)

    def rows_owned(self, table: str, owner: int) -> int:
        block = self._block_rows[table]
        return max(0, min(self.specs[table].rows - owner * block, block))

    def first_row(self, table: str, owner: int) -> int:
        """The table's row that `owner` holds first."""
        return owner * self._block_rows[table]

    def table_rows(self, table: str, owner: int) -> slice:
        """Which rows of `owner`'s weight of the table's group belong to the table."""
        group = self.dims.index(self.specs[table].dim)
        start = self._table_start[table][owner] - int(self.group_start[owner, group])
        return slice(start, start + self.rows_owned(table, owner))

    def slots(self, table: str, feature: str, ids: Tensor) -> Tensor:
        """int64 slots of the rows `ids` (int64, any shape) of `table`.

        Raises:
            FreeScaleError: an ID is negative or not below the table's rows; names table, feature and value.
        """
        rows = self.specs[table].rows
        if ids.numel():
            low, high = ids.aminmax()
            if int(low) < 0 or int(high) >= rows:
                value = int(low) if int(low) < 0 else int(high)
                raise FreeScaleError(
                    f"table {table!r}, feature {feature!r}: ID {value} is outside 0…{rows - 1}; "
                    f"give the table more rows or map the IDs"
                )
        block = self._block_rows[table]
        owner = ids // block
        # Blocks are equal, so a row's slot is its owner's start plus its place in the block.
        return torch.tensor(self._table_start[table], device=ids.device)[owner] + (ids - owner * block)


def initial_rows(seed: int, table_index: int, spec: TableSpec, first: int, count: int, dtype: torch.dtype) -> Tensor:
    """Rows [first, first+count) of a table's initial weights, uniform in ±1/√dim.

    Drawn in fixed blocks from generators seeded by (seed, table, block), so that a row starts the same however many
    ranks share the table.
    """
    bound = spec.dim**-0.5
    pieces = []
    row = first
    while row < first + count:
        block = row // _INIT_BLOCK_ROWS
        block_first = block * _INIT_BLOCK_ROWS
        block_rows = min(_INIT_BLOCK_ROWS, spec.rows - block_first)
        generator = torch.Generator().manual_seed((seed * 1_000_003 + table_index) * 1_000_003 + block)
        values = torch.empty(block_rows, spec.dim).uniform_(-bound, bound, generator=generator)
        stop = min(first + count, block_first + block_rows)
        pieces.append(values[row - block_first : stop - block_first])
        row = stop
    return torch.cat(pieces).to(dtype) if pieces else torch.empty(0, spec.dim, dtype=dtype)
