"""How far a simulation of this machine is off: `simulate --cluster this-machine` against `run`, same batches and arms.

    python benchmarks/fidelity.py [--arms baseline,sdd,...] [--blocks 4] [--cluster this-machine.toml] [--keep DIR]

Calibrates first unless a cluster file is given. For each arm: the median over blocks of the relative error of the step
time (median of the block's steps), of the straggler time and of the exposed communication (both from the profiled
pass), and where the time went by class, measured and simulated, so that one sees where an error comes from.
Run it on a quiet machine; it says how loaded it was.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pandas as pd
import psutil

CLASSES = ("compute_ns", "straggler_ns", "exposed_comm_ns", "exposed_copy_ns", "host_ns")
BAR_PCT = 10.0


def step_ms_by_block(run: Path) -> pd.DataFrame:
    """block x arm: median over timed steps of the slowest rank's time."""
    steps = pd.read_parquet(run / "steps.parquet")
    slowest = steps[~steps["warmup"]].groupby(["arm", "block", "step"])["step_ms"].max()
    return slowest.groupby(["block", "arm"]).median().unstack("arm")


def classes_ms(run: Path) -> pd.DataFrame:
    """arm x class: mean over ranks and profiled steps."""
    bubbles = pd.read_parquet(run / "bubbles.parquet")
    return bubbles.groupby("arm")[list(CLASSES)].mean() / 1e6


def bench(*arguments: str) -> dict[str, Any]:
    """Run a verb with --json and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "freescale.bench.cli", *arguments, "--json"],
        check=False, capture_output=True, text=True, timeout=1200,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments)}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def only_run(folder: Path) -> Path:
    (run,) = [path for path in folder.iterdir() if path.is_dir()]
    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", default="hstu-small")
    parser.add_argument("--arms", default="baseline,sdd,balance,overlap,smfree,freescale")
    parser.add_argument("--ranks", default="2")
    parser.add_argument("--blocks", default="4")
    parser.add_argument("--steps", default="6")
    parser.add_argument("--cluster", help="a cluster file that `calibrate` wrote; without it, calibrate now")
    parser.add_argument("--keep", type=Path, help="leave the cluster file and both run directories in this folder")
    options = parser.parse_args()
    print(f"load {psutil.getloadavg()[0]:.1f} on {psutil.cpu_count()} cores")
    with tempfile.TemporaryDirectory() as name:
        folder = options.keep or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        cluster = options.cluster or str(folder / "this-machine.toml")
        if not options.cluster:
            bench("calibrate", "--ranks", options.ranks, "--presets", options.preset, "--out", cluster)
        same = [options.preset, "--ranks", options.ranks, "--arms", options.arms]
        same += ["--blocks", options.blocks, "--steps", options.steps, "--warmup", "2"]
        bench("run", *same, "--out", str(folder / "measured"))
        bench("simulate", *same, "--cluster", cluster, "--out", str(folder / "simulated"))
        compare(only_run(folder / "measured"), only_run(folder / "simulated"), options.arms.split(","))


def compare(measured: Path, simulated: Path, arms: list[str]) -> None:
    steps = step_ms_by_block(measured), step_ms_by_block(simulated)
    classes = classes_ms(measured), classes_ms(simulated)
    print(f"\n{'arm':<20} {'measured ms':>12} {'simulated ms':>13} {'median error %':>15}")
    for arm in arms:
        error = ((steps[1][arm] - steps[0][arm]) / steps[0][arm] * 100).abs().median()
        verdict = "" if error <= BAR_PCT else f"  more than {BAR_PCT:g} %"
        print(f"{arm:<20} {steps[0][arm].median():>12.1f} {steps[1][arm].median():>13.1f} {error:>15.1f}{verdict}")
    print(f"\nprofiled pass, ms per step: measured / simulated\n{'arm':<20}", end="")
    print("".join(f"{name.removesuffix('_ns'):>18}" for name in CLASSES))
    for arm in arms:
        cells = [f"{classes[0].loc[arm, name]:.1f} / {classes[1].loc[arm, name]:.1f}" for name in CLASSES]
        print(f"{arm:<20}" + "".join(f"{cell:>18}" for cell in cells))


if __name__ == "__main__":
    main()
