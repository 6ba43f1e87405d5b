"""How far a simulation of this machine is off: `simulate --cluster this-machine` against `run`, same batches and arms.

    python benchmarks/fidelity.py [--arms baseline,sdd,...] [--blocks 4] [--cluster this-machine.toml] [--keep DIR]

Calibrates first unless a cluster file is given. For each arm: the median over blocks of the relative error of the step
time (median of the block's steps), of the straggler time and of the exposed communication, and where the time went by
class, so that one sees where an error comes from. Like is compared with like: step times without the profiler on both
sides; classes in the profiled pass of the same steps, on both sides with what the profiler costs, which the calibration
measures too. On a CPU the simulation counts the time between ops with the compute, so these two classes are one here.
The errors are written into the cluster file, and every simulation with it reports them.
Run it on a quiet machine; it says how loaded it was.
"""

from __future__ import annotations

import argparse
import datetime
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pandas as pd
import psutil

CLASSES = ("busy", "straggler", "exposed_comm", "exposed_copy")
MEASURES = ("step", "straggler", "exposed_comm")
BAR_PCT = 10.0


def by_block(run: Path) -> pd.DataFrame:
    """(arm, block) x (step, busy, straggler, exposed_comm, exposed_copy), ms.

    `step` is the median over timed steps of the slowest rank's time, the classes are means over ranks and profiled
    steps; `busy` is compute and host.
    """
    steps = pd.read_parquet(run / "steps.parquet")
    slowest = steps[~steps["warmup"]].groupby(["arm", "block", "step"])["step_ms"].max()
    result = slowest.groupby(["arm", "block"]).median().to_frame("step")
    manifest, bubbles = json.loads((run / "manifest.json").read_text()), pd.read_parquet(run / "bubbles.parquet")
    measured = manifest["provenance"] != "simulated"  # the profiler's numbers leave no gap, a simulation's leave one
    per_block = manifest["steps_per_turn"] + (0 if measured else 1)
    bubbles["block"] = bubbles["step"] // per_block
    bubbles["busy_ns"] = bubbles["compute_ns"] + bubbles["host_ns"]
    means = bubbles.groupby(["arm", "block"])[[f"{name}_ns" for name in CLASSES]].mean() / 1e6
    return result.join(means.rename(columns=lambda name: name.removesuffix("_ns")))


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
        bench("run", *same, "--profiled-steps", options.steps, "--out", str(folder / "measured"))
        bench("simulate", *same, "--cluster", cluster, "--out", str(folder / "simulated"))
        errors = compare(only_run(folder / "measured"), only_run(folder / "simulated"), options.arms.split(","))
        write_into(Path(cluster), errors)
    print(f"load {psutil.getloadavg()[0]:.1f} at the end; the errors are in the cluster file")


def compare(measured: Path, simulated: Path, arms: list[str]) -> pd.DataFrame:
    """arm x `MEASURES`: median over blocks of the error in percent; printed, too."""
    real, computed = by_block(measured), by_block(simulated)
    errors = ((computed - real) / real * 100)[list(MEASURES)].abs().groupby("arm").median()
    print(
        f"\n{'arm':<20} {'measured ms':>12} {'simulated ms':>13}" + "".join(f"{name + ' %':>16}" for name in MEASURES)
    )
    for arm in arms:
        cells = [f"{errors.loc[arm, name]:.1f}{' ' if errors.loc[arm, name] <= BAR_PCT else '*'}" for name in MEASURES]
        medians = [table.loc[arm, "step"].median() for table in (real, computed)]
        print(f"{arm:<20} {medians[0]:>12.1f} {medians[1]:>13.1f}" + "".join(f"{cell:>16}" for cell in cells))
    print(f"* more than {BAR_PCT:g} %\n\nprofiled pass, ms per step: measured / simulated\n{'arm':<20}", end="")
    print("".join(f"{name:>18}" for name in CLASSES))
    for arm in arms:
        cells = [f"{real.loc[arm, name].mean():.1f} / {computed.loc[arm, name].mean():.1f}" for name in CLASSES]
        print(f"{arm:<20}" + "".join(f"{cell:>18}" for cell in cells))
    return errors.loc[arms]


def write_into(cluster: Path, errors: pd.DataFrame) -> None:
    """Put the errors into a cluster file, in place of any that it has."""
    kept = cluster.read_text(encoding="utf-8").split("\n# Median errors against a run", 1)[0].rstrip("\n")
    today = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d")
    lines = [kept, "", f"# Median errors against a run, percent; benchmarks/fidelity.py, {today}"]
    for arm, row in errors.iterrows():
        entries = ", ".join(f"{name} = {value:.1f}" for name, value in row.items())
        lines += [f'[fidelity."{arm}"]', *entries.split(", ")]
    cluster.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
