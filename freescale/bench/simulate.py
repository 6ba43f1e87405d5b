"""Simulate arms on a cluster that is not there: 64 to 4,096 GPUs, with the same batches, policies and schedules.

PRESET is a workload (see `freescale-bench workloads`), or leave it out and name a --scenario. Without --sweep the
result is a run directory like any other, marked simulated; with it, one table and a plot over all points.

CLUSTER is h100-ib, h200-nvl, a100-ib, this-machine (after `freescale-bench calibrate`), or a .toml file.
"""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import click

from freescale.errors import FreeScaleError

_SETTINGS = ("ranks", "policy", "blocks", "steps", "warmup")


@click.command("simulate", help=__doc__)
@click.argument("preset", required=False)
@click.option("--scenario", help="A packaged scenario, or a .toml file; options given beside it win.")
@click.option("--cluster", help="Cluster to simulate.  [default: h100-ib]")
@click.option("--ranks", type=int, help="Ranks, one GPU each.  [default: 64]")
@click.option("--arms", help="Arms; the first is what others are compared with.  [default: baseline,sdd,freescale]")
@click.option("--policy", help="Of the balance layer: rounds, zigzag or variable.  [default: rounds]")
@click.option("--blocks", type=int, help="Blocks, each with its own batches and noise.  [default: 3]")
@click.option("--steps", type=int, help="Steps of a block that count.  [default: 6]")
@click.option("--warmup", type=int, help="Steps of a block before those.  [default: 2]")
@click.option("--seed", default=0, show_default=True, help="Of batches and noise.")
@click.option("--set", "settings", multiple=True, metavar="KEY=VALUE", help="workload.FIELD or cluster.CONSTANT.")
@click.option("--sweep", "sweeps", multiple=True, metavar="KEY=A,B,C", help="Vary a setting; may be repeated.")
@click.option("--trace-ranks", help="Ranks to write traces of, such as 0-7 or 0,5.  [default: 0-7, as far as there]")
@click.option("--out", default="runs", show_default=True, type=click.Path(file_okay=False), help="Where runs are kept.")
@click.option("--json", "as_json", is_flag=True, help="Print the report (or the table), and nothing else, on stdout.")
def command(
    preset: str | None,
    scenario: str | None,
    cluster: str | None,
    arms: str | None,
    seed: int,
    settings: tuple[str, ...],
    sweeps: tuple[str, ...],
    trace_ranks: str | None,
    out: str,
    as_json: bool,
    **given: Any,
) -> None:
    from freescale.bench.arms import parse_arms
    from freescale.bench.simulated_run import Simulation
    from freescale.bench.simulated_sweep import at_point, changed
    from freescale.simulate import cluster as clusters
    from freescale.simulate import scenario as scenarios
    from workloads import registry

    try:
        asked = scenarios.load(scenario) if scenario else None
        known = dict(asked.settings) if asked else {}
        chosen = {name: given[name] if given[name] is not None else known.get(name) for name in _SETTINGS}
        config = registry.preset(preset or known.get("preset", registry.DEFAULT_PRESET))
        names = arms or ",".join(known.get("arms", ["baseline", "sdd", "freescale"]))
        at = clusters.load(cluster or known.get("cluster", "h100-ib"))
        base = Simulation(
            workload=changed(config, asked.workload) if asked else config,
            cluster=at.with_values(asked.constants) if asked else at,
            arms=tuple(parse_arms(names)),
            seed=seed,
            **{"ranks": 64, **{name: value for name, value in chosen.items() if value is not None}},
        )
        fixed = scenarios.parse_sweep(settings)
        base = at_point(base, {key: values[0] for key, values in fixed.items()})
        sweep = scenarios.parse_sweep(sweeps) or (asked.sweep if asked else {})
        points = scenarios.points(sweep)
        for point in points:
            at_point(base, point)
        if sweep and trace_ranks:
            raise FreeScaleError("trace_ranks: a sweep writes no traces; simulate one point without --sweep")
    except FreeScaleError as error:
        raise click.UsageError(str(error)) from error
    if sweep:
        _sweep(base, points, asked, Path(out), as_json)
    else:
        _one(base, trace_ranks, Path(out), as_json)


def _one(base: Any, trace_ranks: str | None, out: Path, as_json: bool) -> None:
    import dataclasses

    from freescale.bench.simulated_run import describe_cluster, simulate, write_run
    from freescale.bench.terminal import print_report

    try:
        ranks = _parse_ranks(trace_ranks) if trace_ranks else tuple(range(min(8, base.ranks)))
        base = dataclasses.replace(base, trace_ranks=ranks)
    except FreeScaleError as error:
        raise click.UsageError(str(error)) from error
    run, report = write_run(simulate(base), out, describe_cluster(base.cluster))
    if as_json:
        click.echo(json.dumps(report, indent=1))
    else:
        print_report(report, run)


def _sweep(base: Any, points: list[dict[str, Any]], asked: Any, out: Path, as_json: bool) -> None:
    from rich.console import Console
    from rich.progress import Progress

    from analyzer import rundir
    from freescale.bench.simulated_sweep import MEASURES, against_reported, plot, sweep

    title = asked.title if asked else f"{base.workload.name} on {base.cluster.name}"
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=as_json or not console.is_terminal) as progress:
        task = progress.add_task("simulating", total=len(points))
        table = sweep(base, points, lambda done: progress.update(task, completed=done))
    compared = against_reported(table, asked.reported) if asked else table.iloc[:0]
    now = datetime.datetime.now(datetime.timezone.utc)
    folder = rundir.make_run(out, f"{now:%Y%m%dT%H%M%SZ}-sweep-{asked.name if asked else base.workload.name}")
    table.to_csv(folder / "table.csv", index=False)
    plot(table, title, folder / "plot.html")
    summary = {
        "provenance": "simulated",
        "title": title,
        "cluster": base.cluster.name,
        "assumed": {**(dict(asked.assumed) if asked else {}), "cluster": base.cluster.assumed},
        "points": json.loads(table.to_json(orient="records")),
        "reported": json.loads(compared.to_json(orient="records")),
        "warnings": base.warnings,
    }
    rundir.write_json(folder / "sweep.json", summary)
    if as_json:
        click.echo(json.dumps(summary, indent=1))
        return
    click.echo(f"{title}\n\n{table.round(dict.fromkeys(MEASURES, 2)).to_string(index=False)}\n")
    if len(compared):
        shown = compared.drop(columns="source").round({"simulated": 2, "off_pct": 1})
        click.echo(f"Reported and simulated\n{shown.to_string(index=False)}\n")
    click.echo(f"simulated on {base.cluster.name}; table and plot: {folder}")


def _parse_ranks(text: str) -> tuple[int, ...]:
    ranks: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        if not first.isdecimal() or (last and not last.isdecimal()):
            raise FreeScaleError(f"trace_ranks: {text!r}, expected ranks such as 0-7 or 0,5")
        ranks += range(int(first), int(last or first) + 1)
    return tuple(dict.fromkeys(ranks))
