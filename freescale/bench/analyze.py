"""Say where the step time in Kineto traces goes, which rank the others wait for and why, and how sure that is.

PATH is a run directory, a folder with one trace per rank, a zip archive of traces, a single trace (.json, .json.gz), or
a quoted pattern such as 'logs/rank*.json.gz'. A run directory gets bubbles.parquet, collectives.parquet and
report.json; beside bare traces nothing is written.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import click


class _Numbers(click.ParamType):
    """`0,4-7` as a list of numbers."""

    name = "numbers"
    _ITEM = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?")
    _MOST = 100_000

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> list[int]:
        numbers: list[int] = []
        for item in str(value).split(","):
            match = self._ITEM.fullmatch(item.strip())
            low = int(match[1]) if match else 0
            high = int(match[2] or low) if match else -1
            if high < low or high - low > self._MOST:
                self.fail(f"{item.strip()!r} is no number or range; write for example 0,4-7", param, ctx)
            numbers += range(low, high + 1)
        return numbers


@click.command("analyze", help=__doc__)
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--arm", help="Arm of a run directory to show in detail.  [default: the first]")
@click.option("--steps", type=_Numbers(), help="Only these of the profiler's steps, e.g. 4,6-8.")
@click.option("--ranks", type=_Numbers(), help="Show only these ranks; whom they wait for may be others.")
@click.option("--group", help="Show only collectives of this process group, and blame only for waits in them.")
@click.option(
    "--hta", is_flag=True, help="Let HTA look at the traces of --ranks too, and say where it differs and why."
)
@click.option(
    "-o",
    "--merged",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write one clock-aligned trace for Perfetto: ranks as processes, bubbles as slices (.json or .json.gz).",
)
@click.option("--json", "as_json", is_flag=True, help="Print the analysis as JSON, and nothing else, on stdout.")
def command(
    path: Path,
    arm: str | None,
    steps: list[int] | None,
    ranks: list[int] | None,
    group: str | None,
    hta: bool,
    merged: Path | None,
    as_json: bool,
) -> None:
    import analyzer

    report = analyzer.analyze(path, steps=steps, ranks=ranks, group=group, arm=arm, merged=merged, hta=hta)
    if as_json:
        click.echo(json.dumps(report.as_json(arm), allow_nan=False))
        return
    from freescale.bench.analysis_tables import print_analysis
    from freescale.bench.terminal import print_report

    whole_run = report.run is not None and steps is ranks is group is None
    if report.run is not None and whole_run:
        print_report(report.run, path)
    if report.arms or not whole_run:
        print_analysis(report, arm, verdict=not whole_run)
    if merged is not None:
        click.echo(f"merged trace: {merged} (open it at ui.perfetto.dev)")
