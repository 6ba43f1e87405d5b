"""Which intervals on different ranks are the same collective.

Where the trace recorded a sequence number, group, number and kind decide. Elsewhere the order within a step does, but
only if every rank shows the same kinds in the same order and the intervals overlap in time as one collective's must;
what fails this stays unmatched. Nothing is paired on a guess.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analyzer.intervals import Int64
from analyzer.lanes import POINT_TO_POINT_OPS, SYNCHRONISING_OPS, Lane
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
        for block in _blocks_in_order(rows, group):
            identity[block.rows] = count + block.position
            count += block.length
    alone = np.flatnonzero((identity < 0) & ~rows.is_wait)
    identity[alone] = count + np.arange(len(alone))
    return rows.assemble(identity, count + len(alone))


class _CommRows:
    """The COMM rows of all timelines, in one set of columns with groups and ops numbered alike."""

    def __init__(self, timelines: Sequence[Timeline]) -> None:
        groups: dict[Group, int] = {}
        ops: dict[str, int] = {}
        columns: dict[str, list[np.ndarray]] = defaultdict(list)
        for rank, timeline in enumerate(timelines):
            rows = np.flatnonzero(timeline.lane == Lane.COMM)
            group_of = np.array([groups.setdefault(g, len(groups)) for g in timeline.groups] or [0], np.int64)
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
        pair_ops = [i for i, op in enumerate(self.ops) if op in POINT_TO_POINT_OPS]
        self.is_pair = np.isin(self.op, pair_ops)

    def recorded_keys(self) -> _Keys:
        """Identities from group, kind and sequence number; waits take that of the collective they wait for."""
        rows = np.flatnonzero((self.ordinal >= 0) & ~self.is_pair)
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


@dataclass(frozen=True)
class _Keys:
    rows: NDArray[np.intp]
    index: Int64
    count: int


@dataclass(frozen=True)
class _Block:
    """Rows of a group whose order decides: `position[i]` is the place of `rows[i]` among `length` collectives."""

    rows: NDArray[np.intp]
    position: Int64
    length: int


def _blocks_in_order(rows: _CommRows, group: int) -> list[_Block]:
    """Steps of a group in which every rank shows the same kinds in the same order, if times bear it out."""
    mine = np.flatnonzero((rows.group == group) & (rows.ordinal < 0) & ~rows.is_wait & ~rows.is_orphan & ~rows.is_pair)
    ranks = np.unique(rows.rank[mine])
    if len(ranks) < 2:
        return []
    blocks = []
    for step in np.unique(rows.step[mine]):
        of_step = mine[rows.step[mine] == step]
        sequences = [of_step[rows.rank[of_step] == rank] for rank in ranks]
        sequences = [s[np.argsort(rows.start_ns[s], kind="stable")] for s in sequences]
        kinds = rows.op[sequences[0]]
        if all(len(s) == len(kinds) and (rows.op[s] == kinds).all() for s in sequences):
            position = np.tile(np.arange(len(kinds)), len(ranks))
            blocks.append(_Block(np.concatenate(sequences), position, len(kinds)))
    return blocks if blocks and _times_agree(rows, blocks, len(ranks)) else []


def _times_agree(rows: _CommRows, blocks: list[_Block], ranks: int) -> bool:
    """Whether the collectives of these blocks look like collectives: overlapping everywhere, and left together."""
    start = np.concatenate([rows.start_ns[b.rows].reshape(ranks, b.length) for b in blocks], axis=1)
    end = np.concatenate([rows.end_ns[b.rows].reshape(ranks, b.length) for b in blocks], axis=1)
    exact = np.concatenate([rows.exact[b.rows].reshape(ranks, b.length) for b in blocks], axis=1).all(axis=0)
    kind = np.concatenate([rows.op[b.rows[: b.length]] for b in blocks])
    together = np.isin(kind, [i for i, op in enumerate(rows.ops) if op in SYNCHRONISING_OPS]) & exact
    lag = end - end[0]
    offset = np.median(lag[:, together if together.any() else slice(None)], axis=1).astype(np.int64)[:, None]
    start, end = start - offset, end - offset
    overlapping = start.max(axis=0) <= end.min(axis=0) + _OVERLAP_SLACK_NS
    spread, length = end.max(axis=0) - end.min(axis=0), (end - start).max(axis=0)
    close = spread <= np.maximum(_END_SPREAD_NS, length // 10)
    return bool(overlapping.mean() >= _OVERLAPPING_SHARE and (not together.any() or close[together].mean() >= 0.5))


def _number_in_time(collectives: pd.DataFrame, members: pd.DataFrame) -> Int64:
    """Ordinals: recorded ones as they are, the others counted in time within their group and kind."""
    ordinal = collectives["ordinal"].to_numpy(np.int64).copy()
    unnumbered = np.flatnonzero(ordinal < 0)
    first_start = np.full(len(collectives), np.iinfo(np.int64).max)
    np.minimum.at(first_start, members["collective"].to_numpy(), members["start_ns"].to_numpy())
    order = unnumbered[np.argsort(first_start[unnumbered], kind="stable")]
    ordinal[order] = collectives.iloc[order].groupby(["group", "op"], sort=False).cumcount().to_numpy()
    return ordinal
