"""Run a workload on real ranks, one arm against another, and say what it showed.

PRESET is a workload (see `freescale-bench workloads`). The arms take turns in randomized blocks on the same batches
from the same state; timed steps run without a profiler, and a separate pass records what the time went into.

Started by torchrun, the command takes part as one rank of many hosts; rank 0 writes the run directory.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click

from freescale.balance.policies import POLICIES
from freescale.bench.arms import parse_arms
from freescale.bench.config import DEFAULT_PRESET, RunConfig
from freescale.errors import FreeScaleError

_DEFAULT = RunConfig()


@click.command("run", help=__doc__)
@click.argument("preset", default=DEFAULT_PRESET)
@click.option("--ranks", type=int, help=f"Ranks to start on this host.  [default: {_DEFAULT.ranks}]")
@click.option(
    "--arms", default=",".join(_DEFAULT.arms), show_default=True, help="Arms; the others are compared with the first."
)
@click.option("--steps", default=_DEFAULT.steps, show_default=True, help="Timed steps of an arm in a block.")
@click.option("--blocks", default=_DEFAULT.blocks, show_default=True, help="Randomized rounds of all arms.")
@click.option("--warmup", default=_DEFAULT.warmup_steps, show_default=True, help="Untimed steps before those.")
@click.option("--profiled-steps", default=_DEFAULT.profiled_steps, show_default=True, help="Steps in each trace.")
@click.option("--seed", default=_DEFAULT.seed, show_default=True, help="Of batches, weights and the order of arms.")
@click.option("--data", type=click.Path(exists=True, dir_okay=False), help="Interaction log to train on.")
@click.option("--column", "columns", multiple=True, metavar="MEANING=NAME", help="Column of --data, e.g. user=uid.")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default=_DEFAULT.device, show_default=True)
@click.option(
    "--policy", type=click.Choice(POLICIES), default=_DEFAULT.policy, show_default=True, help="Of the balance layer."
)
@click.option("--collision-rate", type=float, help="Share of a batch's item rows that the batch before used too.")
@click.option("--link-gbps", type=float, help="Emulate a link of this bandwidth per rank; marks the run emulated.")
@click.option("--link-latency-us", default=_DEFAULT.link_latency_us, show_default=True, help="Latency of that link.")
@click.option("--out", default="runs", show_default=True, type=click.Path(file_okay=False), help="Where runs are kept.")
@click.option(
    "--stall-timeout", default=_DEFAULT.stall_timeout_s, show_default=True, help="Seconds of silence that end the run."
)
@click.option("--json", "as_json", is_flag=True, help="Print report.json, and nothing else, on stdout.")
def command(
    preset: str,
    ranks: int | None,
    arms: str,
    steps: int,
    blocks: int,
    warmup: int,
    profiled_steps: int,
    seed: int,
    data: str | None,
    columns: tuple[str, ...],
    device: str,
    policy: str,
    collision_rate: float | None,
    link_gbps: float | None,
    link_latency_us: float,
    out: str,
    stall_timeout: float,
    as_json: bool,
) -> None:
    torchrun = "TORCHELASTIC_RUN_ID" in os.environ
    try:
        config = RunConfig(
            preset=preset,
            ranks=_world_size(ranks, torchrun),
            arms=tuple(arm.name for arm in parse_arms(arms)),
            blocks=blocks,
            steps=steps,
            warmup_steps=warmup,
            profiled_steps=profiled_steps,
            seed=seed,
            data=data,
            columns=_parse_columns(columns),
            device=device,
            policy=policy,
            collision_rate=collision_rate,
            link_gbps=link_gbps,
            link_latency_us=link_latency_us,
            stall_timeout_s=stall_timeout,
        )
        workload = _describe(config)
    except FreeScaleError as error:
        raise click.UsageError(str(error)) from error
    if torchrun:
        _take_part(config, workload, Path(out), as_json)
    else:
        _run_here(config, workload, Path(out), as_json)


def _run_here(config: RunConfig, workload: dict[str, Any], out: Path, as_json: bool) -> None:
    from freescale.bench.launch import RunFailed, launch

    run = _create(config, workload, out)
    try:
        with _progress(config, quiet=as_json) as on_progress:
            launch(config, run, on_progress)
    except RunFailed as error:
        failure = error.failure
        _mark_failed(run, failure.rank, failure.reason, failure.log_tail)
        if failure.log_tail:
            click.echo(f"--- last lines of its log\n{failure.log_tail}\n---", err=True)
        raise FreeScaleError(f"{failure.reason}; what was measured is in {run}") from None
    except KeyboardInterrupt:
        _mark_failed(run, None, "interrupted", "")
        raise FreeScaleError(f"interrupted; what was measured is in {run}") from None
    _finish(run, as_json)


def _take_part(config: RunConfig, workload: dict[str, Any], out: Path, as_json: bool) -> None:
    from freescale.bench.worker import run_rank

    first = os.environ["RANK"] == "0"
    run = _create(config, workload, out) if first else None
    try:
        run_rank(config, run)
    except BaseException as error:
        if run:
            _mark_failed(run, None, f"rank 0 ended early: {error or type(error).__name__}", "")
        raise
    if run:
        _finish(run, as_json)


def _create(config: RunConfig, workload: dict[str, Any], out: Path) -> Path:
    """Make the run directory with a manifest that says: not complete."""
    from analyzer import rundir
    from freescale.bench.machine import git_commit, machine, versions

    now = datetime.datetime.now(datetime.timezone.utc)
    backend = "nccl" if config.device == "cuda" else "gloo"
    name = f"{now:%Y%m%dT%H%M%SZ}-{config.preset}-{backend}x{config.ranks}"
    run = rundir.make_run(out, name)
    manifest = {
        "schema": rundir.SCHEMA,
        "provenance": "emulated" if config.link_gbps else "measured",
        "complete": False,
        "created_utc": now.isoformat(timespec="seconds"),
        "command": ["freescale-bench", *sys.argv[1:]],
        "seed": config.seed,
        "workload": workload,
        "world_size": config.ranks,
        "backend": backend,
        "device": config.device,
        "policy": config.policy,
        "link": {"gbps": config.link_gbps, "latency_us": config.link_latency_us} if config.link_gbps else None,
        "arms": list(config.arms),
        "blocks": config.blocks,
        "steps_per_turn": config.steps_per_turn,
        "warmup_steps": config.warmup_steps,
        "profiled_steps": config.profiled_steps,
        "machine": machine(),
        "versions": versions(),
        "git_commit": git_commit(),
        "warnings": [],
    }
    rundir.write_json(run / rundir.MANIFEST, manifest)
    return run


def _finish(run: Path, as_json: bool) -> None:
    """Analyse the run, call it complete, and print the verdict."""
    import analyzer
    from analyzer import rundir
    from freescale.bench.terminal import print_report

    rundir.update_manifest(run, complete=True)
    try:
        analyzer.analyze(run)
    except BaseException:
        rundir.update_manifest(run, complete=False)
        raise
    report = rundir.read_json(run / rundir.REPORT)
    if as_json:
        click.echo(json.dumps(report, indent=1))
    else:
        print_report(report, run)


def _mark_failed(run: Path, rank: int | None, reason: str, log_tail: str) -> None:
    """Say in the manifest what happened, and analyse what there is."""
    import analyzer
    from analyzer import rundir
    from analyzer.errors import AnalyzerError

    rundir.update_manifest(run, failure={"rank": rank, "reason": reason, "log_tail": log_tail})
    if (run / rundir.STEPS).exists():
        with contextlib.suppress(AnalyzerError):  # the failure itself is the news
            analyzer.analyze(run)


@contextlib.contextmanager
def _progress(config: RunConfig, quiet: bool) -> Iterator[Callable[[int], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal) as progress:
        task = progress.add_task(f"{config.preset} · starting {config.ranks} ranks", total=config.steps_in_all)

        def on_progress(steps_done: int) -> None:
            what = "training steps" if steps_done else f"starting {config.ranks} ranks"
            progress.update(task, completed=steps_done, description=f"{config.preset} · {what}")

        yield on_progress


def _world_size(ranks: int | None, torchrun: bool) -> int:
    if not torchrun:
        return _DEFAULT.ranks if ranks is None else ranks
    world_size = int(os.environ["WORLD_SIZE"])
    if ranks not in (None, world_size):
        raise FreeScaleError(f"ranks: {ranks}, but torchrun started {world_size}; leave --ranks out")
    return world_size


def _parse_columns(columns: tuple[str, ...]) -> dict[str, str]:
    pairs = [column.partition("=") for column in columns]
    for column, (meaning, _, name) in zip(columns, pairs, strict=True):
        if not meaning or not name:
            raise FreeScaleError(f"column: {column!r}, expected MEANING=NAME, for example user=uid")
    return {meaning: name for meaning, _, name in pairs}


def _describe(config: RunConfig) -> dict[str, Any]:
    """The workload's entry in the manifest; building it here finds errors before any rank starts."""
    workload = config.workload()
    available = workload.steps_available(config.ranks)
    if available is not None and available < config.batches_needed:
        raise FreeScaleError(
            f"{config.data}: enough for {available} global batches on {config.ranks} ranks, but "
            f"{config.blocks} blocks of {config.steps_per_turn} steps need {config.batches_needed}; "
            "lower --blocks or --steps"
        )
    return workload.describe()
