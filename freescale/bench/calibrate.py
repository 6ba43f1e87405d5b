"""Measure this machine for the simulator: what each piece of a training step costs, and each exchange.

Ranks run side by side as in `freescale-bench run`; the result is a cluster file, this-machine.toml, for
`freescale-bench simulate --cluster this-machine`. Measure on a quiet machine: what else runs goes into the figures.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from freescale.errors import FreeScaleError

if TYPE_CHECKING:
    from freescale.bench.calibration_fit import Calibration

_TIMEOUT_S = 600
_QUIET_PCT = 5.0


@click.command("calibrate", help=__doc__)
@click.option("--ranks", default=2, show_default=True, help="Ranks that measure side by side.")
@click.option("--presets", default="hstu-small,hstu-tiny", show_default=True, help="Workloads whose steps are timed.")
@click.option("--batches", default=16, show_default=True, help="Timed steps of each.")
@click.option("--out", default="this-machine.toml", show_default=True, type=click.Path(dir_okay=False))
@click.option("--json", "as_json", is_flag=True, help="Print the cluster as JSON, and nothing else, on stdout.")
def command(ranks: int, presets: str, batches: int, out: str, as_json: bool) -> None:
    from workloads import registry

    try:
        for preset in presets.split(","):
            registry.preset(preset)
        if ranks < 2 or batches < 4:
            raise FreeScaleError(f"ranks: {ranks}, batches: {batches}; expected at least 2 and 4")
    except FreeScaleError as error:
        raise click.UsageError(str(error)) from error
    from freescale.bench.calibration_fit import fit

    found = fit(measure(ranks, presets, batches))
    text = as_toml(found, ranks, presets)
    from freescale.simulate.cluster import parse

    parse(text, out)
    Path(out).write_text(text, encoding="utf-8")
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(found), indent=1))
        return
    click.echo(f"{'piece':<14} {'median error of the fit':>24}")
    for piece, error_pct in found.errors_pct.items():
        click.echo(f"{piece:<14} {error_pct:>22.1f} %")
    if found.wall_pct > _QUIET_PCT:
        longer = f"steps took {found.wall_pct:.0f} % longer than the CPU worked on them"
        click.echo(f"\n{longer}: measure on a quiet machine")
    click.echo(f"\nwritten to {out}; simulate with: freescale-bench simulate --cluster {out} --ranks {ranks}")


def measure(ranks: int, presets: str, batches: int) -> list[dict[str, Any]]:
    """Rows (piece, amounts, ns) of all ranks.

    Raises:
        FreeScaleError: a rank failed or did not finish; with the end of its log.
    """
    from freescale.bench.launch import environment_of_ranks

    with tempfile.TemporaryDirectory(prefix="freescale-calibrate-") as name, environment_of_ranks():
        folder = Path(name)
        processes, logs = [], []
        for rank in range(ranks):
            logs.append(folder / f"rank-{rank}.log")
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
            arguments = [sys.executable, "-m", "freescale.bench.calibration_worker", name, presets, str(batches)]
            with logs[-1].open("wb") as log:
                processes.append(subprocess.Popen(arguments, env={**os.environ, **own}, stdout=log, stderr=log))
        try:
            for rank, process in enumerate(processes):
                if process.wait(timeout=_TIMEOUT_S) != 0:
                    raise FreeScaleError(f"calibrate: rank {rank} failed: {_last_line(logs[rank])}")
        except subprocess.TimeoutExpired:
            raise FreeScaleError(f"calibrate: not done after {_TIMEOUT_S} s; give fewer --batches") from None
        finally:
            for process in processes:
                if process.poll() is None:
                    process.kill()
                    process.wait()
        return [
            row | {"rank": rank}
            for rank in range(ranks)
            for row in json.loads((folder / f"rank-{rank}.json").read_text(encoding="utf-8"))
        ]


def as_toml(found: Calibration, ranks: int, presets: str) -> str:
    """The cluster file."""
    from freescale.bench.machine import machine

    here = machine()
    today = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d")
    source = f"measured {today} on {here['cpu']}, {here['cores']} cores, load {here['load_1min']:.1f}, {ranks} ranks"
    lines = [
        'name = "this-machine"',
        'device = "cpu"',
        f"description = {json.dumps(f'{source}; steps of {presets}')}",
        "",
        "[constants]",
        f"ranks_per_node = {{ value = {ranks}, source = {json.dumps(source)} }}",
    ]
    lines += [
        f"{name} = {{ value = {value:.6g}, source = {json.dumps(source)} }}" for name, value in found.constants.items()
    ]
    for piece, units in found.pieces.items():
        lines += ["", f"# fitted with a median error of {found.errors_pct[piece]:.1f} %", f"[pieces.{piece}]"]
        lines += [f"{unit} = {value:.6g}" for unit, value in units.items()]
    for piece, units in found.profiled.items():
        lines += ["", f"[profiled.{piece}]"]
        lines += [f"{unit} = {value:.6g}" for unit, value in units.items()]
    return "\n".join(lines) + "\n"


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"
