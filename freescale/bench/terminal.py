"""report.json for a terminal of 80 columns: the verdict first, then arms and layers, then where the time goes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from freescale.bench.attribution_table import VERDICT_STYLE, print_ablation

_BAR_CELLS = 58
# The dashboard's colours, as near as 256-colour terminals come; the letter tells classes apart without colour.
_CLASSES = {
    "compute": ("compute_ms", "color(31)", "█"),
    "straggler": ("straggler_ms", "color(208)", "▒"),
    "exposed comm": ("exposed_comm_ms", "color(162)", "▓"),
    "exposed copy": ("exposed_copy_ms", "color(142)", "┼"),
    "host": ("host_ms", "color(245)", "░"),
}
_NOTHING = Text("—", style="dim")


def print_report(report: Mapping[str, Any], run: Path, console: Console | None = None) -> None:
    """Print what a run showed, and where it is kept."""
    console = console or Console(highlight=False)
    console.print()
    console.print(Text(report["headline"], style="bold"))
    console.print(_results(report))
    print_ablation(report, console)
    console.print(Text("Where a profiled step goes, mean over ranks, ms", style="bold"))
    console.print(_where_time_goes(report))
    for name, arm in report["arms"].items():
        console.print(Text(f" {name:<18.18} ") + _bar(arm))
    legend = Text(" " * 14)
    for label, (_, style, cell) in _CLASSES.items():
        legend.append(f"{cell} {label}  ", style=style)
    console.print(legend)
    console.print()
    for warning in report["warnings"]:
        console.print(Text(f"warning: {warning}", style="yellow"))
    size = f"{report['world_size']} ranks · {report['blocks']} blocks"
    console.print(Text(f"{report['provenance']} · {size} · intervals over blocks", style="dim"))
    console.print(Text(f"run directory: {run}"), soft_wrap=True)
    console.print(Text(f"look closer:   freescale-bench dashboard {run}"), soft_wrap=True)


def _results(report: Mapping[str, Any]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name in ("arm", "step ms\n(95 % CI)", "speedup\n(95 % CI)", "loss\nparity", "verdict"):
        table.add_column(name, no_wrap=True)
    for name, arm in report["arms"].items():
        step, compared = arm["step_ms"], report["compare"].get(name)
        cells: list[Text] = [_NOTHING] * 3
        if compared:
            speedup, verdict = compared["speedup"], compared["verdict"]
            wrong = verdict == "wrong"  # how fast it was is no result
            cells = [
                _NOTHING if wrong else _with_interval(speedup["value"], speedup["ci95"], ".3f", "×"),
                _parity(compared["loss_parity"], "off by" if wrong else "within"),
                Text(verdict, style=VERDICT_STYLE.get(verdict, "bold")),
            ]
        table.add_row(_arm_name(name), _with_interval(step["median"], step["ci95"], ".0f"), *cells)
    return table


def _where_time_goes(report: Mapping[str, Any]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("arm")
    for label, (_, style, _) in _CLASSES.items():
        table.add_column(Text(label.replace(" ", "\n"), style=style), justify="right")
    for name in ("bubble\n%", "strag-\ngler %", "imbal-\nance"):
        table.add_column(name, justify="right")
    for name, arm in report["arms"].items():
        values = [_number(_class_ms(arm, key), ".1f") for key, _, _ in _CLASSES.values()]
        shares = [_number(arm[key], ".1f") for key in ("bubble_pct", "straggler_pct")]
        table.add_row(_arm_name(name), *values, *shares, _number(arm["imbalance"], ".2f"))
    return table


def _arm_name(name: str) -> Text:
    return Text(name.replace("+", "\n+").replace("-aa", "\n-aa"))  # 80 columns have no room for long names


def _bar(arm: Mapping[str, Any]) -> Text:
    known = [_class_ms(arm, key) or 0.0 for key, _, _ in _CLASSES.values()]
    bar = Text()
    drawn, so_far = 0, 0.0
    for value, (_, style, cell) in zip(known, _CLASSES.values(), strict=True):
        so_far += value
        cells = round(_BAR_CELLS * so_far / sum(known)) - drawn if sum(known) else 0
        bar.append(cell * cells, style=style)
        drawn += cells
    return bar


def _class_ms(arm: Mapping[str, Any], key: str) -> float | None:
    if key == "straggler_ms":  # the report has the sum of the two
        total, transfer = arm["exposed_total_ms"], arm["exposed_comm_ms"]
        return None if total is None or transfer is None else total - transfer
    value: float | None = arm[key]
    return value


def _parity(parity: Mapping[str, Any], word: str) -> Text:
    if parity["bit_exact"]:
        return Text("bit-identical")
    return _NOTHING if parity["max_rel"] is None else Text(f"{word} {parity['max_rel']:.0e}")


def _with_interval(value: float | None, interval: list[float] | None, form: str, unit: str = "") -> Text:
    if value is None:
        return _NOTHING
    shown = f"{value:{form}}{unit}"
    return Text(shown if interval is None else f"{shown} ({interval[0]:{form}}–{interval[1]:{form}})")


def _number(value: float | None, form: str) -> Text:
    return _NOTHING if value is None else Text(f"{value:{form}}")
