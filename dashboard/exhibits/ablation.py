"""Exhibits of the Ablation page: the full design, what each layer is worth, and which bubble it removed.

Every number is one of report.json; nothing is estimated here.
"""

from __future__ import annotations

from typing import Any

from dashboard import formats, theme
from dashboard.data import Run
from dashboard.exhibit import Column, Exhibit, Table, estimate_cells, estimate_columns, fixed, source
from dashboard.figures import design, layers
from dashboard.theme import CLASSES, Class

TIMED = "timed steps, no profiler"
MS, PERCENT = fixed(2), fixed(1)


def cube(run: Run) -> Exhibit | None:
    ablation = run.ablation
    if not ablation or not ablation["cube"]:
        return None
    names = ablation["layers"]
    rows = [*ablation["cube"][:1], *_again(ablation), *ablation["cube"][1:]]
    table = [
        {
            "arm": row["arm"],
            **{f"l{i}": "on" if layer in row["layers"] else "off" for i, layer in enumerate(names)},
            "step": row["step_ms"],
            **estimate_cells("saved", row["saved_ms"]),
            **estimate_cells("speedup", row["speedup"]),
            "verdict": _verdict(run.comparison(row["arm"]).get("verdict")) or "reference",
        }
        for row in rows
    ]
    columns = [
        Column("arm", "Arm"),
        *(Column(f"l{i}", layer) for i, layer in enumerate(names)),
        Column("step", "Step (ms)", MS),
        *estimate_columns("saved", "Saved (ms)", MS),
        *estimate_columns("speedup", "Speedup", fixed(3)),
        Column("verdict", "Verdict"),
    ]
    return Exhibit(
        "cube",
        "Every combination of the layers",
        f"What each arm saves of {ablation['reference']}'s step, {formats.ms(ablation['reference_ms'])}, measured "
        f"block by block on the same batches{_whiskers(row['saved_ms'] for row in rows)}. Its step is that of "
        f"{ablation['reference']} less what it saves.",
        source(run, f"{TIMED}, {_blocks(ablation)}"),
        design.cube(rows, names, theme.arm_colours(run.arms), _floor(run)),
        Table(columns, table),
        drawing=_band(run),
    )


def waterfall(run: Run) -> Exhibit | None:
    ablation = run.ablation
    shares = {layer: entry["shapley_ms"] for layer, entry in _known(run).items()}
    total = ablation.get("total_ms", {})
    if len(shares) < 2 or not formats.exists(total.get("value")):
        return None
    colours = theme.arm_colours(run.arms)
    ends = {arm: colours.get(arm, theme.BASELINE_COLOUR) for arm in (ablation["reference"], ablation["full"])}
    if len(ends) < 2:
        return None
    rows = [
        {"name": layer, **estimate_cells("saved", estimate), "share": run.attribution[layer].get("share_pct")}
        for layer, estimate in shares.items()
    ]
    rows.append({"name": "all together", **estimate_cells("saved", total)})
    columns = [
        Column("name", "Layer"),
        *estimate_columns("saved", "Shapley value (ms)", MS),
        Column("share", "Share of the total (%)", PERCENT),
    ]
    return Exhibit(
        "waterfall",
        "From the reference to all layers",
        "A layer's Shapley value is what it saves, averaged over every order of adding the layers, so the values add "
        f"up to the total{_whiskers(shares.values())}.",
        source(run, f"{TIMED}, {_blocks(ablation)}"),
        layers.waterfall(ends, ablation["reference_ms"], total, shares),
        Table(columns, rows),
        drawing="The axis does not begin at zero.",
        wide=False,
    )


def worth(run: Run) -> Exhibit | None:
    shown = _known(run)
    if len(shown) < 2:  # of one layer, the three are the same
        return None
    rows = [
        {
            "layer": layer,
            **{
                name: value
                for key, _, _ in layers.WAYS
                for name, value in estimate_cells(key, entry.get(key) or {}).items()
            },
            "p": entry.get("p_holm"),
            "verdict": _verdict(entry.get("verdict")),
            "needed": entry.get("blocks_needed"),
            "reason": entry.get("reason") or "",
        }
        for layer, entry in run.attribution.items()
    ]
    columns = [
        Column("layer", "Layer"),
        *(column for key, name, _ in layers.WAYS for column in estimate_columns(key, f"{name} (ms)".capitalize(), MS)),
        Column("p", "p (Holm)", formats.number),
        Column("verdict", "Verdict"),
        Column("needed", "Blocks that would settle it", formats.count),
        Column("reason", "Why left out"),
    ]
    return Exhibit(
        "worth",
        "Alone, last, and on average",
        "Alone: the layer against the reference. Last: all layers against all but this one. Shapley: the mean of "
        "what it adds over every order of adding layers.",
        source(run, f"{TIMED}, {_blocks(run.ablation)}"),
        layers.worth(shown, _floor(run)),
        Table(columns, rows),
        drawing=_band(run),
        wide=False,
    )


def removed(run: Run) -> Exhibit | None:
    totals = run.ablation.get("classes") or {}
    parts = {layer: entry["by_class"] for layer, entry in _known(run).items() if entry.get("by_class")}
    if not totals or not parts:
        return None
    mixed = not formats.exists(((totals.get("exposed_comm") or {}).get("total_ms") or {}).get("value"))
    drawn = {layer: _by_class(by_class, "shapley_ms", mixed) for layer, by_class in parts.items()}
    if len(parts) > 1:
        drawn[layers.TOGETHER] = _by_class(totals, "total_ms", mixed)
    shown = [item for item in CLASSES if not (mixed and item.key == "straggler")]
    floors = {item.key: _class(totals, item.key, mixed).get("noise_floor_ms") for item in shown}
    rows = [
        {
            "layer": layer,
            "class": _label(item, mixed),
            **estimate_cells("removed", _class(by_class, item.key, mixed).get("shapley_ms") or {}),
            "alone": _class(by_class, item.key, mixed).get("alone_ms"),
            "last": _class(by_class, item.key, mixed).get("last_ms"),
        }
        for layer, by_class in parts.items()
        for item in shown
    ]
    for item in shown:
        total = _class(totals, item.key, mixed)
        own = {"layer": layers.TOGETHER, "class": _label(item, mixed), "floor": total.get("noise_floor_ms")}
        own |= {"reference": total.get("reference_ms"), "full": total.get("full_ms")}
        rows.append(own | estimate_cells("removed", total.get("total_ms") or {}))
    columns = [
        Column("layer", "Layer"),
        Column("class", "Class"),
        *estimate_columns("removed", "Removed (ms)", MS),
        Column("alone", "alone (ms)", MS),
        Column("last", "last (ms)", MS),
        Column("reference", f"In {run.ablation['reference']} (ms)", MS),
        Column("full", f"In {run.ablation['full']} (ms)", MS),
        Column("floor", "Noise floor (ms)", MS),
    ]
    together = (
        " Waiting could not be told from transfer, because the ranks' clocks do not agree well enough: both stand "
        "under exposed communication."
    )
    faint = " Faint: less than the A/A arm shows by chance." if any(map(formats.exists, floors.values())) else ""
    return Exhibit(
        "removed",
        "Which layer removed which bubble",
        "Shapley values of each class of time, mean over ranks; below zero, a layer made a class longer."
        + (together if mixed else ""),
        source(run, f"profiled steps of {run.ablation['profiled_blocks']} blocks: not to be added to timed ms"),
        layers.removed(drawn, floors),
        Table(columns, rows),
        drawing=f"The diamond is the sum: the change of the profiled step.{faint}",
        legend=shown,
    )


def interactions(run: Run) -> Exhibit | None:
    found = {
        name: entry
        for name, entry in (run.report.get("interaction_estimates") or {}).items()
        if formats.exists(entry.get("value"))
    }
    if not found or not run.ablation:
        return None
    rows = [
        {
            "group": name,
            **estimate_cells("saved", entry),
            "p": entry.get("p_holm"),
            "verdict": _verdict(entry.get("verdict")),
        }
        for name, entry in found.items()
    ]
    columns = [
        Column("group", "Layers"),
        *estimate_columns("saved", "Beyond the parts (ms)", MS),
        Column("p", "p (Holm)", formats.number),
        Column("verdict", "Verdict"),
    ]
    return Exhibit(
        "interactions",
        "What layers do to each other",
        "Above zero: together they save more than the sum of what each saves (synergy). Below: less, since they remove "
        "the same time (redundant).",
        source(run, f"{TIMED}, {_blocks(run.ablation)}"),
        layers.interactions(found, _floor(run)),
        Table(columns, rows),
        drawing=_band(run),
        wide=False,
    )


def paired(run: Run) -> Exhibit | None:
    ablation = run.ablation
    if not ablation or not ablation["blocks"]:
        return None
    corners = [row["arm"] for row in ablation["cube"]]
    arms = [*corners[:1], *(row["arm"] for row in _again(ablation)), *corners[1:]]
    colours = theme.arm_colours(run.arms)
    rows = [
        {
            "block": entry["block"],
            **{f"a{i}": design.saved_pct(entry["values"].get(arm)) for i, arm in enumerate(arms)},
        }
        for entry in ablation["blocks"]
    ]
    columns = [
        Column("block", "Block", formats.count),
        *(Column(f"a{i}", f"{arm} (%)", MS) for i, arm in enumerate(arms) if i),
    ]
    return Exhibit(
        "ablation-blocks",
        "Every block on its own",
        "All arms of a block ran the same batches from the same state. What the A/A arm seems to save is noise.",
        source(run, TIMED),
        design.paired_blocks(ablation["blocks"], {arm: colours[arm] for arm in arms if arm in colours}),
        Table(columns, rows),
        drawing="A line per block: lines that keep together make narrow intervals.",
        wide=len(ablation["layers"]) < 2,
    )


def _known(run: Run) -> dict[str, Any]:
    """Layers of the design, with estimates."""
    entries = {layer: run.attribution.get(layer) or {} for layer in run.ablation.get("layers", [])}
    return {
        layer: {**entry, **{key: entry.get(key) or {} for key, _, _ in layers.WAYS}}
        for layer, entry in entries.items()
        if formats.exists((entry.get("shapley_ms") or {}).get("value"))
    }


def _again(ablation: dict[str, Any]) -> list[dict[str, Any]]:
    """The A/A arm as a row of the cube; none without one."""
    again = ablation["aa"]
    if again is None or not formats.exists(again["saved_ms"].get("value")):
        return []
    saved = again["saved_ms"]
    step = ablation["reference_ms"] - saved["value"]
    ratio = {"value": ablation["reference_ms"] / step if step else None, "ci95": None}
    return [{"arm": again["arm"], "layers": [], "step_ms": step, "saved_ms": saved, "speedup": ratio}]


def _by_class(entries: dict[str, Any], key: str, mixed: bool) -> dict[str, float | None]:
    found = {item.key: (_class(entries, item.key, mixed).get(key) or {}).get("value") for item in CLASSES}
    return {name: value if formats.exists(value) else None for name, value in found.items()}


def _class(entries: dict[str, Any], key: str, mixed: bool) -> dict[str, Any]:
    """The entry of a class; where waiting and transfer are one, theirs is that of exposed communication."""
    if mixed and key == "straggler":
        return {}
    return entries.get("exposed_total" if mixed and key == "exposed_comm" else key) or {}


def _label(item: Class, mixed: bool) -> str:
    return f"{item.label}, with waiting" if mixed and item.key == "exposed_comm" else item.label


def _verdict(name: Any) -> str:
    return theme.verdict(name).label if name else ""


def _floor(run: Run) -> float | None:
    floor = run.report.get("noise_floor_ms")
    return float(floor) if formats.exists(floor) else None


def _band(run: Run) -> str:
    return "The grey band is the noise floor." if _floor(run) is not None else ""


def _whiskers(estimates: Any) -> str:
    return ", with 95\u00a0% intervals" if any(formats.interval(estimate) for estimate in estimates) else ""


def _blocks(ablation: dict[str, Any]) -> str:
    count = ablation["noise"]["blocks"]
    return f"{count} block{'' if count == 1 else 's'}"
