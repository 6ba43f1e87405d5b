"""The exhibit of the Compare page: every arm that two runs have in common."""

from __future__ import annotations

from typing import Any

from analyzer import Comparison
from dashboard import formats, theme
from dashboard.data import Run
from dashboard.exhibit import Column, Exhibit, Table, fixed
from dashboard.figures import compare as figures


def speeds(a: Run, b: Run, found: Comparison) -> Exhibit:
    """How fast each arm is in `b`, measured against `a`."""
    rows = [
        {
            "arm": arm,
            "a": entry["a_ms"],
            "b": entry["b_ms"],
            "speedup": entry["speedup"],
            "relative": entry["relative"],
            "p": entry["p_holm"],
            "loss": "bit-exact" if entry["loss"]["bit_exact"] else formats.scientific(entry["loss"]["max_rel"]),
            "verdict": theme.verdict(entry["verdict"]).label,
        }
        for arm, entry in found.arms.items()
    ]
    ms = fixed(2)
    columns = [
        Column("arm", "Arm"),
        Column("a", "A (ms)", ms),
        Column("b", "B (ms)", ms),
        Column("speedup", "B as fast as A (95 % CI)", _ratio),
        Column("relative", "Beside the reference (95 % CI)", _ratio),
        Column("p", "p (Holm)", formats.number),
        Column("loss", "Largest difference of losses"),
        Column("verdict", "Verdict"),
    ]
    provenance = a.provenance if a.provenance == b.provenance else f"A {a.provenance}, B {b.provenance}"
    blocks = " and ".join(f"{formats.count(run.manifest.get('blocks'))} blocks" for run in (a, b))
    return Exhibit(
        "compare",
        "Arm by arm",
        "Right of the line, the arm is faster in B. Blocks of two launches are no pairs, so intervals are wider than "
        "inside a run. Beside the reference: the arm's speed-up over its own run's reference, in which what the "
        "machine did to both arms cancels.",
        f"{provenance} · timed steps, no profiler, {blocks}",
        figures.speeds(found.arms),
        Table(columns, rows),
    )


def _ratio(estimate: Any) -> str:
    if not formats.exists(estimate["value"]):
        return formats.MISSING
    bounds = formats.interval(estimate)
    return f"{estimate['value']:.3f}×" + (f" ({bounds[0]:.3f} – {bounds[1]:.3f})" if bounds else "")
