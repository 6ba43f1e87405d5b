"""When each rank came to each collective and left it, on the common clock."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from analyzer.clocks import Clocks
from analyzer.intervals import Int64
from analyzer.matching import Matching
from analyzer.partition import UNMATCHED
from analyzer.timeline import Group, Timeline

COLLECTIVE_COLUMNS = (
    "step", "group", "op", "ordinal", "matched", "rank", "bytes", "arrival_ns", "rank_end_ns", "wait_ns", "last_rank",
    "first_arrival_ns", "last_arrival_ns", "end_ns", "transfer_ns", "straggler_ns", "exposed_ns",
)  # fmt: skip


class Arrivals:
    """Arrays per member (`collective`, `rank`, `start`, `end`) and per collective (the others).

    `last_rank` is the index of the rank that came last, -1 unless every rank that takes part was found. `step` is the
    one in whose window the last rank arrived, -1 outside all.
    """

    def __init__(self, matching: Matching, clocks: Clocks, timelines: Sequence[Timeline]) -> None:
        members, count = matching.members, len(matching.collectives)
        self.start, self.end = np.empty(len(members), np.int64), np.empty(len(members), np.int64)
        self.collective, self.rank = members["collective"].to_numpy(), members["rank"].to_numpy()
        for r in np.unique(self.rank):
            mine = self.rank == r
            self.start[mine] = clocks.to_common(r, members["start_ns"].to_numpy()[mine])
            self.end[mine] = clocks.to_common(r, members["end_ns"].to_numpy()[mine])
        self.first = np.full(count, np.iinfo(np.int64).max)
        self.last, self.over = np.full(count, UNMATCHED), np.full(count, UNMATCHED)
        np.minimum.at(self.first, self.collective, self.start)
        np.maximum.at(self.last, self.collective, self.start)
        np.maximum.at(self.over, self.collective, self.end)
        self.shared = (matching.collectives["present"] >= 2).to_numpy()
        self.complete = matching.complete
        latest = np.flatnonzero(self.start == self.last[self.collective])
        self.last_rank = np.full(count, -1, np.int64)
        self.last_rank[self.collective[latest][::-1]] = self.rank[latest][::-1]
        self.step = np.full(count, -1, np.int64)
        for r in np.unique(self.rank[latest]):
            mine = latest[self.rank[latest] == r]
            arrived = members["start_ns"].to_numpy()[mine]
            self.step[self.collective[mine]] = timelines[r].steps.containing(arrived)
        self.last_rank[~self.complete] = -1

    def table(self, matching: Matching, ranks: list[int], chosen: np.ndarray, decided: np.ndarray) -> pd.DataFrame:
        """A row per chosen collective and rank, with COLLECTIVE_COLUMNS, in the order of first arrivals.

        `decided`, int64[2, collectives, ranks], holds the parts of each rank's bubble that each collective decided:
        straggler, then exposed communication.
        """
        members, info, of = matching.members, matching.collectives, self.collective
        last = self.last[of]
        rank_number = np.array([*ranks, -1], np.int32)  # -1 is the index of nobody
        frame = pd.DataFrame(
            {
                "step": self.step[of],
                "group": np.array(group_labels(matching.groups) or [""], object)[info["group"].to_numpy()[of]],
                "op": np.array(matching.ops or ("",), object)[info["op"].to_numpy()[of]],
                "ordinal": info["ordinal"].to_numpy()[of],
                "matched": self.complete[of],
                "rank": rank_number[self.rank],
                "bytes": members["bytes"].to_numpy(),
                "arrival_ns": self.start,
                "rank_end_ns": self.end,
                "wait_ns": np.maximum(np.minimum(last, self.end) - self.start, 0),
                "last_rank": rank_number[self.last_rank[of]],
                "first_arrival_ns": self.first[of],
                "last_arrival_ns": last,
                "end_ns": self.over[of],
                "transfer_ns": np.maximum(self.over[of] - last, 0),
                "straggler_ns": decided[0, of, self.rank],
                "exposed_ns": decided[1, of, self.rank],
            }
        )
        return frame[chosen[of]].sort_values(["first_arrival_ns", "group", "op", "ordinal", "rank"], ignore_index=True)


def group_labels(groups: Sequence[Group]) -> list[str]:
    """Names of the groups; those that several sets of ranks share say which set."""
    names = [group.name for group in groups]
    return [f"{group.name} [{span(group.ranks)}]" if names.count(group.name) > 1 else group.name for group in groups]


def span(ranks: Sequence[int]) -> str:
    """A few ranks as they are, many as the ends of the list."""
    return ",".join(map(str, ranks)) if len(ranks) <= 4 else f"{ranks[0]},{ranks[1]},…,{ranks[-1]}"


def charged_by_step(arrivals: Arrivals, waited: Int64) -> pd.DataFrame:
    """Straggler time by step and culprit: step, culprit (index), ns. `waited` is by collective, in ns."""
    known = (arrivals.last_rank >= 0) & (waited > 0)
    frame = pd.DataFrame({"step": arrivals.step[known], "culprit": arrivals.last_rank[known], "ns": waited[known]})
    return frame.groupby(["step", "culprit"])["ns"].sum().reset_index()
