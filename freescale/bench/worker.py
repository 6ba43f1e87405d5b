"""One rank of a run: blocks of timed turns, then the profiled pass; rank 0 keeps the run directory.

Started by `freescale.bench.launch` on one host, or called directly when `torchrun` has started this process. Only
rank 0 writes, so the ranks need no common file system.
"""

from __future__ import annotations

import datetime
import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import torch.distributed as dist

from analyzer import rundir
from analyzer.errors import AnalyzerError
from freescale.bench.config import RunConfig
from freescale.bench.heartbeat import Heartbeats
from freescale.bench.profile import profiled_turn
from freescale.bench.trainer import LANES, Trainer
from freescale.comm.process_group import open_lanes
from freescale.errors import FreeScaleError
from workloads import registry


def run_rank(config: RunConfig, run: Path | None, heartbeats: Path | None = None) -> None:
    """Take part in a run as the rank that the environment (RANK, WORLD_SIZE, LOCAL_RANK) names.

    Args:
        run: run directory, which exists; only rank 0 uses it.
        heartbeats: page to leave signs of life in.
    """
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    page = Heartbeats(heartbeats, world_size) if heartbeats else None
    if page:
        page.start(rank)
    torch.set_num_threads(1)
    device = torch.device("cpu")
    if config.device == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    # Longer than the launcher's patience, so that the launcher finds out first who hangs.
    timeout = datetime.timedelta(seconds=2 * config.stall_timeout_s)
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo", timeout=timeout)
    try:
        lanes = open_lanes(LANES)
        control = dist.new_group(backend="gloo", group_desc="control", timeout=timeout)
        workload = registry.build(registry.preset(config.preset), config.seed, config.data, config.columns)
        trainer = Trainer(workload, lanes, device, config.seed, beat=lambda: page.beat(rank) if page else None)
        _measure(config, trainer, run if rank == 0 else None, control, page)
        dist.barrier(group=control)
    finally:
        dist.destroy_process_group()


def _measure(
    config: RunConfig, trainer: Trainer, run: Path | None, control: dist.ProcessGroup, page: Heartbeats | None
) -> None:
    rank, arms = trainer.rank, config.parsed_arms

    def step_done() -> None:
        if page:
            page.beat(rank, step_done=True)

    table: list[pd.DataFrame] = []
    for block in range(config.blocks):
        batches = [trainer.workload.batch(step, rank, trainer.world_size) for step in _block_steps(config, block)]
        order = np.random.default_rng([config.seed, block]).permutation(len(arms))
        for position, index in enumerate(order):
            rows = trainer.run_turn(arms[index], batches, step_done)
            for row in rows:
                row |= {"block": block, "arm": arms[index].name, "position": position, "rank": rank}
                row["warmup"] = row["step"] < config.warmup_steps
            table.append(pd.DataFrame(_gather(rows, control)))
        if run:
            rundir.write_parquet(run / rundir.STEPS, _steps_table(table))

    first = config.blocks * config.steps_per_turn
    batches = [
        trainer.workload.batch(first + step, rank, trainer.world_size) for step in range(config.steps_in_profile)
    ]
    for arm in arms:
        trace = profiled_turn(trainer, arm, batches, config, step_done)
        for source in range(trainer.world_size):
            held = _from_rank(trace, source, rank, control)
            if run and held is not None:
                file = run / rundir.TRACES / arm.name / f"rank-{source:05d}.json.gz"
                rundir.write_bytes(file, held)


def _block_steps(config: RunConfig, block: int) -> range:
    return range(block * config.steps_per_turn, (block + 1) * config.steps_per_turn)


def _gather(rows: list[dict[str, Any]], control: dist.ProcessGroup) -> list[dict[str, Any]]:
    """The rows of all ranks, on every rank."""
    everyone: list[Any] = [None] * dist.get_world_size(control)
    dist.all_gather_object(everyone, rows, group=control)
    return [row for rows in everyone for row in rows]


def _from_rank(trace: bytes, source: int, rank: int, control: dist.ProcessGroup) -> bytes | None:
    """Rank 0 gets `source`'s trace; one rank at a time, so that rank 0 never holds them all."""
    if source == 0:
        return trace if rank == 0 else None
    if rank == source:
        content = torch.frombuffer(bytearray(trace), dtype=torch.uint8)
        dist.send(torch.tensor([content.numel()]), dst=0, group=control)
        dist.send(content, dst=0, group=control)
    elif rank == 0:
        size = torch.zeros(1, dtype=torch.int64)
        dist.recv(size, src=source, group=control)
        content = torch.empty(int(size), dtype=torch.uint8)
        dist.recv(content, src=source, group=control)
        return content.numpy().tobytes()
    return None


def _steps_table(parts: list[pd.DataFrame]) -> pd.DataFrame:
    table = pd.concat(parts, ignore_index=True)
    small = dict.fromkeys(("block", "position", "step", "rank"), "int32")
    whole = dict.fromkeys(("samples", "tokens", "candidates", "moved_bytes", "start_unix_ns"), "int64")
    first = ["block", "arm", "position", "step", "rank", "warmup"]
    return table.astype({**small, **whole})[first + [c for c in table.columns if c not in first]]


def main() -> None:
    """`python -m freescale.bench.worker CONFIG RUN HEARTBEATS`, for the launcher."""
    # Die at once: the default handler would wait for a collective that never ends.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    config, run, heartbeats = (Path(argument) for argument in sys.argv[1:4])
    _die_with_parent()
    try:
        run_rank(RunConfig.load(config), run, heartbeats)
    except (FreeScaleError, AnalyzerError) as error:
        sys.exit(f"error: {error}")


def _die_with_parent() -> None:
    """Ask the kernel (Linux) to end this rank when its launcher is gone, however the launcher ended."""
    if sys.platform == "linux":
        import ctypes

        pr_set_pdeathsig = 1
        ctypes.CDLL(None, use_errno=True).prctl(pr_set_pdeathsig, signal.SIGKILL)
        if os.getppid() == 1:
            sys.exit("error: the launcher is gone")


if __name__ == "__main__":
    main()
