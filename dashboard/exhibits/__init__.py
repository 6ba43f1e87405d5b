"""The exhibits of a run, by key. A builder returns None when the run has no data for it: nothing is drawn empty.

Settings come from the address bar or a control; one that the run does not know falls back to the default.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping

from dashboard.data import Run
from dashboard.exhibit import Exhibit
from dashboard.exhibits import overview

Builder = Callable[..., "Exhibit | None"]

BUILDERS: dict[str, Builder] = {
    "step-time": overview.step_time,
    "paired-blocks": overview.paired_blocks,
    "arm-split": overview.arm_split,
    "rank-split": overview.rank_split,
    "rank-steps": overview.rank_steps,
}


def build(key: str, run: Run, choices: Mapping[str, str | None]) -> Exhibit | None:
    """The exhibit of that key with whichever of the choices it knows; None when the run has no data for it."""
    builder = BUILDERS[key]
    known = set(inspect.signature(builder).parameters) - {"run"}
    return builder(run, **{name: value for name, value in choices.items() if name in known and value is not None})
