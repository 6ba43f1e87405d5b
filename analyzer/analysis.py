"""`analyze`: a run directory or a bare folder of traces in, a Report out."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from analyzer import contract, headline
from analyzer.arrivals import COLLECTIVE_COLUMNS
from analyzer.bubbles import BUBBLE_COLUMNS, Tables, measure
from analyzer.errors import AnalyzerError
from analyzer.files import TraceSource, find_traces
from analyzer.findings import Findings, investigate
from analyzer.hta_beside import beside_hta
from analyzer.job import read_job
from analyzer.perfetto import write_merged
from analyzer.report import build_report
from analyzer.rundir import (
    BUBBLES,
    COLLECTIVES,
    REPORT,
    RunDirectory,
    is_run_directory,
    open_run,
    write_json,
    write_parquet,
)
from analyzer.scope import Scope
from analyzer.timeline import Timeline


@dataclass(frozen=True)
class ArmAnalysis:
    """What the traces of one arm show; a bare folder of traces has one, named ""."""

    tables: Tables
    findings: Findings
    world_size: int | None
    block_of_step: dict[int, int]
    warnings: list[str]
    hta: dict[str, Any] | None = None  # what HTA says beside it, when asked for


@dataclass(frozen=True)
class Report:
    """Result of `analyze`. `run` is report.json of a run directory, None for a bare folder of traces."""

    path: Path
    arms: dict[str, ArmAnalysis]
    run: dict[str, Any] | None

    @property
    def headline(self) -> str:
        if self.run is not None:
            return str(self.run["headline"])
        return headline.of_tables(self.arm().tables, self.arm().findings)

    def arm(self, name: str | None = None) -> ArmAnalysis:
        """One arm's analysis, the first if none is named.

        Raises:
            AnalyzerError: no such arm, or no arm has traces.
        """
        if name is None and self.arms:
            return next(iter(self.arms.values()))
        if name is None or name not in self.arms:
            there = ", ".join(self.arms) or "none"
            raise AnalyzerError(f"{self.path}: no traces of arm {name or ''!r}; arms with traces: {there}")
        return self.arms[name]

    def as_json(self, arm: str | None = None) -> dict[str, Any]:
        """The contract of `analyze --json` for one arm, the first if none is named; `arm` and `arms` say which."""
        chosen = self.arm(arm)
        value = contract.as_json(chosen.tables, chosen.findings, chosen.world_size, chosen.warnings)
        if chosen.hta is not None:
            value["hta"] = chosen.hta
        if self.run is not None:
            value = {"arm": arm if arm is not None else next(iter(self.arms)), "arms": list(self.arms), **value}
        return value


def analyze(
    path: Path | str,
    *,
    steps: Collection[int] | None = None,
    ranks: Collection[int] | None = None,
    group: str | None = None,
    arm: str | None = None,
    merged: Path | str | None = None,
    hta: bool = False,
) -> Report:
    """Analyse a run directory, a folder of Kineto traces, or one trace.

    In a run directory bubbles.parquet, collectives.parquet and report.json are (re)written, unless only a part is asked
    for; beside bare traces nothing is.

    Args:
        steps: only these of the profiler's steps.
        ranks: show only these ranks; whom they wait for may be others.
        group: show only collectives, and blame only for waits, of this process group.
        arm: of a run directory, the arm that `merged` and `hta` are about; the first if none is named.
        merged: write one clock-aligned trace for Perfetto here (.json or .json.gz).
        hta: let HTA look at the same traces too (of `ranks`, or else of the rank that waits most and its culprit).

    Raises:
        AnalyzerError: nothing there that can be analysed; the message names the file and the cure.
    """
    path, scope = Path(path), Scope.of(steps, ranks, group)
    extras = _Extras(None if merged is None else Path(merged), hta)
    if not is_run_directory(path):
        return Report(path, {"": _analyze_traces(find_traces(path), scope, extras)}, None)
    run = open_run(path)
    if arm is not None and arm not in run.arms:
        raise AnalyzerError(f"{path}: no arm {arm!r}; there are {', '.join(run.arms) or 'none'}")
    detailed = arm if arm is not None else next(iter(run.arms), None)
    arms: dict[str, ArmAnalysis] = {}
    warnings = [str(warning) for warning in run.manifest.get("warnings", [])]
    for name in run.arms:
        files = run.traces(name)
        if not files:
            warnings.append(f"{name}: no traces; its step times are known, but not what they went into")
            continue
        sources = [TraceSource(file) for file in files]
        try:
            arms[name] = _analyze_traces(sources, scope, extras if name == detailed else _Extras())
        except AnalyzerError as error:
            if name == detailed and (scope, extras) != (Scope(), _Extras()):
                raise  # what was asked for in particular cannot be had
            warnings.append(f"{name}: {error}")
    report = build_report(
        run,
        {name: (found.tables, found.findings) for name, found in arms.items()},
        {name: found.block_of_step for name, found in arms.items()},
    )
    report["warnings"] += warnings + [f"{name}: {note}" for name, found in arms.items() for note in found.warnings]
    report["findings"] = {name: contract.findings_json(found.tables, found.findings) for name, found in arms.items()}
    if scope == Scope():
        _write(run, arms, report)
    return Report(path, arms, report)


@dataclass(frozen=True)
class _Extras:
    merged: Path | None = None
    hta: bool = False


def _analyze_traces(files: list[TraceSource], scope: Scope, extras: _Extras) -> ArmAnalysis:
    timelines, warnings = read_job(files)
    tables = measure(timelines, scope)
    findings = investigate(timelines, tables, scope)
    beside = None
    if extras.merged is not None:
        write_merged(extras.merged, timelines, tables, scope)
    if extras.hta:
        beside = beside_hta(timelines, tables, _ranks_for_hta(tables, scope))
    worlds = [t.info.world_size for t in timelines if t.info.world_size is not None]
    world_size = max(worlds) if worlds else None
    return ArmAnalysis(tables, findings, world_size, _block_of_step(timelines), warnings + tables.warnings, beside)


def _ranks_for_hta(tables: Tables, scope: Scope) -> list[int]:
    """Those asked about, or else the rank that waits most and the one it waits for."""
    if scope.ranks is not None:
        return sorted(scope.ranks)
    victim = int(tables.blame_ns.sum(axis=1).argmax())
    return sorted({tables.ranks[victim], tables.ranks[int(tables.blame_ns[victim].argmax())]})


def _block_of_step(timelines: list[Timeline]) -> dict[int, int]:
    return {
        step: facts.block
        for timeline in timelines
        for step, facts in timeline.info.step_facts.items()
        if facts.block is not None
    }


def _write(run: RunDirectory, arms: dict[str, ArmAnalysis], report: dict[str, Any]) -> None:
    try:
        for file, attribute, columns in (
            (BUBBLES, "bubbles", BUBBLE_COLUMNS),
            (COLLECTIVES, "collectives", COLLECTIVE_COLUMNS),
        ):
            frames = [getattr(a.tables, attribute)[list(columns)].assign(arm=arm) for arm, a in arms.items()]
            table = pd.concat(frames, ignore_index=True) if frames else pd.DataFrame(columns=[*columns, "arm"])
            write_parquet(run.path / file, table[["arm", *columns]])
        write_json(run.path / REPORT, report)
    except OSError as error:
        raise AnalyzerError(f"{run.path}: the analysis cannot be written there ({error.strerror})") from error
