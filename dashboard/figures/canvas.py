"""What every figure starts from, so that margins, legends and behaviour under the mouse are the same everywhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from dashboard import formats

NO_WHISKER = "none"  # plotly takes null for a whisker of no length, which would pass for certainty
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


def whiskers(estimates: Sequence[Mapping[str, Any]], **style: Any) -> dict[str, Any]:
    """Error bars from the `value` of estimates of report.json to the ends of their intervals; none where there is no
    interval."""
    up: list[float | str] = []
    down: list[float | str] = []
    for estimate in estimates:
        value, bounds = estimate.get("value"), formats.interval(estimate)
        lengths = (bounds[1] - value, value - bounds[0]) if bounds and formats.exists(value) else (NO_WHISKER,) * 2
        up.append(lengths[0])
        down.append(lengths[1])
    data = {"type": "data", "symmetric": False, "array": up, "arrayminus": down, "thickness": 1.6, "width": 5}
    return {**data, "visible": any(length != NO_WHISKER for length in up), **style}


def message(text: str, height: int = 240) -> go.Figure:
    """A sentence where a figure would be."""
    figure = canvas(height)
    figure.add_annotation(text=text, xref="paper", yref="paper", x=0.5, y=0.5, showarrow=False)
    figure.update_xaxes(visible=False)
    figure.update_yaxes(visible=False)
    return figure
