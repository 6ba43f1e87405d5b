"""One rank of a run: the process group, the lanes and the training state that it measures with.

Started by `freescale.bench.launch` on one host, or called directly when `torchrun` has started this process. Only
rank 0 writes, so the ranks need no common file system.
"""

from __future__ import annotations

import datetime
import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from analyzer import rundir
from analyzer.errors import AnalyzerError
from freescale.bench.config import RunConfig
from freescale.bench.cores import keep_to_own_cores
from freescale.bench.heartbeat import Heartbeats
from freescale.bench.lanes import open_for
from freescale.bench.measure import Measuring
from freescale.bench.trainer import Trainer
from freescale.errors import FreeScaleError


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
        lanes = open_for(config.parsed_arms, device, config.link)
        control = dist.new_group(backend="gloo", group_desc="control", timeout=timeout)
        if device.type == "cpu":
            keep_to_own_cores()  # this thread; gloo's go where there is room
        workload = config.workload()
        beat = (lambda: page.beat(rank)) if page else (lambda: None)
        trainer = Trainer(workload, lanes, device, config.seed, config.policy, beat)
        if run and rank == 0 and lanes.chosen:
            rundir.update_manifest(run, sm_free=lanes.chosen)
        Measuring(config, trainer, run if rank == 0 else None, control, page).measure()
        lanes.close()
        dist.barrier(group=control)
    finally:
        dist.destroy_process_group()


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
