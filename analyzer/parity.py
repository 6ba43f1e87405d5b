"""Do arms compute the same thing? Losses of the same step of the same block, arm against arm.

Checked before anything is called faster. Arms whose samples stay where they are must agree bit for bit; balancing
changes the order in which floats are added.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd

from analyzer.ablation.cube import aa_arm, layers_of, reference_of
from analyzer.stats import LOSS_TOLERANCE, Float64

_NOTHING: dict[str, Any] = {"max_abs": None, "max_rel": None, "bit_exact": None}


def faults(rows: pd.DataFrame, arms: list[str], device: str | None) -> tuple[dict[str, str], list[str]]:
    """(arms that are wrong -> how, warnings), against the reference arm.

    Without balance losses must be bit-identical, unless the reference does not even repeat its own: then, and on a GPU
    where no A/A arm shows that it does, they must agree within 1e-5 like those with balance.

    Args:
        rows: steps.parquet.
        device: of the ranks, as the manifest has it.
    """
    reference, again = reference_of(arms), aa_arm(arms)
    repeats = device != "cuda"
    warnings = []
    if again is not None and (parity := loss_parity(rows, again, reference))["bit_exact"] is not None:
        repeats = bool(parity["bit_exact"])
        if not repeats:
            warnings.append(
                f"{again}: its losses are not bit-identical to those of {reference}, which is the same arm; the "
                f"platform does not repeat itself, so every arm is held to {LOSS_TOLERANCE:g} instead"
            )
    wrong = {}
    for arm in arms:
        moves_samples = "balance" in {*layers_of(arm), *layers_of(reference)}
        fault = _fault(loss_parity(rows, arm, reference), exact=repeats and not moves_samples)
        if arm != reference and fault:
            wrong[arm] = fault
    return wrong, warnings


def loss_parity(rows: pd.DataFrame, arm: str, versus: str) -> dict[str, Any]:
    """`loss_parity` of report.json; a loss that is not finite has no gap and is not exact, no losses have neither."""
    if "loss" not in rows or rows.empty:
        return dict(_NOTHING)
    losses = rows.pivot_table(index=["block", "step", "rank"], columns="arm", values="loss", dropna=False)
    if not {arm, versus} <= set(losses.columns):
        return dict(_NOTHING)
    present = rows.groupby(["block", "step", "rank"])["arm"].agg(set)
    paired = losses[list(dict.fromkeys([versus, arm]))][
        present.map(lambda names: {arm, versus} <= names).reindex(losses.index)
    ]
    return gap(paired[versus].to_numpy(float), paired[arm].to_numpy(float))


def gap(a: Float64, b: Float64) -> dict[str, Any]:
    """`loss_parity` of two sets of losses, float64[steps] each, of the same steps."""
    if len(a) == 0:
        return dict(_NOTHING)
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        return {**_NOTHING, "bit_exact": False}
    difference = np.abs(b - a)
    relative = float((difference / np.maximum(np.abs(a), np.finfo(float).tiny)).max())
    return {"max_abs": float(difference.max()), "max_rel": relative, "bit_exact": bool((a == b).all())}


def _fault(parity: dict[str, Any], exact: bool) -> str | None:
    off = math.inf if parity["max_rel"] is None else parity["max_rel"]
    if parity["bit_exact"] is None or parity["bit_exact"]:
        return None
    if math.isinf(off):
        return "its loss is not finite"
    if exact:
        return f"its loss is off by {off:.1e} relative, where it must be bit-identical"
    return f"its loss is off by {off:.1e} relative" if off > LOSS_TOLERANCE else None
