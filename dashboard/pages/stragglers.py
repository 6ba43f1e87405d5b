"""Stragglers of one run: who is late, who waits, and whether the work explains it."""

from __future__ import annotations

from typing import Any

from dashboard import exhibits
from dashboard.data import Run
from dashboard.pages.cards import cards

LABEL = "Stragglers"


def layout(run: Run, query: dict[str, str]) -> list[Any]:
    """Cards of the page; empty when the run has nothing to show here. `?arm=` chooses an arm."""
    return cards(run, exhibits.STRAGGLERS, {"arm": query.get("arm")})
