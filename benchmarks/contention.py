"""What moving bytes over the host link costs compute on one GPU: copy engine against a copy kernel on 1 to 32 blocks.

    python benchmarks/contention.py [--direction d2h|h2d] [--repeats 30] [--json]

Victims are a large bf16 matrix product (bound by SMs) and a large addition (bound by memory). Beside them, the same
bytes cross the same link by the copy engine in 32 MiB chunks, or by a kernel on K blocks; `occupy K` holds K blocks
without moving anything, which tells lost SMs from lost bandwidth; `alone` moves nothing and is the null. Arms take
turns in random order; a victim is timed while the mover outlasts it, and the transfer while the victim outlasts it.
Slowdowns are ratios of medians to the victim, or the transfer, alone, with bootstrap intervals. Needs CUDA and NVRTC.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch

CHUNK_BYTES = 32 << 20
BLOCKS = (1, 2, 4, 8, 16, 32)
VICTIMS = ("matmul", "memory")
ALONE = "alone"
MOVERS = ("copy engine", *(f"kernel {blocks}" for blocks in BLOCKS))
ARMS = (ALONE, *MOVERS, *(f"occupy {blocks}" for blocks in BLOCKS))
SHORT_MS, LONG_MS = 10.0, 40.0
THREADS = 512

SOURCE = r"""
extern "C" __global__ void copy_blocks(uint4* target, const uint4* source, int count, int rounds) {
    for (int round = 0; round < rounds; ++round)
        for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x)
            target[i] = source[i];
}
extern "C" __global__ void hold_blocks(int microseconds) {
    unsigned long long begin, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begin));
    do { asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now)); } while (now - begin < 1000ull * microseconds);
}
"""


class Bench(Protocol):
    """What the method needs of a machine; times are in ms."""

    def victim_ms(self, victim: str, arm: str) -> float:
        """Time of a short run of the victim while the arm's mover runs longer."""
        ...

    def transfer_ms(self, victim: str | None, arm: str) -> float:
        """Time of a short transfer by the arm's mover while the victim, if any, runs longer."""
        ...


def measure(bench: Bench, repeats: int, seed: int) -> dict[str, dict[str, dict[str, list[float]]]]:
    """Samples in ms: `victim`[victim][arm], and `transfer`[victim or alone][mover], a sample per repeat."""
    random = np.random.default_rng(seed)
    trials = [("victim", victim, arm) for victim in VICTIMS for arm in ARMS]
    trials += [("transfer", victim, mover) for victim in (ALONE, *VICTIMS) for mover in MOVERS]
    samples: dict[str, dict[str, dict[str, list[float]]]] = {"victim": {}, "transfer": {}}
    for repeat in range(-1, repeats):
        for index in random.permutation(len(trials)):
            kind, victim, arm = trials[index]
            if kind == "victim":
                taken = bench.victim_ms(victim, arm)
            else:
                taken = bench.transfer_ms(None if victim == ALONE else victim, arm)
            if repeat >= 0:  # the first round warms up
                samples[kind].setdefault(victim, {}).setdefault(arm, []).append(taken)
    return samples


def summarise(samples: Mapping[str, Mapping[str, Mapping[str, Sequence[float]]]], seed: int) -> dict[str, Any]:
    """Slowdowns with 95 % intervals: of each victim beside each arm, of each mover beside each victim."""
    random = np.random.default_rng(seed)
    victims, transfers = samples["victim"], samples["transfer"]
    return {
        "victim_slowdown": {
            victim: {arm: slowdown(random, by_arm[ALONE], by_arm[arm]) for arm in ARMS}
            for victim, by_arm in victims.items()
        },
        "transfer_slowdown": {
            victim: {mover: slowdown(random, transfers[ALONE][mover], by_mover[mover]) for mover in MOVERS}
            for victim, by_mover in transfers.items()
            if victim != ALONE
        },
        "transfer_alone_ms": {mover: float(np.median(transfers[ALONE][mover])) for mover in MOVERS},
    }


def slowdown(random: np.random.Generator, alone: Sequence[float], beside: Sequence[float]) -> dict[str, Any]:
    """Ratio of medians; repeats are resampled together, since they share the machine's drift."""
    first, second = np.array(alone), np.array(beside)
    picks = random.integers(0, len(first), (2000, len(first)))
    draws = np.median(second[picks], axis=1) / np.median(first[picks], axis=1)
    low, high = np.percentile(draws, [2.5, 97.5])
    return {"value": float(np.median(second) / np.median(first)), "ci95": [float(low), float(high)], "n": len(first)}


class GpuBench:
    """The one GPU: a stream for the victim, one for the mover, lengths fitted once to `SHORT_MS` and `LONG_MS`."""

    def __init__(self, direction: str) -> None:
        self.compute, self.side = torch.cuda.Stream(), torch.cuda.Stream()
        size = 8192
        self.left = torch.randn(size, size, device="cuda", dtype=torch.bfloat16)
        self.right = torch.randn_like(self.left)
        self.product = torch.empty_like(self.left)
        self.large = torch.zeros(1 << 28, device="cuda")
        device = torch.empty(CHUNK_BYTES, dtype=torch.uint8, device="cuda")
        host = torch.empty(CHUNK_BYTES, dtype=torch.uint8, pin_memory=True)
        self.target, self.source = (host, device) if direction == "d2h" else (device, host)
        self.copy_kernel: Any = torch.cuda._compile_kernel(SOURCE, "copy_blocks")
        self.hold_kernel: Any = torch.cuda._compile_kernel(SOURCE, "hold_blocks")
        self.victim_one_ms = {victim: self._timed(self.compute, self._victim(victim), 5) for victim in VICTIMS}
        self.chunk_one_ms = {mover: self._timed(self.side, self._mover(mover), 3) for mover in MOVERS}

    def victim_ms(self, victim: str, arm: str) -> float:
        mover = None if arm == ALONE else self._for(arm, LONG_MS)
        return self._beside(self.compute, self._repeated(victim, SHORT_MS), self.side, mover)

    def transfer_ms(self, victim: str | None, arm: str) -> float:
        beside = self._repeated(victim, LONG_MS) if victim else None
        return self._beside(self.side, self._for(arm, SHORT_MS), self.compute, beside)

    def _beside(
        self,
        timed_stream: torch.cuda.Stream,
        timed: Callable[[], None],
        other_stream: torch.cuda.Stream,
        other: Callable[[], None] | None,
    ) -> float:
        """Time of `timed` in the middle of `other`; RuntimeError when `other` did not last long enough."""
        torch.cuda.synchronize()
        begin, end, other_end = (torch.cuda.Event(enable_timing=True) for _ in range(3))
        with torch.cuda.stream(other_stream):
            if other:
                other()
            other_end.record()
        with torch.cuda.stream(timed_stream):
            torch.cuda._sleep(200_000)  # about 0.1 ms, for the other to be well under way
            begin.record()
            timed()
            end.record()
        torch.cuda.synchronize()
        if other and end.elapsed_time(other_end) < 0:
            raise RuntimeError("what ran beside ended first; raise LONG_MS")
        return float(begin.elapsed_time(end))

    def _timed(self, stream: torch.cuda.Stream, once: Callable[[], None], times: int) -> float:
        def repeat() -> None:
            for _ in range(times):
                once()

        self._beside(stream, repeat, self.side, None)
        return self._beside(stream, repeat, self.side, None) / times

    def _repeated(self, victim: str, length_ms: float) -> Callable[[], None]:
        times = max(1, round(length_ms / self.victim_one_ms[victim]))
        once = self._victim(victim)

        def repeat() -> None:
            for _ in range(times):
                once()

        return repeat

    def _victim(self, victim: str) -> Callable[[], None]:
        def matmul() -> None:
            torch.mm(self.left, self.right, out=self.product)

        def memory() -> None:
            self.large.add_(1.0)

        return matmul if victim == "matmul" else memory

    def _for(self, arm: str, length_ms: float) -> Callable[[], None]:
        """The arm's mover for about `length_ms` (alone)."""
        kind, _, blocks = arm.rpartition(" ")
        if kind == "occupy":
            return lambda: self.hold_kernel((int(blocks), 1, 1), (THREADS, 1, 1), [round(length_ms * 1000)])
        times = max(1, round(length_ms / self.chunk_one_ms[arm]))
        if kind == "kernel":
            return self._copy_by_kernel(int(blocks), times)
        once = self._mover(arm)

        def repeat() -> None:
            for _ in range(times):
                once()

        return repeat

    def _mover(self, mover: str) -> Callable[[], None]:
        """One chunk."""
        kind, _, blocks = mover.rpartition(" ")
        if kind == "kernel":
            return self._copy_by_kernel(int(blocks), 1)

        def chunk() -> None:
            self.target.copy_(self.source, non_blocking=True)

        return chunk

    def _copy_by_kernel(self, blocks: int, rounds: int) -> Callable[[], None]:
        arguments = [self.target, self.source, CHUNK_BYTES // 16, rounds]
        return lambda: self.copy_kernel((blocks, 1, 1), (THREADS, 1, 1), arguments)


def show(result: Mapping[str, Any]) -> None:
    print(f"{result['date']} · {result['gpu']} · torch {result['torch']} · {result['direction']}")
    print("slowdown beside each arm, median ratio [95 % interval]\n")
    for title, table in (("victim", result["victim_slowdown"]), ("transfer", result["transfer_slowdown"])):
        for victim, by_arm in table.items():
            print(f"{title}, {victim}")
            for arm, figure in by_arm.items():
                low, high = figure["ci95"]
                print(f"  {arm:12} {figure['value']:6.3f}  [{low:.3f}, {high:.3f}]")
    print("\ntransfer alone, GB/s of the mover that takes", SHORT_MS, "ms")
    for mover, rate in result["gb_per_s"].items():
        print(f"  {mover:12} {rate:6.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--direction", choices=["d2h", "h2d"], default="d2h")
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("error: this benchmark needs a CUDA device, and torch sees none; run it on a machine with one GPU")
    bench = GpuBench(options.direction)
    result = summarise(measure(bench, options.repeats, options.seed), options.seed)
    result |= {
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "direction": options.direction,
        "gb_per_s": {mover: CHUNK_BYTES / one_ms / 1e6 for mover, one_ms in bench.chunk_one_ms.items()},
    }
    if options.json:
        print(json.dumps(result, indent=1))
    else:
        show(result)


if __name__ == "__main__":
    main()
