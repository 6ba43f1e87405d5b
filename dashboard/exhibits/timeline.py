"""The exhibit of the Timeline page: one step of chosen ranks, lanes from the traces, collectives from the analysis."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from analyzer.lanes import Lane
from dashboard import formats, waits
from dashboard.data import Run
from dashboard.exhibit import Column, Exhibit, Table, arm_options, fixed, source
from dashboard.figures.canvas import message
from dashboard.figures.timeline import TRANSFER, WAIT, RankRows, height, step_timeline
from dashboard.lanes import NS_PER_MS, Lanes, bars
from dashboard.theme import BY_KEY, Class

RANKS_AT_ONCE = 8
RANKS_AT_FIRST = 4
ROWS_EXPECTED = 5  # of a rank, until its traces have been read
BARS_ACROSS = 800  # of a lane; intervals closer than the step's length over this are drawn as one
LEGEND = (
    BY_KEY["compute"],
    Class("straggler", WAIT, BY_KEY["straggler"].colour, "in a collective, before its last rank arrived"),
    Class("exposed_comm", TRANSFER, BY_KEY["exposed_comm"].colour, "in a collective, after its last rank arrived"),
)
COPIES = Class("exposed_copy", "Copy", BY_KEY["exposed_copy"].colour, "a copy that is no part of a collective")


def traced_arms(run: Run) -> list[str]:
    """Arms with traces and with bubbles, which say where their steps lie on the common clock."""
    known = set(run.bubbles["arm"].tolist()) if len(run.bubbles) else set()
    return [arm for arm in run.arms if arm in known and run.directory.traces(arm)]


def outline(run: Run, arm: str | None = None, step: str | None = None, ranks: str | None = None) -> Exhibit | None:
    """The exhibit without its figure: what can be chosen. Reads no trace."""
    arms = traced_arms(run)
    if not arms:
        return None
    preferred = arm if arm in arms else run.focus()
    chosen_arm = preferred if preferred in arms else arms[0]
    rows = run.bubbles[run.bubbles["arm"] == chosen_arm]
    steps = sorted({int(number) for number in rows["step"].unique()})
    chosen_step = int(step) if step and step.lstrip("-").isdigit() and int(step) in steps else steps[0]
    known = sorted({int(rank) for rank in rows.loc[rows["step"] == chosen_step, "rank"].unique()})
    asked = [int(rank) for rank in (ranks or "").split(",") if rank.isdigit() and int(rank) in known]
    chosen_ranks = sorted(dict.fromkeys(asked))[:RANKS_AT_ONCE] or _telling(rows[rows["step"] == chosen_step])
    return Exhibit(
        "timeline",
        "One step, rank by rank",
        "All ranks on one clock; dotted lines bound each rank's own step. Where communication lies over compute it "
        "costs nothing; red before amber is a rank waiting for a later one. Each process group has a row: within one, "
        "collectives run one after the other.",
        source(run, f"profiled step {chosen_step}, arm {chosen_arm}"),
        message("Reading traces…", height(ROWS_EXPECTED * len(chosen_ranks))),
        Table([], []),
        legend=LEGEND,
        options={
            **arm_options(arms),
            "step": [(str(number), f"step {number}") for number in steps],
            "ranks": [(str(rank), f"rank {rank}") for rank in known],
        },
        many=frozenset({"ranks"}),
        choices={"arm": chosen_arm, "step": str(chosen_step), "ranks": ",".join(map(str, chosen_ranks))},
    )


def timeline(run: Run, arm: str | None = None, step: str | None = None, ranks: str | None = None) -> Exhibit | None:
    plan = outline(run, arm, step, ranks)
    if plan is None:
        return None
    chosen_arm, number = plan.choices["arm"], int(plan.choices["step"])
    chosen = [int(rank) for rank in plan.choices["ranks"].split(",")]
    rows = run.bubbles[(run.bubbles["arm"] == chosen_arm) & (run.bubbles["step"] == number)].set_index("rank")
    spans = rows.loc[chosen, ["start_ns", "window_ns"]].to_numpy(dtype=np.int64)
    begin, end = int(spans[:, 0].min()), int(spans.sum(axis=1).max())
    finest = max(1, (end - begin) // BARS_ACROSS)
    collectives = _collectives(run, chosen_arm, begin, end)
    entries = []
    for rank, (start, length) in zip(chosen, spans.tolist(), strict=True):
        lanes = run.lanes(chosen_arm, rank)
        shift = start - lanes.windows[number][0] if lanes and number in lanes.windows else 0
        entries.append(
            RankRows(
                rank,
                _bars(lanes, Lane.COMPUTE, begin - shift, end - shift, finest),
                _bars(lanes, Lane.COPY, begin - shift, end - shift, finest),
                collectives[collectives["rank"] == rank],
                ((start - begin) / NS_PER_MS, (start + length - begin) / NS_PER_MS),
            )
        )
    return Exhibit(
        plan.key,
        plan.title,
        f"{plan.note} Intervals less than {finest / 1e3:,.0f} µs apart are drawn as one.",
        plan.source,
        step_timeline(entries),
        _table(collectives[collectives["rank"].isin(chosen)]),
        legend=(*LEGEND, COPIES) if any(len(entry.copy) for entry in entries) else LEGEND,
        options=plan.options,
        many=plan.many,
        choices=plan.choices,
    )


def _telling(rows: pd.DataFrame) -> list[int]:
    """The ranks worth seeing first: those that waited least (the others waited for them) and those that waited most."""
    order = rows.sort_values("straggler_ns", kind="stable")["rank"].astype(int).tolist()
    if len(order) <= RANKS_AT_FIRST:
        return sorted(order)
    half = RANKS_AT_FIRST // 2
    return sorted([*order[:half], *order[-half:]])


def _bars(lanes: Lanes | None, lane: Lane, begin: int, end: int, finest: int) -> pd.DataFrame:
    if lanes is None:
        return pd.DataFrame(columns=["start_ms", "ms", "busy_ms", "count", "name"])
    return bars(lanes, lane, begin, end, finest)


def _collectives(run: Run, arm: str, begin: int, end: int) -> pd.DataFrame:
    """Rows of collectives.parquet that meet [begin, end), with times in ms since `begin`."""
    if waits.arms_with_collectives(run.collectives) == []:
        return pd.DataFrame(columns=["rank", "group", "start_ms", "wait_ms", "transfer_ms", "what", "last_rank"])
    every = run.collectives
    met = every[(every["arm"] == arm) & (every["rank_end_ns"] > begin) & (every["arrival_ns"] < end)]
    rows = met.assign(start_ms=(met["arrival_ns"] - begin) / NS_PER_MS, wait_ms=met["wait_ns"] / NS_PER_MS)
    rows["transfer_ms"] = (met["rank_end_ns"] - met["arrival_ns"] - met["wait_ns"]).clip(lower=0) / NS_PER_MS
    rows["what"] = [
        f"{op} #{number} · {group}" + (f", {formats.size_bytes(size)}" if size >= 0 else "")
        for op, number, group, size in met[["op", "ordinal", "group", "bytes"]].to_numpy().tolist()
    ]
    return rows


def _table(rows: pd.DataFrame) -> Table:
    columns = [
        Column("rank", "Rank", formats.count),
        Column("what", "Collective"),
        Column("start_ms", "Arrived at (ms)", fixed(3)),
        Column("wait_ms", "Waited (ms)", fixed(3)),
        Column("transfer_ms", "Then (ms)", fixed(3)),
        Column("last_rank", "Last rank", lambda rank: formats.count(rank) if rank >= 0 else formats.MISSING),
    ]
    records: list[dict[str, Any]] = [{str(key): value for key, value in row.items()} for row in rows.to_dict("records")]
    return Table(columns, sorted(records, key=lambda row: (row["start_ms"], row["rank"])))
