"""What an ablation showed, in a sentence for the headline."""

from __future__ import annotations

from typing import Any


def of_ablation(report: dict[str, Any]) -> str:
    """Each layer's share of what all of them save; empty where report.json has no ablation."""
    ablation = report.get("ablation")
    if not ablation:
        return ""
    saved = ablation["total_ms"]["value"]
    layers = ", ".join(_of_layer(layer, entry) for layer, entry in report["attribution"].items())
    change = f"save {saved:.1f} of" if saved >= 0 else f"add {-saved:.1f} to"
    said = report["compare"][ablation["full"]]["verdict"]
    doubt = "inconclusive; " if said == "inconclusive" else ""
    return f"All layers together {change} {ablation['reference_ms']:.1f} ms per step ({doubt}Shapley values: {layers})."


def _of_layer(layer: str, entry: dict[str, Any]) -> str:
    value = entry["shapley_ms"]["value"]
    if value is None:
        return f"{layer} {entry['verdict']}"
    known = entry["verdict"] in ("improvement", "regression")
    return f"{layer} {value:+.1f} ms" + ("" if known else f" ({entry['verdict']})")
