"""What balancing does to stragglers here, and how well the cost model knows what it balances.

    python benchmarks/balance.py                     # hstu-small, 2 ranks, 8 blocks, with an A/A copy of the baseline

Prints straggler_pct per arm with an interval over blocks, its ratio to the baseline's (paired by block), the same for
the A/A copy (what noise alone does), and the error of predicted against measured compute time per rank and step.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import click
import numpy as np
import pandas as pd
from scipy.stats import t as student_t
from waits import blocked

from analyzer.rundir import RunDirectory, list_runs

BASELINE, AGAIN = "baseline", "baseline-aa"


@click.command(help=__doc__)
@click.option("--preset", default="hstu-small", show_default=True)
@click.option("--ranks", default=2, show_default=True)
@click.option("--blocks", default=8, show_default=True)
@click.option("--policies", default="rounds,zigzag", show_default=True)
@click.option(
    "--profiled-steps",
    default=6,
    show_default=True,
    help="Per block and arm: as many timed ones, and those in which stragglers are counted.",
)
def main(preset: str, ranks: int, blocks: int, policies: str, profiled_steps: int) -> None:
    for policy in policies.split(","):
        with tempfile.TemporaryDirectory() as out:
            command = [sys.executable, "-m", "freescale.bench.cli", "run", preset, "--out", out, "--json"]
            command += ["--ranks", str(ranks), "--blocks", str(blocks), "--policy", policy]
            command += ["--steps", str(profiled_steps), "--profiled-steps", str(profiled_steps)]
            command += ["--arms", f"{BASELINE},balance,{AGAIN}"]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=1800)
            (run,) = list_runs(Path(out))
            print(f"\npolicy {policy}, {blocks} blocks, {ranks} ranks")
            report(run)


def report(run: RunDirectory) -> None:
    """Print the figures of one run."""
    bubbles = run.bubbles()
    per_block = run.manifest["steps_in_profile"]
    share = 100 * bubbles["straggler_ns"] / bubbles["window_ns"]
    straggler = share.groupby([bubbles["step"] // per_block, bubbles["arm"]]).mean().unstack()
    for arm in straggler:
        print(f"  {arm:12} straggler {interval(straggler[arm].to_numpy(), '%')}")
    for arm in ("balance", AGAIN):
        ratio = 100 * np.exp(np.log(straggler[arm]) - np.log(straggler[BASELINE]))
        total = 100 * straggler[arm].mean() / straggler[BASELINE].mean()
        print(f"  {arm:12} {total:.1f} % of the baseline's; per block {ratio.round(0).astype(int).tolist()}")

    steps = run.steps()
    known = steps[~steps["warmup"] & steps["predicted_cost"].notna()]
    error = (known["predicted_cost"] - known["compute_ms"]).abs() / known["compute_ms"]
    by_arm = error.groupby(known["arm"]).median()
    print(f"  predicted against measured compute: median error {100 * error.median():.1f} %", end="")
    print(f", by arm {(100 * by_arm).round(1).to_dict()}, {len(known)} rank-steps")
    timed = steps[~steps["warmup"] & steps["arm"].isin([BASELINE, AGAIN])]
    twice = timed.pivot(index=["block", "step", "rank"], columns="arm", values="compute_ms")
    print(f"  noise: the same samples differ by {100 * repeat_error(twice):.1f} % between two turns", end="")
    predicted = timed[timed["arm"] == BASELINE].set_index(twice.index.names)["predicted_cost"]
    error = ((predicted - twice.mean(axis=1)).abs() / twice.mean(axis=1)).median()
    print(f"; against the mean of the two the predictions are off by {100 * error:.1f} %")
    unprofiled = {
        arm: imbalance(steps[~steps["warmup"] & (steps["arm"] == arm)]) for arm in (BASELINE, "balance", AGAIN)
    }
    print("  unprofiled steps, by compute times: a rank is ahead of the slowest by", end="")
    print(", ".join(f" {share.mean():.2f} % ({arm})" for arm, share in unprofiled.items()), "of a step;", end="")
    total = 100 * unprofiled["balance"].mean() / unprofiled[BASELINE].mean()
    by_block = 100 * unprofiled["balance"] / unprofiled[BASELINE]
    print(f" balance {total:.1f} % of the baseline's; per block {by_block.round(0).astype(int).tolist()}")
    print(f"    balance {interval(unprofiled['balance'].to_numpy(), '%')}, ", end="")
    print(f"baseline {interval(unprofiled[BASELINE].to_numpy(), '%')}, ", end="")
    floor = 100 * straggler_by_noise(twice) * timed["compute_ms"].mean() / timed["step_ms"].mean()
    print(f"noise alone {floor:.2f} %")
    busy = bubbles.assign(busy=bubbles["compute_ns"] + bubbles["host_ns"])
    busy = busy[busy["arm"].isin([BASELINE, AGAIN])]
    twice = busy.pivot(index=["step", "rank"], columns="arm", values="busy")
    floor = 100 * straggler_by_noise(twice) * busy["busy"].mean() / busy["window_ns"].mean()
    print(f"  profiled steps: the same samples differ by {100 * repeat_error(twice):.1f} %, ", end="")
    print(f"noise alone would leave {floor:.2f} % straggler, were the samples divided perfectly")
    moved = steps[steps["arm"] == "balance"][["moved_bytes", "batch_bytes"]].sum()
    print(f"  {100 * (1 - moved['moved_bytes'] / moved['batch_bytes']):.1f} % of the bytes stayed at home")
    for arm in (BASELINE, "balance"):
        waits = blocked(run, arm, ["data"])
        share = 100 * (waits["blocked_ms"] / waits["window_ms"]).median()
        print(
            f"  {arm:12} waits {waits['blocked_ms'].median():.3f} ms a step for the data lane, {share:.2f} % (medians)"
        )


def imbalance(steps: pd.DataFrame) -> pd.Series:
    """By block: how far ahead of the slowest rank the ranks are by their own compute times, mean in % of a step."""
    compute = steps.pivot(index=["block", "step"], columns="rank", values="compute_ms")
    ahead = compute.rsub(compute.max(axis=1), axis=0).mean(axis=1) / steps.groupby(["block", "step"])["step_ms"].max()
    return 100 * ahead.groupby("block").mean()


def repeat_error(twice: pd.DataFrame) -> float:
    """Median relative difference of compute_ms on identical work: baseline and its copy, same block, step, rank."""
    return float(((twice[AGAIN] - twice[BASELINE]).abs() / twice[BASELINE]).median())


def straggler_by_noise(twice: pd.DataFrame) -> float:
    """Share of its compute that a rank would wait, on average, for others whose equal work took longer by noise.

    The log-ratio of two turns of one rank's samples has twice the variance of one turn's noise, so a draw of it divided
    by √2 is as large as the noise of one turn.
    """
    noise = (np.log(twice[AGAIN] / twice[BASELINE]) / np.sqrt(2)).unstack("rank")
    return float((noise.max(axis=1) - noise.mean(axis=1)).mean())


def interval(blocks: np.ndarray, unit: str) -> str:
    """Mean and 95 % interval over blocks (Student)."""
    margin = student_t.ppf(0.975, len(blocks) - 1) * blocks.std(ddof=1) / np.sqrt(len(blocks))
    return f"{blocks.mean():.2f} ± {margin:.2f} {unit}"


if __name__ == "__main__":
    main()
