"""One rank's intervals of a step, thinned to what a screen can show: the Timeline page's view of a trace."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from analyzer import read_trace
from analyzer.lanes import Lane

DRAWN = {Lane.COMPUTE: "compute", Lane.COPY: "copy"}  # communication comes from collectives.parquet, matched
NS_PER_MS = 1e6


@dataclass(frozen=True)
class Lanes:
    """Compute and copy intervals of one rank's trace, on that rank's own clock, ascending by start.

    Attributes:
        start_ns, end_ns: int64[n].
        lane: uint8[n], values of `Lane`.
        name: int32[n], indexes `names`.
        windows: profiler step -> its window on the same clock.
    """

    start_ns: np.ndarray
    end_ns: np.ndarray
    lane: np.ndarray
    name: np.ndarray
    names: tuple[str, ...]
    windows: dict[int, tuple[int, int]]


def read_lanes(trace: Path) -> Lanes:
    """Read a trace and keep what the page draws (host events are most of a trace, and are not).

    Raises:
        AnalyzerError: the trace cannot be read.
    """
    timeline = read_trace(trace)
    kept = np.isin(timeline.lane, list(DRAWN))
    steps = timeline.steps
    windows = zip(steps.number.tolist(), steps.start_ns.tolist(), steps.end_ns.tolist(), strict=True)
    return Lanes(
        timeline.start_ns[kept],
        timeline.end_ns[kept],
        timeline.lane[kept],
        timeline.name_id[kept],
        timeline.names,
        {number: (start, end) for number, start, end in windows},
    )


def bars(lanes: Lanes, lane: Lane, from_ns: int, until_ns: int, finest_ns: int) -> pd.DataFrame:
    """Intervals of a lane that meet [from, until), those less than `finest_ns` apart drawn as one.

    Returns: columns start_ms and ms (relative to `from_ns`, cut to the window), busy_ms (time inside that is covered
    by intervals, one counted once), count, name (of the longest).
    """
    chosen = (lanes.lane == lane) & (lanes.end_ns > from_ns) & (lanes.start_ns < until_ns)
    start = np.maximum(lanes.start_ns[chosen], from_ns)
    end = np.minimum(lanes.end_ns[chosen], until_ns)
    names = lanes.name[chosen]
    if len(start) == 0:
        return pd.DataFrame(columns=["start_ms", "ms", "busy_ms", "count", "name"])
    reach = np.maximum.accumulate(end)
    before = np.append(start[0], reach[:-1])
    new = start - before >= finest_ns
    new[0] = True
    bar = np.cumsum(new) - 1
    count = int(bar[-1]) + 1
    busy = np.zeros(count, np.int64)
    np.add.at(busy, bar, np.maximum(end - np.maximum(start, np.where(new, start, before)), 0))
    first = np.flatnonzero(new)
    last = np.append(first[1:], len(start)) - 1
    by_length = np.lexsort((end - start, bar))  # within a bar, the longest interval last
    longest = by_length[last]
    return pd.DataFrame(
        {
            "start_ms": (start[first] - from_ns) / NS_PER_MS,
            "ms": (reach[last] - start[first]) / NS_PER_MS,
            "busy_ms": busy / NS_PER_MS,
            "count": last - first + 1,
            "name": [lanes.names[i] for i in names[longest]],
        }
    )
