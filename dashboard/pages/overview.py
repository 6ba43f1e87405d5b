"""Overview of one run: the verdict first, then the numbers, then what is behind them."""

from __future__ import annotations

from typing import Any

from dash import dcc

from dashboard import exhibits, notices, sections
from dashboard.data import Run
from dashboard.pages.cards import cards
from dashboard.pages.links import run_link

LABEL = "Overview"


def layout(run: Run, query: dict[str, str]) -> list[Any]:
    """Components of the page. `?arm=` puts an arm in focus; one that was not run is ignored.

    Raises:
        AnalyzerError: a file of the run is damaged.
    """
    focus = run.focus(query.get("arm"))
    return [
        sections.hero(run, focus),
        notices.incomplete(run),
        sections.key_figures(run, focus),
        sections.arms_card(run, focus, lambda arm: dcc.Link(arm, href=run_link(run.name, arm=arm))),
        *cards(run, exhibits.OVERVIEW, {"arm": focus}),
        notices.warnings(run),
        notices.method(run),
    ]
