"""The traces of one job: read every rank's file, settle who is who, and leave out what cannot be used, saying so."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence

from analyzer.errors import AnalyzerError
from analyzer.files import TraceSource
from analyzer.timeline import Timeline
from analyzer.trace import read_trace


def read_job(files: Sequence[TraceSource], ranks: Collection[int] | None = None) -> tuple[list[Timeline], list[str]]:
    """(Timelines in rank order, warnings) of the trace files of one job.

    Args:
        ranks: read only these ranks; None reads all.

    Raises:
        AnalyzerError: no file can be used, or a wanted rank has no trace.
    """
    timelines: list[Timeline] = []
    warnings: list[str] = []
    for file in files:
        try:
            timeline = read_trace(file)
        except AnalyzerError as error:
            if len(files) == 1:
                raise
            warnings.append(f"left out: {error}")
            continue
        if len(timeline) == 0:
            warnings.append(f"{file.name}: no event in it that could be analysed; left out")
            continue
        warnings += timeline.info.warnings
        timelines.append(timeline)
    if not timelines:
        raise AnalyzerError("; ".join(warnings) or "no trace given")
    timelines, notes = _settle_ranks(timelines)
    if ranks is not None:
        missing = sorted(set(ranks) - {timeline.info.rank for timeline in timelines if timeline.info.rank is not None})
        if missing:
            raise AnalyzerError(f"rank {missing[0]}: no trace of it; give some of those that are there")
        timelines = [timeline for timeline in timelines if timeline.info.rank in ranks]
    return timelines, warnings + notes


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
