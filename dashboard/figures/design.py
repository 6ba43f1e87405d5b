"""The arms of an ablation: the full design with what each of them saves, and the blocks behind it one by one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from dashboard import formats
from dashboard.figures.canvas import canvas, whiskers
from dashboard.theme import BASELINE_COLOUR, layer_colour, plain

FAINT = "rgba(127,134,145,0.55)"
BAND = "rgba(127,134,145,0.16)"


def cube(
    rows: Sequence[Mapping[str, Any]], layers: Sequence[str], colours: Mapping[str, str], floor_ms: float | None
) -> go.Figure:
    """A row per arm: which layers are on, and what it saves of the reference's step with its interval.

    Args:
        rows: `ablation.cube` of report.json, with the A/A arm among them.
        colours: of the arms.
        floor_ms: noise floor, drawn as a band around zero; None where it is not known.
    """
    figure = canvas(96 + 32 * len(rows), bargap=0.5)
    places = list(range(len(rows)))
    for column, layer in enumerate(layers):
        on = [layer in row["layers"] for row in rows]
        figure.add_scatter(
            mode="markers",
            x=[column] * len(rows),
            y=places,
            marker={
                "size": 11,
                "color": [layer_colour(layer) if state else "rgba(0,0,0,0)" for state in on],
                "line": {"width": 1.2, "color": [layer_colour(layer) if state else FAINT for state in on]},
            },
            text=[f"{plain(layer)} {'on' if state else 'off'}" for state in on],
            hovertemplate="%{text}<extra></extra>",
            name=plain(layer),
        )
    values = [_value(row["saved_ms"]) for row in rows]
    figure.add_bar(
        orientation="h",
        y=places,
        x=values,
        xaxis="x2",
        width=0.44,
        marker_color=[colours.get(row["arm"], BASELINE_COLOUR) for row in rows],
        error_x=whiskers([row["saved_ms"] for row in rows]),
        customdata=[
            [plain(row["arm"]), formats.between(row["saved_ms"], formats.ms), formats.ms(row["step_ms"])]
            for row in rows
        ],
        hovertemplate="<b>%{customdata[0]}</b>: %{customdata[2]} a step<br>saves %{x:.2f} ms, %{customdata[1]}"
        "<extra></extra>",
        name="Saved",
    )
    for place, row in zip(places, rows, strict=True):
        figure.add_annotation(
            text=formats.times(_value(row["speedup"])),
            xref="paper",
            x=1,
            xanchor="left",
            xshift=8,
            y=place,
            yanchor="middle",
        )
    figure.add_annotation(
        text="speedup", xref="paper", yref="paper", x=1, y=1, xanchor="left", yanchor="bottom", yshift=8
    )
    if floor_ms is not None:
        figure.add_shape(floor_band(floor_ms) | {"xref": "x2", "yref": "paper", "y0": 0, "y1": 1})
    left = 0.1 * len(layers)
    figure.update_layout(
        margin={"r": 64, "t": 70},
        xaxis={
            "domain": [0, left],
            "side": "top",
            "tickvals": list(range(len(layers))),
            "ticktext": [plain(layer) for layer in layers],
            "tickangle": -90,
            "range": [-0.6, len(layers) - 0.4],
            "showgrid": False,
            "fixedrange": True,
        },
        xaxis2={
            "domain": [left + 0.03, 1],
            "anchor": "y",
            "title": {"text": "Saved per step (ms)"},
            "zeroline": True,
            "range": reach([row["saved_ms"] for row in rows], floor_ms),
        },
        yaxis={
            "tickvals": places,
            "ticktext": [plain(row["arm"]) for row in rows],
            "range": [len(rows) - 0.45, -0.55],
            "showgrid": False,
        },
    )
    return figure


def paired_blocks(blocks: Sequence[Mapping[str, Any]], colours: Mapping[str, str]) -> go.Figure:
    """A line per block over the arms: the share of the reference's step that each arm saved in that block.

    Args:
        blocks: `ablation.blocks` of report.json; an arm that a block lacks leaves a gap.
        colours: of the arms, in the order they are drawn, the reference first.
    """
    arms = list(colours)
    figure = canvas(max(300, 96 + 34 * len(arms)), title_x="Saved in the same block (%)")
    places = list(range(len(arms)))
    for block in blocks:
        figure.add_scatter(
            mode="lines+markers",
            x=[saved_pct(block["values"].get(arm)) for arm in arms],
            y=places,
            line={"width": 1.1, "color": FAINT},
            marker={"size": 6, "color": [colours[arm] for arm in arms]},
            text=[plain(arm) for arm in arms],
            hovertemplate="<b>%{text}</b>: %{x:.2f} %<extra>%{fullData.name}</extra>",
            name=f"Block {block['block']}",
        )
    figure.update_yaxes(
        tickvals=places, ticktext=[plain(arm) for arm in arms], range=[len(arms) - 0.6, -0.4], showgrid=False
    )
    figure.update_xaxes(zeroline=True)
    return figure


def saved_pct(log_ratio: float | None) -> float | None:
    """ln(reference / arm) as the percentage of the reference's step that the arm saves."""
    return -100 * math.expm1(-log_ratio) if formats.exists(log_ratio) else None


def reach(estimates: Sequence[Mapping[str, Any]], floor_ms: float | None = None) -> list[float]:
    """A range of an axis that holds zero, values, intervals and the noise floor, with some air."""
    ends = [0.0, floor_ms or 0.0, -(floor_ms or 0.0)]
    for estimate in estimates:
        ends += [end for end in (_value(estimate), *(formats.interval(estimate) or ())) if end is not None]
    air = 0.06 * (max(ends) - min(ends)) or 1.0
    return [min(ends) - air, max(ends) + air]


def floor_band(floor_ms: float) -> dict[str, Any]:
    """The noise floor as a rectangle around zero on the x axis."""
    return {
        "type": "rect",
        "x0": -floor_ms,
        "x1": floor_ms,
        "fillcolor": BAND,
        "line": {"width": 0},
        "layer": "below",
    }


def _value(estimate: Mapping[str, Any]) -> float | None:
    value = estimate.get("value")
    return float(value) if formats.exists(value) else None
