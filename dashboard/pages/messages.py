"""Pages that show no run: nothing here yet, no such run, not readable. Each says what to do next."""

from __future__ import annotations

from typing import Any

from dash import dcc, html


def no_runs(folder: str) -> Any:
    return html.Section(
        [
            html.H1("No runs here yet"),
            html.P(["Nothing in ", html.Code(folder), " is a run directory. Make one, then reload this page:"]),
            html.Pre("freescale-bench run"),
            html.P("Traces you already have can be looked at too:"),
            html.Pre("freescale-bench analyze FOLDER"),
        ],
        className="empty",
        id="no-runs",
    )


def trouble(title: str, detail: str) -> Any:
    """A page that cannot be shown, why, and the way back."""
    return html.Section(
        [html.H1(title), html.P(detail), html.P(dcc.Link("All runs", href="/"))], className="empty", id="trouble"
    )
