"""The furniture of a card that is not its figure: the legend, and the table behind it as plain HTML."""

from __future__ import annotations

from collections.abc import Sequence

from dash import html

from dashboard.exhibit import Column, Exhibit, Table
from dashboard.sections import Component
from dashboard.theme import Class


def card_class(exhibit: Exhibit) -> str:
    return "card card-wide" if exhibit.wide else "card"


def legend(classes: Sequence[Class]) -> Component | None:
    """What the colours mean; hovering a name tells its definition."""
    if not classes:
        return None
    entries = [
        html.Li([html.Span(className="swatch", style={"background": item.colour}), item.label], title=item.meaning)
        for item in classes
    ]
    return html.Ul(entries, className="legend")


def plain_table(table: Table, limit: int) -> Component:
    """A table as HTML, numbers right-aligned with the same decimals in a column; says so when rows are left out."""
    header = html.Tr([html.Th(column.title, scope="col", className=_numeric(column)) for column in table.columns])
    body = [
        html.Tr([html.Td(column.text(row), className=_numeric(column)) for column in table.columns])
        for row in table.rows[:limit]
    ]
    note = f"The first {limit:,} of {len(table.rows):,} rows; all of them are in the run directory."
    return html.Div(
        [
            html.Div(html.Table([html.Thead(header), html.Tbody(body)], className="data"), className="scroll"),
            html.P(note, className="source") if len(table.rows) > limit else None,
        ]
    )


def _numeric(column: Column) -> str:
    return "num" if column.numeric else ""
