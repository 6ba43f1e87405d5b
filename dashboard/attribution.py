"""The words and key figures of an ablation: what each layer is worth, what to doubt, and what was left out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dash import html

from dashboard import formats, sections
from dashboard.data import Run
from dashboard.sections import Component

SAID_BY_NUMBERS = ("improvement", "regression", "neutral")


def key_figures(run: Run) -> Component | None:
    """All layers together, each layer, and the noise floor; None without an ablation."""
    ablation = run.ablation
    if not ablation:
        return None
    total, write = ablation["total_ms"], formats.saved_ms(ablation["reference_ms"])
    said = run.comparison(ablation["full"]).get("verdict")
    whole = f"of {formats.ms(ablation['reference_ms'])} a step of {ablation['reference']}"
    tiles = [
        sections.tile(
            "saved",
            "Saved by all layers",
            write(total.get("value")),
            sections.verdict_badge(said),
            formats.between(total, write),
            whole,
            doubtful=said not in SAID_BY_NUMBERS,
        ),
        *(_layer(layer, entry, write) for layer, entry in _design_first(run)),
        _noise_floor(run, write),
    ]
    return html.Section(tiles, className="tiles", **sections.aria(label="What each layer is worth"))


def doubts(run: Run) -> Component | None:
    """What was left out, what is open, and what made it noisy; None when there is nothing of the kind."""
    lines = doubtful(run)
    if not lines:
        return None
    items = [html.Li(line) for line in lines]
    return html.Section(
        [html.H2("Before you rely on this"), html.Ul(items, className="warnings")],
        id="doubts",
        className="notice notice-warn",
    )


def doubtful(run: Run) -> list[str]:
    """The same as sentences."""
    lines = [
        f"{layer} is not in the design ({entry.get('verdict')}): {entry.get('reason') or 'no reason is given'}."
        for layer, entry in run.attribution.items()
        if entry.get("verdict") in ("cannot act", "wrong", "not measured")
    ]
    open_layers = [layer for layer, entry in run.attribution.items() if entry.get("verdict") == "inconclusive"]
    for layer in open_layers:
        lines.append(f"{layer} is inconclusive; {_cure(run.attribution[layer])}.")
    if not run.ablation:
        return lines
    if open_layers and run.report.get("noise_floor_ms") is None:
        lines.append(f"The noise floor is unknown: {_why_unknown(run)}.")
    return lines + [f"Noise: {cause['text']}." for cause in run.ablation["noise"]["causes"]]


def _cure(entry: dict[str, Any]) -> str:
    needed = entry.get("blocks_needed")
    if formats.exists(needed):
        return f"about {formats.count(needed)} blocks in all would settle it"
    if formats.interval(entry.get("shapley_ms")) is None:
        return "there are too few blocks to tell how many would settle it"
    return "it would take more blocks than anybody runs to settle it"


def _design_first(run: Run) -> list[tuple[str, Any]]:
    """Layers and their entries, those that were left out last."""
    design = run.ablation["layers"]
    return sorted(run.attribution.items(), key=lambda item: item[0] not in design)


def _layer(layer: str, entry: dict[str, Any], write: Callable[[Any], str]) -> Component:
    verdict = sections.verdict_badge(entry.get("verdict"))
    shapley = entry.get("shapley_ms") or {}
    if not formats.exists(shapley.get("value")):
        return sections.tile(f"layer-{layer}", layer, formats.MISSING, verdict)
    share = entry.get("share_pct")
    part = f"{share:.0f}\u00a0% of all that is saved".replace("-", "−") if formats.exists(share) else ""
    return sections.tile(
        f"layer-{layer}",
        layer,
        write(shapley["value"]),
        verdict,
        formats.between(shapley, write),
        part,
        doubtful=entry.get("verdict") not in SAID_BY_NUMBERS,
    )


def _noise_floor(run: Run, write: Callable[[Any], str]) -> Component:
    floor, again = run.report.get("noise_floor_ms"), run.ablation["aa"]
    if not formats.exists(floor):
        return sections.tile("noise-floor", "Noise floor", "unknown", _why_unknown(run))
    seemed = f"{again['arm']} seemed to save {write(again['saved_ms'].get('value'))}" if again else ""
    share = formats.percent(run.ablation["noise"]["floor_pct"])
    return sections.tile("noise-floor", "Noise floor", write(floor).lstrip("+"), seemed, f"{share} of a step")


def _why_unknown(run: Run) -> str:
    return "too few blocks for an interval" if run.ablation["aa"] else "the run has no A/A arm"
