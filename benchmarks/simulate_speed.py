"""How long the simulator takes: 256 ranks x 20 steps in 3 s, 4,096 x 20 in 30 s and 2 GiB (budgets of DESIGN 11).

    python benchmarks/simulate_speed.py [--ranks 256,4096] [--arm freescale]

Each size runs in a process of its own, so that its peak memory is its own. Batches, policy, program, times and the
classes of every rank are counted; importing torch is not.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time

STEPS = 20
BUDGET_S = {256: 3.0, 4096: 30.0}


def one(ranks: int, arm: str) -> None:
    from freescale.bench.arms import parse_arms
    from freescale.bench.simulated_run import Simulation, simulate
    from freescale.simulate import cluster
    from workloads import registry

    simulation = Simulation(
        registry.preset("hstu-long"),
        cluster.load("h100-ib"),
        tuple(parse_arms(arm)),
        ranks,
        blocks=1,
        steps=STEPS,
        warmup=0,
    )
    start = time.perf_counter()
    simulate(simulation)
    seconds = time.perf_counter() - start
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"ranks": ranks, "arm": arm, "steps": STEPS, "seconds": seconds, "peak_mib": peak_mib}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", default="256,4096")
    parser.add_argument("--arm", default="freescale")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        one(int(options.ranks), options.arm)
        return
    for ranks in map(int, options.ranks.split(",")):
        command = [sys.executable, __file__, "--one", "--ranks", str(ranks), "--arm", options.arm]
        row = json.loads(subprocess.run(command, check=True, capture_output=True, text=True, timeout=600).stdout)
        budget = f"budget {BUDGET_S[ranks]:g} s" if ranks in BUDGET_S else "no budget"
        print(f"{ranks:>5} ranks x {STEPS} steps, {options.arm}: {row['seconds']:.1f} s ({budget}), ", end="")
        print(f"peak {row['peak_mib']:.0f} MiB")


if __name__ == "__main__":
    main()
