"""Who waits for whom, and how late each rank comes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from dashboard.figures.canvas import canvas
from dashboard.theme import BY_KEY, arm_colours, plain, ramp
from dashboard.waits import Blame, Skew

NUMBERS_UP_TO = 12  # ranks for which the cells of a matrix hold their numbers
CULPRITS_SHOWN = 24


def blame_matrix(blame: Blame) -> go.Figure:
    """Victim × culprit in ms per step; of many ranks only the culprits charged the most, the worst first."""
    count = len(blame.ranks)
    shown = _worst(blame, CULPRITS_SHOWN) if count > CULPRITS_SHOWN else np.arange(count)
    figure = canvas(min(560, max(260, 120 + 30 * count)), title_x="…waited for rank", title_y="Rank…")
    figure.add_heatmap(
        x=[str(blame.ranks[i]) for i in shown],
        y=[str(rank) for rank in blame.ranks],
        z=blame.ms[:, shown].astype(np.float32),
        coloraxis="coloraxis",
        xgap=1,
        ygap=1 if count <= 64 else 0,
        hovertemplate="rank %{y} waited %{z:.2f} ms a step<br>for rank %{x}<extra></extra>",
    )
    _heat(figure, float(blame.ms.max()))
    if count <= NUMBERS_UP_TO:
        _write_cells(figure, blame, shown)
    figure.update_xaxes(type="category", showgrid=False)
    figure.update_yaxes(type="category", showgrid=False, autorange="reversed")
    return figure


def culprits(blame: Blame) -> go.Figure:
    """What each rank is charged with, the worst first; the label says in how many of the collectives it came last."""
    order = _worst(blame, CULPRITS_SHOWN)
    figure = canvas(62 + 30 * len(order), title_x="Waits charged to it (ms per step, all victims)", bargap=0.35)
    often = blame.times_last[order] / max(blame.collectives, 1) * 100
    figure.add_bar(
        orientation="h",
        y=[f"rank {blame.ranks[i]}" for i in order],
        x=blame.charged_ms[order].tolist(),
        marker_color=BY_KEY["straggler"].colour,
        text=[f" last in {share:.0f} %" for share in often],
        textposition="outside",
        cliponaxis=False,
        hovertemplate="<b>%{y}</b><br>%{x:.2f} ms a step<br>%{text} of the collectives<extra></extra>",
    )
    figure.update_yaxes(autorange="reversed", showgrid=False)
    figure.update_xaxes(rangemode="tozero")
    figure.update_layout(margin_r=92)  # room for the labels beside the bars
    return figure


def arrival_skew(skew: Skew) -> go.Figure:
    """Rank × collective: ms behind the first rank to arrive, collectives in the order of a step."""
    count = len(skew.ranks)
    figure = canvas(min(600, max(300, 190 + 26 * count)), title_y="Rank")
    figure.add_heatmap(
        x=[plain(place) for place in skew.places],
        y=[str(rank) for rank in skew.ranks],
        z=skew.ms.astype(np.float32),
        coloraxis="coloraxis",
        xgap=1,
        ygap=1 if count <= 64 else 0,
        hovertemplate="<b>rank %{y}</b>, %{x}<br>%{z:.2f} ms after the first rank<extra></extra>",
        hoverongaps=False,
    )
    _heat(figure, float(np.nanmax(skew.ms)))
    figure.update_xaxes(type="category", showgrid=False, tickangle=-40)
    figure.update_yaxes(type="category", showgrid=False, autorange="reversed")
    return figure


def against_compute(points: Mapping[str, pd.DataFrame], column: str, title_x: str) -> go.Figure:
    """A dot per rank and timed step: compute time over something that should explain it, coloured by arm.

    Args:
        points: arm -> frame with `column`, compute_ms, rank, block, step.
    """
    figure = canvas(380, title_x=title_x, title_y="Compute (ms)")
    colours = arm_colours(points)
    for arm, frame in points.items():
        where = frame[["rank", "block", "step"]].to_numpy()
        figure.add_scatter(
            mode="markers",
            x=frame[column].to_numpy(dtype=np.float32),
            y=frame["compute_ms"].to_numpy(dtype=np.float32),
            customdata=where.astype(np.int32),
            marker={"size": 6, "opacity": 0.8, "color": colours[arm]},
            name=plain(arm),
            hovertemplate="<b>%{fullData.name}</b>, rank %{customdata[0]}, block %{customdata[1]}, "
            "step %{customdata[2]}<br>%{x:,.4~g} → %{y:.1f} ms<extra></extra>",
        )
    figure.update_layout(showlegend=len(points) > 1, margin_t=34 if len(points) > 1 else 10)
    figure.update_layout(legend={"orientation": "h", "x": 0, "y": 1.01, "yanchor": "bottom"})
    figure.update_yaxes(rangemode="tozero")
    figure.update_xaxes(rangemode="tozero", showgrid=True)
    return figure


def _write_cells(figure: go.Figure, blame: Blame, shown: np.ndarray) -> None:
    """The number of each cell that is not zero: white on strong cells, in the colour of text on faint ones."""
    values = blame.ms[:, shown]
    strong = values > 0.55 * values.max(initial=0)
    for name, chosen, font in (
        ("strong", strong, {"color": "#FFFFFF", "size": 12}),
        ("faint", (values > 0) & ~strong, {"size": 12}),
    ):
        victims, columns = np.nonzero(chosen)
        figure.add_scatter(
            mode="text",
            x=[str(blame.ranks[shown[j]]) for j in columns],
            y=[str(blame.ranks[i]) for i in victims],
            text=[f"{values[i, j]:.1f}" for i, j in zip(victims, columns, strict=True)],
            textfont=font,
            hoverinfo="skip",
            name=name,
        )


def _heat(figure: go.Figure, largest: float) -> None:
    axis = {"colorscale": ramp(BY_KEY["straggler"].colour), "cmin": 0, "cmax": max(largest, 1e-3)}
    figure.update_layout(coloraxis={**axis, "colorbar": {"title": {"text": "ms"}}})


def _worst(blame: Blame, count: int) -> np.ndarray:
    """Ranks charged with anything, the most charged first."""
    order = np.argsort(-blame.charged_ms, kind="stable")[:count]
    charged = order[blame.charged_ms[order] > 0]
    return charged if len(charged) else order
