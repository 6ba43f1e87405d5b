"""Compare two run directories: how fast each arm is in B, measured against A.

First the gate: workload, ranks, machine class, provenance and the like must be the same; otherwise the differences are
listed and nothing is compared, unless with --force. Blocks of two runs are no pairs, so the intervals are wider than
inside a run, and they do not cover what differs from launch to launch.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from freescale.errors import FreeScaleError

if TYPE_CHECKING:
    from analyzer import Comparison


@click.command("compare", help=__doc__)
@click.argument("a", type=click.Path(path_type=Path))
@click.argument("b", type=click.Path(path_type=Path))
@click.option("--force", is_flag=True, help="Compare although the runs differ in more than speed.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, and nothing else, on stdout.")
def command(a: Path, b: Path, force: bool, as_json: bool) -> None:
    from analyzer import compare

    found = compare(a, b)
    if not found.comparable and not force:
        differ = "; ".join(_differences(found))
        raise FreeScaleError(f"{a} and {b} are not comparable: {differ}. Compare them all the same with --force")
    if as_json:
        click.echo(json.dumps(found.as_json(), indent=1))
    else:
        _print(found)


def _differences(found: Comparison) -> list[str]:
    return [f"{d['field']} is {d['a']} in A, {d['b']} in B" for d in found.differences]


def _print(found: Comparison) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    console.print(f"\n{found.headline}", style="bold", markup=False)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for name in ("arm", "A ms", "B ms", "B as fast as A (95 % CI)", "beside reference", "verdict"):
        table.add_column(name)
    for name, arm in found.arms.items():
        table.add_row(
            name.replace("+", "\n+"),
            _ms(arm["a_ms"]),
            _ms(arm["b_ms"]),
            _ratio(arm["speedup"]),
            _ratio(arm["relative"]),
            arm["verdict"],
        )
    console.print(table)
    for difference in _differences(found):
        console.print(f"warning: {difference}", style="yellow", markup=False)
    for note in found.notes:
        console.print(f"note: {note}", style="dim", markup=False)


def _ms(value: float | None) -> str:
    return "—" if value is None else f"{value:.1f}"


def _ratio(estimate: dict[str, Any]) -> str:
    value, interval = estimate["value"], estimate["ci95"]
    if value is None:
        return "—"
    return f"{value:.3f}×" + (f" ({interval[0]:.3f}–{interval[1]:.3f})" if interval else "")
