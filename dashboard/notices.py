"""What a reader must know before and after the numbers: what went wrong, what is warned of, how it was measured."""

from __future__ import annotations

import shlex
from typing import Any

from dash import html

from dashboard import formats, measures, theme
from dashboard.data import Run
from dashboard.sections import Component, joined, mapping

LITERAL = ("Command", "Commit", "Run directory")
METHOD = (
    "Step times come from timed steps without a profiler. All arms of a block run the same batches from the same state "
    "in random order, and the block is the unit of every interval. The split into classes comes from a separate "
    "profiled pass: a profiler slows a step down, so read the split for the mechanism, not for speed."
)


def incomplete(run: Run) -> Component | None:
    """What went wrong and what there is all the same; None for a complete run."""
    if run.complete:
        return None
    children: list[Component] = [
        html.P([html.Strong("This run is not complete: "), run.why_incomplete.rstrip(".") + "."]),
        html.P(measured_so_far(run) or "Nothing was measured before it stopped."),
    ]
    tail = run.failure.get("log_tail")
    if tail:
        text = "\n".join(map(str, tail)) if isinstance(tail, list) else str(tail)
        children.append(html.Details([html.Summary("Last lines of its log"), html.Pre(text, className="log")]))
    return html.Section(children, className="notice notice-warn", id="incomplete")


def warnings(run: Run) -> Component | None:
    """Everything the run and its analysis warn of; None when they warn of nothing."""
    if not run.warnings:
        return None
    items = [html.Li(text) for text in run.warnings]
    return html.Section(
        [html.H2("Warnings"), html.Ul(items, className="warnings")], id="warnings", className="notice notice-warn"
    )


def method(run: Run) -> Component:
    """How it was measured, on what, and where the numbers come from."""
    rows: list[Component] = []
    for term, value in facts(run):
        rows += [html.Dt(term), html.Dd(html.Code(value) if term in LITERAL else value)]
    heading = html.H2("Method, machine, provenance")
    return html.Section([heading, html.P(METHOD, className="prose"), html.Dl(rows, className="facts")], id="method")


def facts(run: Run) -> list[tuple[str, str]]:
    """What is known about how the run was made, as (term, value) pairs; what is not known is left out."""
    manifest = run.manifest
    machine, versions = mapping(manifest.get("machine")), mapping(manifest.get("versions"))
    workload = mapping(manifest.get("workload"))
    command, gpus = manifest.get("command"), machine.get("gpus")
    backend, device = manifest.get("backend") or "an unknown backend", manifest.get("device") or "an unknown device"
    cores, memory = machine.get("cores"), machine.get("memory_bytes")
    hardware = joined(
        machine.get("host"),
        machine.get("cpu"),
        f"{cores} cores" if isinstance(cores, int) else None,
        formats.size_bytes(memory) if memory else None,
    )
    pairs = [
        ("Provenance", f"{run.provenance}: {theme.PROVENANCE.get(run.provenance, 'not stated in the manifest')}"),
        ("Command", shlex.join(map(str, command)) if isinstance(command, list) else None),
        ("Started", manifest.get("created_utc")),
        ("Workload", _spelled(workload) if workload else run.workload),
        ("Ranks", f"{formats.count(run.world_size)} over {backend} on {device}"),
        ("Design", _design(manifest)),
        ("Statistics", _statistics(run.ablation.get("method"))),
        ("Seed", manifest.get("seed")),
        ("Machine", hardware),
        ("GPUs", ", ".join(map(str, gpus)) if isinstance(gpus, list) and gpus else "none"),
        ("Versions", ", ".join(f"{key} {value}" for key, value in versions.items())),
        ("Commit", manifest.get("git_commit")),
        ("Run directory", run.name),
    ]
    return [(term, str(value)) for term, value in pairs if value not in (None, "")]


def _spelled(values: dict[str, Any]) -> str:
    """Nested settings on one line: preset x, model (layers 2, heads 2)."""
    parts = []
    for key, value in values.items():
        if isinstance(value, dict):
            parts.append(f"{key} ({_spelled(value)})")
        elif value is not None:
            parts.append(f"{key} {', '.join(map(str, value)) if isinstance(value, list) else value}")
    return ", ".join(parts)


def measured_so_far(run: Run) -> str:
    """How much of an incomplete run there is; "" when there is nothing."""
    times = measures.step_times(run.steps, run.world_size)
    parts = []
    for arm in run.arms:
        rows = times[times["arm"] == arm]
        if len(rows):
            blocks = rows["block"].nunique()
            parts.append(f"{arm}, {_plural(len(rows), 'timed step')} in {_plural(blocks, 'block')}")
    return f"Measured before it stopped: {'; '.join(parts)}." if parts else ""


def _plural(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _statistics(method: dict[str, Any] | None) -> str:
    """Of an ablation; "" of other runs."""
    if not method:
        return ""
    return (
        f"{100 * method['level']:g} % intervals, {method['interval']}; p-values corrected by {method['correction']}; "
        f"a gain is at least {method['min_effect_pct']:g} %, neutral is within {method['neutral_band_pct']:g} %"
    )


def _design(manifest: dict[str, Any]) -> str:
    pieces = (
        ("blocks", "{} blocks"),
        ("steps_per_turn", "{} steps per turn of an arm"),
        ("warmup_steps", "{} warm-up steps discarded"),
        ("profiled_steps", "{} steps profiled afterwards"),
    )
    return ", ".join(text.format(manifest[key]) for key, text in pieces if isinstance(manifest.get(key), int))
