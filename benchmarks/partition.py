"""How well and how fast the partition policies balance, beside zigzag and Karmarkar-Karp.

    python benchmarks/partition.py [--repeats 20] [--json]

Lengths are `kuairand-1k`, cap 8,192; costs the FLOPs of `hstu-long` for them. Quality is the largest load divided by
max(mean load, largest sample), which no partition can beat, so 1 is perfect; the worst of all repeats is shown. Time is
the median, single-threaded. Karmarkar-Karp (largest differencing) is a slow reference that ignores how many samples a
rank gets. Small cases are compared with the best of all partitions instead.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from freescale.balance.labels import keep_home, moved_bytes
from freescale.balance.policies import rounds, variable, zigzag
from workloads.flops import flops
from workloads.lengths import named
from workloads.registry import preset

Partition = Callable[[NDArray[np.float64], int], NDArray[np.int64]]

POLICIES: dict[str, Partition] = {"zigzag": zigzag, "rounds": rounds, "variable": variable}
SHAPES = ((256, 32), (256, 8), (1_024, 128))
BUDGET_MS, BUDGET_QUALITY = 3.0, 1.001
BYTES_PER_TOKEN = 40


def karmarkar_karp(costs: NDArray[np.float64], world_size: int) -> float:
    """Largest load of the largest differencing method (Karmarkar and Karp 1982) for `world_size` parts.

    A partial partition is its loads, descending, with the zeros left out; the two with the largest differences are
    merged, largest load on smallest. Only differences matter, so what all parts share is set aside.
    """
    tie = itertools.count()
    heap = [(-cost, next(tie), [cost], 0.0) for cost in costs.tolist()]
    heapq.heapify(heap)
    while len(heap) > 1:
        _, _, first, first_shared = heapq.heappop(heap)
        _, _, second, second_shared = heapq.heappop(heap)
        loads = np.zeros(world_size)
        loads[: len(first)] = first
        loads[world_size - len(second) :] += second[::-1]
        loads = np.sort(loads)[::-1]
        shared = first_shared + second_shared + loads[-1]
        loads -= loads[-1]
        used = int(np.count_nonzero(loads))
        heapq.heappush(heap, (-loads[0], next(tie), loads[:used].tolist(), shared))
    _, _, loads_left, shared = heap[0]
    return shared + (loads_left[0] if loads_left else 0.0)


def brute_force(costs: NDArray[np.float64], world_size: int, equal_counts: bool) -> float:
    """Largest load of the best of all partitions."""
    ranks = np.array(list(itertools.product(range(world_size), repeat=costs.size)), dtype=np.int8)
    counts = np.stack([(ranks == rank).sum(axis=1) for rank in range(world_size)])
    load = np.stack([(ranks == rank) @ costs for rank in range(world_size)]).max(axis=0)
    return float(load[np.ptp(counts, axis=0) <= 1].min() if equal_counts else load.min())


def largest_load(costs: NDArray[np.float64], ranks: NDArray[np.int64], world_size: int) -> float:
    return float(np.bincount(ranks, weights=costs, minlength=world_size).max())


def draw(world_size: int, per_rank: int, seed: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Lengths [N, 2] and costs [N] of a global batch."""
    generator = np.random.default_rng(seed)
    history = named("kuairand-1k").limited(cap=8_192).sample(generator, world_size * per_rank)
    lengths = np.column_stack([history, generator.integers(4, 17, history.size)])
    return lengths, flops(lengths, preset("hstu-long"))


def measure(world_size: int, per_rank: int, repeats: int) -> dict[str, Any]:
    """One shape: per policy the median time and worst quality; the same for Karmarkar-Karp, once; and bytes kept."""
    home = np.repeat(np.arange(world_size), per_rank)
    times: dict[str, list[float]] = {name: [] for name in (*POLICIES, "keep_home")}
    qualities: dict[str, list[float]] = {name: [] for name in POLICIES}
    stayed: dict[str, list[float]] = {"as numbered": [], "keep_home": []}
    for seed in range(repeats):
        lengths, costs = draw(world_size, per_rank, seed)
        bound = max(costs.sum() / world_size, costs.max())
        for name, policy in POLICIES.items():
            start = time.perf_counter()
            ranks = policy(costs, world_size)
            times[name].append((time.perf_counter() - start) * 1e3)
            qualities[name].append(largest_load(costs, ranks, world_size) / bound)
        sample_bytes = lengths.sum(axis=1) * BYTES_PER_TOKEN
        groups = rounds(costs, world_size)
        start = time.perf_counter()
        kept = keep_home(groups, home, sample_bytes, world_size)
        times["keep_home"].append((time.perf_counter() - start) * 1e3)
        for name, ranks in (("as numbered", groups), ("keep_home", kept)):
            stayed[name].append(1 - moved_bytes(ranks, home, sample_bytes) / sample_bytes.sum())
    _, costs = draw(world_size, per_rank, 0)
    start = time.perf_counter()
    reference = karmarkar_karp(costs, world_size) / max(costs.sum() / world_size, costs.max())
    return {
        "world_size": world_size,
        "samples_per_rank": per_rank,
        "time_ms": {name: float(np.median(values)) for name, values in times.items()}
        | {"karmarkar_karp": (time.perf_counter() - start) * 1e3},
        "quality": {name: max(values) for name, values in qualities.items()} | {"karmarkar_karp": reference},
        "stayed_share": {name: float(np.median(values)) for name, values in stayed.items()},
    }


def small_cases(cases: int) -> dict[str, float]:
    """Worst ratio to the best partition over random cases of 2 to 12 samples (10 on 3 ranks) on 2 or 3 ranks.

    `rounds` is held against the best with equal counts, which it promises to keep; `variable` against the best of all.
    """
    generator, worst = np.random.default_rng(0), {"rounds": 0.0, "variable": 0.0}
    for _ in range(cases):
        world_size = int(generator.integers(2, 4))
        costs = generator.integers(1, 41, int(generator.integers(2, 13 if world_size == 2 else 11))).astype(np.float64)
        for name, policy, equal_counts in (("rounds", rounds, True), ("variable", variable, False)):
            best = brute_force(costs, world_size, equal_counts)
            worst[name] = max(worst[name], largest_load(costs, policy(costs, world_size), world_size) / best)
    return worst


def report(shapes: list[dict[str, Any]], small: dict[str, float]) -> str:
    lines = ["ranks × samples   policy           time ms   quality"]
    for shape in shapes:
        label = f"{shape['world_size']:,} × {shape['samples_per_rank']}"
        for name, quality in shape["quality"].items():
            lines.append(f"{label:16}  {name:15} {shape['time_ms'][name]:8.2f}  {quality:8.5f}")
            label = ""
        kept = shape["stayed_share"]
        lines.append(
            f"{'':16}  bytes that stay: {kept['as numbered']:.1%} as numbered, {kept['keep_home']:.1%} with keep_home "
            f"({shape['time_ms']['keep_home']:.2f} ms)"
        )
    first = shapes[0]
    met = first["time_ms"]["rounds"] <= BUDGET_MS and first["quality"]["rounds"] <= BUDGET_QUALITY
    lines += [
        f"budget at 256 × 32: rounds in {BUDGET_MS:g} ms and {BUDGET_QUALITY:g}: {'met' if met else 'MISSED'}",
        "small cases, worst ratio to the best partition (bound 1.333): "
        + ", ".join(f"{name} {ratio:.3f}" for name, ratio in small.items()),
    ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=20, help="batches per shape (default 20)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    arguments = parser.parse_args()
    shapes = [measure(world_size, per_rank, arguments.repeats) for world_size, per_rank in SHAPES]
    small = small_cases(200)
    print(json.dumps({"shapes": shapes, "small_cases": small}, indent=2) if arguments.json else report(shapes, small))


if __name__ == "__main__":
    main()
