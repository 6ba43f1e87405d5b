"""The ablation part of report.json: attribution, interactions, noise floor, and what they rest on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from analyzer.ablation import attribution, contrasts
from analyzer.ablation.classes import ClassTimes, class_times, in_all
from analyzer.ablation.contrasts import subsets
from analyzer.ablation.cube import Cube, aa_arm, find_cube, layers_of, reference_of
from analyzer.ablation.noise import find_causes
from analyzer.bubbles import Tables
from analyzer.stats import LEVEL, MIN_EFFECT, NEUTRAL_BAND, Estimate, estimate


@dataclass(frozen=True)
class Measured:
    """What a run measured, as far as the ablation looks at it.

    Attributes:
        arms: names, as the manifest has them.
        timed: a row per timed step, columns arm, block, step, step_ms.
        steps: steps.parquet.
        samples: samples.parquet, empty when the run has none.
        wrong: arms that compute something else -> how.
        cannot_act: layers that the run could not switch -> why.
        tables: measured from the traces, by arm.
        blocks_of: by arm, the block of each profiled step.
    """

    arms: list[str]
    timed: pd.DataFrame
    steps: pd.DataFrame
    samples: pd.DataFrame
    wrong: Mapping[str, str] = field(default_factory=dict)
    cannot_act: Mapping[str, str] = field(default_factory=dict)
    tables: Mapping[str, Tables] = field(default_factory=dict)
    blocks_of: Mapping[str, Mapping[int, int]] = field(default_factory=dict)


def ablate(run: Measured) -> dict[str, Any]:
    """The keys `attribution`, `interactions`, `interaction_estimates`, `noise_floor_ms` and `ablation`.

    Empty, or None, where the arms do not differ in at least two layers. What is missing or wrong is left out and named.
    """
    result: dict[str, Any] = {
        "attribution": {},
        "interactions": {},
        "interaction_estimates": {},
        "noise_floor_ms": None,
        "ablation": None,
    }
    switched = {layer for arm in run.arms for layer in layers_of(arm)} | set(run.cannot_act)
    if len(switched) < 2 or run.timed.empty:
        return result
    cannot_act = {**_idle(run), **run.cannot_act}
    cube, left_out = find_cube(run.arms, run.wrong, cannot_act)
    result["attribution"] = {out.layer: attribution.not_attributed(out) for out in left_out}
    medians = block_medians(run.timed)
    if cube is None or not set(cube.arms) <= set(medians.columns) or medians[list(cube.arms)].dropna().empty:
        return result
    reference_ms = float(run.timed.loc[run.timed["arm"] == cube.arms[0], "step_ms"].median())
    saved = attribution.Saved.of(cube, medians, reference_ms)
    difference, floor = noise_floor(run.arms, medians)
    times = class_times(cube, run.tables, run.blocks_of)
    result["attribution"] |= attribution.attribute(cube, saved, floor or 0.0, times)
    result["interactions"], result["interaction_estimates"] = attribution.interactions(cube, saved, floor or 0.0)
    result["noise_floor_ms"] = None if floor is None else floor * reference_ms
    too_noisy = (floor or 0.0) > MIN_EFFECT or any(
        entry["verdict"] == "inconclusive" for entry in result["attribution"].values()
    )
    result["ablation"] = {
        **_sizes(cube, saved),
        "aa": _aa(run.arms, difference, floor, reference_ms),
        "blocks": _blocks(cube, run.arms, medians),
        "classes": in_all(times, cube.layers, _classes_again(cube, run)),
        "profiled_blocks": times.blocks if times else 0,
        "left_out": [{"layer": out.layer, "verdict": out.verdict, "reason": out.reason} for out in left_out],
        "noise": _noise(run, saved.blocks, floor, too_noisy),
        "method": {
            "interval": "student-t over blocks",
            "level": LEVEL,
            "correction": "holm",
            "min_effect_pct": 100 * MIN_EFFECT,
            "neutral_band_pct": 100 * NEUTRAL_BAND,
        },
    }
    return result


def block_medians(timed: pd.DataFrame) -> pd.DataFrame:
    """ms, a row per block and a column per arm: the median of the arm's timed steps in the block."""
    return timed.groupby(["block", "arm"])["step_ms"].median().unstack("arm")


def noise_floor(arms: list[str], medians: pd.DataFrame) -> tuple[Estimate, float | None]:
    """(what the A/A arm seems to gain as a log-ratio, relative noise floor); the floor is None without an A/A arm.

    The floor is the largest difference that its spread over blocks makes plausible, or the difference itself.
    """
    again = aa_arm(arms)
    if again is None or not {again, reference_of(arms)} <= set(medians.columns):
        return Estimate(None), None
    pairs = medians[[reference_of(arms), again]].dropna()
    of_blocks = np.log(pairs.iloc[:, 0].to_numpy(float)) - np.log(pairs.iloc[:, 1].to_numpy(float))
    if len(of_blocks) == 0:
        return Estimate(None), None
    difference = estimate(float(of_blocks.mean()), of_blocks)
    if difference.ci95 is None or difference.value is None:
        return difference, None
    margin = (difference.ci95[1] - difference.ci95[0]) / 2
    return difference, float(np.expm1(max(margin, abs(difference.value))))


def _idle(run: Measured) -> dict[str, str]:
    """Layers that were on and did nothing."""
    balanced = [arm for arm in run.arms if "balance" in layers_of(arm)]
    rows = run.steps[run.steps["arm"].isin(balanced)] if "moved_bytes" in run.steps else run.steps.iloc[:0]
    if rows.empty or rows["moved_bytes"].any():
        return {}
    ranks = rows["rank"].nunique()
    return {"balance": "one rank has nobody to share with" if ranks == 1 else "it never moved a sample"}


def _sizes(cube: Cube, saved: attribution.Saved) -> dict[str, Any]:
    total = saved.contrast(contrasts.total(cube.layers))
    corners = []
    for index, (arm, subset) in enumerate(zip(cube.arms, subsets(cube.layers), strict=True)):
        weights = np.zeros(len(cube.arms))
        weights[index] = 1.0
        saves = saved.contrast(weights)
        corners.append(
            {
                "arm": arm,
                "layers": [layer for layer in cube.layers if layer in subset],
                "step_ms": saved.reference_ms - float(saves.value or 0.0),
                "saved_ms": saves.as_json(),
                "speedup": saved.speedup(index).as_json(),
            }
        )
    return {
        "reference": cube.arms[0],
        "full": cube.arms[-1],
        "layers": list(cube.layers),
        "reference_ms": saved.reference_ms,
        "full_ms": saved.reference_ms - float(total.value or 0.0),
        "total_ms": total.as_json(),
        "cube": corners,
    }


def _aa(arms: list[str], difference: Estimate, floor: float | None, reference_ms: float) -> dict[str, Any] | None:
    again = aa_arm(arms)
    if again is None or difference.value is None:
        return None
    low_high = difference.ci95
    interval = None if low_high is None else [-float(np.expm1(-end)) * reference_ms for end in low_high]
    return {
        "arm": again,
        "saved_ms": {"value": -float(np.expm1(-difference.value)) * reference_ms, "ci95": interval},
        "floor_pct": None if floor is None else 100 * floor,
    }


def _classes_again(cube: Cube, run: Measured) -> ClassTimes | None:
    """Of the reference and its A/A copy; None without one."""
    again = aa_arm(run.arms)
    if again is None:
        return None
    return class_times(Cube((again,), (cube.arms[0], again)), run.tables, run.blocks_of)


def _blocks(cube: Cube, arms: list[str], medians: pd.DataFrame) -> list[dict[str, Any]]:
    shown = [*cube.arms, *([again] if (again := aa_arm(arms)) and again in medians else [])]
    complete = medians[shown].dropna(subset=list(cube.arms))
    ratios = complete.rdiv(complete[cube.arms[0]], axis=0).transform(np.log)
    return [
        {"block": int(block), "values": {arm: float(row[arm]) for arm in shown if np.isfinite(row[arm])}}
        for block, row in zip(ratios.index, ratios.to_dict("records"), strict=True)
    ]


def _noise(run: Measured, blocks: int, floor: float | None, too_noisy: bool) -> dict[str, Any]:
    causes = find_causes(run.timed, run.steps, run.samples) if too_noisy else []
    return {
        "causes": [{"cause": cause.cause, "text": cause.text} for cause in causes],
        "floor_pct": None if floor is None else 100 * floor,
        "blocks": blocks,
    }
