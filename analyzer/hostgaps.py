"""Why nothing was active: host time split by what the CPU was doing, as far as its events tell.

A gap on a device ends when an interval starts there. Until that interval's launch the host was the reason: it loaded
data, it had let itself be blocked by a synchronising call, or it simply had not come to launching. After the launch the
reason lies with the device (a dependency, an event) and is called `other`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from analyzer import lanes
from analyzer.intervals import Int64, Union, covered, intersect, merge, overlaps, subtract
from analyzer.lanes import Lane
from analyzer.timeline import UNKNOWN, Timeline

REASONS = ("data_loading_ns", "synchronisation_ns", "launch_ns", "other_ns")
_DRAINED_NS = 20_000  # a gap that opens within this of a synchronising call's end is that call's doing


@dataclass(frozen=True)
class _Host:
    """What the CPU did: unions of data loading and of synchronising calls."""

    loading: Union
    synchronising: Union


def split_host_time(timeline: Timeline) -> pd.DataFrame:
    """A row per step: step and REASONS, int64 ns, which add up to the step's host time."""
    windows: Union = (timeline.steps.start_ns, timeline.steps.end_ns)
    busy = timeline.lane != Lane.HOST
    gaps = subtract(windows, merge(timeline.start_ns[busy], timeline.end_ns[busy]))
    host = _Host(_named(timeline, lanes.is_data_loading), _named(timeline, lanes.is_synchronising))
    pieces = _pieces(timeline, gaps, host)
    window = np.searchsorted(windows[0], gaps[0], side="right") - 1
    columns: dict[str, Int64] = {"step": timeline.steps.number}
    for reason, values in zip(REASONS, pieces, strict=True):
        columns[reason] = np.zeros(len(timeline.steps), np.int64)
        np.add.at(columns[reason], window, values)
    return pd.DataFrame(columns)


def _pieces(timeline: Timeline, gaps: Union, host: _Host) -> tuple[Int64, Int64, Int64, Int64]:
    """Time of each gap by reason, in the order of REASONS."""
    start, end = gaps
    launched = np.clip(_launch_of_next(timeline, end), start, end)
    blocked = merge(host.synchronising[0], host.synchronising[1] + _DRAINED_NS)
    drained = np.zeros(len(start), bool)
    drained[overlaps(start, start + 1, blocked)[0]] = True
    loading = covered(host.loading, start, launched)
    not_loading = subtract((start, launched), host.loading)
    waiting = covered(intersect(not_loading, host.synchronising), start, launched)
    before_launch = launched - start - loading
    synchronisation = np.where(drained, before_launch, waiting)
    return loading, synchronisation, before_launch - synchronisation, end - launched


def _launch_of_next(timeline: Timeline, gap_end: Int64) -> Int64:
    """When the interval that ends each gap was launched; the gap's end itself where the trace does not say."""
    device = np.flatnonzero(timeline.lane != Lane.HOST)
    calls = np.flatnonzero((timeline.lane == Lane.HOST) & (timeline.correlation != UNKNOWN))
    if len(device) == 0 or len(calls) == 0:
        return gap_end
    calls = calls[np.argsort(timeline.correlation[calls], kind="stable")]
    opener = device[np.minimum(np.searchsorted(timeline.start_ns[device], gap_end), len(device) - 1)]
    wanted = timeline.correlation[opener]
    call = calls[np.minimum(np.searchsorted(timeline.correlation[calls], wanted), len(calls) - 1)]
    known = (timeline.correlation[call] == wanted) & (wanted != UNKNOWN) & (timeline.start_ns[opener] == gap_end)
    return np.where(known, timeline.start_ns[call], gap_end)


def _named(timeline: Timeline, is_wanted: lanes.NameTest) -> Union:
    """Union of the host intervals whose name passes a test."""
    wanted = np.array([is_wanted(name) for name in timeline.names] or [False])
    rows = np.flatnonzero((timeline.lane == Lane.HOST) & wanted[timeline.name_id])
    return merge(timeline.start_ns[rows], timeline.end_ns[rows])
