"""Write the report of a run to one file.

RUN is a run directory. The ending of the output decides the form: .html is one self-contained page with every figure,
.md has the verdict and the tables as Markdown, .json is report.json as it is.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from freescale.errors import FreeScaleError

if TYPE_CHECKING:
    from dashboard.data import Run

FORMS = (".html", ".md", ".json")


@click.command("report", help=__doc__)
@click.argument("run", type=click.Path(path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), help="File to write; its ending decides the form.")
@click.option("--arm", help="The arm to put in focus.  [default: the last one that was compared]")
@click.option("--force", is_flag=True, help="Write over a file that is there.")
@click.option("--json", "as_json", is_flag=True, help="Print report.json, and nothing else, on stdout.")
def command(run: Path, output: Path | None, arm: str | None, force: bool, as_json: bool) -> None:
    if output is None and not as_json:
        raise click.UsageError("Say where to: -o report.html (or .md, .json), or --json to print it.")
    if output is not None and output.suffix not in FORMS:
        raise click.UsageError(f"{output}: the ending must be one of {', '.join(FORMS)}")
    if output is not None and output.exists() and not force:
        raise FreeScaleError(f"File already exists, will not overwrite without --force: {output}")
    from analyzer.rundir import write_bytes
    from dashboard.data import open_run

    opened = open_run(run)
    if arm is not None and arm not in opened.arms:
        raise FreeScaleError(f"{run}: no arm {arm!r}; this run has {', '.join(opened.arms) or 'none'}")
    if output is not None:
        write_bytes(output, _render(opened, output.suffix, arm).encode())
    if as_json:
        click.echo(_json(opened), nl=False)
    elif output is not None:
        click.echo(f"wrote {output}")


def _render(run: Run, form: str, arm: str | None) -> str:
    if form == ".html":
        from dashboard.html import write_report

        return write_report(run, arm)
    if form == ".md":
        from dashboard.markdown import write_markdown

        return write_markdown(run, arm)
    return _json(run)


def _json(run: Run) -> str:
    if not run.analysed:
        raise FreeScaleError(f"{run.name}: not analysed yet; run `freescale-bench analyze {run.directory.path}` first")
    return json.dumps(run.report, indent=1) + "\n"
