"""The traces of one job: read every rank's file, settle who is who, and leave out what cannot be used, saying so."""

from __future__ import annotations

import dataclasses
import os
import sys
import threading
from collections.abc import Iterator, Sequence
from multiprocessing import get_context

from analyzer.errors import AnalyzerError
from analyzer.files import TraceSource
from analyzer.timeline import Timeline
from analyzer.trace import read_trace

_WORTH_FORKING_BYTES = 4 << 20


def read_job(files: Sequence[TraceSource]) -> tuple[list[Timeline], list[str]]:
    """(Timelines in rank order, warnings) of the trace files of one job.

    Raises:
        AnalyzerError: no file can be used.
    """
    timelines: list[Timeline] = []
    warnings: list[str] = []
    for file, timeline in zip(files, _read_all(files), strict=True):
        if isinstance(timeline, AnalyzerError):
            if len(files) == 1:
                raise timeline
            warnings.append(f"left out: {timeline}")
        elif len(timeline) == 0:
            warnings.append(f"{file.name}: no event in it that could be analysed; left out")
        else:
            warnings += timeline.info.warnings
            timelines.append(timeline)
    if not timelines:
        raise AnalyzerError("; ".join(warnings) or "no trace given")
    timelines, notes = _settle_ranks(timelines)
    return timelines, warnings + notes


def _read_all(files: Sequence[TraceSource]) -> Iterator[Timeline | AnalyzerError]:
    """Each file's Timeline, or why there is none; several files at a time on the cores there are, if that pays."""
    workers = min(len(files), _usable_cores())
    if workers < 2 or sum(file.bytes_on_disk for file in files) < _WORTH_FORKING_BYTES or not _may_fork():
        yield from map(_read, files)
        return
    with get_context("fork").Pool(workers) as pool:
        yield from pool.imap(_read, files)


def _read(file: TraceSource) -> Timeline | AnalyzerError:
    try:
        return read_trace(file)
    except AnalyzerError as error:
        return error


def _usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1


def _may_fork() -> bool:
    """Forking is cheap and needs nothing of the calling program, but is safe only without other threads."""
    return sys.platform == "linux" and threading.active_count() == 1


def _settle_ranks(timelines: list[Timeline]) -> tuple[list[Timeline], list[str]]:
    """Every rank once, in order: of two files with one rank the first stays; unknown ranks get the free numbers."""
    known: dict[int, Timeline] = {}
    unknown: list[Timeline] = []
    notes: list[str] = []
    for timeline in timelines:
        rank = timeline.info.rank
        if rank is None:
            unknown.append(timeline)
        elif rank in known:
            notes.append(f"{timeline.info.path}: rank {rank} is also in {known[rank].info.path}; left out")
        else:
            known[rank] = timeline
    free = (number for number in range(len(timelines) + len(known)) if number not in known)
    for timeline, rank in zip(unknown, free, strict=False):
        notes.append(f"{timeline.info.path}: does not say which rank it is; taken as rank {rank}")
        known[rank] = dataclasses.replace(timeline, info=dataclasses.replace(timeline.info, rank=rank))
    return [known[rank] for rank in sorted(known)], notes
