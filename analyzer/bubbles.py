"""The two tables of an analysis: where each rank's step time went, and when each rank came to and left each collective.

Timelines in, tables out: match, put the ranks on one clock, then partition every window of every rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analyzer import trust
from analyzer.arrivals import Arrivals
from analyzer.clocks import Clocks, fit_clocks
from analyzer.errors import AnalyzerError
from analyzer.intervals import Int64, Union, merge
from analyzer.lanes import Lane
from analyzer.matching import Matching, match
from analyzer.partition import UNMATCHED, Communication, Partition, partition
from analyzer.scope import Scope
from analyzer.timeline import Flag, Timeline

CLASSES = ("compute_ns", "straggler_ns", "exposed_comm_ns", "exposed_copy_ns", "host_ns")
BUBBLE_COLUMNS = ("step", "rank", "start_ns", "window_ns", *CLASSES, "overlapped_comm_ns")


@dataclass(frozen=True)
class Tables:
    """What an analysis measured. Columns of the frames as in bubbles.parquet and collectives.parquet, without `arm`.

    `blame_ns[v, c]` is the straggler time of rank `ranks[v]` that collectives decided in which `ranks[c]` came last;
    `waited_ns` is the same by collective, over all ranks.
    """

    ranks: list[int]
    bubbles: pd.DataFrame
    collectives: pd.DataFrame
    blame_ns: np.ndarray
    waited_ns: Int64
    matching: Matching
    clocks: Clocks
    arrivals: Arrivals
    split: bool  # False: waiting could not be told from transfer, all of it is in exposed_comm
    warnings: list[str]


def measure(timelines: Sequence[Timeline], scope: Scope | None = None) -> Tables:
    """Measure the bubbles of one job from its ranks' timelines, in ascending rank.

    Raises:
        AnalyzerError: a rank is unknown or occurs twice, or the scope names what is not there.
    """
    scope = scope or Scope()
    ranks = _ranks(timelines)
    timelines = scope.limit(timelines)
    matching = match(timelines)
    clocks = fit_clocks(matching, [timeline.info.host for timeline in timelines])
    arrivals = Arrivals(matching, clocks, timelines)
    split, warnings = trust.can_split(arrivals, clocks, timelines)
    chosen = _collectives_asked_about(arrivals, matching, scope)
    parts = []
    blame = np.zeros((len(ranks), len(ranks)), np.int64)
    decided = np.zeros((2, len(matching.collectives), len(ranks)), np.int64)  # straggler and exposed_comm time
    culprit = np.append(np.where(chosen, arrivals.last_rank, -1), -1)  # the last is for rows without a collective
    for r, timeline in enumerate(timelines):
        part = partition(*partition_inputs(r, timeline, matching, arrivals, clocks, split))
        collective = matching.collective_of_row[r]
        if scope.shows(ranks[r]):
            parts.append(_bubble_rows(ranks[r], timeline, part, clocks.to_common(r, timeline.steps.start_ns)))
            of_call = collective >= 0
            for measured, of_rows in zip(decided, (part.row_straggler_ns, part.row_exposed_ns), strict=True):
                np.add.at(measured[:, r], collective[of_call], of_rows[of_call])
            charged = culprit[collective] >= 0
            np.add.at(blame[r], culprit[collective[charged]], part.row_straggler_ns[charged])
    bubbles = pd.concat(parts, ignore_index=True).sort_values(["step", "rank"], ignore_index=True)
    table = arrivals.table(matching, ranks, chosen, decided)
    if scope.ranks is not None:
        table = table[table["rank"].isin(list(scope.ranks))].reset_index(drop=True)
    warnings += trust.what_is_missing(matching, clocks, timelines, ranks)
    waited = np.where(chosen, decided[0].sum(axis=1), 0)
    return Tables(ranks, bubbles, table, blame, waited, matching, clocks, arrivals, split, warnings)


def overlap_efficiency(bubbles: pd.DataFrame) -> float | None:
    """(serial − measured) / (serial − max(compute, communication)) of compute and communication together.

    Serial is the one after the other, measured the time in which either is active; so this is the share of what could
    overlap that does: 1 hides all of the shorter of the two, 0 none. None if there is no communication or no compute.
    """
    compute = bubbles["compute_ns"]
    communication = bubbles["straggler_ns"] + bubbles["exposed_comm_ns"] + bubbles["overlapped_comm_ns"]
    possible = float(np.minimum(compute, communication).sum())
    return float(bubbles["overlapped_comm_ns"].sum()) / possible if possible else None


def _ranks(timelines: Sequence[Timeline]) -> list[int]:
    ranks = [timeline.info.rank for timeline in timelines]
    known = [rank for rank in ranks if rank is not None]
    if len(known) < len(ranks) or sorted(set(known)) != known:
        raise AnalyzerError(f"timelines of ranks {ranks}: each must be known and occur once, in ascending order")
    return known


def _collectives_asked_about(arrivals: Arrivals, matching: Matching, scope: Scope) -> np.ndarray:
    """bool by collective.

    Raises:
        AnalyzerError: no collective of the group asked for.
    """
    chosen = np.ones(len(matching.collectives), bool)
    if scope.group is not None:
        named = [i for i, group in enumerate(matching.groups) if group.name == scope.group]
        if not named:
            there = ", ".join(sorted({group.name for group in matching.groups})) or "none"
            raise AnalyzerError(f"group {scope.group!r}: no collective of it in these traces; there are {there}")
        chosen &= np.isin(matching.collectives["group"], named)
    if scope.steps is not None:
        chosen &= np.isin(arrivals.step, list(scope.steps))
    return chosen


def partition_inputs(
    r: int, timeline: Timeline, matching: Matching, arrivals: Arrivals, clocks: Clocks, split: bool
) -> tuple[Union, Union, Communication, Union]:
    """What `partition` takes, for the rank with index r: windows, compute, communication and copies."""
    rows = np.flatnonzero(timeline.lane == Lane.COMM)
    collective = matching.collective_of_row[r]
    known = (collective >= 0) & split & clocks.tied[r]
    known[known] = arrivals.shared[collective[known]]
    last_arrival = np.full(len(rows), UNMATCHED)
    last_arrival[known] = clocks.to_own(r, arrivals.last[collective[known]])
    compute, copies = timeline.in_lane(Lane.COMPUTE), timeline.in_lane(Lane.COPY)
    return (
        (timeline.steps.start_ns, timeline.steps.end_ns),
        merge(timeline.start_ns[compute], timeline.end_ns[compute]),
        Communication(timeline.start_ns[rows], _active_until(timeline)[rows], last_arrival),
        merge(timeline.start_ns[copies], timeline.end_ns[copies]),
    )


def _active_until(timeline: Timeline) -> Int64:
    """int64[n]: the end of each row; its start where only its rows flagged WAIT are active."""
    return np.where(timeline.flags & Flag.BY_HAND, timeline.start_ns, timeline.end_ns)


def _bubble_rows(rank: int, timeline: Timeline, part: Partition, start_ns: Int64) -> pd.DataFrame:
    columns = {
        "step": timeline.steps.number,
        "rank": np.full(len(timeline.steps), rank, np.int32),
        "start_ns": start_ns,
        "window_ns": timeline.steps.end_ns - timeline.steps.start_ns,
        **{name: getattr(part, name) for name in (*CLASSES, "overlapped_comm_ns")},
    }
    return pd.DataFrame(columns)
