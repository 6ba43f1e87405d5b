"""Overview of one run: the verdict first, then the numbers, then what is behind them."""

from __future__ import annotations

from typing import Any

from dash import dcc, html

from dashboard import exhibits, notices, sections
from dashboard.data import Run
from dashboard.pages.cards import card
from dashboard.pages.links import run_link

EXHIBITS = ("step-time", "paired-blocks", "arm-split", "rank-split", "rank-steps")


def layout(run: Run, query: dict[str, str]) -> Any:
    """Components of the page. `?arm=` puts an arm in focus; one that was not run is ignored.

    Raises:
        AnalyzerError: a file of the run is damaged.
    """
    focus = run.focus(query.get("arm"))
    shown = [exhibit for key in EXHIBITS if (exhibit := exhibits.build(key, run, {"arm": focus})) is not None]
    return [
        sections.hero(run, focus),
        notices.incomplete(run),
        sections.key_figures(run, focus),
        sections.arms_card(run, focus, lambda arm: dcc.Link(arm, href=run_link(run.name, arm=arm))),
        html.Section([card(run.name, exhibit) for exhibit in shown], className="cards") if shown else None,
        notices.warnings(run),
        notices.method(run),
    ]
