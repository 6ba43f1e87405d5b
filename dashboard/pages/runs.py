"""The runs of a folder, newest first, each with its verdict, or with the reason why it has none."""

from __future__ import annotations

from typing import Any

import dash_ag_grid as dag
from dash import dcc, html

from analyzer.errors import AnalyzerError
from dashboard import formats, theme
from dashboard.data import UNKNOWN, Run, RunStore
from dashboard.pages.cards import GRID_THEME
from dashboard.pages.links import run_link
from dashboard.pages.messages import no_runs

VISIBLE_ROWS = 40


def layout(store: RunStore) -> Any:
    runs = store.runs()
    if not runs:
        return no_runs(str(store.root))
    count = f"{len(runs)} run{'s' if len(runs) > 1 else ''} in "
    search = html.Div(
        [
            html.Span(id="runs-found", className="muted"),
            dcc.Input(id="runs-search", type="search", placeholder="Filter runs", className="search"),
        ],
        className="search-box",
    )
    title = html.Div([html.H1("Runs"), html.P([count, html.Code(str(store.root))], className="muted")])
    return [html.Div([title, search], className="page-head"), _grid([row(run) for run in runs])]


def row(run: Run) -> dict[str, Any]:
    """What the list says of a run; of one whose report cannot be read, why."""
    manifest = run.manifest
    known = {
        "name": run.name,
        "href": run_link(run.name),
        "workload": "" if run.workload == UNKNOWN else run.workload,
        "ranks": manifest.get("world_size"),
        "arms": ", ".join(manifest.get("arms", [])),
        "state": "complete" if run.complete else "incomplete",
    }
    try:
        return {**known, "provenance": run.provenance, **_outcome(run)}
    except AnalyzerError as error:
        return {**known, "provenance": UNKNOWN, "headline": str(error), "verdict": "", "tone": "bad", "speedup": None}


def _outcome(run: Run) -> dict[str, Any]:
    focus = run.focus()
    comparison = run.comparison(focus) if focus else {}
    verdict = theme.verdict(comparison.get("verdict")) if comparison else None
    doubtful = comparison.get("verdict") in ("wrong", "inconclusive")
    speedup = None if doubtful else (comparison.get("speedup") or {}).get("value")
    return {
        "headline": run.headline or run.why_incomplete or "not analysed yet",
        "verdict": f"{verdict.mark} {verdict.label}" if verdict else "",
        "tone": verdict.tone if verdict else "plain",
        "speedup": speedup if formats.exists(speedup) else None,
        "speedup_text": formats.times(speedup),
    }


def _grid(rows: list[dict[str, Any]]) -> Any:
    right = {"type": "rightAligned"}
    columns = [
        {"field": "name", "headerName": "Run", "cellRenderer": "RunLink", "flex": 4, "minWidth": 240},
        {"field": "headline", "headerName": "Verdict", "cellRenderer": "RunVerdict", "flex": 6, "minWidth": 320},
        {"field": "speedup", "headerName": "Speedup", "cellRenderer": "RunSpeedup", "width": 104, **right},
        {"field": "ranks", "headerName": "Ranks", "width": 86, **right},
        {"field": "arms", "headerName": "Arms", "cellRenderer": "RunArms", "flex": 2, "minWidth": 150},
        {"field": "provenance", "headerName": "Provenance", "cellRenderer": "RunBadge", "width": 126},
        {"field": "state", "headerName": "State", "cellRenderer": "RunBadge", "width": 126},
    ]
    options: dict[str, Any] = {"theme": GRID_THEME, "rowHeight": 78, "suppressCellFocus": True}
    if len(rows) <= VISIBLE_ROWS:
        options["domLayout"] = "autoHeight"
    return html.Div(
        dag.AgGrid(
            id="runs",
            columnDefs=columns,
            rowData=rows,
            defaultColDef={"sortable": True, "resizable": True},
            dashGridOptions=options,
            style={"height": None if len(rows) <= VISIBLE_ROWS else "calc(100vh - 190px)"},
            className="grid runs-grid",
        ),
        className="card card-flush",
    )
