"""Nested host spans: which steps are there, which span encloses an instant on a thread, and all of them as rows."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from analyzer import lanes
from analyzer.intervals import Int64
from analyzer.kineto import Events
from analyzer.lanes import Lane
from analyzer.timeline import Steps, TimelineBuilder

Rows = NDArray[np.intp]


def rows_named(events: Events, categories: frozenset[str], names: set[int]) -> Rows:
    """Rows of these categories with one of these name ids, in ascending start."""
    wanted = np.zeros(len(events.names) + 1, bool)
    wanted[np.array(sorted(names), np.intp)] = True
    rows = np.flatnonzero(events.of(categories) & wanted[events.name_id])
    return rows[np.argsort(events.start_ns[rows], kind="stable")]


def profiler_steps(events: Events) -> tuple[Steps, int]:
    """The `ProfilerStep#N` spans of the host in order, and the thread they are on (-1 without any).

    Numbers only grow: a span whose number was passed before is left out. A span never reaches into the next.
    """
    numbers = {i: n for i, name in enumerate(events.names) if (n := lanes.step_number(name)) is not None}
    rows = rows_named(events, lanes.ANNOTATION_CATEGORIES, set(numbers))
    number = np.array([numbers[i] for i in events.name_id[rows]], np.int64)
    highest_before = np.append(np.int64(-1), np.maximum.accumulate(number)[:-1])[: len(number)]
    rows, number = rows[number > highest_before], number[number > highest_before]
    end = events.end_ns[rows].copy()
    end[:-1] = np.minimum(end[:-1], events.start_ns[rows[1:]])
    return Steps(number, events.start_ns[rows], end), int(events.thread[rows[0]]) if len(rows) else -1


def enclosing(events: Events, spans: Rows, thread: NDArray[np.int32], at_ns: Int64) -> Int64:
    """Row of the last of `spans` to start at or before each instant on its thread and still open then, or -1.

    `spans` must not nest on one thread. All results have the shape of `at_ns`.
    """
    found = np.full(len(at_ns), -1, np.int64)
    for one in np.unique(events.thread[spans]):
        of_thread = spans[events.thread[spans] == one]
        of_thread = of_thread[np.argsort(events.start_ns[of_thread], kind="stable")]
        asked = np.flatnonzero(thread == one)
        i = np.searchsorted(events.start_ns[of_thread], at_ns[asked], side="right") - 1
        row = of_thread[np.maximum(i, 0)]
        found[asked] = np.where((i >= 0) & (events.end_ns[row] > at_ns[asked]), row, -1)
    return found


def add_host_rows(builder: TimelineBuilder, events: Events, categories: frozenset[str], steps: Steps) -> None:
    """Add the events of these categories as the HOST lane."""
    rows = np.flatnonzero(events.of(categories))
    start = events.start_ns[rows]
    builder.add(
        start_ns=start,
        end_ns=events.end_ns[rows],
        lane=int(Lane.HOST),
        name_id=events.name_id[rows],
        stream=events.thread[rows],
        step=steps.containing(start),
        correlation=events.correlation[rows],
        shape=events.shape[rows],
    )
