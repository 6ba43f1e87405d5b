"""How long training threads are blocked in waits for some lanes, read from a run's traces."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from analyzer import read_trace
from analyzer.lanes import Lane
from analyzer.rundir import RunDirectory
from analyzer.timeline import Flag


def blocked(run: RunDirectory, arm: str, lanes: Sequence[str]) -> pd.DataFrame:
    """A row per rank and profiled step, warm-up left out: `block`, `blocked_ms` in waits for the lanes, `window_ms`."""
    warmup, per_block = run.manifest["warmup_steps"], run.manifest["steps_in_profile"]
    rows = []
    for file in run.traces(arm):
        timeline = read_trace(file)
        of_lanes = [index for index, group in enumerate(timeline.groups) if group.name in lanes]
        waits = timeline.in_lane(Lane.COMM) & (timeline.flags == Flag.WAIT) & np.isin(timeline.group, of_lanes)
        length_ns = timeline.end_ns - timeline.start_ns
        steps = timeline.steps
        for number, start_ns, end_ns in zip(steps.number, steps.start_ns, steps.end_ns, strict=True):
            if number % per_block >= warmup:
                of_step = waits & (timeline.start_ns >= start_ns) & (timeline.start_ns < end_ns)
                rows.append((number // per_block, length_ns[of_step].sum() / 1e6, (end_ns - start_ns) / 1e6))
    return pd.DataFrame(rows, columns=["block", "blocked_ms", "window_ms"])
