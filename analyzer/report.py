"""report.json: what a run's timed steps and its traces say, arm by arm and against the first arm."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from analyzer import headline
from analyzer.ablation import Measured, ablate, block_medians, layers_of, noise_floor, reference_of
from analyzer.bubbles import Tables, overlap_efficiency
from analyzer.parity import faults, loss_parity
from analyzer.power import blocks_needed
from analyzer.rundir import SCHEMA, RunDirectory
from analyzer.stats import Estimate, estimate, gain, holm, speedup, verdict

_TRACE_KEYS = (
    "bubble_pct", "straggler_pct", "exposed_comm_ms", "exposed_copy_ms", "host_ms", "compute_ms", "exposed_total_ms",
    "imbalance",
)  # fmt: skip


def build_report(
    run: RunDirectory, found: headline.Found, blocks_of: Mapping[str, Mapping[int, int]]
) -> dict[str, Any]:
    """Assemble report.json.

    Args:
        run: the run directory; its manifest and steps.parquet are read.
        found: measured from the traces, by arm; arms without traces are absent.
        blocks_of: by arm, the block of each profiled step, as far as the traces say.

    Returns:
        The keys of the run directory's contract; numbers that do not exist are None.
    """
    manifest, rows = run.manifest, run.steps()
    tables = {arm: of_arm for arm, (of_arm, _) in found.items()}
    steps = timed_steps(rows)
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
        "arms": {arm: _arm(arm, rows, steps, tables.get(arm)) for arm in arms},
        "compare": {},
        "warnings": [],
    }
    if arms:
        wrong, report["warnings"] = faults(rows, arms, manifest.get("device"))
        report["compare"] = _compare_all(arms, wrong, rows, steps, tables, blocks_of)
        cannot_act = manifest.get("cannot_act", {})
        report |= ablate(Measured(arms, steps, rows, run.samples(), wrong, cannot_act, tables, blocks_of))
    report["headline"] = headline.of_run(report, manifest.get("failure"), found)
    return report


def timed_steps(steps: pd.DataFrame) -> pd.DataFrame:
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
        "layers": layers_of(name),
        "step_ms": _step_ms(mine),
        "samples_per_s": _ratio(mine, "samples", 1e3),
        **(dict.fromkeys(_TRACE_KEYS) if tables is None else _from_traces(tables.bubbles, tables.split)),
        "overlap_efficiency": None if tables is None else overlap_efficiency(tables.bubbles),
        "collision_rate": _mean(of_arm, "collision_rate"),
        "moved_bytes": _mean(mine, "moved_bytes"),
        "comm_cpu_s": _mean(of_arm, "comm_cpu_s"),
        "loss": [_number(value) for value in _losses(of_arm)],
    }


def _step_ms(steps: pd.DataFrame) -> dict[str, Any]:
    """Median over timed steps; its interval is that of the blocks' medians, on a log scale: times are positive."""
    if len(steps) == 0:
        return {"median": None, "ci95": None, "min": None, "n": 0}
    medians = steps.groupby("block")["step_ms"].median().to_numpy(float)
    median = float(np.median(steps["step_ms"]))
    log_ci95 = estimate(math.log(median), np.log(medians)).ci95
    return {
        "median": median,
        "ci95": None if log_ci95 is None else [math.exp(bound) for bound in log_ci95],
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


def _compare_all(
    arms: list[str],
    wrong: Mapping[str, str],
    rows: pd.DataFrame,
    steps: pd.DataFrame,
    tables: Mapping[str, Tables],
    blocks_of: Mapping[str, Mapping[int, int]],
) -> dict[str, Any]:
    """Every arm against the reference, judged together."""
    versus = reference_of(arms)
    others = [arm for arm in arms if arm != versus]
    medians = block_medians(steps) if len(steps) else pd.DataFrame()
    means = steps.groupby(["block", "arm"])["step_ms"].mean().unstack("arm") if len(steps) else pd.DataFrame()
    floor = noise_floor(arms, medians)[1] or 0.0
    ratios = {arm: _speedup(medians, arm, versus) for arm in others}
    corrected = dict(zip(others, holm([ratios[arm].p for arm in others]), strict=True))
    compared = {}
    for arm in others:
        both = {name: (tables.get(name), blocks_of.get(name, {})) for name in (versus, arm)}
        said = verdict(gain(ratios[arm]), arm in wrong, corrected[arm], floor)
        blocks = len(medians[[versus, arm]].dropna()) if {arm, versus} <= set(medians.columns) else 0
        open_ = said == "inconclusive"
        compared[arm] = {
            "versus": versus,
            "speedup": ratios[arm].as_json(),
            "throughput": _speedup(means, arm, versus).as_json(),
            "p_holm": corrected[arm],
            "bubble_reduction_pct": _reduction(both, arm, versus, _bubble_ns).as_json(),
            "exposed_reduction_pct": _reduction(both, arm, versus, _exposed_ns).as_json(),
            "loss_parity": loss_parity(rows, arm, versus),
            "verdict": said,
            "blocks_needed": blocks_needed(gain(ratios[arm]), blocks, len(others), floor) if open_ else None,
        }
    return compared


def _speedup(of_blocks: pd.DataFrame, arm: str, versus: str) -> Estimate:
    if not {arm, versus} <= set(of_blocks.columns):
        return Estimate(None)
    paired = of_blocks[[versus, arm]].dropna()
    return speedup(paired[versus].to_numpy(float), paired[arm].to_numpy(float))


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


def _number(value: float) -> float | None:
    return float(value) if value is not None and math.isfinite(value) else None
