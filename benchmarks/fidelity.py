"""How far a simulation of this machine is off: `simulate --cluster this-machine` against `run`, same batches and arms.

    python benchmarks/fidelity.py [--arms baseline,sdd,...] [--rounds 2] [--cluster this-machine.toml] [--keep DIR]

Calibrates before, between and after the runs unless a cluster file is given, since a machine's speed changes within
minutes; nothing is taken from the runs. For each arm: the median over blocks of the relative error of the step time
(median of the block's steps), of the straggler time and of the exposed communication, and where the time went by class,
so that one sees where an error comes from. Like is compared with like: step times without the profiler on both sides;
classes in the profiled pass of the same steps, on both sides with what the profiler costs, which the calibration
measures too. The errors are written into the cluster file, and every simulation with it reports them.
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

CLASSES = ("compute", "straggler", "exposed_comm", "exposed_copy", "host")
MEASURES = ("step", "straggler", "exposed_comm")
BAR_PCT = 10.0
AGAIN = "baseline-aa"


def by_block(run: Path) -> pd.DataFrame:
    """(arm, block) x (step, compute, straggler, exposed_comm, exposed_copy, host), ms.

    `step` is the median over timed steps of the slowest rank's time, the classes are means over ranks and profiled
    steps.
    """
    steps = pd.read_parquet(run / "steps.parquet")
    slowest = steps[~steps["warmup"]].groupby(["arm", "block", "step"])["step_ms"].max()
    result = slowest.groupby(["arm", "block"]).median().to_frame("step")
    manifest, bubbles = json.loads((run / "manifest.json").read_text()), pd.read_parquet(run / "bubbles.parquet")
    measured = manifest["provenance"] != "simulated"  # the profiler's numbers leave no gap, a simulation's leave one
    per_block = manifest["steps_per_turn"] + (0 if measured else 1)
    bubbles["block"] = bubbles["step"] // per_block
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
    parser.add_argument("--rounds", type=int, default=2, help="runs, between calibrations; each has other batches")
    parser.add_argument("--blocks", default="2", help="of each run")
    parser.add_argument("--steps", default="6")
    parser.add_argument("--batches", default="6", help="that each calibration measures")
    parser.add_argument("--cluster", help="a cluster file that `calibrate` wrote; without it, calibrate now")
    parser.add_argument("--keep", type=Path, help="leave the cluster file and all run directories in this folder")
    options = parser.parse_args()
    print(f"load {psutil.getloadavg()[0]:.1f} on {psutil.cpu_count()} cores")
    with tempfile.TemporaryDirectory() as name:
        folder = options.keep or Path(name)
        folder.mkdir(parents=True, exist_ok=True)
        cluster = options.cluster or str(folder / "this-machine.toml")

        def calibrate() -> None:
            if not options.cluster:
                arguments = ["--ranks", options.ranks, "--presets", options.preset, "--batches", options.batches]
                bench("calibrate", *arguments, "--keep", str(folder / "calibrations.jsonl"), "--out", cluster)

        same = [options.preset, "--ranks", options.ranks, "--blocks", options.blocks]
        same += ["--steps", options.steps, "--warmup", "2"]
        recorded = ["--profiled-steps", options.steps, "--arms", f"{options.arms},{AGAIN}"]
        calibrate()
        for seed in range(options.rounds):
            bench("run", *same, *recorded, "--seed", str(seed), "--out", str(folder / f"measured-{seed}"))
            calibrate()
        for seed in range(options.rounds):
            arguments = [*same, "--arms", options.arms, "--seed", str(seed), "--cluster", cluster]
            bench("simulate", *arguments, "--out", str(folder / f"simulated-{seed}"))
        real, computed = (all_blocks(folder, of, options.rounds) for of in ("measured", "simulated"))
        errors = compare(real, computed, options.arms.split(","))
        write_into(Path(cluster), errors)
    print(f"load {psutil.getloadavg()[0]:.1f} at the end; the errors are in the cluster file")


def all_blocks(folder: Path, of: str, rounds: int) -> pd.DataFrame:
    """`by_block` of all runs, with the seed as first level of the index."""
    tables = {seed: by_block(only_run(folder / f"{of}-{seed}")) for seed in range(rounds)}
    return pd.concat(tables, names=["seed"])


def compare(real: pd.DataFrame, computed: pd.DataFrame, arms: list[str]) -> pd.DataFrame:
    """arm x `MEASURES`: median over blocks of the error in percent; printed, too.

    Beside it the error of the mean over all blocks, with its sign, and how far a second measurement is off: the same
    arm measured again, compared block by block. An error below that is the measurement's, not the simulation's.
    """
    errors = ((computed - real) / real * 100)[list(MEASURES)].abs().groupby("arm").median()
    means = [table.groupby("arm")[list(MEASURES)].mean() for table in (real, computed)]
    of_means = (means[1] - means[0]) / means[0] * 100
    first, second = (real.xs(arm, level="arm")[list(MEASURES)] for arm in (AGAIN.removesuffix("-aa"), AGAIN))
    again = ((second - first) / first * 100).abs().median()
    print(
        f"\n{'arm':<20} {'measured ms':>12} {'simulated ms':>13}" + "".join(f"{name + ' %':>22}" for name in MEASURES)
    )
    for arm in arms:
        cells = []
        for name in MEASURES:
            error, of_mean = errors.loc[arm, name], of_means.loc[arm, name]
            cells.append(f"{error:.1f}{' ' if error <= BAR_PCT else '*'} ({of_mean:+.1f})")
        medians = [table.xs(arm, level="arm")["step"].median() for table in (real, computed)]
        print(f"{arm:<20} {medians[0]:>12.1f} {medians[1]:>13.1f}" + "".join(f"{cell:>22}" for cell in cells))
    print(f"{'baseline, measured again':<47}" + "".join(f"{again[name]:>15.1f}       " for name in MEASURES))
    print(f"median over blocks of the error (error of the mean over blocks); * more than {BAR_PCT:g} %")
    print(f"\nprofiled pass, ms per step: measured / simulated\n{'arm':<20}", end="")
    print("".join(f"{name:>18}" for name in CLASSES))
    for arm in arms:
        of_arm = [table.xs(arm, level="arm") for table in (real, computed)]
        cells = [f"{of_arm[0][name].mean():.1f} / {of_arm[1][name].mean():.1f}" for name in CLASSES]
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
