"""Data access: a folder of runs, and one run of it. Everything is read through `analyzer.rundir`.

A name that comes from a URL is compared with the names the folder has; it is never joined to a path first, so no name
leads out of the folder, and neither does a symbolic link in it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Any

import pandas as pd

from analyzer import rundir
from analyzer.errors import AnalyzerError
from dashboard.contract import Manifest, Report, check
from dashboard.lanes import Lanes, read_lanes

UNKNOWN = "unknown"
KEEP_OPEN = 8  # runs whose frames stay in memory
KEEP_LANES = 16  # traces of a run whose intervals do

STEP_COLUMNS = ("block", "arm", "step", "rank", "warmup", "step_ms", "compute_ms", "wait_ms")
BUBBLE_COLUMNS = (
    "arm",
    "step",
    "rank",
    "window_ns",
    "compute_ns",
    "straggler_ns",
    "exposed_comm_ns",
    "exposed_copy_ns",
    "host_ns",
    "overlapped_comm_ns",
)
COLLECTIVE_COLUMNS = (
    "arm",
    "step",
    "group",
    "op",
    "ordinal",
    "matched",
    "rank",
    "bytes",
    "arrival_ns",
    "rank_end_ns",
    "wait_ns",
    "last_rank",
    "first_arrival_ns",
    "last_arrival_ns",
    "end_ns",
    "transfer_ns",
)


class Run:
    """One run directory, complete or not, analysed or not.

    Files are read on first use. `report` is {} when the run has not been analysed; look at `analysed` to tell.

    Raises:
        AnalyzerError: a key of the manifest has the wrong type; on use, when another file is damaged or lacks a
            column. The message names the file.
    """

    def __init__(self, directory: rundir.RunDirectory) -> None:
        self.directory = directory
        self.name = directory.path.name
        self.manifest = check(directory.path / rundir.MANIFEST, directory.manifest, Manifest)
        self._lanes: OrderedDict[tuple[str, int], Lanes] = OrderedDict()
        self._reading = Lock()

    @cached_property
    def report(self) -> dict[str, Any]:
        return check(self.directory.path / rundir.REPORT, self.directory.report() or {}, Report)

    @property
    def analysed(self) -> bool:
        return bool(self.report)

    @property
    def complete(self) -> bool:
        return self.directory.complete

    @property
    def provenance(self) -> str:
        """measured, emulated or simulated; `unknown` for anything else, so that nothing passes for measured."""
        value = self.manifest.get("provenance") or self.report.get("provenance")
        return value if value in rundir.PROVENANCES else UNKNOWN

    @property
    def workload(self) -> str:
        workload = self.manifest.get("workload")
        return str((workload.get("preset") if isinstance(workload, Mapping) else workload) or UNKNOWN)

    @property
    def world_size(self) -> int | None:
        value = self.manifest.get("world_size") or self.report.get("world_size")
        return int(value) if value else None

    @property
    def failure(self) -> dict[str, Any]:
        """{rank, reason, log_tail} of a run that died; {} otherwise."""
        return _mapping(self.manifest.get("failure"))

    @property
    def why_incomplete(self) -> str:
        """Why the run is not complete, in words; "" for a complete one."""
        if self.complete:
            return ""
        reason, rank = self.failure.get("reason"), self.failure.get("rank")
        if reason is None:
            return "still running, or stopped without saying why"
        return str(reason) if rank is None or f"rank {rank}" in str(reason) else f"rank {rank}: {reason}"

    @property
    def headline(self) -> str:
        """The verdict in one sentence, as the analyzer worded it; "" when there is none yet."""
        return str(self.report.get("headline") or "")

    @property
    def arms(self) -> list[str]:
        """Arms in the order of the manifest, then any that only the report knows."""
        return list(dict.fromkeys([*self.manifest.get("arms", []), *self.reported_arms]))

    @property
    def reported_arms(self) -> dict[str, Any]:
        """report.json's `arms`; {} when the run has not been analysed."""
        return _mapping(self.report.get("arms"))

    def arm(self, name: str) -> dict[str, Any]:
        """report.json's numbers for one arm; {} when there are none."""
        return _mapping(self.reported_arms.get(name))

    def is_split(self, arm: str) -> bool:
        """Whether waiting could be told from transfer. Where clocks do not allow it, all of both is in exposed_comm
        of the bubbles, and report.json gives only their sum."""
        values = self.arm(arm)
        return values.get("exposed_comm_ms") is not None or values.get("exposed_total_ms") is None

    def comparison(self, arm: str) -> dict[str, Any]:
        """report.json's comparison of one arm with its reference; {} when there is none."""
        return _mapping(_mapping(self.report.get("compare")).get(arm))

    @property
    def ablation(self) -> dict[str, Any]:
        """report.json's `ablation`, whole; {} when the arms are no complete design of at least one layer."""
        return _mapping(self.report.get("ablation"))

    @property
    def attribution(self) -> dict[str, Any]:
        """report.json's entry of each layer, those that were left out too; {} without an ablation."""
        return _mapping(self.report.get("attribution"))

    @property
    def compared(self) -> list[str]:
        """Arms that are compared with a reference, in arm order."""
        return [arm for arm in self.arms if self.comparison(arm)]

    def focus(self, wanted: str | None = None) -> str | None:
        """The arm a page is about: the one asked for if it was run, else one that is wrong, else the last compared one,
        else the last arm."""
        if wanted in self.arms:
            return wanted
        wrong = [arm for arm in self.compared if self.comparison(arm).get("verdict") == "wrong"]
        candidates = wrong[:1] or self.compared or self.arms
        return candidates[-1] if candidates else None

    def versus(self, arm: str | None) -> str | None:
        """The reference of an arm; None when it is compared with nothing."""
        value = self.comparison(arm).get("versus") if arm else None
        return value if value in self.arms and value != arm else None

    @property
    def warnings(self) -> list[str]:
        """What the run and its analysis warn of, each once."""
        return list(dict.fromkeys([*self.report.get("warnings", []), *self.manifest.get("warnings", [])]))

    @cached_property
    def steps(self) -> pd.DataFrame:
        """steps.parquet: a row per block × arm × step × rank; empty when nothing was timed."""
        return self._checked(self.directory.steps(), rundir.STEPS, STEP_COLUMNS)

    @cached_property
    def bubbles(self) -> pd.DataFrame:
        """bubbles.parquet: a row per arm × profiled step × rank; empty when nothing was profiled."""
        return self._checked(self.directory.bubbles(), rundir.BUBBLES, BUBBLE_COLUMNS)

    @cached_property
    def collectives(self) -> pd.DataFrame:
        """collectives.parquet: a row per collective × rank; empty when nothing was profiled."""
        return self._checked(self.directory.collectives(), rundir.COLLECTIVES, COLLECTIVE_COLUMNS)

    def lanes(self, arm: str, rank: int) -> Lanes | None:
        """Intervals of one rank's trace, read once and kept while few others are; None when it left no trace."""
        trace = next((file for file in self.directory.traces(arm) if file.name == f"rank-{rank:05d}.json.gz"), None)
        if trace is None:
            return None
        with self._reading:  # a figure and its table may ask at once; the trace is read for the first of them
            key = (arm, rank)
            found = self._lanes.pop(key, None) or read_lanes(trace)
            self._lanes[key] = found
            while len(self._lanes) > KEEP_LANES:
                self._lanes.popitem(last=False)
            return found

    def _checked(self, frame: pd.DataFrame, file: str, columns: tuple[str, ...]) -> pd.DataFrame:
        missing = [column for column in columns if column not in frame.columns]
        if len(frame) and missing:
            where = self.directory.path / file
            raise AnalyzerError(f"{where}: no column {missing[0]!r}; analyse the run again with this version")
        return frame


class RunStore:
    """The runs of one folder, or one run directory alone. Safe to ask for any name.

    Raises:
        AnalyzerError: the folder does not exist.
    """

    def __init__(self, path: Path | str) -> None:
        path = Path(path)
        if not path.is_dir():
            raise AnalyzerError(f"{path}: no such folder; make a run first with `freescale-bench run`")
        self.single = path.resolve().name if rundir.is_run_directory(path) else None
        self.root = path.resolve().parent if self.single else path.resolve()
        self._open: OrderedDict[str, tuple[object, Run]] = OrderedDict()
        self._opening = Lock()

    def runs(self) -> list[Run]:
        """All runs, newest first."""
        return [_run_or_reason(directory) for directory in rundir.list_runs(self.root) if self._allowed(directory.path)]

    def open(self, name: str) -> Run:
        """The run of that name.

        Raises:
            AnalyzerError: there is none of that name in the folder, or it cannot be read.
        """
        path = next((path for path in self.root.iterdir() if path.name == name), None)
        if path is None or not self._allowed(path) or not rundir.is_run_directory(path):
            raise AnalyzerError(f"No run named {name!r} in {self.root}")
        with self._opening:
            signature = _signature(path)
            known = self._open.pop(name, None)
            run = known[1] if known and known[0] == signature else Run(rundir.open_run(path))
            self._open[name] = (signature, run)
            while len(self._open) > KEEP_OPEN:
                self._open.popitem(last=False)
            return run

    def _allowed(self, path: Path) -> bool:
        return path.resolve().parent == self.root and self.single in (None, path.name)


def open_run(path: Path | str) -> Run:
    """One run directory by path, for the report; AnalyzerError when it is none."""
    return Run(rundir.open_run(Path(path).resolve()))


def _run_or_reason(directory: rundir.RunDirectory) -> Run:
    """A run whose manifest cannot be used is still listed, with the reason in the place of what happened to it."""
    try:
        return Run(directory)
    except AnalyzerError as error:
        return Run(rundir.RunDirectory(directory.path, {"failure": {"reason": str(error)}}))


def _signature(path: Path) -> object:
    """Changes whenever a file of the run does, so that a run in progress is read afresh."""
    names = (rundir.MANIFEST, rundir.STEPS, rundir.REPORT, rundir.BUBBLES, rundir.COLLECTIVES)
    stats = ((path / name).stat() if (path / name).exists() else None for name in names)
    return tuple(stat and (stat.st_mtime_ns, stat.st_size) for stat in stats)


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
