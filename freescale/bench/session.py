"""A run from its first to its last file: create the run directory or take one up again, measure, analyse, print.

Started by torchrun, a process takes part as one rank of many hosts, and rank 0 keeps the run directory; otherwise the
ranks are started here.
"""

from __future__ import annotations

import contextlib
import datetime
import fcntl
import json
import os
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from freescale.bench.config import RunConfig
from freescale.errors import FreeScaleError

_LOCK = ".lock"
_MUST_BE_EQUAL = ("versions", "git_commit")
_MACHINE_MUST_BE_EQUAL = ("host", "cpu", "cores", "gpus")


def in_torchrun() -> bool:
    """Has torchrun started this process?"""
    return "TORCHELASTIC_RUN_ID" in os.environ


def begin(
    config: RunConfig, workload: dict[str, Any], out: Path, as_json: bool, cannot_act: Mapping[str, str] | None = None
) -> None:
    """Measure `config` into a new run directory under `out`.

    Args:
        workload: its entry in the manifest, from `describe`.
        cannot_act: layers that the run leaves out because they would change nothing -> why.
    """
    run = _create(config, workload, out, cannot_act or {}) if _keeps_the_run() else None
    with _locked(run):
        _carry_out(config, run, as_json)


def resume(run: Path, budget_min: float | None, as_json: bool, force: bool) -> None:
    """Measure what is missing in a run directory that was left incomplete.

    Args:
        budget_min: for this launch, instead of the budget that the run was started with.
        force: although the machine or the versions are others than before.

    Raises:
        FreeScaleError: the run is complete, was not made by `run` or `ablate`, is under way, or began elsewhere.
    """
    from analyzer import rundir

    manifest = rundir.open_run(run).manifest
    if manifest.get("complete"):
        raise FreeScaleError(f"{run}: complete already; see it with `freescale-bench report`")
    if "config" not in manifest:
        raise FreeScaleError(f"{run}: the manifest has no config, so it cannot be resumed; start a new run")
    config = RunConfig.from_json(manifest["config"])
    if budget_min is not None:
        config = replace(config, budget_min=budget_min)
    if in_torchrun() and int(os.environ["WORLD_SIZE"]) != config.ranks:
        raise FreeScaleError(f"{run}: has {config.ranks} ranks, torchrun started {os.environ['WORLD_SIZE']}")
    if not _keeps_the_run():
        _carry_out(config, None, as_json)
        return
    with _locked(run):
        _take_up(run, manifest, force)
        _carry_out(config, run, as_json)


def describe(config: RunConfig) -> tuple[RunConfig, dict[str, Any]]:
    """The configuration, with no more blocks than an interaction log has when there is a budget, and the workload's
    entry in the manifest; building it here finds errors before any rank starts."""
    workload = config.workload()
    available = workload.steps_available(config.ranks)
    if available is not None and available < config.batches_needed:
        blocks = available // len(config.batches_of(0))
        if config.budget_min is None or blocks == 0:
            raise FreeScaleError(
                f"{config.data}: enough for {available} global batches on {config.ranks} ranks, but "
                f"{config.blocks} blocks of {len(config.batches_of(0))} steps need {config.batches_needed}; "
                "lower --blocks or --steps"
            )
        config = replace(config, blocks=blocks)
    return config, workload.describe()


def _keeps_the_run() -> bool:
    return not in_torchrun() or os.environ["RANK"] == "0"


def _carry_out(config: RunConfig, run: Path | None, as_json: bool) -> None:
    if run is None or in_torchrun():
        _take_part(config, run)
    else:
        _run_here(config, run, as_json)
    if run is not None:
        _finish(config, run, as_json)


def _run_here(config: RunConfig, run: Path, as_json: bool) -> None:
    from freescale.bench.launch import RunFailed, launch
    from freescale.bench.progress import progress

    how = f"what was measured is in {run}; continue with `freescale-bench ablate --resume {run}`"
    try:
        with progress(config, quiet=as_json) as on_progress:
            launch(config, run, on_progress)
    except RunFailed as error:
        failure = error.failure
        _mark_failed(config, run, failure.rank, failure.reason, failure.log_tail)
        if failure.log_tail:
            click.echo(f"--- last lines of its log\n{failure.log_tail}\n---", err=True)
        raise FreeScaleError(f"{failure.reason}; {how}") from None
    except KeyboardInterrupt:
        _mark_failed(config, run, None, "interrupted", "")
        raise FreeScaleError(f"interrupted; {how}") from None


def _take_part(config: RunConfig, run: Path | None) -> None:
    from freescale.bench.worker import run_rank

    try:
        run_rank(config, run)
    except BaseException as error:
        if run:
            _mark_failed(config, run, None, f"rank 0 ended early: {error or type(error).__name__}", "")
        raise


def _create(config: RunConfig, workload: dict[str, Any], out: Path, cannot_act: Mapping[str, str]) -> Path:
    """Make the run directory with a manifest that says: not complete."""
    from analyzer import rundir

    now = datetime.datetime.now(datetime.timezone.utc)
    backend = "nccl" if config.device == "cuda" else "gloo"
    name = f"{now:%Y%m%dT%H%M%SZ}-{config.preset}-{backend}x{config.ranks}"
    run = rundir.make_run(out, name)
    launch = launch_facts()
    manifest = {
        "schema": rundir.SCHEMA,
        "provenance": "emulated" if config.link_gbps else "measured",
        "complete": False,
        "created_utc": launch["started_utc"],
        "command": launch["command"],
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
        "steps_in_profile": config.steps_in_profile,
        "budget_min": config.budget_min,
        "cannot_act": dict(cannot_act),
        "machine": launch["machine"],
        "versions": launch["versions"],
        "git_commit": launch["git_commit"],
        "launches": [launch],
        "config": config.as_json(),
        "warnings": [],
    }
    rundir.write_json(run / rundir.MANIFEST, manifest)
    return run


def _take_up(run: Path, manifest: dict[str, Any], force: bool) -> None:
    """Say in the manifest that the run goes on, if it goes on where it began."""
    from analyzer import rundir

    now = launch_facts()
    different = differences(manifest, now)
    if different and not force:
        raise FreeScaleError(
            f"{run}: began with other {', '.join(different)}; its blocks would not be comparable. "
            "Start a new run, or take it up all the same with --force"
        )
    warnings = list(manifest["warnings"])
    if different:
        warnings.append(f"resumed with other {', '.join(different)}; blocks before and after may not be comparable")
    going_on = {name: value for name, value in manifest.items() if name != "failure"}
    going_on |= {"launches": [*manifest["launches"], now], "warnings": warnings}
    rundir.write_json(run / rundir.MANIFEST, going_on)


def launch_facts() -> dict[str, Any]:
    """When, by which command, on what."""
    from freescale.bench.machine import git_commit, machine, versions

    return {
        "started_utc": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "command": ["freescale-bench", *sys.argv[1:]],
        "machine": machine(),
        "versions": versions(),
        "git_commit": git_commit(),
    }


def differences(manifest: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """What has changed since the run began that timing depends on, by name."""
    changed = [name for name in _MUST_BE_EQUAL if manifest.get(name) != now[name]]
    before = manifest.get("machine", {})
    return changed + [name for name in _MACHINE_MUST_BE_EQUAL if before.get(name) != now["machine"][name]]


def _finish(config: RunConfig, run: Path, as_json: bool) -> None:
    """Analyse the run, call it complete, and print the verdict."""
    import analyzer
    from analyzer import rundir
    from freescale.bench import parts
    from freescale.bench.terminal import print_report

    parts.join(run, list(config.arms), config.ranks)
    rundir.update_manifest(run, complete=True)
    try:
        analyzer.analyze(run)
    except BaseException:
        rundir.update_manifest(run, complete=False)
        raise
    parts.discard(run)
    report = rundir.read_json(run / rundir.REPORT)
    if as_json:
        click.echo(json.dumps(report, indent=1))
    else:
        print_report(report, run)


def _mark_failed(config: RunConfig, run: Path, rank: int | None, reason: str, log_tail: str) -> None:
    """Say in the manifest what happened, and analyse what there is."""
    import analyzer
    from analyzer import rundir
    from analyzer.errors import AnalyzerError
    from freescale.bench import parts

    rundir.update_manifest(run, failure={"rank": rank, "reason": reason, "log_tail": log_tail})
    if (run / rundir.STEPS).exists():
        with contextlib.suppress(AnalyzerError, FreeScaleError):  # the failure itself is the news
            parts.join(run, list(config.arms), config.ranks)
            analyzer.analyze(run)


@contextlib.contextmanager
def _locked(run: Path | None) -> Iterator[None]:
    """Keep a second process from writing into the run; the lock ends with this process, however it ends."""
    if run is None:
        yield
        return
    file = run / _LOCK
    with file.open("w") as held:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise FreeScaleError(f"{run}: another process is writing this run; wait until it has ended") from None
        try:
            yield
        finally:
            file.unlink(missing_ok=True)
