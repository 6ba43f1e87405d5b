"""How much embedding communication each schedule leaves exposed, against the collision rate, over an emulated link.

    python benchmarks/overlap.py                      # 1 Gb/s, 50 µs, rates 0 … 1
    python benchmarks/overlap.py --link-gbps 0        # no emulation: what this machine does
    python benchmarks/overlap.py --rates 0.076

Each schedule runs over gloo, whose threads take the cores of the ranks that train, and over shared memory (`smfree`),
which has none. Prints, per rate and arm, the median over ranks and steps of ms per step
- in which nothing but a collective of the embedding lanes (ids, bulk, urgent) is active after its last rank arrived:
  the partition's exposed communication, with the calls themselves and pauses between two operations in it
  (`exposed_ms`; ±: half the width of a 95 % bootstrap interval over blocks; `mean_ms`: the mean);
- in which the training thread is blocked in waits for these lanes, stragglers included;
and how large a share of the distinct rows collide (`distinct`), and of the rows that travel (`travelling`: a popular
row is asked for by both ranks), what is held between two steps, and how often dense gradients were still under way
when the urgent lane began. Then how well a line fits, and whether blocking is ever better.
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
AGAINST = {"overlap": ("baseline", "sdd"), "overlap+smfree": ("smfree",)}
ARMS = ("baseline", "sdd", "overlap", "smfree", "overlap+smfree")
RESAMPLES = 2000


@click.command(help=__doc__)
@click.option("--rates", default="0,0.076,0.25,0.5,0.75,1", show_default=True)
@click.option("--link-gbps", default=1.0, show_default=True)
@click.option("--link-latency-us", default=50.0, show_default=True)
@click.option("--blocks", default=4, show_default=True)
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
    with pd.option_context("display.width", 200):
        print(table.round(2).to_string(index=False))
    for measure in ("exposed_ms", "mean_ms", "blocked_ms"):
        ms = table.pivot(index="rate", columns="arm", values=measure)
        for arm, others in AGAINST.items():
            for other in others:
                print(f"{measure}, {arm}, % of {other}:", (100 * ms[arm] / ms[other]).round(1).to_dict())
    if table["rate"].nunique() > 2:
        for arm, others in AGAINST.items():
            fit(table, arm, others[0])


def fit(table: pd.DataFrame, arm: str, blocking: str) -> None:
    """Print how straight the line of exposed time over collisions is, and whether blocking is ever better."""
    mine = table[table["arm"] == arm].set_index("rate")
    for share in ("distinct", "travelling"):
        slope, intercept = np.polyfit(mine[share], mine["exposed_ms"], 1)
        residual = mine["exposed_ms"] - (slope * mine[share] + intercept)
        r2 = 1 - (residual**2).sum() / ((mine["exposed_ms"] - mine["exposed_ms"].mean()) ** 2).sum()
        print(f"{arm}: {intercept:.2f} ms + {slope:.2f} ms x share of {share} rows, R² {r2:.3f}")
    others = table[table["arm"] == blocking].set_index("rate")["exposed_ms"]
    print(f"{arm} never above {blocking}:", bool((mine["exposed_ms"] <= others).all()))


def exposed(run: RunDirectory, rate: float) -> list[dict[str, object]]:
    """A row per arm."""
    collectives, bubbles, steps = run.collectives(), run.bubbles(), run.steps()
    per_block = run.manifest["steps_in_profile"]
    rows = []
    for arm in ARMS:
        mine = collectives[(collectives["arm"] == arm) & collectives["group"].isin(EMBEDDING_LANES)]
        every = bubbles.loc[bubbles["arm"] == arm, ["step", "rank"]]
        sums_ns = mine.groupby(["step", "rank"])["exposed_ns"].sum()
        ms = (sums_ns.reindex(pd.MultiIndex.from_frame(every), fill_value=0) / 1e6).rename("ms").reset_index()
        of_blocks = [of_block["ms"].to_numpy() for _, of_block in ms.groupby(ms["step"] // per_block)]
        timed = steps[(steps["arm"] == arm) & ~steps["warmup"]]
        rows.append(
            {
                "rate": rate,
                "distinct": timed["collision_rate"].mean(),
                "travelling": travelling(collectives),
                "arm": arm,
                "exposed_ms": ms["ms"].median(),
                "±": half_width(of_blocks),
                "mean_ms": ms["ms"].mean(),
                "blocked_ms": blocked(run, arm, EMBEDDING_LANES)["blocked_ms"].median(),
                "step_ms": timed["step_ms"].median(),
                "batch_kb": timed["row_bytes"].mean() / 1e3,
                "in_flight_kb": timed["in_flight_bytes"].mean() / 1e3,
                "dense_meets_urgent": dense_meets_urgent(collectives[collectives["arm"] == arm]),
            }
        )
    return rows


def half_width(of_blocks: list[np.ndarray]) -> float:
    """Of the 95 % interval of the median, blocks drawn with replacement."""
    rng = np.random.default_rng(0)
    drawn = rng.integers(0, len(of_blocks), (RESAMPLES, len(of_blocks)))
    medians = [np.median(np.concatenate([of_blocks[block] for block in blocks])) for blocks in drawn]
    low, high = np.quantile(medians, [0.025, 0.975])
    return float(high - low) / 2


def travelling(collectives: pd.DataFrame) -> float:
    """Share of the bytes of rows and gradients, all of which are bulk when they block, that take the urgent lane."""
    nbytes = collectives.groupby(["arm", "group"])["bytes"].mean()  # of two exchanges a step
    return float(nbytes.get(("overlap", "urgent"), 0) / nbytes["baseline", "bulk"])


def dense_meets_urgent(collectives: pd.DataFrame) -> float:
    """Share of the urgent lane's exchanges that began while dense gradients were being reduced; NaN without any."""
    dense, urgent = (collectives[collectives["group"] == group] for group in ("dense", "urgent"))
    met = []
    for rank, of_rank in urgent.groupby("rank"):
        reduced = dense[dense["rank"] == rank]
        begun = of_rank["arrival_ns"].to_numpy()[:, None]
        from_ns, to_ns = reduced["arrival_ns"].to_numpy(), reduced["rank_end_ns"].to_numpy()
        met.append(((from_ns <= begun) & (begun < to_ns)).any(axis=1))
    return float(np.concatenate(met).mean()) if met else float("nan")


if __name__ == "__main__":
    main()
