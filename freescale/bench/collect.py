"""What the ranks bring together: rows and traces, on rank 0, without a common file system."""

from __future__ import annotations

from typing import Any

import pandas as pd
import torch
import torch.distributed as dist


def gather_rows(rows: list[dict[str, Any]], group: dist.ProcessGroup) -> list[dict[str, Any]]:
    """The rows of all ranks, in rank order, on every rank."""
    everyone: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(everyone, rows, group=group)
    return [row for rows in everyone for row in rows]


def bring_to_rank_0(content: bytes, source: int, group: dist.ProcessGroup) -> bytes | None:
    """`source`'s bytes on rank 0, None elsewhere. One source a call, so that rank 0 never holds them all.

    Args:
        group: of CPU tensors (gloo), over all ranks; every rank calls this for every source in turn.
    """
    rank = dist.get_rank(group)
    if source == 0:
        return content if rank == 0 else None
    if rank == source:
        sent = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        dist.send(torch.tensor([sent.numel()]), dst=0, group=group)
        dist.send(sent, dst=0, group=group)
    elif rank == 0:
        size = torch.zeros(1, dtype=torch.int64)
        dist.recv(size, src=source, group=group)
        received = torch.empty(int(size), dtype=torch.uint8)
        dist.recv(received, src=source, group=group)
        return received.numpy().tobytes()
    return None


def same_everywhere(value: Any, group: dist.ProcessGroup) -> Any:
    """Rank 0's value, on every rank; what the others pass does not matter."""
    held = [value]
    dist.broadcast_object_list(held, src=0, group=group)
    return held[0]


def steps_table(rows: list[dict[str, Any]]) -> pd.DataFrame:
    """Rows as the frame that steps.parquet holds, columns and types as the run directory's contract has them."""
    small = dict.fromkeys(("block", "position", "step", "rank"), "int32")
    whole = dict.fromkeys(("samples", "tokens", "candidates", "moved_bytes", "batch_bytes", "start_unix_ns"), "int64")
    table = pd.DataFrame(rows).astype({**small, **whole})
    if "launch" in table:
        table = table.astype({"launch": "int32"})
    first = ["block", "arm", "position", "step", "rank", "warmup"]
    return table[first + [column for column in table.columns if column not in first]]
