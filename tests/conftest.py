"""Shared fixtures: `run_ranks` starts real ranks over gloo, bounds every wait, and shows the failing rank's log."""

from __future__ import annotations

import datetime
import os
import sys
import time
import traceback
from collections.abc import Callable
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

RunRanks = Callable[..., list[Any]]


@pytest.fixture
def run_ranks(tmp_path: Path) -> RunRanks:
    """`run_ranks(body, world_size, *args, timeout_s=60)` -> what `body(rank, world_size, *args)` returned on each rank.

    `body` is a module-level function; it runs with the default process group (gloo) initialised and one torch thread.
    """
    calls = 0

    def run(body: Callable[..., Any], world_size: int, *args: Any, timeout_s: float = 60) -> list[Any]:
        nonlocal calls
        calls += 1
        folder = tmp_path / f"ranks-{calls}"
        folder.mkdir()
        context = get_context("spawn")
        processes = [
            context.Process(target=_rank_main, args=(folder, rank, world_size, timeout_s, body, args), daemon=True)
            for rank in range(world_size)
        ]
        for process in processes:
            process.start()
        deadline = time.monotonic() + timeout_s
        try:
            for process in processes:
                process.join(max(0.0, deadline - time.monotonic()))
            failed = [rank for rank, process in enumerate(processes) if process.exitcode != 0]
        finally:
            for process in processes:
                if process.is_alive():
                    process.kill()
                    process.join(5)
        if failed:
            logs = "\n".join(f"--- rank {rank}\n{(folder / f'{rank}.log').read_text()[-4000:]}" for rank in failed)
            pytest.fail(f"ranks {failed} of {world_size} failed or hung for {timeout_s} s\n{logs}")
        import torch

        return [torch.load(folder / f"{rank}.pt", weights_only=False) for rank in range(world_size)]

    return run


def _rank_main(
    folder: Path, rank: int, world_size: int, timeout_s: float, body: Callable[..., Any], args: tuple
) -> None:
    log = os.open(folder / f"{rank}.log", os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    try:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{folder}/store",
            rank=rank,
            world_size=world_size,
            timeout=datetime.timedelta(seconds=timeout_s / 2),
        )
        torch.save(body(rank, world_size, *args), folder / f"{rank}.pt")
        dist.barrier()
        dist.destroy_process_group()
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
