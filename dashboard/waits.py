"""Who waited for whom: frames of collectives, turned into what the Stragglers and Collectives pages draw.

A wait here is the time from a rank's arrival at a collective to the last rank's, whether or not compute hid it: it
says who was late, not how much of a step that cost. What it cost is the straggler class of the bubbles.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from dashboard.measures import NS_PER_MS

ONE = ["step", "group", "op", "ordinal"]  # what makes two rows the same collective
KIND = ["group", "op"]


@dataclass(frozen=True)
class Blame:
    """Waits charged to the rank that came last, in ms per profiled step.

    Attributes:
        ranks: numbers of both axes, ascending.
        ms: float64[ranks, ranks], victim × culprit.
        times_last: int64[ranks], how often each rank came last.
        collectives: how many collectives were matched, in all steps together.
        steps: profiled steps they are from.
    """

    ranks: list[int]
    ms: np.ndarray
    times_last: np.ndarray
    collectives: int
    steps: int

    @property
    def charged_ms(self) -> np.ndarray:
        """float64[ranks]: what each culprit is charged with, per step, over all victims."""
        return self.ms.sum(axis=0)

    @property
    def waited_ms(self) -> np.ndarray:
        """float64[ranks]: what each victim waited, per step."""
        return self.ms.sum(axis=1)


def blame(collectives: pd.DataFrame, arm: str) -> Blame | None:
    """Blame of one arm; None when no collective of it was matched across ranks."""
    rows = _matched(collectives, arm)
    if rows.empty:
        return None
    ranks = sorted({int(rank) for rank in rows["rank"].unique()})
    place = {rank: i for i, rank in enumerate(ranks)}
    victim, culprit = rows["rank"].map(place).to_numpy(), rows["last_rank"].map(place).to_numpy()
    steps = int(rows["step"].nunique())
    charged = np.zeros((len(ranks), len(ranks)))
    np.add.at(charged, (victim, culprit), rows["wait_ns"].to_numpy() / NS_PER_MS / steps)
    last = rows.loc[rows["rank"] == rows["last_rank"], "rank"].map(place)
    times_last = np.bincount(last, minlength=len(ranks))
    return Blame(ranks, charged, times_last, len(rows[ONE].drop_duplicates()), steps)


@dataclass(frozen=True)
class Skew:
    """How late each rank came to each collective of a step, mean over steps: float64[ranks, collectives] in ms.

    `places` names the collectives in the order in which a step meets them.
    """

    ranks: list[int]
    places: list[str]
    ms: np.ndarray


def skew(collectives: pd.DataFrame, arm: str) -> Skew | None:
    """Lateness behind the first rank to arrive, of one arm; None when no collective in a step was matched.

    Collectives of different steps are the same one when they are the k-th of their kind (group and op) in the step.
    """
    rows = _matched(collectives, arm)
    rows = rows[rows["step"] >= 0] if len(rows) else rows
    if rows.empty:
        return None
    rows = rows.assign(nth=rows.groupby(["step", *KIND])["ordinal"].rank(method="dense").astype(int))
    rows["late_ms"] = (rows["arrival_ns"] - rows["first_arrival_ns"]) / NS_PER_MS
    rows["into_step"] = rows["first_arrival_ns"] - rows.groupby("step")["first_arrival_ns"].transform("min")
    order = rows.groupby([*KIND, "nth"])["into_step"].mean().sort_values(kind="stable").index
    late = rows.pivot_table(index="rank", columns=[*KIND, "nth"], values="late_ms", aggfunc="mean").sort_index()
    labels = [f"{op} {nth} · {group}" for group, op, nth in order.to_list()]
    return Skew([int(rank) for rank in late.index.to_numpy()], labels, late[order].to_numpy(dtype=float))


def each(collectives: pd.DataFrame, arm: str) -> pd.DataFrame:
    """One row per collective of an arm.

    Returns: columns step, group, op, ordinal, ranks, bytes (largest rank's; NaN when not known), matched, last_rank,
    skew_ms (first to last arrival), wait_ms (mean over ranks), transfer_ms (last arrival to end).
    """
    rows = collectives[collectives["arm"] == arm]
    rows = rows.assign(bytes=rows["bytes"].where(rows["bytes"] >= 0))
    grouped = rows.groupby(ONE, sort=False)
    table = grouped.agg(
        ranks=("rank", "size"),
        bytes=("bytes", "max"),
        matched=("matched", "first"),
        last_rank=("last_rank", "first"),
        first_ns=("first_arrival_ns", "first"),
        last_ns=("last_arrival_ns", "first"),
        wait_ms=("wait_ns", "mean"),
        transfer_ms=("transfer_ns", "first"),
    ).reset_index()
    table["skew_ms"] = (table["last_ns"] - table["first_ns"]) / NS_PER_MS
    table[["wait_ms", "transfer_ms"]] /= NS_PER_MS
    return table.sort_values("first_ns", ignore_index=True)


def kinds(collectives: pd.DataFrame, arm: str) -> pd.DataFrame:
    """Totals per group and op, per profiled step, the costliest first.

    Returns: columns group, op, per_step (count), bytes (per step; NaN when not known), wait_ms (mean over ranks),
    transfer_ms, matched (share of them, 0–1).
    """
    table = each(collectives, arm)
    steps = max(1, int(table["step"].nunique()))
    grouped = table.groupby(KIND, sort=False)
    totals = grouped.agg(
        per_step=("step", "size"),
        bytes=("bytes", lambda sizes: sizes.sum(min_count=1)),
        wait_ms=("wait_ms", "sum"),
        transfer_ms=("transfer_ms", "sum"),
        matched=("matched", "mean"),
    ).reset_index()
    totals[["per_step", "bytes", "wait_ms", "transfer_ms"]] /= steps
    cost = totals["wait_ms"] + totals["transfer_ms"]
    return totals.loc[cost.sort_values(ascending=False, kind="stable").index].reset_index(drop=True)


def arms_with_collectives(collectives: pd.DataFrame) -> list[str]:
    return list(dict.fromkeys(collectives["arm"].tolist())) if len(collectives) else []


def _matched(collectives: pd.DataFrame, arm: str) -> pd.DataFrame:
    """Rows of the collectives of an arm that all their ranks were found for; empty when there are none."""
    if collectives.empty:
        return collectives
    return collectives[(collectives["arm"] == arm) & collectives["matched"].astype(bool)]
