"""Two runs against each other: how fast each arm is in one, measured against the other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import plotly.graph_objects as go

from dashboard import formats
from dashboard.figures.canvas import canvas, whiskers
from dashboard.figures.design import FAINT
from dashboard.theme import arm_colours, plain

WAYS = (("speedup", "speed", "circle"), ("relative", "beside the reference", "diamond-open"))


def speeds(arms: Mapping[str, Mapping[str, Any]]) -> go.Figure:
    """A row per arm: how many times as fast it is in B as in A, plainly and beside its own run's reference.

    Args:
        arms: `Comparison.arms` of the analyzer.
    """
    figure = canvas(116 + 46 * len(arms), title_x="Times as fast in B as in A")
    colours = list(arm_colours(arms).values())
    for offset, (key, name, symbol) in zip((-0.13, 0.13), WAYS, strict=True):
        estimates = [arm[key] for arm in arms.values()]
        figure.add_scatter(
            mode="markers",
            x=[estimate["value"] for estimate in estimates],
            y=[place + offset for place in range(len(arms))],
            marker={"symbol": symbol, "size": 10, "color": colours},
            error_x=whiskers(estimates, thickness=1.3),
            customdata=[
                [plain(arm), formats.between(estimate, formats.times)]
                for arm, estimate in zip(arms, estimates, strict=True)
            ],
            hovertemplate=f"<b>%{{customdata[0]}}</b>, {name}<br>%{{x:.3f}}×, %{{customdata[1]}}<extra></extra>",
            name=name,
        )
    figure.add_shape(type="line", x0=1, x1=1, y0=0, y1=1, yref="paper", line={"width": 1.5, "color": FAINT})
    figure.update_yaxes(
        tickvals=list(range(len(arms))),
        ticktext=[plain(arm) for arm in arms],
        range=[len(arms) - 0.45, -0.55],
        showgrid=False,
    )
    figure.update_layout(
        showlegend=True, margin_t=36, legend={"orientation": "h", "x": 0, "y": 1.01, "yanchor": "bottom"}
    )
    return figure
