"""Which layer removed which bubble: the profiled steps of each arm, per block and class of time.

Profiled steps are a pass of their own and slower than timed ones, so their ms stay apart from the timed ms.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analyzer.ablation import contrasts
from analyzer.ablation.cube import Cube
from analyzer.bubbles import CLASSES, Tables
from analyzer.stats import Estimate, Float64, estimate

NAMES = tuple(name.removesuffix("_ns") for name in CLASSES)
EXPOSED_TOTAL = "exposed_total"
_NEED_SPLIT = ("straggler", "exposed_comm")


@dataclass(frozen=True)
class ClassTimes:
    """Mean over ranks and profiled steps, by class: float64[blocks, 2^n] in ms, arms in the order of the cube."""

    by_class: dict[str, Float64]
    blocks: int

    def contrast(self, name: str, weights: Float64) -> Estimate:
        """ms saved: `weights` are of a game in which v(S) is what S saves."""
        if name not in self.by_class or self.blocks == 0:
            return Estimate(None)
        of_blocks = -(self.by_class[name] @ weights)
        return estimate(float(of_blocks.mean()), of_blocks)


def class_times(
    cube: Cube, tables: Mapping[str, Tables], blocks_of: Mapping[str, Mapping[int, int]]
) -> ClassTimes | None:
    """From the traces of the cube's arms; None when an arm has none. Only steps that all of them have count.

    Where clocks cannot tell waiting from transfer in some arm, only the sum of the two is known.
    """
    if not all(arm in tables and not tables[arm].bubbles.empty for arm in cube.arms):
        return None
    split = all(tables[arm].split for arm in cube.arms)
    frames = []
    for arm in cube.arms:
        bubbles = tables[arm].bubbles
        named = bubbles[list(CLASSES)].rename(columns=dict(zip(CLASSES, NAMES, strict=True))) / 1e6
        named[EXPOSED_TOTAL] = named["straggler"] + named["exposed_comm"]
        block = bubbles["step"].map(blocks_of.get(arm, {}))
        frames.append(named.assign(block=block, step=bubbles["step"], arm=arm))
    rows = pd.concat(frames, ignore_index=True).dropna(subset=["block"])
    of_steps = rows.groupby(["block", "step", "arm"]).mean().unstack("arm").dropna()
    of_blocks = of_steps.groupby("block").mean()
    known = [name for name in (*NAMES, EXPOSED_TOTAL) if split or name not in _NEED_SPLIT]
    if not len(of_blocks):
        return None
    return ClassTimes({name: of_blocks[name][list(cube.arms)].to_numpy(np.float64) for name in known}, len(of_blocks))


def of_layer(times: ClassTimes | None, layers: Sequence[str], layer: str) -> dict[str, Any]:
    """`by_class` of one layer."""
    if times is None:
        return {}
    return {
        name: {
            "alone_ms": times.contrast(name, contrasts.alone(layers, layer)).value,
            "last_ms": times.contrast(name, contrasts.last(layers, layer)).value,
            "shapley_ms": times.contrast(name, contrasts.shapley(layers, layer)).as_json(),
        }
        for name in (*NAMES, EXPOSED_TOTAL)
    }


def in_all(times: ClassTimes | None, layers: Sequence[str], again: ClassTimes | None = None) -> dict[str, Any]:
    """What each class takes in the reference and with all layers, what all of them remove, and the noise floor of that.

    Args:
        again: of the reference and its A/A copy, in this order.
    """
    if times is None:
        return {}
    result: dict[str, Any] = {}
    for name in (*NAMES, EXPOSED_TOTAL):
        means = times.by_class[name].mean(axis=0) if name in times.by_class else None
        result[name] = {
            "reference_ms": None if means is None else float(means[0]),
            "full_ms": None if means is None else float(means[-1]),
            "total_ms": times.contrast(name, contrasts.total(layers)).as_json(),
            "noise_floor_ms": _noise_floor_ms(again, name),
        }
    return result


def _noise_floor_ms(again: ClassTimes | None, name: str) -> float | None:
    """The largest difference of two arms without one that their spread over blocks makes plausible, or the difference
    itself; None without an A/A arm, or where too few blocks were profiled."""
    difference = Estimate(None) if again is None else again.contrast(name, np.array([-1.0, 1.0]))
    if difference.value is None or difference.ci95 is None:
        return None
    return max((difference.ci95[1] - difference.ci95[0]) / 2, abs(difference.value))
