"""From block medians to what each layer is worth, in ms of the reference arm's step.

Every arm is compared with the reference inside a block, as a log-ratio, so that drift between blocks cancels. With
`R(S)` the exponential of the mean log-ratio of the arm with layers `S`, that arm saves `v(S) = T (1 - R(S))` of the
reference's step time `T`; whatever is linear in `v` gets its error by the delta method from its blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analyzer.ablation import contrasts
from analyzer.ablation.classes import ClassTimes, of_layer
from analyzer.ablation.cube import Cube, LeftOut
from analyzer.power import blocks_needed
from analyzer.stats import LEVEL, Estimate, Float64, estimate, exp, holm, verdict


@dataclass(frozen=True)
class Saved:
    """What the arms of a cube save, block by block.

    Attributes:
        log_ratio: float64[blocks, 2^n], ln(arm / reference), arms in the order of the cube; the first column is 0.
        reference_ms: the step time that the savings are of.
    """

    log_ratio: Float64
    reference_ms: float

    @classmethod
    def of(cls, cube: Cube, medians: pd.DataFrame, reference_ms: float) -> Saved:
        """From a frame of ms with a row per block and a column per arm; blocks without every arm do not count."""
        logs = np.log(medians[list(cube.arms)].dropna().to_numpy(np.float64))
        return cls(logs - logs[:, :1], reference_ms)

    @property
    def blocks(self) -> int:
        return len(self.log_ratio)

    def contrast(self, weights: Float64) -> Estimate:
        """ms of `weights` over v(S), float64[2^n]."""
        left = np.exp(self.log_ratio.mean(axis=0))
        value = float(weights @ (1 - left)) * self.reference_ms
        return estimate(value, -self.reference_ms * (self.log_ratio @ (weights * left)))

    def relative(self, weights: Float64) -> Estimate:
        """The same as a share of the reference's step."""
        return Saved(self.log_ratio, 1.0).contrast(weights)

    def speedup(self, index: int) -> Estimate:
        """How many times faster than the reference the cube's arm number `index` is."""
        of_blocks = -self.log_ratio[:, index]
        return exp(estimate(float(of_blocks.mean()), of_blocks))


def attribute(cube: Cube, saved: Saved, floor: float, times: ClassTimes | None) -> dict[str, Any]:
    """`attribution` of the layers of the cube. Shapley values add up to the total.

    Args:
        floor: relative noise floor.
    """
    layers = cube.layers
    shares = [saved.relative(contrasts.shapley(layers, layer)) for layer in layers]
    corrected = holm([share.p for share in shares])
    total = saved.relative(contrasts.total(layers))
    total_is_seen = total.p is not None and total.p <= 1 - LEVEL and abs(total.value or 0.0) > floor
    result = {}
    for layer, share, p in zip(layers, shares, corrected, strict=True):
        alone, last = (saved.contrast(of(layers, layer)) for of in (contrasts.alone, contrasts.last))
        shapley = saved.contrast(contrasts.shapley(layers, layer))
        said = verdict(share, False, p, floor)
        open_ = said == "inconclusive"
        result[layer] = {
            "alone_ms": alone.value,
            "last_ms": last.value,
            "alone": alone.as_json(),
            "last": last.as_json(),
            "shapley_ms": shapley.as_json(),
            "share_pct": 100 * shares_of(share, total) if total_is_seen else None,
            "p_holm": p,
            "verdict": said,
            "reason": None,
            "blocks_needed": blocks_needed(share, saved.blocks, len(layers), floor) if open_ else None,
            "by_class": of_layer(times, layers, layer),
        }
    return result


def not_attributed(left_out: LeftOut) -> dict[str, Any]:
    """The entry of a layer that is outside the cube: no number, and why."""
    nothing = Estimate(None).as_json()
    return {
        "alone_ms": None,
        "last_ms": None,
        "alone": nothing,
        "last": nothing,
        "shapley_ms": nothing,
        "share_pct": None,
        "p_holm": None,
        "verdict": left_out.verdict,
        "reason": left_out.reason,
        "blocks_needed": None,
        "by_class": {},
    }


def interactions(cube: Cube, saved: Saved, floor: float) -> tuple[dict[str, float | None], dict[str, Any]]:
    """(`interactions`, `interaction_estimates`): in ms, judged like the layers but with words of their own."""
    groups = contrasts.groups(cube.layers)
    weights = [contrasts.interaction(cube.layers, group) for group in groups]
    corrected = holm([saved.relative(w).p for w in weights])
    words = {"improvement": "synergy", "regression": "redundant"}
    values: dict[str, float | None] = {}
    estimates: dict[str, Any] = {}
    for group, w, p in zip(groups, weights, corrected, strict=True):
        name, found = "×".join(group), saved.contrast(w)
        said = verdict(saved.relative(w), False, p, floor)
        values[name] = found.value
        estimates[name] = {**found.as_json(), "p_holm": p, "verdict": words.get(said, "not seen")}
    return values, estimates


def shares_of(part: Estimate, whole: Estimate) -> float:
    """part / whole of two values that exist."""
    return float(part.value or 0.0) / float(whole.value or 1.0)
