"""Collectives of one run: what each kind costs, and how long transfers of each size take."""

from __future__ import annotations

from typing import Any

from dashboard import exhibits
from dashboard.data import Run
from dashboard.pages.cards import cards

LABEL = "Collectives"


def layout(run: Run, query: dict[str, str]) -> list[Any]:
    """Cards of the page; empty when the run has nothing to show here. `?arm=` chooses an arm."""
    return cards(run, exhibits.COLLECTIVES, {"arm": query.get("arm")})
