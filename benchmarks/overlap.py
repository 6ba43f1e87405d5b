"""How much embedding communication each schedule leaves exposed, against the collision rate, over an emulated link.

    python benchmarks/overlap.py                      # 1 Gb/s, 50 µs, rates 0 … 1
    python benchmarks/overlap.py --link-gbps 0        # no emulation: what this machine does
    python benchmarks/overlap.py --rates 0.12

Prints, per rate and arm, ms per step and rank
- in which nothing but a collective of the embedding lanes (ids, bulk, urgent) is active after its last rank arrived:
  the partition's exposed communication, with the calls themselves and pauses between two operations in it;
- in which the training thread is blocked in waits for these lanes, stragglers included;
then how well a line fits the prioritized schedule's exposed time, and what is held between two steps (rows of the batch
ahead and deferred gradients) beside one batch of rows.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import click
import numpy as np
import pandas as pd
from waits import blocked

from analyzer.rundir import RunDirectory, list_runs

EMBEDDING_LANES = ("ids", "bulk", "urgent")
ARMS = ("baseline", "sdd", "overlap")


@click.command(help=__doc__)
@click.option("--rates", default="0,0.12,0.25,0.5,0.75,1", show_default=True)
@click.option("--link-gbps", default=1.0, show_default=True)
@click.option("--link-latency-us", default=50.0, show_default=True)
@click.option("--blocks", default=6, show_default=True)
@click.option("--preset", default="hstu-small", show_default=True)
def main(rates: str, link_gbps: float, link_latency_us: float, blocks: int, preset: str) -> None:
    rows = []
    for rate in map(float, rates.split(",")):
        with tempfile.TemporaryDirectory() as out:
            link = ["--link-gbps", str(link_gbps), "--link-latency-us", str(link_latency_us)] if link_gbps else []
            command = [sys.executable, "-m", "freescale.bench.cli", "run", preset, "--out", out, "--json"]
            command += [
                "--arms",
                ",".join(ARMS),
                "--blocks",
                str(blocks),
                "--steps",
                "2",
                "--collision-rate",
                str(rate),
            ]
            subprocess.run([*command, *link], check=True, stdout=subprocess.DEVNULL, timeout=900)
            (run,) = list_runs(Path(out))
            rows += exposed(run, rate)
    table = pd.DataFrame(rows)
    print(table.round(2).to_string(index=False))
    ms = table.pivot(index="rate", columns="arm", values="exposed_ms")
    print("\noverlap, % of baseline:", (100 * ms["overlap"] / ms["baseline"]).round(1).to_dict())
    print("overlap, % of sdd:     ", (100 * ms["overlap"] / ms["sdd"]).round(1).to_dict())
    waits = table.pivot(index="rate", columns="arm", values="blocked_ms")
    print("blocked, % of baseline:", (100 * waits["overlap"] / waits["baseline"]).round(1).to_dict())
    print("blocked, % of sdd:     ", (100 * waits["overlap"] / waits["sdd"]).round(1).to_dict())
    if len(ms) > 2:
        measured = table[table["arm"] == "overlap"].set_index("rate")["measured_rate"]
        slope, intercept = np.polyfit(measured, ms["overlap"], 1)
        residual = ms["overlap"] - (slope * measured + intercept)
        r2 = 1 - (residual**2).sum() / ((ms["overlap"] - ms["overlap"].mean()) ** 2).sum()
        print(f"overlap grows by {slope:.2f} ms from no collisions to nothing else, R² {r2:.3f}")
        print("never above baseline:", bool((ms["overlap"] <= ms["baseline"]).all()))


def exposed(run: RunDirectory, rate: float) -> list[dict[str, object]]:
    """A row per arm; the interval is over blocks (mean ± 1.96 standard errors)."""
    collectives, bubbles, steps = run.collectives(), run.bubbles(), run.steps()
    rank_steps = bubbles.groupby("arm").size()
    per_block = run.manifest["warmup_steps"] + run.manifest["profiled_steps"]
    rows = []
    for arm in ARMS:
        mine = collectives[(collectives["arm"] == arm) & collectives["group"].isin(EMBEDDING_LANES)]
        per_step = mine.groupby(mine["step"] // per_block)["exposed_ns"].sum() / 1e6
        blocks = run.manifest["blocks"]
        per_step = per_step.reindex(range(blocks), fill_value=0.0) / (rank_steps[arm] / blocks)
        rows.append(
            {
                "rate": rate,
                "measured_rate": steps.loc[steps["arm"] == arm, "collision_rate"].mean(),
                "arm": arm,
                "exposed_ms": per_step.mean(),
                "±": 1.96 * per_step.std() / np.sqrt(blocks),
                "blocked_ms": blocked(run, arm, EMBEDDING_LANES)["blocked_ms"].mean(),
                "waiting_ms": mine["straggler_ns"].sum() / 1e6 / rank_steps[arm],
                "step_ms": steps.loc[(steps["arm"] == arm) & ~steps["warmup"], "step_ms"].median(),
                "batch_kb": steps.loc[steps["arm"] == arm, "row_bytes"].mean() / 1e3,
                "in_flight_kb": steps.loc[(steps["arm"] == arm) & ~steps["warmup"], "in_flight_bytes"].mean() / 1e3,
            }
        )
    return rows


if __name__ == "__main__":
    main()
