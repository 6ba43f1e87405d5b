"""One rank of a calibration: times the pieces of a training step, turns of the trainer and the transports.

Lanes, cores and process groups are set up as in a run.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
import torch.distributed as dist
from torch.profiler import ProfilerActivity, profile

from freescale.bench.arms import parse_arm
from freescale.bench.calibration_pieces import Steps
from freescale.bench.calibration_traces import attach
from freescale.bench.calibration_turns import RECORDED_ARMS, record_turn, time_turn
from freescale.bench.cores import keep_to_own_cores
from freescale.bench.lanes import NAMES, Lanes, open_for
from freescale.bench.stopwatch import Stopwatch, TimedLane
from freescale.comm.shared_memory import open_shared_memory
from freescale.comm.transport import Transport

_SIZES = (1 << 10, 1 << 14, 1 << 17, 1 << 20, 1 << 22, 1 << 24)
_TIMES = 2


def measure_links(lanes: Mapping[str, Transport], shared: Mapping[str, Transport], watch: Stopwatch, rank: int) -> None:
    """Time exchanges by size, on both transports, and what gloo takes from the compute meanwhile."""
    watch.on, watch.place = True, {}
    world = dist.get_world_size()
    for nbytes in _SIZES:
        for _ in range(8):
            send = torch.zeros(nbytes * world // max(world - 1, 1) // world * world, dtype=torch.uint8)
            splits = [send.numel() // world] * world
            away = float(send.numel() - splits[0])
            for name, lane in (("gloo", lanes["bulk"]), ("shared", shared["bulk"])):
                dist.barrier()
                with watch.piece(name, nbytes=away):
                    with watch.piece(f"{name}_issue", nbytes=away):
                        handle = lane.all_to_all(send, splits, splits)
                    handle.wait()
            buffer = torch.zeros(nbytes // 4)
            dist.barrier()
            with watch.piece("gloo_reduce", nbytes=float(2 * nbytes * (world - 1) / world)):
                dist.all_reduce(buffer)
    a = torch.randn(96, 96)
    big = torch.zeros(32 << 20, dtype=torch.uint8)
    splits = [big.numel() // world] * world
    for _ in range(8):
        dist.barrier()
        with watch.piece("alone"):
            _multiply(a, lambda: False)
        dist.barrier()
        handle = lanes["bulk"].all_to_all(big, splits, splits)
        with watch.piece("beside", times=0.0):
            done = _multiply(a, handle.done)
        watch.amend(times=float(done))
        handle.wait()


def _multiply(a: torch.Tensor, stop: Callable[[], bool], most: int = 400) -> int:
    """Multiply until told to stop; returns how often."""
    for number in range(most):
        a @ a
        if number % 8 == 7 and stop():
            return number + 1
    return most


def measure_steps(steps: Steps, batches: int, lanes: Lanes, shared: Mapping[str, Transport], folder: Path) -> None:
    """Pieces and turns of one preset, without and under the profiler; traces of turns go into `folder`."""
    timed = dataclasses.replace(lanes, reference=_timed(lanes.reference, steps.watch))
    place = {"preset": steps.workload.name, "lanes": "gloo", "profiled": False}
    steps.measure(batches, _TIMES, timed.reference, place)
    for whole in (*[True] * _TIMES, False):
        time_turn(steps, batches, timed, whole)
    noted = len(steps.watch.rows)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        steps.measure(batches, 1, timed.reference, {**place, "profiled": True})
    with tempfile.TemporaryDirectory() as name:
        trace = Path(name) / "pieces.json"
        profiler.export_chrome_trace(str(trace))
        attach(steps.watch.rows[noted:], trace)
    for arm in RECORDED_ARMS:
        record_turn(steps, batches, lanes, arm, folder / f"{steps.workload.name}-{arm}-{steps.rank}.json.gz")
    steps.measure(batches, 1, _timed(shared, steps.watch), {**place, "lanes": "shared"})


def _timed(lanes: Mapping[str, Transport], watch: Stopwatch) -> dict[str, Transport]:
    return {name: TimedLane(lane, watch) for name, lane in lanes.items()}


def main() -> None:
    """`python -m freescale.bench.calibration_worker FOLDER PRESETS BATCHES SEED`, as RANK of WORLD_SIZE."""
    folder, presets, batches, seed = Path(sys.argv[1]), sys.argv[2].split(","), int(sys.argv[3]), int(sys.argv[4])
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=world,
        timeout=datetime.timedelta(seconds=60),
    )
    lanes = open_for([parse_arm(arm) for arm in RECORDED_ARMS], torch.device("cpu"))
    shared = open_shared_memory(NAMES)
    keep_to_own_cores()  # this thread; gloo's go where there is room, as in a run
    watch = Stopwatch()
    for preset in presets:
        measure_steps(Steps(preset, watch, rank, world, seed), batches, lanes, shared, folder)
    measure_links(lanes.reference, shared, watch, rank)
    (folder / f"rank-{rank}.json").write_text(json.dumps(watch.rows), encoding="utf-8")
    for lane in shared.values():
        lane.close()
    lanes.close()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
