"""report.json for a terminal: the verdict first, then one table of results and one of where the time goes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

_BAR_CELLS = 40
# The dashboard's colours, as near as 256-colour terminals come.
_CLASSES = {
    "compute": ("compute_ms", "color(31)"),
    "straggler": ("straggler_ms", "color(208)"),
    "exposed comm": ("exposed_comm_ms", "color(162)"),
    "exposed copy": ("exposed_copy_ms", "color(142)"),
    "host": ("host_ms", "color(245)"),
}
_VERDICT_STYLE = {"improvement": "bold green", "regression": "bold red", "wrong": "bold white on red"}


def print_report(report: Mapping[str, Any], run: Path, console: Console | None = None) -> None:
    """Print what a run showed, and where it is kept."""
    console = console or Console()
    console.print()
    console.print(Text(report["headline"], style="bold"))
    console.print(_results(report))
    console.print(_where_time_goes(report))
    for warning in report["warnings"]:
        console.print(Text(f"warning: {warning}", style="yellow"))
    console.print(
        f"[dim]{report['provenance']} · {report['world_size']} ranks · {report['blocks']} blocks · "
        f"intervals are 95 %, over blocks[/dim]"
    )
    console.print(f"run directory: {escape(str(run))}", soft_wrap=True)
    console.print(f"look closer:   freescale-bench dashboard {escape(str(run))}", soft_wrap=True)


def _results(report: Mapping[str, Any]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("arm")
    for name in ("step ms", "speedup", "straggler %", "exposed total ms", "imbalance"):
        table.add_column(name, justify="right")
    table.add_column("loss parity")
    table.add_column("verdict")
    for name, arm in report["arms"].items():
        compared = report["compare"].get(name)
        table.add_row(
            escape(name),
            _with_interval(arm["step_ms"]["median"], arm["step_ms"]["ci95"], ".1f"),
            _with_interval(compared["speedup"]["value"], compared["speedup"]["ci95"], ".3f", "×") if compared else "—",
            _number(arm["straggler_pct"], ".1f"),
            _number(arm["exposed_total_ms"], ".1f"),
            _number(arm["imbalance"], ".2f"),
            _parity(compared["loss_parity"]) if compared else "—",
            Text(compared["verdict"], style=_VERDICT_STYLE.get(compared["verdict"], "bold")) if compared else "—",
        )
    return table


def _where_time_goes(report: Mapping[str, Any]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title="Where a profiled step goes, mean over ranks, ms")
    table.title_justify = "left"
    table.add_column("arm")
    table.add_column("")
    for label, (_, style) in _CLASSES.items():
        table.add_column(Text(f"■ {label}", style=style), justify="right")
    for name, arm in report["arms"].items():
        values = [_class_ms(arm, key) for key, _ in _CLASSES.values()]
        table.add_row(escape(name), _bar(values), *(_number(value, ".1f") for value in values))
    return table


def _class_ms(arm: Mapping[str, Any], key: str) -> float | None:
    if key == "straggler_ms":  # the report has the sum of the two
        total, transfer = arm["exposed_total_ms"], arm["exposed_comm_ms"]
        return None if total is None or transfer is None else total - transfer
    value: float | None = arm[key]
    return value


def _bar(values: list[float | None]) -> Text:
    known = [value or 0.0 for value in values]
    total = sum(known)
    bar = Text()
    if not total:
        return bar
    drawn, so_far = 0, 0.0
    for value, (_, style) in zip(known, _CLASSES.values(), strict=True):
        so_far += value
        cells = round(_BAR_CELLS * so_far / total) - drawn
        bar.append("█" * cells, style=style)
        drawn += cells
    return bar


def _parity(parity: Mapping[str, Any]) -> str:
    if parity["bit_exact"]:
        return "bit-identical"
    return "—" if parity["max_rel"] is None else f"within {parity['max_rel']:.0e}"


def _with_interval(value: float | None, interval: list[float] | None, form: str, unit: str = "") -> str:
    if value is None:
        return "—"
    shown = f"{value:{form}}{unit}"
    return shown if interval is None else f"{shown} [{interval[0]:{form}}, {interval[1]:{form}}]".replace("[", "\\[")


def _number(value: float | None, form: str) -> str:
    return "—" if value is None else f"{value:{form}}"
