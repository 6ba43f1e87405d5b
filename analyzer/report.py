"""report.json: what a run's timed steps and its traces say, arm by arm and against the first arm."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from analyzer import headline
from analyzer.bubbles import Tables
from analyzer.rundir import SCHEMA, RunDirectory
from analyzer.stats import Estimate, Float64, interval, speedup, verdict

_KNOWN_LAYERS = ("balance", "overlap", "smfree")
_TRACE_KEYS = (
    "bubble_pct", "straggler_pct", "exposed_comm_ms", "exposed_copy_ms", "host_ms", "compute_ms", "exposed_total_ms",
    "imbalance",
)  # fmt: skip


def build_report(
    run: RunDirectory, tables: Mapping[str, Tables], blocks_of: Mapping[str, Mapping[int, int]]
) -> dict[str, Any]:
    """Assemble report.json.

    Args:
        run: the run directory; its manifest and steps.parquet are read.
        tables: measured from the traces, by arm; arms without traces are absent.
        blocks_of: by arm, the block of each profiled step, as far as the traces say.

    Returns:
        The keys of the run directory's contract; numbers that do not exist are None.
    """
    manifest, steps = run.manifest, _timed(run.steps())
    arms = run.arms or sorted(tables)
    report: dict[str, Any] = {
        "schema": SCHEMA,
        "headline": "",
        "complete": run.complete,
        "provenance": manifest.get("provenance"),
        "workload": manifest.get("workload"),
        "backend": manifest.get("backend"),
        "world_size": manifest.get("world_size"),
        "blocks": int(steps["block"].nunique()) if len(steps) else 0,
        "steps": manifest.get("steps_per_turn"),
        "arms": {arm: _arm(arm, run.steps(), steps, tables.get(arm)) for arm in arms},
        "compare": {},
    }
    if arms:
        versus = "baseline" if "baseline" in arms else arms[0]
        report["compare"] = {
            arm: _compare(arm, versus, run.steps(), steps, tables, blocks_of) for arm in arms if arm != versus
        }
    report["headline"] = headline.of_run(report, manifest.get("failure"), tables)
    return report


def _timed(steps: pd.DataFrame) -> pd.DataFrame:
    """A row per timed step: arm, block, step, step_ms (slowest rank), samples (of all ranks), moved_bytes."""
    if steps.empty:
        return steps
    timed = steps[~steps["warmup"].astype(bool)]
    sums = {name: (name, "sum") for name in ("samples", "moved_bytes") if name in timed}
    return timed.groupby(["arm", "block", "step"], as_index=False).agg(step_ms=("step_ms", "max"), **sums)


def _arm(name: str, rows: pd.DataFrame, steps: pd.DataFrame, tables: Tables | None) -> dict[str, Any]:
    mine = steps[steps["arm"] == name] if len(steps) else steps
    of_arm = rows[rows["arm"] == name] if len(rows) else rows
    return {
        "layers": _layers(name),
        "step_ms": _step_ms(mine),
        "samples_per_s": _ratio(mine, "samples", 1e3),
        **(dict.fromkeys(_TRACE_KEYS) if tables is None else _from_traces(tables.bubbles, tables.split)),
        "overlap_efficiency": None,
        "collision_rate": _mean(of_arm, "collision_rate"),
        "moved_bytes": _mean(mine, "moved_bytes"),
        "comm_cpu_s": _mean(of_arm, "comm_cpu_s"),
        "loss": [_number(value) for value in _losses(of_arm)],
    }


def _layers(arm: str) -> list[str]:
    if arm == "freescale":
        return list(_KNOWN_LAYERS)
    return [layer for layer in arm.split("+") if layer in _KNOWN_LAYERS]


def _step_ms(steps: pd.DataFrame) -> dict[str, Any]:
    """Median over timed steps; its interval resamples whole blocks."""
    if len(steps) == 0:
        return {"median": None, "ci95": None, "min": None, "n": 0}
    by_block = [block.to_numpy() for _, block in steps.groupby("block")["step_ms"]]
    median = float(np.median(steps["step_ms"]))
    medians = np.array([np.median(block) for block in by_block])

    def pooled_median(chosen: np.ndarray) -> Float64:
        return np.array([np.median(np.concatenate([by_block[i] for i in blocks])) for blocks in chosen])

    bounds = interval(medians, pooled_median, median)
    return {
        "median": median,
        "ci95": None if bounds is None else list(bounds),
        "min": float(steps["step_ms"].min()),
        "n": len(steps),
    }


def _ratio(steps: pd.DataFrame, column: str, scale: float) -> float | None:
    total_ms = float(steps["step_ms"].sum()) if len(steps) else 0.0
    return float(steps[column].sum()) * scale / total_ms if total_ms and column in steps else None


def _mean(frame: pd.DataFrame, column: str) -> float | None:
    return _number(frame[column].mean()) if len(frame) and column in frame else None


def _from_traces(bubbles: pd.DataFrame, split: bool) -> dict[str, Any]:
    """Means over ranks and profiled steps. Without a trustworthy split, what needs one is None."""
    if bubbles.empty:
        return dict.fromkeys(_TRACE_KEYS)
    window = bubbles["window_ns"]
    ms = bubbles.mean(numeric_only=True) / 1e6
    per_step = bubbles.groupby("step")["compute_ns"]
    busiest, average = per_step.max(), per_step.mean()
    imbalance = (busiest[average > 0] / average[average > 0]).mean()
    return {
        "bubble_pct": float(((window - bubbles["compute_ns"]) / window).mean() * 100),
        "straggler_pct": float((bubbles["straggler_ns"] / window).mean() * 100) if split else None,
        "exposed_comm_ms": float(ms["exposed_comm_ns"]) if split else None,
        "exposed_copy_ms": float(ms["exposed_copy_ns"]),
        "host_ms": float(ms["host_ns"]),
        "compute_ms": float(ms["compute_ns"]),
        "exposed_total_ms": float(ms["straggler_ns"] + ms["exposed_comm_ns"]),
        "imbalance": _number(imbalance),
    }


def _losses(rows: pd.DataFrame) -> list[float]:
    """The loss of each step in the order of training; it is the same on all ranks."""
    if "loss" not in rows or rows.empty:
        return []
    return rows.sort_values("rank").drop_duplicates(["block", "step"]).sort_values(["block", "step"])["loss"].tolist()


def _compare(
    arm: str,
    versus: str,
    rows: pd.DataFrame,
    steps: pd.DataFrame,
    tables: Mapping[str, Tables],
    blocks_of: Mapping[str, Mapping[int, int]],
) -> dict[str, Any]:
    ratio = Estimate(None)
    if len(steps):
        medians = steps.groupby(["block", "arm"])["step_ms"].median().unstack("arm")
        if {arm, versus} <= set(medians.columns):
            paired = medians[[versus, arm]].dropna()
            ratio = speedup(paired[versus].to_numpy(), paired[arm].to_numpy())
    parity, gap = _loss_parity(rows, arm, versus)
    both = {name: (tables.get(name), blocks_of.get(name, {})) for name in (versus, arm)}
    return {
        "versus": versus,
        "speedup": ratio.as_json(),
        "bubble_reduction_pct": _reduction(both, arm, versus, _bubble_ns).as_json(),
        "exposed_reduction_pct": _reduction(both, arm, versus, _exposed_ns).as_json(),
        "loss_parity": parity,
        "verdict": verdict(ratio, gap),
    }


def _bubble_ns(bubbles: pd.DataFrame) -> pd.Series[float]:
    return bubbles["window_ns"] - bubbles["compute_ns"]


def _exposed_ns(bubbles: pd.DataFrame) -> pd.Series[float]:
    return bubbles["straggler_ns"] + bubbles["exposed_comm_ns"]


def _reduction(
    both: Mapping[str, tuple[Tables | None, Mapping[int, int]]], arm: str, versus: str, measure: Any
) -> Estimate:
    """How much less of `measure` a profiled step has than `versus`, in percent; blocks give the interval."""
    totals, by_block = {}, {}
    for name, (tables, block_of_step) in both.items():
        if tables is None or tables.bubbles.empty:
            return Estimate(None)
        values = measure(tables.bubbles)
        totals[name] = float(values.mean())
        by_block[name] = values.groupby(tables.bubbles["step"].map(block_of_step)).mean()
    if totals[versus] <= 0:
        return Estimate(None)
    value = 100 * (1 - totals[arm] / totals[versus])
    paired = pd.concat(by_block, axis=1).dropna()
    ratio = speedup(paired[versus].to_numpy(float), paired[arm].to_numpy(float))
    if ratio.ci95 is None:
        return Estimate(value)
    return Estimate(value, (100 * (1 - 1 / ratio.ci95[0]), 100 * (1 - 1 / ratio.ci95[1])))


def _loss_parity(rows: pd.DataFrame, arm: str, versus: str) -> tuple[dict[str, Any], float | None]:
    """(loss_parity of the contract, largest relative gap; infinite if a loss is not finite, None without losses)."""
    nothing = {"max_abs": None, "max_rel": None, "bit_exact": None}
    if "loss" not in rows or rows.empty:
        return nothing, None
    losses = rows.pivot_table(index=["block", "step", "rank"], columns="arm", values="loss", dropna=False)
    if not {arm, versus} <= set(losses.columns):
        return nothing, None
    present = rows.groupby(["block", "step", "rank"])["arm"].agg(set)
    paired = losses[[versus, arm]][present.map(lambda names: {arm, versus} <= names).reindex(losses.index)]
    a, b = paired[versus].to_numpy(float), paired[arm].to_numpy(float)
    if len(a) == 0:
        return nothing, None
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        return {**nothing, "bit_exact": False}, math.inf
    gap = np.abs(b - a)
    relative = float((gap / np.maximum(np.abs(a), np.finfo(float).tiny)).max())
    return {"max_abs": float(gap.max()), "max_rel": relative, "bit_exact": bool((a == b).all())}, relative


def _number(value: float) -> float | None:
    return float(value) if value is not None and math.isfinite(value) else None
