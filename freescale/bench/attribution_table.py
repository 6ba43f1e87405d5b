"""The ablation of report.json for a terminal of 80 columns: layers with their Shapley values, then interactions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

VERDICT_STYLE = {"improvement": "bold green", "regression": "bold red", "wrong": "bold white on red"}
_NOTHING = Text("—", style="dim")


def print_ablation(report: Mapping[str, Any], console: Console) -> None:
    """Print what each layer is worth; nothing where the report has no ablation."""
    ablation = report.get("ablation")
    if not ablation:
        return
    console.print(Text(f"What each layer saves of {ablation['reference']}'s step, ms", style="bold"))
    console.print(_layers(report))
    together = [f"{name} {value:+.1f}" for name, value in report["interactions"].items() if value is not None]
    if together:
        console.print(Text(f"interactions, ms: {', '.join(together)} (below 0: both remove the same time)"))
    console.print(Text(f"noise floor: {_floor(report)}"))
    for name, entry in report["attribution"].items():
        if entry["reason"]:
            console.print(Text(f"{name}: {entry['reason']}", style="yellow"))
        if entry["blocks_needed"]:
            console.print(Text(f"{name}: about {entry['blocks_needed']} blocks would settle it"))
    for cause in ablation["noise"]["causes"]:
        console.print(Text(f"noise: {cause['text']}", style="yellow"))
    console.print()


def _floor(report: Mapping[str, Any]) -> str:
    if report["noise_floor_ms"] is not None:
        return f"{report['noise_floor_ms']:.1f} ms"
    return "unknown, " + ("too few blocks" if report["ablation"]["aa"] else "no A/A arm")


def _layers(report: Mapping[str, Any]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("layer")
    for name in ("Shapley (95 % CI)", "share", "alone", "last"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for layer, entry in report["attribution"].items():
        table.add_row(
            layer,
            _estimate(entry["shapley_ms"]),
            _NOTHING if entry["share_pct"] is None else Text(f"{entry['share_pct']:.0f} %"),
            _ms(entry["alone_ms"]),
            _ms(entry["last_ms"]),
            _verdict(entry["verdict"]),
        )
    total = report["ablation"]["total_ms"]
    table.add_section()
    table.add_row("together", _estimate(total), Text(), Text(), Text(), Text())
    return table


def _estimate(estimate: Mapping[str, Any]) -> Text:
    value, interval = estimate["value"], estimate["ci95"]
    if value is None:
        return _NOTHING
    return Text(f"{value:+.1f}" + (f" ({interval[0]:+.1f} to {interval[1]:+.1f})" if interval else ""))


def _ms(value: float | None) -> Text:
    return _NOTHING if value is None else Text(f"{value:+.1f}")


def _verdict(verdict: str) -> Text:
    return Text(verdict, style=VERDICT_STYLE.get(verdict, "bold"))
