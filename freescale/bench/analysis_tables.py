"""One analysis of traces for a terminal: the verdict first, then where time goes, who is waited for, and why."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from analyzer.analysis import ArmAnalysis, Report

_CLASSES = ("compute", "straggler", "exposed_comm", "exposed_copy", "host")
_CONTENTION = {"sm_using": "SM-using communication", "sm_free": "SM-free communication", "copies": "copies"}
_ROWS_SHOWN = 32
_WARNINGS_SHOWN = 8


def print_analysis(report: Report, arm: str | None, verdict: bool, console: Console | None = None) -> None:
    """Print what the traces of one arm show (the first if none is named; a bare folder has one without a name).

    Args:
        verdict: lead with the headline, and end with the warnings; a report above may have said both.
    """
    console = console or Console(highlight=False)
    analysis = report.arm(arm)
    if verdict:
        console.print(Text(report.headline, style="bold"))
    name = arm if arm is not None else next(iter(report.arms))
    console.print(Text(f"{name + ': ' if name else ''}where a step goes, mean over steps, ms", style="bold"))
    console.print(_where_time_goes(analysis))
    if analysis.findings.culprits:
        console.print(Text("Whom the others wait for", style="bold"))
        console.print(_culprits(analysis))
    for note in _notes(analysis):
        console.print(Text(note, style="dim"))
    if analysis.hta is not None:
        _print_hta(analysis.hta, console)
    if verdict:
        for warning in analysis.warnings[:_WARNINGS_SHOWN]:
            console.print(Text(f"warning: {warning}", style="yellow"))
        if len(analysis.warnings) > _WARNINGS_SHOWN:
            more = len(analysis.warnings) - _WARNINGS_SHOWN
            console.print(Text(f"… {more} more warnings: see --json", style="yellow"))


def _where_time_goes(analysis: ArmAnalysis) -> Table:
    rows = analysis.tables.bubbles.groupby("rank")[[f"{name}_ns" for name in ("window", *_CLASSES)]].mean() / 1e6
    table = _table(("rank", "step", *_CLASSES, "bubble %"))
    for rank, row in list(rows.iterrows())[:_ROWS_SHOWN]:
        bubble = 100 * (1 - row["compute_ns"] / row["window_ns"]) if row["window_ns"] else 0.0
        _add(table, [str(rank), *(f"{row[f'{name}_ns']:.2f}" for name in ("window", *_CLASSES)), f"{bubble:.1f}"])
    _say_more(table, len(rows))
    return table


def _culprits(analysis: ArmAnalysis) -> Table:
    culprits = analysis.findings.culprits
    table = _table(("rank", "times last", "others waited ms", "pattern", "because of"))
    for culprit in culprits[:_ROWS_SHOWN]:
        waited = f"{culprit.charged_ns / 1e6:.2f}"
        _add(table, [str(culprit.rank), str(culprit.times_last), waited, culprit.pattern or "—", culprit.cause or "—"])
    _say_more(table, len(culprits))
    return table


def _notes(analysis: ArmAnalysis) -> Iterable[str]:
    """One line each: host time, overlap, contention, clocks, and what tokens explain; silent where nothing is known."""
    findings, clocks = analysis.findings, analysis.tables.clocks
    reasons = findings.host_gaps.drop(columns=["rank", "step"]).mean() / 1e6
    parts = [f"{str(name).removesuffix('_ns').replace('_', ' ')} {ms:.2f}" for name, ms in reasons.items() if ms > 0]
    if len(parts) > 1:
        yield f"host, ms: {' · '.join(parts)}"
    if findings.overlap_efficiency is not None:
        yield f"overlap: {100 * findings.overlap_efficiency:.0f} % of what could be hidden is"
    for kind, found in findings.contention.items():
        if found.slowdown is not None:
            sure = f"95 % CI {found.ci95[0]:.2f}–{found.ci95[1]:.2f}" if found.ci95 else "no interval"
            beside = f"compute beside {_CONTENTION[kind]} takes {found.slowdown:.2f}× as long"
            yield f"{beside} ({sure}, {found.pairs} pairs)"
    if findings.compute_tokens_r is not None:
        yield f"compute follows tokens with r = {findings.compute_tokens_r:.2f}"
    if len(clocks.offset_ns) == 1:
        yield "clocks: one rank, nothing to compare"
    elif clocks.method == "one host":
        yield "clocks: one host, one clock"
    elif clocks.method == "none":
        yield "clocks: not compared; nothing ties them together"
    else:
        apart = (clocks.offset_ns.max() - clocks.offset_ns.min()) / 1e3
        residual = f"ends of {clocks.method} differ by {clocks.residual_ns / 1e3:.1f} µs"
        yield f"clocks: {f'corrected by up to {apart:.1f} µs' if apart else 'agree'}; {residual}"


def _print_hta(hta: Mapping[str, Any], console: Console) -> None:
    console.print(Text(f"HTA {hta['version']} on the same traces, ms", style="bold"))
    table = _table(("rank", "compute", "non-compute", "idle", "overlap %", "critical path"))
    overlap = {row["rank"]: row["comp_comm_overlap_pctg"] for row in hta["overlap"]}
    paths = {row["rank"]: row for row in hta["critical_path"]}
    for row in hta["temporal"]:
        path = paths[row["rank"]]
        parts = sorted(path.get("bound_by", {}).items(), key=lambda part: -part[1])[:2]
        bound = ", ".join(f"{100 * share:.0f} % {name.replace('_', ' ')}" for name, share in parts)
        _add(
            table,
            [
                str(row["rank"]),
                *(f"{row[key] / 1e3:.2f}" for key in ("compute_time_us", "non_compute_time_us", "idle_time_us")),
                "—" if overlap.get(row["rank"]) is None else f"{overlap[row['rank']]:.1f}",
                bound or str(path.get("error")),
            ],
        )
    console.print(table)
    for note in hta["differences"]:
        console.print(Text(note, style="dim"))


def _table(columns: Iterable[str]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        table.add_column(column.replace("_", " "), justify="right")
    return table


def _add(table: Table, cells: list[str]) -> None:
    table.add_row(*(Text(cell) for cell in cells))


def _say_more(table: Table, rows: int) -> None:
    if rows > _ROWS_SHOWN:
        table.caption = f"{rows - _ROWS_SHOWN} more: see --json"
