"""Checkpoints of sharded tables, which any number of ranks can load, whatever number saved them.

A folder with one file per rank and one description; rows carry their numbers, so loading picks the rows it owns.
No pickle: the files are numpy archives.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from freescale.errors import FreeScaleError
from freescale.overlap.embedding import ShardedEmbedding

_DESCRIPTION = "tables.json"


def save(embedding: ShardedEmbedding, folder: Path | str) -> None:
    """Write this rank's part into `folder`; every rank calls it, after `Schedule.drain`.

    The folder must be common to the ranks, or be brought together before loading.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    layout = embedding.layout
    arrays: dict[str, np.ndarray] = {}
    for table in layout.tables:
        arrays[f"{table}/rows"] = layout.row_ids(table, embedding.rank).numpy()
        for name, values in _of_table(embedding, table).items():
            arrays[f"{table}/{name}"] = _to_numpy(values)
    temporary = folder / f".rank-{embedding.rank:05d}.npz.part"
    with open(temporary, "wb") as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]
    temporary.replace(folder / f"rank-{embedding.rank:05d}.npz")
    if embedding.rank == 0:
        description = {
            "world_size": layout.world_size,
            "optimizer": embedding.optimizer.kind,
            "dtype": str(embedding.weights[0].dtype).removeprefix("torch."),
            "tables": {name: [spec.rows, spec.dim] for name, spec in layout.specs.items()},
        }
        (folder / _DESCRIPTION).write_text(json.dumps(description), encoding="utf-8")


def load(embedding: ShardedEmbedding, folder: Path | str) -> None:
    """Read this rank's rows, and their optimizer state, from what `save` wrote on any number of ranks.

    Raises:
        FreeScaleError: no checkpoint, other tables or optimizer, or rows that no file has.
    """
    folder = Path(folder)
    saved = _describe(folder)
    layout = embedding.layout
    mine = {name: [spec.rows, spec.dim] for name, spec in layout.specs.items()}
    if saved["tables"] != mine:
        differing = sorted({t for t in {*mine, *saved["tables"]} if mine.get(t) != saved["tables"].get(t)})
        raise FreeScaleError(
            f"{folder}: tables {', '.join(differing)} differ from the model's; load it into the same tables"
        )
    if saved["optimizer"] != embedding.optimizer.kind:
        raise FreeScaleError(
            f"{folder}: saved with optimizer {saved['optimizer']}, not {embedding.optimizer.kind}; use the same"
        )
    missing = {table: torch.ones(layout.rows_owned(table, embedding.rank), dtype=torch.bool) for table in layout.tables}
    for rank in range(saved["world_size"]):
        file = folder / f"rank-{rank:05d}.npz"
        try:
            with np.load(file, allow_pickle=False) as arrays:
                for table in layout.tables:
                    _take(embedding, table, arrays, missing[table])
        except (OSError, ValueError, KeyError) as error:
            raise FreeScaleError(f"{file}: not a readable part of a checkpoint ({error}); save it again") from error
    for table, rows in missing.items():
        if rows.any():
            row = int(layout.row_ids(table, embedding.rank)[rows][0])
            raise FreeScaleError(f"{folder}: no file has row {row} of table {table!r}; save it again on all ranks")


def _take(embedding: ShardedEmbedding, table: str, arrays: Any, missing: Tensor) -> None:
    wanted = embedding.layout.row_ids(table, embedding.rank)
    saved = torch.from_numpy(arrays[f"{table}/rows"])
    here = torch.isin(wanted, saved)
    there = torch.searchsorted(saved, wanted[here])
    for name, values in _of_table(embedding, table).items():
        with torch.no_grad():
            values[here.to(values.device)] = _from_numpy(arrays[f"{table}/{name}"][there.numpy()], values)
    missing[here] = False


def _of_table(embedding: ShardedEmbedding, table: str) -> dict[str, Tensor]:
    """The table's weights and optimizer states on this rank, as views."""
    group = embedding.layout.group_of(table)
    part = embedding.layout.place_in_weight(table, embedding.rank)
    states = {name: state[part] for name, state in embedding.states[group].items()}
    return {"weight": embedding.weights[group].detach()[part], **states}


def _to_numpy(values: Tensor) -> np.ndarray:
    values = values.detach().cpu().contiguous()
    # numpy has no bfloat16, so its bits travel as integers.
    return values.view(torch.int16).numpy() if values.dtype == torch.bfloat16 else values.numpy()


def _from_numpy(values: np.ndarray, like: Tensor) -> Tensor:
    tensor = torch.from_numpy(values)
    return (tensor.view(torch.bfloat16) if like.dtype == torch.bfloat16 else tensor).to(like.device)


def _describe(folder: Path) -> dict[str, Any]:
    try:
        described: dict[str, Any] = json.loads((folder / _DESCRIPTION).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise FreeScaleError(
            f"{folder}: no checkpoint of sharded tables ({error}); give the folder that save wrote"
        ) from error
    return described
