"""Say where the step time in Kineto traces goes, which rank the others wait for, and how sure that is.

PATH is a run directory, a folder with one trace per rank, or a single trace (.json or .json.gz). A run directory gets
bubbles.parquet, collectives.parquet and report.json; beside bare traces nothing is written.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.table import Table

    from analyzer.analysis import ArmAnalysis

_CLASSES = ("compute", "straggler", "exposed_comm", "exposed_copy", "host")
_ROWS_SHOWN = 40
_WARNINGS_SHOWN = 8


@click.command("analyze", help=__doc__)
@click.argument("path", type=click.Path(exists=True, path_type=Path))
@click.option("--arm", help="Arm of a run directory to show in detail.  [default: the first]")
@click.option("--json", "as_json", is_flag=True, help="Print the analysis as JSON, and nothing else, on stdout.")
def command(path: Path, arm: str | None, as_json: bool) -> None:
    import analyzer

    report = analyzer.analyze(path)
    if as_json:
        click.echo(json.dumps(report.as_json(arm), allow_nan=False))
        return
    from rich.console import Console
    from rich.text import Text

    console = Console()
    if report.run is not None:
        from freescale.bench.terminal import print_report

        print_report(report.run, path, console)
    else:
        console.print(Text(report.headline, style="bold"))
    if report.arms or arm is not None:
        _print_arm(console, report.arm(arm), title=arm or next(iter(report.arms)))


def _print_arm(console: Any, analysis: ArmAnalysis, title: str) -> None:
    from rich.text import Text

    console.print(_where_time_goes(analysis, title))
    blame = _culprits(analysis)
    if blame is not None:
        console.print(blame)
    console.print(f"[dim]clocks: {_clock_note(analysis)}[/dim]")
    if not title:  # a run directory's warnings have been shown with its report
        for warning in analysis.warnings[:_WARNINGS_SHOWN]:
            console.print(Text(f"warning: {warning}", style="yellow"))
        if len(analysis.warnings) > _WARNINGS_SHOWN:
            console.print(
                Text(f"… {len(analysis.warnings) - _WARNINGS_SHOWN} more warnings: see --json", style="yellow")
            )


def _where_time_goes(analysis: ArmAnalysis, title: str) -> Table:
    rows = analysis.tables.bubbles.groupby("rank")[[f"{name}_ns" for name in ("window", *_CLASSES)]].mean() / 1e6
    prefix = f"{title}: " if title else ""
    table = _table(
        f"{prefix}where a step goes on each rank, mean over steps, ms", ("rank", "step", *_CLASSES, "bubble %")
    )
    for rank, row in list(rows.iterrows())[:_ROWS_SHOWN]:
        bubble = 100 * (1 - row["compute_ns"] / row["window_ns"]) if row["window_ns"] else 0.0
        _add(table, [str(rank), *(f"{row[f'{name}_ns']:.2f}" for name in ("window", *_CLASSES)), f"{bubble:.1f}"])
    if len(rows) > _ROWS_SHOWN:
        table.caption = f"{len(rows) - _ROWS_SHOWN} more ranks: see --json"
    return table


def _culprits(analysis: ArmAnalysis) -> Table | None:
    culprits = analysis.findings.culprits
    if not culprits:
        return None
    table = _table("Who the others wait for", ("rank", "times last", "others waited ms", "pattern", "because of"))
    for culprit in culprits[:_ROWS_SHOWN]:
        waited = f"{culprit.charged_ns / 1e6:.2f}"
        cells = [str(culprit.rank), str(culprit.times_last), waited, culprit.pattern or "—", culprit.cause or "—"]
        _add(table, cells)
    return table


def _clock_note(analysis: ArmAnalysis) -> str:
    clocks = analysis.tables.clocks
    if clocks.method == "one host":
        return "one host, one clock"
    if clocks.method == "none":
        return "not compared; nothing ties them together"
    spread = (clocks.offset_ns.max() - clocks.offset_ns.min()) / 1e3
    return f"up to {spread:.1f} µs apart, corrected from {clocks.method} to {clocks.residual_ns / 1e3:.1f} µs"


def _table(title: str, columns: Iterable[str]) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=title, title_justify="left")
    for column in columns:
        table.add_column(column.replace("_", " "), justify="right")
    return table


def _add(table: Table, cells: list[str]) -> None:
    from rich.text import Text

    table.add_row(*(Text(cell) for cell in cells))
