"""Rank × step: where in the run, and on which rank, the time went."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from dashboard.figures.canvas import canvas
from dashboard.measures import Matrix, Measure
from dashboard.theme import BY_KEY, ramp


def rank_step(matrix: Matrix, measure: Measure) -> go.Figure:
    """One cell per rank and step (ms), blocks apart by a thin line."""
    ranks, places, blocks = matrix.ranks, matrix.places, matrix.blocks
    in_blocks = measure.source == "timed"
    figure = canvas(
        min(560, max(220, 110 + 26 * len(ranks))),
        title_x="Timed step, block by block" if in_blocks else "Profiled step",
        title_y="Rank",
    )
    figure.add_heatmap(
        x=places,
        y=ranks,
        z=matrix.ms.astype(np.float32),  # half the bytes of a large run's page; NaN stays a hole
        coloraxis="coloraxis",
        xgap=1 if len(places) <= 200 else 0,
        ygap=1 if len(ranks) <= 64 else 0,
        hovertemplate=f"<b>rank %{{y}}</b>, %{{x}}<br>{measure.label}: %{{z:.2f}} ms<extra></extra>",
        hoverongaps=False,
    )
    scale = ramp(BY_KEY[measure.colour_class].colour)
    figure.update_layout(coloraxis={"colorscale": scale, "colorbar": {"title": {"text": "ms"}}})
    if measure.from_zero:
        figure.update_layout(coloraxis_cmin=0, coloraxis_cmax=max(float(np.nanmax(matrix.ms)), 1e-3))
    figure.update_yaxes(autorange="reversed", showgrid=False, tickformat="d")
    if len(ranks) <= 16:
        figure.update_yaxes(dtick=1)
    figure.update_xaxes(type="category", showgrid=False)
    if in_blocks:
        _mark_blocks(figure, blocks)
    else:
        figure.update_xaxes(tickvals=list(range(len(places))), ticktext=[str(step) for step in matrix.steps])
    return figure


def _mark_blocks(figure: go.Figure, blocks: list[int]) -> None:
    starts = [i for i, block in enumerate(blocks) if i == 0 or block != blocks[i - 1]]
    figure.update_xaxes(tickvals=starts, ticktext=[f"block {blocks[i]}" for i in starts])
    for start in starts[1:]:
        line = {"width": 1.5, "color": "rgba(127,134,145,0.9)"}
        figure.add_shape(type="line", x0=start - 0.5, x1=start - 0.5, y0=0, y1=1, yref="paper", line=line)
