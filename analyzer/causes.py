"""Why the last rank was late: its time since the ranks last met, against that of the others.

Ranks leave a collective together. From there to the next one each computes, copies, communicates with others or does
nothing; what the late rank spent more of than the median of the others made it late.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analyzer.clocks import Clocks
from analyzer.intervals import Int64, Union, covered, merge, subtract
from analyzer.lanes import Lane
from analyzer.matching import Matching
from analyzer.timeline import Flag, Timeline

PARTS = ("compute", "own_communication", "copy", "host")
MIN_STEPS = 3  # to speak of a pattern
_MOST = 0.6


@dataclass(frozen=True)
class Culprit:
    """A rank that others waited for.

    `pattern`: chronic (costliest in most steps), rotating, one-off, or None with fewer than MIN_STEPS steps. `cause`:
    more work, slower kernels, compute (the trace cannot tell which of the two), host, copy, own communication, or
    None. `excess_ns` is what it spent more than the others before it came last, by PARTS.
    """

    rank: int
    times_last: int
    charged_ns: int
    pattern: str | None
    cause: str | None
    excess_ns: dict[str, int]


def find_culprits(
    timelines: Sequence[Timeline],
    ranks: Sequence[int],
    matching: Matching,
    clocks: Clocks,
    last_rank: Int64,
    waited_for: Int64,
    charged: pd.DataFrame,
) -> list[Culprit]:
    """Ranks that came last, the costliest first.

    Args:
        last_rank: by collective, index of the rank that came last; -1 where that is not known.
        waited_for: the same, -1 too where nobody waited; these collectives decide the cause.
        charged: a row per step and culprit: step, culprit (index), ns that others waited for it.
    """
    segments = _segments(timelines, matching, clocks)
    spent = _spent(timelines, segments)
    total = charged.groupby("culprit")["ns"].sum()
    culprits = []
    for index in np.unique(last_rank[last_rank >= 0]).tolist():
        excess, work = _excess(index, waited_for, segments, spent, timelines)
        culprits.append(
            Culprit(
                rank=ranks[index],
                times_last=int((last_rank == index).sum()),
                charged_ns=int(total.get(index, 0)),
                pattern=_pattern(index, charged, timelines),
                cause=_cause(excess, work),
                excess_ns=excess,
            )
        )
    return sorted(culprits, key=lambda culprit: (-culprit.charged_ns, culprit.rank))


def _segments(timelines: Sequence[Timeline], matching: Matching, clocks: Clocks) -> pd.DataFrame:
    """A row per collective and rank: collective, rank, and start and end (own clock) of the time since the last one."""
    members = matching.members.sort_values(["rank", "start_ns"], ignore_index=True)
    shared = (matching.collectives["present"] >= 2).to_numpy()[members["collective"]]
    begins = _common_begin(timelines, clocks)
    start = np.empty(len(members), np.int64)
    for rank in members["rank"].unique().tolist():
        rows = np.flatnonzero(members["rank"] == rank)
        own_begin = clocks.to_own(rank, begins)[0]
        left = np.where(shared[rows], members["end_ns"].to_numpy()[rows], own_begin)
        start[rows] = np.maximum.accumulate(np.append(own_begin, left))[:-1]
    end = members["start_ns"].to_numpy()
    return pd.DataFrame(
        {"collective": members["collective"], "rank": members["rank"], "start": np.minimum(start, end), "end": end}
    )


def _common_begin(timelines: Sequence[Timeline], clocks: Clocks) -> Int64:
    """The first window's earliest start over ranks: a rank that begins later has done nothing until then."""
    starts = [clocks.to_common(r, t.steps.start_ns[:1]) for r, t in enumerate(timelines) if len(t.steps)]
    return np.concatenate(starts).min(keepdims=True) if starts else np.zeros(1, np.int64)


def _spent(timelines: Sequence[Timeline], segments: pd.DataFrame) -> pd.DataFrame:
    """Time of each segment by PARTS, a row per row of `segments`."""
    columns = {part: np.zeros(len(segments), np.int64) for part in PARTS}
    for rank in segments["rank"].unique().tolist():
        rows, timeline = np.flatnonzero(segments["rank"] == rank), timelines[rank]
        start, end = segments["start"].to_numpy()[rows], segments["end"].to_numpy()[rows]
        compute = _lane(timeline, Lane.COMPUTE)
        communication = subtract(_lane(timeline, Lane.COMM), compute)
        copies = subtract(subtract(_lane(timeline, Lane.COPY), compute), communication)
        for part, union in (("compute", compute), ("own_communication", communication), ("copy", copies)):
            columns[part][rows] = covered(union, start, end)
        columns["host"][rows] = (end - start) - sum(columns[part][rows] for part in PARTS[:-1])
    return pd.DataFrame(columns)


def _lane(timeline: Timeline, lane: Lane) -> Union:
    mask = timeline.lane == lane
    return merge(timeline.start_ns[mask], timeline.end_ns[mask])


def _excess(
    index: int, waited_for: Int64, segments: pd.DataFrame, spent: pd.DataFrame, timelines: Sequence[Timeline]
) -> tuple[dict[str, int], float | None]:
    """(What the rank spent more than the median of the others, by part, over all collectives it came last in; the
    share of its additional compute that is additional work, None if the trace does not tell)."""
    blamed = np.isin(segments["collective"], np.flatnonzero(waited_for == index))
    mine = (segments["rank"] == index).to_numpy()
    others = spent[blamed & ~mine].groupby(segments["collective"][blamed & ~mine]).median()
    own = spent[blamed & mine].set_index(segments["collective"][blamed & mine])
    gap = (own - others).dropna()
    excess = {part: int(gap[part].sum()) for part in PARTS}
    share = None
    if excess["compute"] > 0:
        share = _work_share(index, segments[blamed], timelines, excess["compute"])
        if share is None:
            share = _token_share(index, timelines, float(others["compute"].sum()), excess["compute"])
    return excess, share


def _work_share(index: int, segments: pd.DataFrame, timelines: Sequence[Timeline], excess_compute: int) -> float | None:
    """Share of a rank's additional compute that remains if its kernels ran as fast as the others' same kernels.

    Kernels that no other rank ran (other grids or shapes) count as additional work.
    """
    names: dict[str, int] = {}
    kernels = {
        rank: _kernels(timelines[rank], segments[segments["rank"] == rank], names)
        for rank in segments["rank"].unique().tolist()
    }
    own = kernels.pop(index, None)
    if own is None or not kernels or (own["shape"] < 0).mean() > 0.5:
        return None
    pool = pd.concat(kernels.values())
    typical = pool.groupby(["name", "shape"])["ns"].median().rename("typical")
    joined = own.join(typical, on=["name", "shape"])
    slower = float((joined["ns"] - joined["typical"]).fillna(0.0).sum())
    return 1.0 - float(np.clip(slower / excess_compute, 0.0, 1.0))


def _token_share(
    index: int, timelines: Sequence[Timeline], compute_of_others: float, excess_compute: int
) -> float | None:
    """The same from the tokens that each rank recorded, taking compute as proportional to tokens."""
    tokens = [_tokens(timeline) for timeline in timelines]
    if any(count is None for count in tokens):
        return None
    others = float(np.median([count for i, count in enumerate(tokens) if i != index]))
    if others <= 0:
        return None
    more = (float(tokens[index] or 0) / others - 1) * compute_of_others
    return float(np.clip(more / excess_compute, 0.0, 1.0))


def _tokens(timeline: Timeline) -> int | None:
    """Tokens of all windows of a rank, None unless every step has them."""
    facts = [timeline.info.step_facts.get(step) for step in timeline.steps.number.tolist()]
    counts = [fact.tokens for fact in facts if fact is not None and fact.tokens]
    return sum(counts) if counts and len(counts) == len(facts) else None


def _kernels(timeline: Timeline, segments: pd.DataFrame, names: dict[str, int]) -> pd.DataFrame:
    """Compute intervals that start in the segments of one rank: name (numbered alike on all ranks), shape, ns."""
    union = merge(segments["start"].to_numpy(), segments["end"].to_numpy())
    rows = np.flatnonzero((timeline.lane == Lane.COMPUTE) & ((timeline.flags & Flag.PARTIAL) == 0))
    start = timeline.start_ns[rows]
    i = np.searchsorted(union[0], start, side="right") - 1
    rows = rows[(i >= 0) & (start < union[1][np.maximum(i, 0)])] if len(union[0]) else rows[:0]
    number = np.array([names.setdefault(name, len(names)) for name in timeline.names] or [0])
    return pd.DataFrame(
        {
            "name": number[timeline.name_id[rows]],
            "shape": timeline.shape[rows],
            "ns": timeline.end_ns[rows] - timeline.start_ns[rows],
        }
    )


def _cause(excess: dict[str, int], work_share: float | None) -> str | None:
    part = max(excess, key=lambda name: excess[name])
    if excess[part] <= 0:
        return None
    if part != "compute":
        return part.replace("_", " ")
    if work_share is None:
        return "compute"
    return "more work" if work_share >= 0.5 else "slower kernels"


def _pattern(index: int, charged: pd.DataFrame, timelines: Sequence[Timeline]) -> str | None:
    steps = max((len(timeline.steps) for timeline in timelines), default=0)
    if steps < MIN_STEPS or charged.empty:
        return None
    costliest = charged.loc[charged.groupby("step")["ns"].idxmax()]
    times = int((costliest["culprit"] == index).sum())
    if times >= _MOST * len(costliest):
        return "chronic"
    return "one-off" if times <= 1 else "rotating"
