"""Timeline of one run: a step on chosen ranks, on one clock. `?arm=`, `?step=` and `?ranks=0,3` choose."""

from __future__ import annotations

from typing import Any

from dashboard import exhibits
from dashboard.data import Run
from dashboard.pages.cards import cards

LABEL = "Timeline"


def layout(run: Run, query: dict[str, str]) -> list[Any]:
    """The card of the page; empty when the run left no traces."""
    return cards(run, exhibits.TIMELINE, {name: query.get(name) for name in ("arm", "step", "ranks")})
