"""The two tables of an analysis: where each rank's step time went, and when each rank came to and left each collective.

Timelines in, tables out: match, put the ranks on one clock, then partition every window of every rank.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analyzer.clocks import Clocks, fit_clocks
from analyzer.errors import AnalyzerError
from analyzer.intervals import Int64, merge
from analyzer.lanes import Lane
from analyzer.matching import Matching, match
from analyzer.partition import UNMATCHED, Communication, Partition, partition
from analyzer.timeline import Group, Timeline

CLASSES = ("compute_ns", "straggler_ns", "exposed_comm_ns", "exposed_copy_ns", "host_ns")
BUBBLE_COLUMNS = ("step", "rank", "start_ns", "window_ns", *CLASSES, "overlapped_comm_ns")
COLLECTIVE_COLUMNS = (
    "step", "group", "op", "ordinal", "matched", "rank", "bytes", "arrival_ns", "rank_end_ns", "wait_ns", "last_rank",
    "first_arrival_ns", "last_arrival_ns", "end_ns", "transfer_ns", "straggler_ns", "exposed_ns",
)  # fmt: skip


@dataclass(frozen=True)
class Tables:
    """What an analysis measured. Columns of the frames as in bubbles.parquet and collectives.parquet, without `arm`.

    `blame_ns[v, c]` is the straggler time of rank `ranks[v]` that collectives decided in which `ranks[c]` came last.
    """

    ranks: list[int]
    bubbles: pd.DataFrame
    collectives: pd.DataFrame
    blame_ns: np.ndarray
    clocks: Clocks
    split: bool  # False: waiting could not be told from transfer, all of it is in exposed_comm
    warnings: list[str]


def measure(timelines: Sequence[Timeline]) -> Tables:
    """Measure the bubbles of one job from its ranks' timelines (each with its rank known, no rank twice)."""
    timelines = sorted(timelines, key=lambda timeline: _rank(timeline))
    ranks = [_rank(timeline) for timeline in timelines]
    matching = match(timelines)
    clocks = fit_clocks(matching, [timeline.info.host for timeline in timelines])
    arrivals = _Arrivals(matching, clocks)
    split, warnings = _can_split(arrivals, clocks, timelines)
    parts = []
    blame = np.zeros((len(ranks), len(ranks)), np.int64)
    decided = np.zeros((2, len(matching.collectives), len(ranks)), np.int64)  # straggler and exposed_comm time
    for r, timeline in enumerate(timelines):
        part, rows = _partition_rank(r, timeline, matching, arrivals, clocks, split)
        parts.append(_bubble_rows(ranks[r], timeline, part, clocks.to_common(r, timeline.steps.start_ns)))
        culprit = np.append(arrivals.last_rank, -1)[rows]  # -1, a wait whose call is missing, is charged to nobody
        np.add.at(blame[r], culprit[culprit >= 0], part.row_straggler_ns[culprit >= 0])
        for measured, of_rows in zip(decided, (part.row_straggler_ns, part.row_exposed_ns), strict=True):
            np.add.at(measured[:, r], rows[rows >= 0], of_rows[rows >= 0])
    bubbles = pd.concat(parts, ignore_index=True).sort_values(["step", "rank"], ignore_index=True)
    collectives = _collective_rows(matching, arrivals, clocks, timelines, ranks, decided)
    warnings += _warnings(matching, clocks, timelines, ranks)
    return Tables(ranks, bubbles, collectives, blame, clocks, split, warnings)


def _rank(timeline: Timeline) -> int:
    if timeline.info.rank is None:
        raise AnalyzerError(f"{timeline.info.path}: rank unknown")
    return timeline.info.rank


class _Arrivals:
    """Per collective, on the common clock: first and last arrival, end, and the index of the rank that came last."""

    def __init__(self, matching: Matching, clocks: Clocks) -> None:
        members, count = matching.members, len(matching.collectives)
        self.start, self.end = np.empty(len(members), np.int64), np.empty(len(members), np.int64)
        rank = members["rank"].to_numpy()
        for r in np.unique(rank):
            mine = rank == r
            self.start[mine] = clocks.to_common(r, members["start_ns"].to_numpy()[mine])
            self.end[mine] = clocks.to_common(r, members["end_ns"].to_numpy()[mine])
        self.collective = members["collective"].to_numpy()
        self.first = np.full(count, np.iinfo(np.int64).max)
        self.last, self.over = np.full(count, UNMATCHED), np.full(count, UNMATCHED)
        np.minimum.at(self.first, self.collective, self.start)
        np.maximum.at(self.last, self.collective, self.start)
        np.maximum.at(self.over, self.collective, self.end)
        self.shared = (matching.collectives["present"] >= 2).to_numpy()
        self.complete = matching.complete
        self.last_rank = np.full(count, -1, np.int64)
        latest = self.start == self.last[self.collective]
        self.last_rank[self.collective[latest][::-1]] = rank[latest][::-1]
        self.last_rank[~self.complete] = -1


def _partition_rank(
    r: int, timeline: Timeline, matching: Matching, arrivals: _Arrivals, clocks: Clocks, split: bool
) -> tuple[Partition, Int64]:
    """(Partition of one rank, collective of each of its communication rows)."""
    rows = np.flatnonzero(timeline.lane == Lane.COMM)
    collective = matching.collective_of_row[r]
    known = (collective >= 0) & split
    known[known] = arrivals.shared[collective[known]] & clocks.tied[r]
    last_arrival = np.full(len(rows), UNMATCHED)
    last_arrival[known] = clocks.to_own(r, arrivals.last[collective[known]])
    compute, copies = timeline.in_lane(Lane.COMPUTE), timeline.in_lane(Lane.COPY)
    part = partition(
        (timeline.steps.start_ns, timeline.steps.end_ns),
        merge(timeline.start_ns[compute], timeline.end_ns[compute]),
        Communication(timeline.start_ns[rows], timeline.end_ns[rows], last_arrival),
        merge(timeline.start_ns[copies], timeline.end_ns[copies]),
    )
    return part, collective


def _bubble_rows(rank: int, timeline: Timeline, part: Partition, start_ns: Int64) -> pd.DataFrame:
    columns = {
        "step": timeline.steps.number,
        "rank": np.full(len(timeline.steps), rank, np.int32),
        "start_ns": start_ns,
        "window_ns": timeline.steps.end_ns - timeline.steps.start_ns,
        **{name: getattr(part, name) for name in (*CLASSES, "overlapped_comm_ns")},
    }
    return pd.DataFrame(columns)


def _collective_rows(
    matching: Matching,
    arrivals: _Arrivals,
    clocks: Clocks,
    timelines: Sequence[Timeline],
    ranks: list[int],
    decided: np.ndarray,
) -> pd.DataFrame:
    members, of = matching.members, arrivals.collective
    info = matching.collectives
    rank_end, arrival = arrivals.end, arrivals.start
    last = arrivals.last[of]
    rank_number = np.array([*ranks, -1], np.int32)  # -1 is the index of "nobody"
    frame = pd.DataFrame(
        {
            "step": _step_of_collective(members, arrivals, timelines, clocks)[of],
            "group": np.array(_group_labels(matching.groups) or [""], object)[info["group"].to_numpy()[of]],
            "op": np.array(matching.ops or ("",), object)[info["op"].to_numpy()[of]],
            "ordinal": info["ordinal"].to_numpy()[of],
            "matched": arrivals.complete[of],
            "rank": rank_number[members["rank"].to_numpy()],
            "bytes": members["bytes"].to_numpy(),
            "arrival_ns": arrival,
            "rank_end_ns": rank_end,
            "wait_ns": np.maximum(np.minimum(last, rank_end) - arrival, 0),
            "last_rank": rank_number[arrivals.last_rank[of]],
            "first_arrival_ns": arrivals.first[of],
            "last_arrival_ns": last,
            "end_ns": arrivals.over[of],
            "transfer_ns": np.maximum(arrivals.over[of] - last, 0),
            # The parts of this rank's bubble that this collective decided.
            "straggler_ns": decided[0, of, members["rank"].to_numpy()],
            "exposed_ns": decided[1, of, members["rank"].to_numpy()],
        }
    )
    return frame.sort_values(["first_arrival_ns", "group", "op", "ordinal", "rank"], ignore_index=True)


def _group_labels(groups: Sequence[Group]) -> list[str]:
    """Names of the groups; those that several sets of ranks share say which set."""
    names = [group.name for group in groups]
    return [f"{group.name} [{_span(group.ranks)}]" if names.count(group.name) > 1 else group.name for group in groups]


def _span(ranks: Sequence[int]) -> str:
    return ",".join(map(str, ranks)) if len(ranks) <= 4 else f"{ranks[0]},{ranks[1]},…,{ranks[-1]}"


def _step_of_collective(
    members: pd.DataFrame, arrivals: _Arrivals, timelines: Sequence[Timeline], clocks: Clocks
) -> Int64:
    """Step whose window holds the last arrival on the rank that arrived last; -1 outside all windows."""
    step = np.full(len(arrivals.last), -1, np.int64)
    rank = members["rank"].to_numpy()
    latest = arrivals.start == arrivals.last[arrivals.collective]
    for r in np.unique(rank):
        mine = latest & (rank == r)
        step[arrivals.collective[mine]] = timelines[r].steps.containing(members["start_ns"].to_numpy()[mine])
    return step


def _can_split(arrivals: _Arrivals, clocks: Clocks, timelines: Sequence[Timeline]) -> tuple[bool, list[str]]:
    """Whether clocks agree well enough to tell waiting from transfer, and the warning if not.

    They do not when they may be off by more than half of the average wait, and that could move more than one percent
    of a step from one class to the other.
    """
    skew = (arrivals.last - arrivals.first)[arrivals.shared]
    windows = sum(len(timeline.steps) for timeline in timelines)
    if len(skew) == 0 or windows == 0:
        return True, []
    window = sum(int((t.steps.end_ns - t.steps.start_ns).sum()) for t in timelines) / windows
    per_step = len(skew) / max(max(len(timeline.steps) for timeline in timelines), 1)
    typical = float(skew.mean())
    if clocks.uncertainty_ns <= typical / 2 or clocks.uncertainty_ns * per_step <= window / 100:
        return True, []
    return False, [
        f"the ranks' clocks are known only to {clocks.uncertainty_ns / 1e3:.0f} µs "
        f"while ranks wait {typical / 1e3:.0f} µs: waiting "
        "is not told apart from transfer; straggler is 0 and exposed_comm holds both"
    ]


def _warnings(matching: Matching, clocks: Clocks, timelines: Sequence[Timeline], ranks: list[int]) -> list[str]:
    collectives = matching.collectives
    alone = int((collectives["present"] < 2).sum())
    partial = int(((collectives["present"] >= 2) & ~matching.complete).sum())
    notes = []
    world = max((timeline.info.world_size or 0 for timeline in timelines), default=0)
    if world > len(ranks):
        notes.append(f"{world - len(ranks)} of {world} ranks have no trace here")
    if alone:
        notes.append(
            f"{alone} of {len(collectives)} collectives could not be matched across ranks: "
            "their time is exposed_comm, waiting included"
        )
    if partial:
        notes.append(
            f"{partial} of {len(collectives)} collectives lack some of their ranks: "
            "straggler is a lower bound there, and nobody is blamed for it"
        )
    untied = [rank for rank, tied in zip(ranks, clocks.tied, strict=True) if not tied]
    if untied and len(ranks) > 1:
        notes.append(f"ranks {_span(untied)}: no shared collective ties their clocks to the others'")
    if len({tuple(timeline.steps.number.tolist()) for timeline in timelines}) > 1:
        notes.append("the ranks recorded different steps; means are over what each recorded")
    return notes
