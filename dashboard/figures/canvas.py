"""What every figure starts from, so that margins, legends and behaviour under the mouse are the same everywhere."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go

CONFIG: Any = {  # what plotly calls its config; Dash has a type of its own for it
    "displaylogo": False,
    "responsive": True,
    "modeBarButtons": [["toImage", "resetScale2d"]],
}


def canvas(height: int, *, title_x: str = "", title_y: str = "", **layout: Any) -> go.Figure:
    """An empty figure of a height in CSS pixels; its width is whatever room there is."""
    figure = go.Figure()
    figure.update_layout(
        height=height, autosize=True, template="none", xaxis_title_text=title_x, yaxis_title_text=title_y
    )
    figure.update_layout(**layout)
    figure.layout.template = None
    return figure


def message(text: str, height: int = 240) -> go.Figure:
    """A sentence where a figure would be."""
    figure = canvas(height)
    figure.add_annotation(text=text, xref="paper", yref="paper", x=0.5, y=0.5, showarrow=False)
    figure.update_xaxes(visible=False)
    figure.update_yaxes(visible=False)
    return figure
