"""What collectives cost: by kind, and by size."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from dashboard.figures.canvas import canvas
from dashboard.theme import BY_KEY, arm_colours, plain


def by_kind(kinds: pd.DataFrame) -> go.Figure:
    """Per step, waiting (mean over ranks) and transfer of each kind of collective, one stacked bar each."""
    labels = [plain(f"{op} · {group}") for group, op in kinds[["group", "op"]].to_numpy().tolist()]
    figure = canvas(62 + 38 * len(labels), barmode="stack", bargap=0.4, title_x="Per profiled step (ms)")
    for name, column, colour in (
        ("Waiting for the last rank", "wait_ms", BY_KEY["straggler"].colour),
        ("Transfer", "transfer_ms", BY_KEY["exposed_comm"].colour),
    ):
        figure.add_bar(
            orientation="h",
            y=labels,
            x=kinds[column].tolist(),
            name=name,
            marker_color=colour,
            hovertemplate=f"<b>%{{y}}</b><br>{name}: %{{x:.2f}} ms a step<extra></extra>",
        )
    figure.update_yaxes(autorange="reversed", showgrid=False)
    figure.update_xaxes(rangemode="tozero")
    return figure


def size_against_transfer(each: pd.DataFrame) -> go.Figure:
    """A dot per collective of known size: transfer time over the bytes of its largest rank, both logarithmic."""
    figure = canvas(380, title_x="Bytes of the largest rank", title_y="Transfer (ms)")
    colours = arm_colours(f"op {op}" for op in each["op"].unique())
    for op, rows in each.groupby("op", sort=False):
        where = rows[["step", "group", "ordinal"]].astype(str).to_numpy().tolist()
        figure.add_scatter(
            mode="markers",
            x=rows["bytes"].to_numpy(dtype=float),
            y=rows["transfer_ms"].to_numpy(dtype=np.float32),
            customdata=[[plain(cell) for cell in row] for row in where],
            marker={"size": 7, "opacity": 0.85, "color": colours[f"op {op}"]},
            name=plain(op),
            hovertemplate="<b>%{fullData.name}</b>, %{customdata[1]} #%{customdata[2]}, step %{customdata[0]}<br>"
            "%{x:.3s}B in %{y:.3f} ms<extra></extra>",
        )
    figure.update_layout(
        showlegend=True, legend={"orientation": "h", "x": 0, "y": 1.01, "yanchor": "bottom"}, margin_t=34
    )
    figure.update_xaxes(type="log", exponentformat="SI", dtick=1)
    figure.update_yaxes(type="log", dtick=1)
    return figure
