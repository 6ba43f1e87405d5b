"""The first recorded step pays for recording: every thread gets its buffers in it. So it is recorded and taken out.

It was 7 % slower than the second here, and what was exposed of a schedule that overlaps came out half as long again.
"""

from __future__ import annotations

import re
from collections.abc import Callable

import msgspec
from torch.profiler import ProfilerAction, schedule

from analyzer import lanes

STEP = re.compile(rb'"ProfilerStep#(\d+)"')


class _Event(msgspec.Struct):
    cat: str = ""
    name: str = ""
    ts: float = 0.0
    dur: float = 0.0


def settled_schedule(wait: int, warmup: int, active: int) -> Callable[[int], ProfilerAction]:
    """For a profiler that records `active` steps, after at least 2 `warmup` steps of which the last settles it."""
    return schedule(wait=wait, warmup=warmup - 1, active=active + 1, repeat=1)


def without_settling(events: msgspec.Raw) -> msgspec.Raw:
    """A trace's events without the first of its `ProfilerStep`s, and without the operations that ended in it.

    What spans two steps stays, and so do calls, waits and workers of collectives, which may belong to the next step.
    """
    numbers = [int(match[1]) for match in STEP.finditer(bytes(events))]
    if not numbers:
        return events
    raws = msgspec.json.decode(events, type=list[msgspec.Raw])
    facts = msgspec.json.decode(events, type=list[_Event], strict=False)
    first = f"ProfilerStep#{min(numbers)}"
    settled_us = max(fact.ts + fact.dur for fact in facts if fact.name == first and fact.cat == "user_annotation")
    kept = [
        raw
        for raw, fact in zip(raws, facts, strict=True)
        if fact.name != first and (fact.cat != "cpu_op" or fact.ts + fact.dur > settled_us or lanes.is_mark(fact.name))
    ]
    return msgspec.Raw(msgspec.json.encode(kept))
