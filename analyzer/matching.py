"""Which intervals on different ranks are the same collective.

Where the trace recorded a sequence number, group, number and kind decide. Elsewhere the order within a step does, but
only if every rank shows the same kinds in the same order and the intervals overlap in time as one collective's must.
Where that fails, because events are missing, times decide. What remains is unmatched: nothing is paired on a guess.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analyzer import alignment
from analyzer.intervals import Int64
from analyzer.lanes import SYNCHRONISING_OPS, UNMATCHABLE_OPS, Lane
from analyzer.timeline import UNKNOWN, Flag, Group, Timeline

_OVERLAPPING_SHARE = 0.9  # of the collectives matched by order that must overlap on all ranks
_OVERLAP_SLACK_NS = 200_000
_END_SPREAD_NS = 1_000_000  # ends of a synchronising collective may differ by this, or by a tenth of its length


@dataclass(frozen=True)
class Matching:
    """Collectives and who took part.

    `collectives`, a row each: group (index into `groups`), op (index into `ops`), ordinal, expected (ranks that take
    part), present (ranks whose interval is known). `members`, a row per collective × rank: collective, rank (index
    of the timeline), start_ns, end_ns (that rank's own clock), bytes, step, exact (its end is recorded), known_start.
    `collective_of_row[r]` gives the collective of each COMM row of timeline r, -1 for waits whose call is missing.
    """

    collectives: pd.DataFrame
    members: pd.DataFrame
    collective_of_row: list[Int64]
    groups: tuple[Group, ...]
    ops: tuple[str, ...]

    @property
    def synchronising(self) -> NDArray[np.bool_]:
        """Per collective: its participants leave together."""
        return np.isin(self.collectives["op"], [i for i, op in enumerate(self.ops) if op in SYNCHRONISING_OPS])

    @property
    def complete(self) -> NDArray[np.bool_]:
        """Per collective: every rank that takes part was found."""
        frame = self.collectives
        return ((frame["present"] >= 2) & (frame["present"] == frame["expected"])).to_numpy()


def match(timelines: Sequence[Timeline]) -> Matching:
    """Match the collectives of several ranks' timelines."""
    rows = _CommRows(timelines)
    identity = np.full(len(rows.rank), -1, np.int64)
    keys = rows.recorded_keys()
    identity[keys.rows] = keys.index
    count = keys.count
    for group in range(len(rows.groups)):
        matched_rows, index = _match_unnumbered(rows, group)
        identity[matched_rows] = count + index
        count += int(index.max(initial=-1)) + 1
    alone = np.flatnonzero((identity < 0) & ~rows.is_wait)
    identity[alone] = count + np.arange(len(alone))
    return rows.assemble(identity, count + len(alone))


class _CommRows:
    """The COMM rows of all timelines, in one set of columns with groups and ops numbered alike."""

    def __init__(self, timelines: Sequence[Timeline]) -> None:
        groups: dict[Group, int] = {}
        ops: dict[str, int] = {}
        columns: dict[str, list[np.ndarray]] = defaultdict(list)
        for rank, (timeline, of_rank) in enumerate(zip(timelines, _groups_by_one_name(timelines), strict=True)):
            rows = np.flatnonzero(timeline.lane == Lane.COMM)
            group_of = np.array([groups.setdefault(g, len(groups)) for g in of_rank] or [0], np.int64)
            op_of = np.array([ops.setdefault(o, len(ops)) for o in timeline.ops] or [0], np.int64)
            columns["rank"].append(np.full(len(rows), rank, np.int64))
            columns["group"].append(group_of[timeline.group[rows]])
            columns["op"].append(op_of[timeline.op[rows]])
            for name in ("ordinal", "bytes", "step", "start_ns", "end_ns", "flags"):
                columns[name].append(getattr(timeline, name)[rows].astype(np.int64))
        joined = {name: np.concatenate(parts) if parts else np.empty(0, np.int64) for name, parts in columns.items()}
        empty = np.empty(0, np.int64)
        self.rank = joined.get("rank", empty)
        self.group, self.op = joined.get("group", empty), joined.get("op", empty)
        self.ordinal, self.bytes, self.step = (joined.get(name, empty) for name in ("ordinal", "bytes", "step"))
        self.start_ns, self.end_ns = joined.get("start_ns", empty), joined.get("end_ns", empty)
        flags = joined.get("flags", empty)
        self.is_wait = (flags & Flag.WAIT) != 0
        self.is_orphan = (flags & Flag.ORPHAN) != 0
        self.exact = (flags & Flag.INEXACT_END) == 0
        self.groups, self.ops = tuple(groups), tuple(ops)
        self.ranks = [timeline.info.rank for timeline in timelines]
        self.world_size = max((t.info.world_size or 0 for t in timelines), default=0)
        self.rows_of_rank = np.bincount(self.rank, minlength=len(timelines))
        self.hosts = [timeline.info.host for timeline in timelines]
        hopeless = [i for i, op in enumerate(self.ops) if op in UNMATCHABLE_OPS]
        self.is_matchable = ~np.isin(self.op, hopeless)

    def recorded_keys(self) -> _Keys:
        """Identities from group, kind and sequence number; waits take that of the collective they wait for."""
        rows = np.flatnonzero((self.ordinal >= 0) & self.is_matchable)
        key = np.stack([self.group[rows], self.op[rows], self.ordinal[rows]])
        distinct, index = np.unique(key, axis=1, return_inverse=True)
        index = index.reshape(-1)
        called = np.zeros(distinct.shape[1], bool)
        called[index[~self.is_wait[rows]]] = True
        number = np.cumsum(called) - 1
        return _Keys(rows, np.where(called[index], number[index], -1), int(called.sum()))

    def assemble(self, identity: Int64, count: int) -> Matching:
        frame = pd.DataFrame(
            {
                "collective": identity,
                "rank": self.rank,
                "start_ns": self.start_ns,
                "end_ns": self.end_ns,
                "bytes": self.bytes,
                "step": self.step,
                "exact": self.exact,
                "known_start": ~self.is_orphan,
                "group": self.group,
                "op": self.op,
                "ordinal": self.ordinal,
            }
        )[~self.is_wait]
        by_collective = frame.groupby("collective", sort=True)
        collectives = by_collective[["group", "op", "ordinal"]].first().reindex(range(count), fill_value=UNKNOWN)
        by_member = frame.groupby(["collective", "rank"], sort=True)
        members = by_member.agg(
            start_ns=("start_ns", "min"),
            end_ns=("end_ns", "max"),
            bytes=("bytes", "max"),
            step=("step", "first"),
            exact=("exact", "all"),
            known_start=("known_start", "all"),
        ).reset_index()
        collectives["present"] = np.bincount(members["collective"], minlength=count)
        collectives["expected"] = self._expected(collectives, members)
        collectives["ordinal"] = _number_in_time(collectives, members)
        boundaries = np.cumsum(self.rows_of_rank)[:-1]
        return Matching(collectives, members, np.split(identity, boundaries), self.groups, self.ops)

    def _expected(self, collectives: pd.DataFrame, members: pd.DataFrame) -> Int64:
        """How many ranks take part: the group's, or the world's if every rank here uses the group, or those here."""
        expected = np.zeros(len(collectives), np.int64)
        group_of_member = collectives["group"].to_numpy()[members["collective"]]
        for i, group in enumerate(self.groups):
            here = members["rank"].to_numpy()[group_of_member == i]
            everyone = len(np.unique(here)) == len(self.ranks)
            size = len(group.ranks) or (max(self.world_size, len(self.ranks)) if everyone else len(np.unique(here)))
            expected[collectives["group"] == i] = size
        return expected


def _groups_by_one_name(timelines: Sequence[Timeline]) -> list[list[Group]]:
    """The groups of each timeline. Streams that stand for groups have other numbers on other ranks, but were made in
    one order: if every rank has as many, the first rank's names stand for all."""
    streams = [sorted(g.stream for g in t.groups if g.stream is not None) for t in timelines]
    used = [of_rank for of_rank in streams if of_rank]
    if len({len(of_rank) for of_rank in used}) != 1:
        return [list(timeline.groups) for timeline in timelines]
    return [
        [g if g.stream is None else Group.of_stream(used[0][of_rank.index(g.stream)]) for g in timeline.groups]
        for timeline, of_rank in zip(timelines, streams, strict=True)
    ]


@dataclass(frozen=True)
class _Keys:
    rows: NDArray[np.intp]
    index: Int64
    count: int


def _match_unnumbered(rows: _CommRows, group: int) -> tuple[NDArray[np.intp], Int64]:
    """(Rows of a group without sequence numbers that could be matched, dense number of each one's collective)."""
    mine = np.flatnonzero(
        (rows.group == group) & (rows.ordinal < 0) & ~rows.is_wait & ~rows.is_orphan & rows.is_matchable
    )
    mine = mine[np.argsort(rows.start_ns[mine], kind="stable")]
    ranks = np.unique(rows.rank[mine])
    if len(ranks) < 2:
        return mine[:0], mine[:0]
    blocks = [block for step in np.unique(rows.step[mine]) if (block := _in_order(rows, mine, ranks, step)) is not None]
    times = _Times(rows, np.concatenate(blocks, axis=1)) if blocks else None
    if times is None or not times.agree:
        return _aligned(rows, mine, ranks, {})
    table = times.table
    matched, index = table.ravel(), np.tile(np.arange(table.shape[1]), len(ranks))
    rest = mine[~np.isin(mine, matched)]
    more, more_index = _aligned(rows, rest, ranks, dict(zip(ranks.tolist(), times.offset_ns, strict=True)))
    return np.concatenate([matched, more]), np.concatenate([index, more_index + table.shape[1]])


def _in_order(rows: _CommRows, mine: NDArray[np.intp], ranks: Int64, step: int) -> NDArray[np.intp] | None:
    """Rows of a step, intp[ranks, collectives], if every rank shows the same kinds in the same order."""
    of_step = mine[rows.step[mine] == step]
    sequences = [of_step[rows.rank[of_step] == rank] for rank in ranks]
    kinds = rows.op[sequences[0]]
    if len(kinds) == 0 or not all(len(s) == len(kinds) and (rows.op[s] == kinds).all() for s in sequences):
        return None
    return np.stack(sequences)


class _Times:
    """Whether rows put side by side, intp[ranks, collectives], look like collectives: overlapping, and left together.

    `offset_ns`, per rank, makes the ends agree with the first rank's.
    """

    def __init__(self, rows: _CommRows, table: NDArray[np.intp]) -> None:
        self.table = table
        start, end = rows.start_ns[table], rows.end_ns[table]
        synchronising = [i for i, op in enumerate(rows.ops) if op in SYNCHRONISING_OPS]
        together = np.isin(rows.op[table[0]], synchronising) & rows.exact[table].all(axis=0)
        lag = end[0] - end
        self.offset_ns = np.median(lag[:, together if together.any() else slice(None)], axis=1).astype(np.int64)
        start, end = start + self.offset_ns[:, None], end + self.offset_ns[:, None]
        overlapping = start.max(axis=0) <= end.min(axis=0) + _OVERLAP_SLACK_NS
        spread, length = end.max(axis=0) - end.min(axis=0), (end - start).max(axis=0)
        close = spread <= np.maximum(_END_SPREAD_NS, length // 10)
        self.agree = bool(
            overlapping.mean() >= _OVERLAPPING_SHARE and (not together.any() or close[together].mean() >= 0.5)
        )


def _aligned(
    rows: _CommRows, mine: NDArray[np.intp], ranks: Int64, offsets: dict[int, int]
) -> tuple[NDArray[np.intp], Int64]:
    """(Rows matched by their times, dense number of each one's collective); `offsets` are known clock offsets by rank.

    The rank with the most rows begins a common sequence; each other rank is aligned to it and adds what it alone has.
    """
    by_rank = {int(rank): mine[rows.rank[mine] == rank] for rank in ranks}
    order = sorted((rank for rank in by_rank if len(by_rank[rank])), key=lambda rank: -len(by_rank[rank]))
    if len(order) < 2:
        return mine[:0], mine[:0]
    first = order[0]
    common = _sequence(rows, by_rank[first]).shifted(offsets.get(first, 0))
    members: list[list[int]] = [[int(row)] for row in by_rank[first]]
    for rank in order[1:]:
        sequence = _sequence(rows, by_rank[rank])
        offset = offsets.get(rank) if offsets else _offset(rows, first, rank, common, sequence)
        if offset is None:
            continue
        sequence = sequence.shifted(offset)
        i, j = alignment.pair_up(common, sequence)
        for position, other in zip(i.tolist(), j.tolist(), strict=True):
            members[position].append(int(by_rank[rank][other]))
        common, members = _grown(common, members, sequence, by_rank[rank], j)
    shared = [group for group in members if len(group) > 1]
    index = np.repeat(np.arange(len(shared)), [len(group) for group in shared])
    return np.array([row for group in shared for row in group], np.intp), index.astype(np.int64)


def _sequence(rows: _CommRows, of_rank: NDArray[np.intp]) -> alignment.Sequence:
    return alignment.Sequence(rows.start_ns[of_rank], rows.end_ns[of_rank], rows.op[of_rank], rows.step[of_rank])


def _offset(
    rows: _CommRows, first: int, rank: int, common: alignment.Sequence, sequence: alignment.Sequence
) -> int | None:
    host = rows.hosts[rank]
    if host is not None and host == rows.hosts[first]:
        return 0
    return alignment.find_offset(common, sequence)


def _grown(
    common: alignment.Sequence,
    members: list[list[int]],
    sequence: alignment.Sequence,
    of_rank: NDArray[np.intp],
    paired: NDArray[np.intp],
) -> tuple[alignment.Sequence, list[list[int]]]:
    """The common sequence with what only this rank has, in the order of starts."""
    alone = np.setdiff1d(np.arange(len(sequence)), paired)
    start = np.concatenate([common.start_ns, sequence.start_ns[alone]])
    order = np.argsort(start, kind="stable")
    grown = alignment.Sequence(
        start[order],
        *(
            np.concatenate([getattr(common, name), getattr(sequence, name)[alone]])[order]
            for name in ("end_ns", "kind", "step")
        ),
    )
    everyone = members + [[int(of_rank[k])] for k in alone]
    return grown, [everyone[k] for k in order]


def _number_in_time(collectives: pd.DataFrame, members: pd.DataFrame) -> Int64:
    """Ordinals: recorded ones as they are, the others counted in time within their group and kind."""
    ordinal = collectives["ordinal"].to_numpy(np.int64).copy()
    unnumbered = np.flatnonzero(ordinal < 0)
    first_start = np.full(len(collectives), np.iinfo(np.int64).max)
    np.minimum.at(first_start, members["collective"].to_numpy(), members["start_ns"].to_numpy())
    order = unnumbered[np.argsort(first_start[unnumbered], kind="stable")]
    ordinal[order] = collectives.iloc[order].groupby(["group", "op"], sort=False).cumcount().to_numpy()
    return ordinal
