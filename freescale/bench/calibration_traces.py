"""What the traces of a calibration show: how long pieces compute and pause, and what exchanges cost where they occur.

The traces are read by the analyzer, as those of a run are. A *pause* is time of the training thread between ops,
outside calls and waits: Python, the dispatcher, the profiler itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from analyzer import lanes
from analyzer.bubbles import measure
from analyzer.intervals import Union, covered, merge, subtract
from analyzer.lanes import Lane
from analyzer.timeline import Timeline
from analyzer.trace import read_trace
from freescale.bench.stopwatch import RANGE

_CALLING = ("comm", "wait", "move")


def attach(rows: Sequence[dict[str, Any]], trace: Path) -> None:
    """Put `busy_ns` and `pause_ns` into the rows of the pieces and steps that the trace holds, in the order taken.

    busy: outside calls and waits; pause: the part of it in which no op computes.
    """
    timeline = read_trace(trace)
    compute, blocked = _computing(timeline), _blocked(timeline)
    spans = _pieces(timeline)
    spans["step"] = timeline.steps.start_ns, timeline.steps.end_ns
    for piece, (start, end) in spans.items():
        mine = [row for row in rows if row["piece"] == piece]
        if len(mine) != len(start):
            continue  # the one window of a trace without steps
        busy = end - start - covered(blocked, start, end)
        computing = covered(compute, start, end)
        for number, row in enumerate(mine):
            row["busy_ns"], row["pause_ns"] = int(busy[number]), int(max(busy[number] - computing[number], 0))


def pause_ns(trace: Path) -> float:
    """How long a pause within forward and backward lasts, mean."""
    timeline = read_trace(trace)
    compute = _computing(timeline)
    gaps = compute[0][1:] - compute[1][:-1]
    inside = np.zeros(len(gaps), bool)
    spans = _pieces(timeline)
    for name in ("forward", "backward"):
        inside |= covered(merge(*spans[name]), compute[1][:-1], compute[0][1:]) == gaps
    inside &= covered(_blocked(timeline), compute[1][:-1], compute[0][1:]) == 0
    return float(gaps[inside].mean()) if inside.any() else 0.0


def exchanges(traces: Sequence[Path]) -> list[dict[str, Any]]:
    """A row per exchange and rank of a turn that was recorded on these ranks: group, op, nbytes, issue_ns (how long
    the call took), transfer_ns (from the last call to the last end) and exposed_ns (what of it nothing hid)."""
    timelines = [read_trace(trace) for trace in traces]
    calls = [_calls(timeline) for timeline in timelines]
    found = []
    for row in measure(timelines).collectives.to_dict("records"):
        key = row["op"], row["group"], row["ordinal"]
        if row["matched"] and row["step"] >= 0 and key in calls[row["rank"]]:
            facts: dict[str, Any] = {name: int(row[name]) for name in ("rank", "transfer_ns", "exposed_ns")}
            facts |= {"group": row["group"], "op": row["op"]}
            found.append({**facts, "nbytes": float(row["bytes"]), "issue_ns": calls[row["rank"]][key]})
    return found


def _computing(timeline: Timeline) -> Union:
    rows = timeline.in_lane(Lane.COMPUTE)
    return merge(timeline.start_ns[rows], timeline.end_ns[rows])


def _blocked(timeline: Timeline) -> Union:
    """Calls and waits of the training thread; DDP's wait for its reduction has no range, and is where that is under
    way and nothing computes."""
    verbs = {i for i, name in enumerate(timeline.names) if (mark := lanes.mark(name)) and mark.verb in _CALLING}
    host = np.flatnonzero(timeline.in_lane(Lane.HOST) & np.isin(timeline.name_id, list(verbs)))
    reduced = [row for row in timeline.collectives if timeline.ops[timeline.op[row]] == "all_reduce"]
    under_way = merge(timeline.start_ns[reduced], timeline.end_ns[reduced])
    waited = subtract(under_way, _computing(timeline))
    return merge(
        np.concatenate([timeline.start_ns[host], waited[0]]), np.concatenate([timeline.end_ns[host], waited[1]])
    )


def _pieces(timeline: Timeline) -> dict[str, Union]:
    """Piece -> its ranges in time order, in the windows: the profiler settles in the step before."""
    steps, found = timeline.steps, {}
    windows = merge(steps.start_ns, steps.end_ns)
    for number, name in enumerate(timeline.names):
        if name.startswith(RANGE):
            rows = timeline.in_lane(Lane.HOST) & (timeline.name_id == number)
            rows[rows] = covered(windows, timeline.start_ns[rows], timeline.start_ns[rows] + 1) > 0
            found[name.removeprefix(RANGE)] = timeline.start_ns[rows], timeline.end_ns[rows]
    return found


def _calls(timeline: Timeline) -> dict[tuple[str, str, int], int]:
    """(op, group, number) -> ns that the issuing call took."""
    found = {}
    for row in np.flatnonzero(timeline.in_lane(Lane.HOST)):
        mark = lanes.mark(timeline.names[timeline.name_id[row]])
        if mark and mark.verb == "comm":
            found[mark.op, mark.group, mark.seq] = int(timeline.end_ns[row] - timeline.start_ns[row])
    return found
