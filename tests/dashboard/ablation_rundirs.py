"""Writes run directories of ablations with planted effects. The report is the analyzer's, from tables made up here:
what is tested is that pages and reports show its numbers.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ablation_runs as planted
import numpy as np
import pandas as pd

from analyzer import rundir
from analyzer.report import build_report

DIVIDENDS = {("balance",): 32.0, ("overlap",): 24.0, ("smfree",): -3.0, ("balance", "overlap"): -8.0,
             ("overlap", "smfree"): 9.0}  # fmt: skip
# ms of a profiled step that each layer takes off a class
TAKES = {
    "balance": {"straggler_ns": 30.0, "exposed_comm_ns": -4.0},
    "overlap": {"exposed_comm_ns": 22.0, "host_ns": 3.0},
    "smfree": {"compute_ns": 5.0, "exposed_copy_ns": -6.0},
}
BEFORE = {"compute_ns": 160.0, "straggler_ns": 42.0, "exposed_comm_ns": 40.0, "exposed_copy_ns": 2.0, "host_ns": 12.0}


class MeasuredTables:
    """What a report reads of an arm's traces."""

    def __init__(self, bubbles: pd.DataFrame, split: bool) -> None:
        self.bubbles, self.split = bubbles, split


def write_ablation(
    root: Path,
    name: str = "ablation",
    *,
    layers: tuple[str, ...] = ("balance", "overlap", "smfree"),
    blocks: int = 12,
    again: bool = True,
    wrong: str | None = None,
    baseline: str = "baseline",
    split: bool = True,
    profiled: bool = True,
    seed: int = 0,
    **manifest: Any,
) -> Path:
    """One run directory with every combination of `layers`.

    Args:
        again: with an A/A arm.
        baseline: `baseline` or `sdd`, what the layers are added to.
        wrong: an arm whose losses are another's.
        split: False for clocks that do not tell waiting from transfer.
    """
    path = root / name
    rng = np.random.default_rng(seed)
    times = planted.planted_ms(DIVIDENDS)
    arms = ["baseline", *(["baseline-aa"] if again else []), *map(planted.arm_name, planted.arms_of(layers)[1:])]
    logs = planted.log_steps(rng, 1, blocks, np.array([times[arm] for arm in arms]))
    steps = planted.steps_table(logs[0], arms)
    on_top = {"baseline": baseline, "baseline-aa": f"{baseline}-aa"}
    if baseline == "sdd":  # overlap always prefetches, the others do so by name
        prefetching = {"overlap", "freescale", "baseline", "baseline-aa"}
        on_top |= {arm: f"sdd+{arm}" for arm in arms if not prefetching & set(arm.split("+"))}
    steps["arm"], arms = steps["arm"].replace(on_top), [on_top.get(arm, arm) for arm in arms]
    steps = steps.assign(compute_ms=0.7 * steps["step_ms"], wait_ms=0.3 * steps["step_ms"])
    if wrong is not None:
        steps.loc[steps["arm"] == wrong, "loss"] *= 1.01
    content = {
        "schema": 1, "provenance": "measured", "complete": True, "created_utc": "2026-03-08T09:00:00+00:00",
        "command": ["freescale-bench", "ablate", "hstu-small"], "seed": seed, "workload": {"preset": "hstu-small"},
        "world_size": 2, "backend": "gloo", "device": "cpu", "arms": arms, "blocks": blocks, "steps_per_turn": 6,
        "warmup_steps": 1, "profiled_steps": 2, "warnings": [], "git_commit": "0123abc",
        "machine": {"cpu": "Example CPU", "cores": 2, "host": "bench-01", "gpus": []},
        "versions": {"python": "3.11.7"}, **manifest,
    }  # fmt: skip
    rundir.write_json(path / rundir.MANIFEST, content)
    rundir.write_parquet(path / rundir.STEPS, steps)
    found: dict[str, Any] = {}
    if profiled:
        frames = {arm: _bubbles(rng, arm, blocks) for arm in arms}
        found = {arm: (MeasuredTables(frame, split), None) for arm, frame in frames.items()}
        rundir.write_parquet(path / rundir.BUBBLES, pd.concat([f.assign(arm=arm) for arm, f in frames.items()]))
    block_of = {step: step // 2 for step in range(2 * blocks)}
    report = build_report(rundir.open_run(path), found, dict.fromkeys(arms, block_of))
    rundir.write_json(path / rundir.REPORT, report)
    return path


def _bubbles(rng: np.random.Generator, arm: str, blocks: int) -> pd.DataFrame:
    """Two profiled steps a block on two ranks."""
    layers = set(TAKES) if arm == "freescale" else set(arm.split("+")) & set(TAKES)
    rows = []
    for step in range(2 * blocks):
        for rank in range(2):
            values = {
                name: int(
                    1e6 * max(0.0, ms - sum(TAKES[layer].get(name, 0.0) for layer in layers) + rng.normal(0, 1.5))
                )
                for name, ms in BEFORE.items()
            }
            window = sum(values.values())
            rows.append(
                {"step": step, "rank": rank, "start_ns": 400_000_000 * step, "window_ns": window, **values,
                 "overlapped_comm_ns": 0}
            )  # fmt: skip
    return pd.DataFrame(rows)
