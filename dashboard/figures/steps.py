"""Step time: per arm with its interval, and block by block."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from dashboard import formats
from dashboard.figures.canvas import canvas, whiskers
from dashboard.theme import arm_colours, plain

WHO = "<b>%{customdata[0]}</b><br>"


def step_time(arms: Mapping[str, Mapping[str, Any]], medians: pd.DataFrame) -> go.Figure:
    """Median step time of each arm as a bar from zero, its 95 % interval, and each block's median as a dot.

    Args:
        arms: report.json's `arms`; an arm without a median is left out.
        medians: `measures.block_medians`.
    """
    names = [name for name, arm in arms.items() if formats.exists(_step(arm).get("median"))]
    colours = arm_colours(arms)
    figure = canvas(_height(names), title_x="Step time (ms)")
    steps = [_step(arms[name]) for name in names]
    values = [float(step["median"]) for step in steps]
    rows = list(range(len(names)))
    figure.add_bar(
        orientation="h",
        y=rows,
        x=values,
        width=0.4,
        marker_color=[colours[name] for name in names],
        error_x=whiskers([{**step, "value": step["median"]} for step in steps], width=6),
        customdata=[
            [plain(name), formats.between(step, formats.ms), formats.count(step.get("n"))]
            for name, step in zip(names, steps, strict=True)
        ],
        hovertemplate=WHO + "median %{x:.1f} ms<br>%{customdata[1]}<br>%{customdata[2]} steps<extra></extra>",
        name="Median",
    )
    dots = medians[medians["arm"].isin(names)]
    figure.add_scatter(
        mode="markers",
        y=[names.index(name) + 0.32 for name in dots["arm"]],
        x=dots["step_ms"].tolist(),
        marker={"size": 5, "color": [colours[name] for name in dots["arm"]], "opacity": 0.75},
        customdata=[[plain(arm), block, n] for arm, block, n in dots[["arm", "block", "n"]].to_numpy().tolist()],
        hovertemplate=WHO + "block %{customdata[1]}: %{x:.1f} ms, %{customdata[2]} steps<extra></extra>",
        name="Block",
    )
    figure.update_yaxes(
        tickvals=rows, ticktext=[plain(name) for name in names], range=[len(names) - 0.4, -0.55], showgrid=False
    )
    figure.update_xaxes(rangemode="tozero")
    return figure


def paired_blocks(medians: pd.DataFrame, arms: Sequence[str]) -> go.Figure:
    """Each block's median step time across the arms, joined by a line: the same batches, so the slope is the effect.

    Args:
        medians: `measures.block_medians`.
        arms: in the order they are drawn.
    """
    table = medians.pivot(index="block", columns="arm", values="step_ms").reindex(columns=list(arms))
    figure = canvas(_height(arms), title_y="Block median (ms)")
    labels = [plain(arm) for arm in arms]
    positions = list(range(len(labels)))
    for block, row in table.iterrows():
        figure.add_scatter(
            x=positions,
            y=[None if pd.isna(value) else float(value) for value in row],
            mode="lines+markers",
            line={"width": 1.2, "color": "rgba(127,134,145,0.55)"},
            marker={"size": 6, "color": list(arm_colours(arms).values())},
            name=f"Block {block}",
            text=labels,
            hovertemplate="<b>%{text}</b><br>%{y:.1f} ms<extra>%{fullData.name}</extra>",
        )
    figure.update_xaxes(
        tickvals=positions,
        ticktext=labels,
        range=[-0.35, len(labels) - 0.65],
        tickangle=-30 if len(labels) > 3 else 0,
        showgrid=False,
    )
    return figure


def _height(arms: Sequence[str]) -> int:
    """The same for both figures, which stand side by side."""
    return max(250, 84 + 46 * len(arms))


def _step(arm: Mapping[str, Any]) -> Mapping[str, Any]:
    step = arm.get("step_ms")
    return step if isinstance(step, Mapping) else {}
