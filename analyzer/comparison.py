"""Two run directories against each other: first whether that makes sense, then by how much each arm's speed differs.

Blocks of different launches are no pairs, so this is Welch's comparison of two sets of block values. A launch is one
draw of whatever differs between launches; no interval here covers that, and the result says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analyzer.ablation import block_medians, noise_floor, reference_of
from analyzer.errors import AnalyzerError
from analyzer.parity import gap
from analyzer.report import timed_steps
from analyzer.rundir import RunDirectory, open_run
from analyzer.stats import LOSS_TOLERANCE, Estimate, Float64, exp, gain, holm, verdict, welch

_ONE_LAUNCH_EACH = (
    "each run is one launch: intervals cover what varies between the blocks of a launch, not between launches; "
    "repeat both runs to see that"
)
_SAME = ("world_size", "backend", "device", "provenance", "policy", "link", "warmup_steps", "steps_per_turn")
_SAME_MACHINE = ("cpu", "cores", "gpus")
_WORTH_A_NOTE = ("seed", "git_commit", "versions")


@dataclass(frozen=True)
class Comparison:
    """Run `b` against run `a`; `comparable` is False when something differs that decides how long a step takes."""

    a: RunDirectory
    b: RunDirectory
    differences: list[dict[str, Any]]
    notes: list[str]
    arms: dict[str, dict[str, Any]]
    headline: str

    @property
    def comparable(self) -> bool:
        return not self.differences

    def as_json(self) -> dict[str, Any]:
        """The contract of `compare --json`."""
        return {
            "headline": self.headline,
            "comparable": self.comparable,
            "differences": self.differences,
            "a": _named(self.a),
            "b": _named(self.b),
            "arms": self.arms,
            "notes": self.notes,
        }


def compare(a: Path | str, b: Path | str) -> Comparison:
    """Compare the arms that two run directories have in common.

    Raises:
        AnalyzerError: not run directories, no timed steps, or no arm in common.
    """
    runs = open_run(a), open_run(b)
    steps = [run.steps() for run in runs]
    for run, table in zip(runs, steps, strict=True):
        if table.empty:
            raise AnalyzerError(f"{run.path}: no timed step to compare; it has traces only, or died before its first")
    common = [arm for arm in runs[1].arms if arm in runs[0].arms]
    if not common:
        have = "; ".join(f"{run.path} has {', '.join(run.arms)}" for run in runs)
        raise AnalyzerError(f"no arm in common: {have}")
    differences = _differences(runs[0].manifest, runs[1].manifest)
    notes = [_ONE_LAUNCH_EACH, *_notes(*runs)]
    same_batches = not differences and runs[0].manifest.get("seed") == runs[1].manifest.get("seed")
    arms = _arms(runs, steps, common, same_batches)
    return Comparison(*runs, differences, notes, arms, _headline(arms, differences))


def _arms(
    runs: tuple[RunDirectory, RunDirectory], steps: list[pd.DataFrame], common: list[str], same_batches: bool
) -> dict[str, dict[str, Any]]:
    medians = [block_medians(timed_steps(table)) for table in steps]
    floor = max(noise_floor(run.arms, of_run)[1] or 0.0 for run, of_run in zip(runs, medians, strict=True))
    logs = [of_run.transform(np.log) for of_run in medians]
    reference = reference_of(common)
    ratios = {arm: exp(welch(*(_blocks(of_run, arm) for of_run in logs))) for arm in common}
    corrected = holm([ratios[arm].p for arm in common])
    result = {}
    for arm, p in zip(common, corrected, strict=True):
        loss = _loss(steps, arm) if same_batches else gap(np.empty(0), np.empty(0))
        off = np.inf if loss["max_rel"] is None else loss["max_rel"]
        wrong = loss["bit_exact"] is False and off > LOSS_TOLERANCE
        result[arm] = {
            "a_ms": _median(steps[0], arm),
            "b_ms": _median(steps[1], arm),
            "speedup": ratios[arm].as_json(),
            "relative": _relative(logs, arm, reference).as_json(),
            "p_holm": p,
            "loss": loss,
            "verdict": verdict(gain(ratios[arm]), wrong, p, floor),
        }
    return result


def _median(steps: pd.DataFrame, arm: str) -> float | None:
    timed = timed_steps(steps)
    median = float(timed.loc[timed["arm"] == arm, "step_ms"].median())
    return median if np.isfinite(median) else None


def _blocks(logs: pd.DataFrame, arm: str) -> Float64:
    return logs[arm].dropna().to_numpy(np.float64) if arm in logs else np.empty(0)


def _relative(logs: list[pd.DataFrame], arm: str, reference: str) -> Estimate:
    """The arm's speed-up over its own run's reference, b against a: what the machine did to both arms cancels."""
    if arm == reference or not all({arm, reference} <= set(of_run) for of_run in logs):
        return Estimate(None)
    return exp(welch(*((of_run[arm] - of_run[reference]).dropna().to_numpy(np.float64) for of_run in logs)))


def _loss(steps: list[pd.DataFrame], arm: str) -> dict[str, Any]:
    """Losses of the batches that both runs trained on."""
    first_rank = [table[(table["arm"] == arm) & (table["rank"] == table["rank"].min())] for table in steps]
    if not all("loss" in table for table in first_rank):
        return gap(np.empty(0), np.empty(0))
    both = first_rank[0].merge(first_rank[1], on=["block", "step"], suffixes=("_a", "_b"))
    return gap(both["loss_a"].to_numpy(float), both["loss_b"].to_numpy(float))


def _differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Fields of the manifests that must be the same, and are not."""
    pairs = [(name, a.get(name), b.get(name)) for name in _SAME]
    on_a, on_b = a.get("machine") or {}, b.get("machine") or {}
    pairs += [(f"machine.{name}", on_a.get(name), on_b.get(name)) for name in _SAME_MACHINE]
    of_a, of_b = _settings(a.get("workload")), _settings(b.get("workload"))
    pairs += [(f"workload.{name}", of_a.get(name), of_b.get(name)) for name in sorted(set(of_a) | set(of_b))]
    return [{"field": name, "a": in_a, "b": in_b} for name, in_a, in_b in pairs if in_a != in_b]


def _settings(workload: Any) -> Mapping[str, Any]:
    """Of a workload; a run that was not made by `run` may have its name only."""
    return workload if isinstance(workload, Mapping) else {"preset": workload}


def _notes(a: RunDirectory, b: RunDirectory) -> list[str]:
    notes = [
        f"{name} differs: {a.manifest.get(name)} and {b.manifest.get(name)}"
        for name in _WORTH_A_NOTE
        if a.manifest.get(name) != b.manifest.get(name)
    ]
    if a.manifest.get("seed") != b.manifest.get("seed"):
        notes.append("the runs trained on different batches, so losses are not compared")
    notes += [f"{run.path.name} is incomplete" for run in (a, b) if not run.complete]
    return notes


def _headline(arms: Mapping[str, Mapping[str, Any]], differences: list[dict[str, Any]]) -> str:
    arm, entry = list(arms.items())[-1]
    if differences:
        fields = ", ".join(difference["field"] for difference in differences)
        return f"Not comparable: {fields} differ{'s' if len(differences) == 1 else ''}."
    value, interval = entry["speedup"]["value"], entry["speedup"]["ci95"]
    if entry["verdict"] == "wrong":
        return f"{arm} computes something else in B: its losses are not those of A on the same batches."
    if value is None:
        return f"{arm} has no timed block in one of the runs."
    within = f"95 % CI {interval[0]:.2f}–{interval[1]:.2f}" if interval else "too few blocks for an interval"
    return f"{arm} runs {value:.2f}× as fast in B as in A ({within}): {entry['verdict']}."


def _named(run: RunDirectory) -> dict[str, Any]:
    return {"path": str(run.path), "created_utc": run.manifest.get("created_utc"), "blocks": run.manifest.get("blocks")}
