"""An exhibit as a card of the app: title, controls, figure, and its table on demand.

Every card works the same way, whatever it shows. Its choices lie in a store; a control changes the store; the server
answers a changed store with a new figure. Figures travel without a template and get the one of the current mode in
the browser.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import dash_ag_grid as dag
import dash_mantine_components as dmc
from dash import dcc, html

from dashboard import exhibits, tables
from dashboard.data import Run
from dashboard.exhibit import Exhibit, Table
from dashboard.figures.canvas import CONFIG

SEGMENTS_UP_TO = 3
GRID_ROWS = 12
MANY = 8
GRID_THEME = {
    "function": "themeQuartz.withParams({"
    "backgroundColor: 'var(--surface)', foregroundColor: 'var(--ink)', headerBackgroundColor: 'var(--surface)', "
    "headerTextColor: 'var(--muted)', borderColor: 'var(--line)', rowHoverColor: 'var(--raised)', "
    "accentColor: 'var(--accent)', fontFamily: 'inherit', fontSize: 14, headerFontSize: 13, headerFontWeight: 500, "
    "wrapperBorder: false, headerColumnResizeHandleDisplay: 'none', browserColorScheme: 'inherit'})"
}


def part(kind: str, key: Any, **more: Any) -> dict[str, Any]:
    """The id of one part of a card; `key` is the exhibit's key, or a Dash wildcard that stands for it."""
    return {"type": kind, "key": key, **more}


def cards(run: Run, keys: Sequence[str], choices: Mapping[str, str | None]) -> list[Any]:
    """The cards of those exhibits that the run has data for, in a grid; nothing when it has data for none."""
    shown = [exhibit for key in keys if (exhibit := exhibits.outline(key, run, choices)) is not None]
    return [html.Section([card(run.name, exhibit) for exhibit in shown], className="cards")] if shown else []


def card(run: str, exhibit: Exhibit) -> Any:
    """The card of an exhibit of a run."""
    key = exhibit.key
    state = {"run": run, "exhibit": key, "choices": dict(exhibit.choices)}
    controls = [_control(exhibit, name) for name in exhibit.options]
    button = html.Button("Table", id=part("table-button", key), className="quiet-button", n_clicks=0)
    return html.Article(
        [
            dcc.Store(id=part("choices", key), data=state),
            dcc.Store(id=part("figure-data", key), data=exhibit.figure.to_plotly_json()),
            html.Div(
                [html.H2(exhibit.title), html.Div([*controls, button], className="controls")], className="card-head"
            ),
            html.P(exhibit.reading, id=part("note", key), className="note"),
            html.Div(tables.legend(exhibit.legend), id=part("legend", key)),
            dcc.Graph(
                id=part("graph", key),
                config=CONFIG,
                className="chart",
                style={"height": f"{exhibit.figure.layout.height}px"},
            ),
            html.P(exhibit.source, id=part("source", key), className="source"),
            html.Div(id=part("table", key)),
            dcc.Interval(id=part("late", key), interval=1, max_intervals=1) if key in exhibits.OUTLINES else None,
        ],
        className=tables.card_class(exhibit),
        id=key,
    )


def still(exhibit: Exhibit) -> Any:
    """A card without choices, its table below the figure: for exhibits that no single run can be asked for again."""
    key = exhibit.key
    return html.Article(
        [
            dcc.Store(id=part("figure-data", key), data=exhibit.figure.to_plotly_json()),
            html.Div(html.H2(exhibit.title), className="card-head"),
            html.P(exhibit.reading, className="note"),
            dcc.Graph(
                id=part("graph", key),
                config=CONFIG,
                className="chart",
                style={"height": f"{exhibit.figure.layout.height}px"},
            ),
            html.P(exhibit.source, className="source"),
            tables.plain_table(exhibit.table, len(exhibit.table.rows)),
        ],
        className=tables.card_class(exhibit),
        id=key,
    )


def grid(table: Table) -> Any:
    """A table that sorts and filters, and draws only the rows in view."""
    columns = [
        {
            "field": f"c{index}",
            "headerName": column.title,
            "type": "rightAligned" if column.numeric else None,
            "filter": False if column.numeric else "agTextColumnFilter",
            "valueFormatter": {"function": f"params.data.t{index}"} if column.numeric else None,
            "minWidth": 110,
        }
        for index, column in enumerate(table.columns)
    ]
    rows = [
        {
            **{f"c{i}": row.get(column.key) for i, column in enumerate(table.columns)},
            **{f"t{i}": column.text(row) for i, column in enumerate(table.columns) if column.numeric},
        }
        for row in table.rows
    ]
    options: dict[str, Any] = {"theme": GRID_THEME, "suppressCellFocus": True, "rowHeight": 36}
    if len(rows) <= GRID_ROWS:
        options["domLayout"] = "autoHeight"
    return dag.AgGrid(
        columnDefs=columns,
        rowData=rows,
        columnSize="responsiveSizeToFit" if len(columns) <= 10 else None,
        defaultColDef={"resizable": True, "sortable": True, "wrapHeaderText": True, "autoHeaderHeight": True},
        dashGridOptions=options,
        style={"height": None if len(rows) <= GRID_ROWS else "460px"},
        className="grid",
    )


def _control(exhibit: Exhibit, name: str) -> Any:
    data = [{"value": value, "label": label} for value, label in exhibit.options[name]]
    identity = part("control", exhibit.key, name=name)
    label = f"{exhibit.title}: {name}"
    if name in exhibit.many:
        chosen = exhibit.choices[name].split(",")
        more: dict[str, Any] = {"aria-label": label}
        return dmc.MultiSelect(id=identity, data=data, value=chosen, size="xs", maxValues=MANY, searchable=True, **more)
    if len(data) <= SEGMENTS_UP_TO:
        attributes: dict[str, Any] = {"aria-label": label}
        return dmc.SegmentedControl(id=identity, data=data, value=exhibit.choices[name], size="xs", **attributes)
    attributes = {"aria-label": label}
    return dmc.Select(
        id=identity, data=data, value=exhibit.choices[name], size="xs", allowDeselect=False, w=190, **attributes
    )
