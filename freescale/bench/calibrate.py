"""Measure this machine for the simulator: what each piece of a training step costs, and each exchange.

Ranks run side by side as in `freescale-bench run`; the result is a cluster file, this-machine.toml, for
`freescale-bench simulate --cluster this-machine`. Measure on a quiet machine: what else runs goes into the figures.
Where the machine's speed changes within minutes, calibrate several times with --keep, before and after what you compare
with: the cluster is then fitted to all of it.
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
_APART = 1_000_000


@click.command("calibrate", help=__doc__)
@click.option("--ranks", default=2, show_default=True, help="Ranks that measure side by side.")
@click.option("--presets", default="hstu-small,hstu-tiny", show_default=True, help="Workloads whose steps are timed.")
@click.option("--batches", default=16, show_default=True, help="Timed steps of each.")
@click.option("--out", default="this-machine.toml", show_default=True, type=click.Path(dir_okay=False))
@click.option("--keep", type=click.Path(dir_okay=False), help="Add what is measured to this file; fit to all in it.")
@click.option("--json", "as_json", is_flag=True, help="Print the cluster as JSON, and nothing else, on stdout.")
def command(ranks: int, presets: str, batches: int, out: str, keep: str | None, as_json: bool) -> None:
    from workloads import registry

    try:
        for preset in presets.split(","):
            registry.preset(preset)
        if ranks < 2 or batches < 4:
            raise FreeScaleError(f"ranks: {ranks}, batches: {batches}; expected at least 2 and 4")
    except FreeScaleError as error:
        raise click.UsageError(str(error)) from error
    from freescale.bench.calibration_fit import fit

    kept = _kept(Path(keep), ranks) if keep else []
    rows = [*kept, *measure(ranks, presets, batches, len({row["calibration"] for row in kept}))]
    found = fit(rows)
    text = as_toml(found, ranks, presets)
    from freescale.simulate.cluster import parse

    parse(text, out)
    Path(out).write_text(text, encoding="utf-8")
    if keep:
        Path(keep).write_text("\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")
    if as_json:
        click.echo(json.dumps(dataclasses.asdict(found), indent=1))
        return
    click.echo(f"{'piece':<14} {'median error of the fit':>24}")
    for piece, error_pct in found.errors_pct.items():
        click.echo(f"{piece:<14} {error_pct:>22.1f} %")
    if found.wall_pct > _QUIET_PCT:
        longer = f"forward took {found.wall_pct:.0f} % longer than the CPU worked on it"
        click.echo(f"\n{longer}: measure on a quiet machine")
    click.echo(f"\nwritten to {out}; simulate with: freescale-bench simulate --cluster {out} --ranks {ranks}")


def measure(ranks: int, presets: str, batches: int, number: int = 0) -> list[dict[str, Any]]:
    """Rows (piece, amounts, ns) of all ranks.

    Args:
        number: of this calibration among those that are fitted together; each has other batches.

    Raises:
        FreeScaleError: a rank failed or did not finish; with the end of its log.
    """
    from freescale.bench.calibration_pieces import SEED
    from freescale.bench.launch import environment_of_ranks

    with tempfile.TemporaryDirectory(prefix="freescale-calibrate-") as name, environment_of_ranks():
        folder = Path(name)
        processes, logs = [], []
        for rank in range(ranks):
            logs.append(folder / f"rank-{rank}.log")
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(ranks), "LOCAL_WORLD_SIZE": str(ranks)}
            arguments = [sys.executable, "-m", "freescale.bench.calibration_worker", name, presets, str(batches)]
            arguments.append(str(SEED + number))
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
        rows = [
            row | {"rank": rank}
            for rank in range(ranks)
            for row in json.loads((folder / f"rank-{rank}.json").read_text(encoding="utf-8"))
        ]
        return [_numbered(row, number) for row in rows + _recorded(folder, ranks, presets)]


def _numbered(row: dict[str, Any], number: int) -> dict[str, Any]:
    """A row with batches and ordinals apart from those of other calibrations."""
    apart: dict[str, Any] = {key: row[key] + number * _APART for key in ("batch", "ordinal") if key in row}
    return {**row, **apart, "calibration": number}


def _kept(file: Path, ranks: int) -> list[dict[str, Any]]:
    """Rows of earlier calibrations."""
    if not file.exists():
        return []
    try:
        rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
        of_ranks = {row["rank"] for row in rows if row["calibration"] >= 0}
    except (ValueError, KeyError, TypeError):
        raise FreeScaleError(f"{file}: not written by calibrate --keep; give another file") from None
    if rows and of_ranks != set(range(ranks)):
        raise FreeScaleError(f"{file}: of {len(of_ranks)} ranks, not {ranks}; give another file")
    return rows


def _recorded(folder: Path, ranks: int, presets: str) -> list[dict[str, Any]]:
    """Rows of the exchanges and the pauses that the ranks' traces show."""
    from freescale.bench.calibration_traces import exchanges, pause_ns
    from freescale.bench.calibration_turns import RECORDED_ARMS

    rows: list[dict[str, Any]] = []
    for preset in presets.split(","):
        for arm in RECORDED_ARMS:
            traces = [folder / f"{preset}-{arm}-{rank}.json.gz" for rank in range(ranks)]
            rows += [{"piece": "recorded", "amounts": {}, "arm": arm, **row} for row in exchanges(traces)]
            if arm == "baseline":
                for rank, trace in enumerate(traces):
                    rows.append({"piece": "pause", "rank": rank, "amounts": {}, "ns": pause_ns(trace)})
    return rows


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
    lines += ["", "[pauses]", *(f"{piece} = {share:.6g}" for piece, share in found.pauses.items())]
    return "\n".join(lines) + "\n"


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"
