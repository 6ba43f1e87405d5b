"""Measure this machine for the simulator: what each piece of a training step costs, and each exchange.

Ranks run side by side as in `freescale-bench run`; the result is a cluster file, this-machine.toml, for
`freescale-bench simulate --cluster this-machine`. Measure on a quiet machine: what else runs goes into the figures.
"""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np

from freescale.errors import FreeScaleError

_TIMEOUT_S = 300
_LINK_PIECES = ("gloo", "gloo_issue", "gloo_reduce", "shared", "shared_issue", "bucket", "alone", "beside")


@click.command("calibrate", help=__doc__)
@click.option("--ranks", default=2, show_default=True, help="Ranks that measure side by side.")
@click.option("--presets", default="hstu-small,hstu-tiny", show_default=True, help="Workloads whose steps are timed.")
@click.option("--batches", default=24, show_default=True, help="Timed steps of each.")
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
    rows = measure(ranks, presets, batches)
    constants, pieces, errors = fit(rows)
    text = as_toml(constants, pieces, errors, ranks, presets)
    from freescale.simulate.cluster import parse

    parse(text, out)
    Path(out).write_text(text, encoding="utf-8")
    if as_json:
        click.echo(json.dumps({"constants": constants, "pieces": pieces, "fit_error_pct": errors}, indent=1))
        return
    click.echo(f"{'piece':<14} {'median error of the fit':>24}")
    for piece, error_pct in errors.items():
        click.echo(f"{piece:<14} {error_pct:>22.1f} %")
    click.echo(f"\nwritten to {out}; simulate with: freescale-bench simulate --cluster {out} --ranks {ranks}")


def measure(ranks: int, presets: str, batches: int) -> list[dict[str, Any]]:
    """Rows (piece, amounts, ns) of all ranks.

    Raises:
        FreeScaleError: a rank failed or did not finish; with the end of its log.
    """
    with tempfile.TemporaryDirectory(prefix="freescale-calibrate-") as name:
        folder = Path(name)
        processes, logs = [], []
        for rank in range(ranks):
            logs.append(folder / f"rank-{rank}.log")
            environment = {**os.environ, "RANK": str(rank), "WORLD_SIZE": str(ranks), "OMP_NUM_THREADS": "1"}
            arguments = [sys.executable, "-m", "freescale.bench.calibration_worker", name, presets, str(batches)]
            with logs[-1].open("wb") as log:
                processes.append(subprocess.Popen(arguments, env=environment, stdout=log, stderr=log))
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


def fit(rows: Sequence[dict[str, Any]]) -> tuple[dict[str, float], dict[str, dict[str, float]], dict[str, float]]:
    """(constants, ns per unit of each piece, median error of each fit in percent) from measured rows."""
    from freescale.simulate.cost import PIECES

    # An exchange takes as long as on its slowest rank, which all leave together.
    issue_ns = float(np.median([row["ns"] for row in rows if row["piece"] == "gloo_issue"]))
    issues = {"distribute", "tell", "read", "give", "split", "announce", "move"}
    pieces, errors, noise = {}, {}, []
    for piece in PIECES:
        mine = [row for row in rows if row["piece"] == piece]
        if not mine:
            raise FreeScaleError(f"calibrate: nothing was measured of {piece}")
        ns = np.array([row["ns"] for row in mine], np.float64)
        if piece in issues:
            ns = np.maximum(ns - issue_ns, ns / 10)
        units = sorted({unit for row in mine for unit in row["amounts"]})
        work = np.array([[row["amounts"].get(unit, 0.0) for unit in units] + [1.0] for row in mine])
        solution, relative = _fit(work, ns)
        pieces[piece] = dict(zip([*units, "each"], solution.tolist(), strict=True))
        errors[piece] = float(np.median(np.abs(relative)) * 100)
        if piece in ("forward", "backward"):
            noise += relative.tolist()
    links = {name: [row for row in rows if row["piece"] == name] for name in _LINK_PIECES}
    gloo_ns, gloo_byte = _line(links["gloo"])
    reduce_ns, reduce_byte = _line(links["gloo_reduce"])
    _, shared_byte = _line(links["shared_issue"])
    shared_ns = float(np.median([row["ns"] for row in links["shared"] if row["amounts"]["nbytes"] < 1e4]))
    bucket = [row["ns"] for row in links["bucket"] if row["amounts"]["nbytes"] == 1 << 17]
    constants = {
        "gloo_latency_us": max(gloo_ns - issue_ns, 0.0) / 1e3,
        "gloo_ns_per_byte": gloo_byte,
        "gloo_reduce_latency_us": max(reduce_ns - issue_ns, 0.0) / 1e3,
        "gloo_reduce_ns_per_byte": reduce_byte,
        "gloo_core_share": _core_share(links["alone"], links["beside"]),
        "shared_latency_us": max(shared_ns - issue_ns, 0.0) / 1e3,
        "shared_ns_per_byte": shared_byte,
        "issue_us": issue_ns / 1e3,
        "bucket_us": float(np.median(bucket)) * 2 / 1e3,
        "jitter": min(float(1.4826 * np.median(np.abs(noise))), 2.0),
    }
    return constants, pieces, errors


def as_toml(
    constants: dict[str, float],
    pieces: dict[str, dict[str, float]],
    errors: dict[str, float],
    ranks: int,
    presets: str,
) -> str:
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
    lines += [f"{name} = {{ value = {value:.6g}, source = {json.dumps(source)} }}" for name, value in constants.items()]
    for piece, units in pieces.items():
        lines += ["", f"# fitted with a median error of {errors[piece]:.1f} %", f"[pieces.{piece}]"]
        lines += [f"{unit} = {value:.6g}" for unit, value in units.items()]
    return "\n".join(lines) + "\n"


def _fit(work: np.ndarray, ns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(non-negative ns per column, relative errors); errors count relative to the time, outliers once only."""
    from scipy.optimize import nnls

    chosen = np.ones(len(ns), bool)
    for _ in range(2):
        scaled = work[chosen] / ns[chosen, None]
        size = np.linalg.norm(scaled, axis=0)
        size[size == 0] = 1.0
        solution = nnls(scaled / size, np.ones(int(chosen.sum())))[0] / size
        relative = work @ solution / ns - 1
        chosen = np.abs(relative) <= 4 * max(float(np.median(np.abs(relative))), 0.01)
    return solution, relative


def _line(rows: Sequence[dict[str, Any]]) -> tuple[float, float]:
    """(ns at 0 bytes, ns per byte), from the median time of each size."""
    sizes = sorted({row["amounts"]["nbytes"] for row in rows})
    medians = [np.median([row["ns"] for row in rows if row["amounts"]["nbytes"] == size]) for size in sizes]
    solution, _ = _fit(np.column_stack([np.ones(len(sizes)), sizes]), np.array(medians, np.float64))
    return float(solution[0]), float(solution[1])


def _last_line(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1] if lines else "it said nothing"


def _core_share(alone: Sequence[dict[str, Any]], beside: Sequence[dict[str, Any]]) -> float:
    """How much of a core's speed is gone while gloo moves bytes."""
    each = float(np.median([row["ns"] for row in alone])) / 400
    slowed = [row["ns"] / row["amounts"]["times"] for row in beside if row["amounts"]["times"]]
    return float(np.clip(1 - each / float(np.median(slowed)), 0, 0.95)) if slowed else 0.0
