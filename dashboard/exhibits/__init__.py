"""The exhibits of a run, by key. A builder returns None when the run has no data for it: nothing is drawn empty.

Settings come from the address bar or a control; one that the run does not know falls back to the default.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping

from dashboard.data import Run
from dashboard.exhibit import Exhibit
from dashboard.exhibits import ablation, collectives, overview, stragglers, timeline

Builder = Callable[..., "Exhibit | None"]

BUILDERS: dict[str, Builder] = {
    "cube": ablation.cube,
    "waterfall": ablation.waterfall,
    "worth": ablation.worth,
    "removed": ablation.removed,
    "interactions": ablation.interactions,
    "ablation-blocks": ablation.paired,
    "step-time": overview.step_time,
    "paired-blocks": overview.paired_blocks,
    "arm-split": overview.arm_split,
    "rank-split": overview.rank_split,
    "rank-steps": overview.rank_steps,
    "blame": stragglers.blame,
    "culprits": stragglers.culprits,
    "arrival-skew": stragglers.arrival_skew,
    "tokens-compute": stragglers.tokens_against_compute,
    "predicted-measured": stragglers.predicted_against_measured,
    "collective-kinds": collectives.by_kind,
    "collective-sizes": collectives.size_against_transfer,
    "timeline": timeline.timeline,
}
# What each page shows, in order; the reports show the same
ABLATION = ("cube", "waterfall", "worth", "removed", "interactions", "ablation-blocks")
OVERVIEW = ("step-time", "paired-blocks", "arm-split", "rank-split", "rank-steps")
TIMELINE = ("timeline",)
STRAGGLERS = ("culprits", "blame", "arrival-skew", "tokens-compute", "predicted-measured")
COLLECTIVES = ("collective-kinds", "collective-sizes")

# Exhibits that read traces, which takes seconds: a page opens with their outline and draws them afterwards
OUTLINES: dict[str, Builder] = {"timeline": timeline.outline}


def build(key: str, run: Run, choices: Mapping[str, str | None]) -> Exhibit | None:
    """The exhibit of that key with whichever of the choices it knows; None when the run has no data for it."""
    return _call(BUILDERS[key], run, choices)


def outline(key: str, run: Run, choices: Mapping[str, str | None]) -> Exhibit | None:
    """Like `build`, but quick: exhibits that take long come without their figure and table."""
    return _call(OUTLINES.get(key, BUILDERS[key]), run, choices)


def _call(builder: Builder, run: Run, choices: Mapping[str, str | None]) -> Exhibit | None:
    known = set(inspect.signature(builder).parameters) - {"run"}
    return builder(run, **{name: value for name, value in choices.items() if name in known and value is not None})
