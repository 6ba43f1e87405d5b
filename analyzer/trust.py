"""What a reader of the numbers must know: whether waiting can be told from transfer, and what is missing."""

from __future__ import annotations

from collections.abc import Sequence

from analyzer.arrivals import Arrivals, span
from analyzer.clocks import Clocks
from analyzer.matching import Matching
from analyzer.timeline import Timeline


def can_split(arrivals: Arrivals, clocks: Clocks, timelines: Sequence[Timeline]) -> tuple[bool, list[str]]:
    """Whether clocks agree well enough to tell waiting from transfer, and the warning if not.

    They do not when they may be off by more than half of the average wait, and that could move more than one percent
    of a step from one class to the other.
    """
    skew = (arrivals.last - arrivals.first)[arrivals.shared]
    windows = sum(len(timeline.steps) for timeline in timelines)
    if len(skew) == 0 or windows == 0:
        return True, []
    window = sum(int((t.steps.end_ns - t.steps.start_ns).sum()) for t in timelines) / windows
    per_step = len(skew) / max(max(len(timeline.steps) for timeline in timelines), 1)
    typical = float(skew.mean())
    if clocks.uncertainty_ns <= typical / 2 or clocks.uncertainty_ns * per_step <= window / 100:
        return True, []
    return False, [
        f"the ranks' clocks are known only to {clocks.uncertainty_ns / 1e3:.0f} µs while ranks wait "
        f"{typical / 1e3:.0f} µs: waiting is not told apart from transfer; straggler is 0 and exposed_comm holds both"
    ]


def what_is_missing(
    matching: Matching, clocks: Clocks, timelines: Sequence[Timeline], ranks: Sequence[int]
) -> list[str]:
    """Warnings about absent ranks, unmatched collectives, clocks that nothing ties, and uneven recordings."""
    collectives = matching.collectives
    alone = int((collectives["present"] < 2).sum())
    partial = int(((collectives["present"] >= 2) & ~matching.complete).sum())
    notes = []
    world = max((timeline.info.world_size or 0 for timeline in timelines), default=0)
    if world > len(ranks):
        notes.append(f"{world - len(ranks)} of {world} ranks have no trace here")
    if alone:
        notes.append(
            f"{alone} of {len(collectives)} collectives could not be matched across ranks: "
            "their time is exposed_comm, waiting included"
        )
    if partial:
        notes.append(
            f"{partial} of {len(collectives)} collectives lack some of their ranks: "
            "straggler is a lower bound there, and nobody is blamed for it"
        )
    untied = [rank for rank, tied in zip(ranks, clocks.tied, strict=True) if not tied]
    if untied and len(ranks) > 1:
        notes.append(f"ranks {span(untied)}: no shared collective ties their clocks to the others'")
    if len({tuple(timeline.steps.number.tolist()) for timeline in timelines}) > 1:
        notes.append("the ranks recorded different steps; means are over what each recorded")
    return notes
