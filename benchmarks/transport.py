"""What a transfer costs between two ranks of this host: gloo against shared memory, in time, CPU and stolen compute.

    python benchmarks/transport.py [--check] [--json]

Arms take turns in random order within each round, so drift cancels; figures are medians over rounds with bootstrap
intervals over rounds. `gloo` goes through the same interface as shared_memory and allocates its result for each call;
`gloo-preallocated` calls torch directly with a result allocated once, which nothing in a training loop does, but it is
the fastest gloo can be. Ratios are what to quote: absolute times are this machine's.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from freescale.comm.process_group import open_lanes
from freescale.comm.shared_memory import open_shared_memory

MESSAGE_BYTES = 32 << 20
BARS = {"wall": 5.0, "cpu": 3.0}
TRANSFER_ARMS = ("gloo", "gloo-preallocated", "shared_memory")
BESIDE_ARMS = ("alone", "gloo", "shared_memory")


def measure_rank(rank: int, port: int, options: argparse.Namespace, answer: str) -> None:
    """Both measurements on one of the two ranks; rank 0 writes the gathered samples to the file `answer`."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    gloo, shared = open_lanes(["benchmark"])["benchmark"], open_shared_memory(["benchmark"])["benchmark"]
    peer_only = [0, MESSAGE_BYTES] if rank == 0 else [MESSAGE_BYTES, 0]
    send = torch.full((MESSAGE_BYTES,), rank + 1, dtype=torch.uint8)
    ready = torch.empty_like(send)

    def preallocated() -> torch.Tensor:
        dist.all_to_all_single(ready, send, peer_only, peer_only, group=gloo.process_group)
        return ready

    calls: dict[str, Callable[[], torch.Tensor]] = {
        "gloo": lambda: gloo.all_to_all(send, peer_only, peer_only).wait(),
        "gloo-preallocated": preallocated,
        "shared_memory": lambda: shared.all_to_all(send, peer_only, peer_only).wait(),
    }
    for name, call in calls.items():
        assert bool(call().eq(2 - rank).all()), f"{name} delivered something else"
    samples = {
        "transfer": transfers(calls, options.rounds, options.seed),
        "beside": beside(
            {"alone": None, "gloo": gloo, "shared_memory": shared},
            (send, peer_only),
            options.windows,
            options.window_s,
            options.hertz,
            options.seed,
        ),
    }
    gathered: list[Any] = [None, None]
    dist.all_gather_object(gathered, samples)
    if rank == 0:
        Path(answer).write_text(json.dumps(gathered))
    shared.close()
    dist.barrier()
    dist.destroy_process_group()


def transfers(calls: dict[str, Callable[[], torch.Tensor]], rounds: int, seed: int) -> dict[str, list[list[float]]]:
    """Per arm and round: [seconds, CPU seconds of this process] of one exchange of `MESSAGE_BYTES` with the peer."""
    random = np.random.default_rng(seed)
    samples: dict[str, list[list[float]]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name in random.permutation(sorted(calls)):
            dist.barrier()
            time.sleep(0.002)  # gloo's threads are done with the barrier
            wall, cpu = time.perf_counter(), time.process_time()
            calls[name]()
            samples[name].append([time.perf_counter() - wall, time.process_time() - cpu])
    return samples


def beside(
    lanes: dict[str, Any],
    message: tuple[torch.Tensor, list[int]],
    windows: int,
    window_s: float,
    hertz: float,
    seed: int,
) -> dict[str, list[float]]:
    """Per arm and window: matrix products per second while `hertz` transfers a second are issued and waited for.

    A transfer is waited for when the next is due, so a transport has all the time in the world to move it: what is
    lost is what it takes from the compute, the time in issue and wait included.
    """
    random = np.random.default_rng(seed)
    left = torch.randn(256, 256)
    right = torch.randn(256, 256)
    out = torch.empty(256, 256)
    send, splits = message
    transfers = round(window_s * hertz)  # the same on both ranks, however slow one is
    samples: dict[str, list[float]] = {name: [] for name in lanes}
    for _ in range(windows):
        for name in random.permutation(sorted(lanes)):
            lane = lanes[name]
            dist.barrier()
            begin = time.perf_counter()
            products, issued, handle = 0, 0, None
            while (now := time.perf_counter()) < begin + window_s or (lane is not None and issued < transfers):
                if lane is not None and issued < transfers and now >= begin + issued / hertz:
                    if handle is not None:
                        handle.wait()
                    handle = lane.all_to_all(send, splits, splits)
                    issued += 1
                torch.mm(left, right, out=out)
                products += 1
            if handle is not None:
                handle.wait()
            samples[name].append(products / (time.perf_counter() - begin))
    return samples


def summarise(gathered: list[Any], options: argparse.Namespace) -> dict[str, Any]:
    """Medians and intervals. An exchange takes as long as its slower rank; CPU time is the mean of the two ranks."""
    random = np.random.default_rng(options.seed)
    arrays = {arm: np.array([rank["transfer"][arm] for rank in gathered]) for arm in TRANSFER_ARMS}
    wall = {arm: array[:, :, 0].max(axis=0) * 1e3 for arm, array in arrays.items()}
    cpu = {arm: array[:, :, 1].mean(axis=0) * 1e3 for arm, array in arrays.items()}
    rates = {arm: np.array([rank["beside"][arm] for rank in gathered]).mean(axis=0) for arm in BESIDE_ARMS}
    result: dict[str, Any] = {
        "message_bytes": MESSAGE_BYTES,
        "wall_ms": {arm: with_interval(random, np.median, wall[arm]) for arm in TRANSFER_ARMS},
        "cpu_ms": {arm: with_interval(random, np.median, cpu[arm]) for arm in TRANSFER_ARMS},
        "compute_lost_pct": {
            arm: with_interval(random, median_loss_pct, rates["alone"], rates[arm]) for arm in BESIDE_ARMS[1:]
        },
        "lost_more_beside_gloo_pct": with_interval(
            random, median_difference_pct, rates["alone"], rates["gloo"], rates["shared_memory"]
        ),
    }
    for quantity, values in (("wall", wall), ("cpu", cpu)):
        result[f"{quantity}_ratio"] = {
            arm: with_interval(random, ratio_of_medians, values[arm], values["shared_memory"])
            for arm in TRANSFER_ARMS[:2]
        }
    return result


def ratio_of_medians(slow: np.ndarray, fast: np.ndarray) -> float:
    return float(np.median(slow) / np.median(fast))


def median_loss_pct(alone: np.ndarray, beside_it: np.ndarray) -> float:
    return float(100 * np.median(1 - beside_it / alone))


def median_difference_pct(alone: np.ndarray, one: np.ndarray, other: np.ndarray) -> float:
    return float(100 * np.median((other - one) / alone))


def with_interval(random: np.random.Generator, statistic: Callable[..., Any], *samples: np.ndarray) -> dict[str, Any]:
    """The statistic and its 95 % bootstrap interval, resampling rounds (the same ones in every array)."""
    rounds = len(samples[0])
    draws = [statistic(*(sample[pick] for sample in samples)) for pick in random.integers(0, rounds, (2000, rounds))]
    low, high = np.percentile(draws, [2.5, 97.5])
    return {"value": float(statistic(*samples)), "ci95": [float(low), float(high)]}


def show(result: dict[str, Any]) -> None:
    def text(figure: dict[str, Any], digits: int = 2) -> str:
        low, high = figure["ci95"]
        return f"{figure['value']:8.{digits}f}  [{low:.{digits}f}, {high:.{digits}f}]"

    machine = result["machine"]
    print(f"{machine['date']} · {machine['cpu']} · {machine['cores']} cores · torch {machine['torch']}")
    print(f"load average before {machine['load_before']}, after {machine['load_after']}")
    print(f"\n{result['message_bytes'] >> 20} MiB to a peer and back at once, two ranks; median [95 % interval]")
    for arm in TRANSFER_ARMS:
        print(f"  {arm:18} wall ms {text(result['wall_ms'][arm])}   CPU ms {text(result['cpu_ms'][arm])}")
    for arm in TRANSFER_ARMS[:2]:
        wall, cpu = text(result["wall_ratio"][arm]), text(result["cpu_ratio"][arm])
        print(f"  {arm:18} / shared_memory: wall {wall}   CPU {cpu}")
    print("\nmatrix products lost beside such transfers at a fixed rate, against none; median [95 % interval]")
    for arm, figure in result["compute_lost_pct"].items():
        print(f"  {arm:18} {text(figure, 1)} %")
    print(f"  {'gloo loses more by':18} {text(result['lost_more_beside_gloo_pct'], 1)} % of compute")


def cpu_name() -> str:
    with open("/proc/cpuinfo") as file:
        names = [line.partition(":")[2].strip() for line in file if line.startswith(("model name", "CPU part"))]
    return names[0] if names else platform.machine()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=60, help="exchanges per arm")
    parser.add_argument("--windows", type=int, default=25, help="windows of compute per arm")
    parser.add_argument("--window-s", type=float, default=0.75, help="length of a window")
    parser.add_argument("--hertz", type=float, default=8.0, help="transfers a second beside the compute")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--check", action="store_true", help=f"exit 1 below the bars {BARS}")
    options = parser.parse_args()
    load_before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder, "samples.json")
        mp.spawn(measure_rank, (free_port(), options, str(answer)), nprocs=2)
        result = summarise(json.loads(answer.read_text()), options)
    result["machine"] = {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "load_before": load_before,
        "load_after": os.getloadavg()[0],
    }
    if options.json:
        print(json.dumps(result, indent=1))
    else:
        show(result)
    if load_before > 0.5:
        print(f"warning: the machine was not idle (load average {load_before:.2f}); quote ratios only", file=sys.stderr)
    missed = [quantity for quantity, bar in BARS.items() if result[f"{quantity}_ratio"]["gloo"]["ci95"][0] < bar]
    if result["lost_more_beside_gloo_pct"]["ci95"][0] <= 0:
        missed.append("compute")
    if options.check and missed:
        sys.exit(f"below the bar: {', '.join(missed)}")


if __name__ == "__main__":
    main()
