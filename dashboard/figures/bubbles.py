"""Where the time of a step goes: the five classes stacked, per arm and per rank."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from dashboard import formats
from dashboard.figures.canvas import canvas
from dashboard.measures import shares
from dashboard.theme import CLASSES, Class, plain

Unit = Literal["ms", "pct"]
UNIT_LABELS: dict[Unit, str] = {"ms": "ms", "pct": "% of the step"}
_BOTH = "%{customdata[0]:.2f} ms, %{customdata[1]:.1f} %"
ROWS_UP_TO, BARS_UP_TO = 16, 64  # ranks drawn as rows; as columns; above, as stepped areas: drawn in milliseconds


def class_ms(arm: Mapping[str, Any]) -> dict[str, float] | None:
    """The five classes of one arm of report.json (ms, mean over ranks and profiled steps); None when one is missing.

    report.json gives the straggler's part as exposed_total_ms − exposed_comm_ms; where the two could not be told
    apart it gives only the sum, and all of it stands under exposed_comm here.
    """
    total, comm = arm.get("exposed_total_ms"), arm.get("exposed_comm_ms")
    if comm is None:
        comm = total
    values = {
        "compute": arm.get("compute_ms"),
        "straggler": total - comm if formats.exists(total) and formats.exists(comm) else None,
        "exposed_comm": comm,
        "exposed_copy": arm.get("exposed_copy_ms"),
        "host": arm.get("host_ms"),
    }
    known = {key: float(value) for key, value in values.items() if formats.exists(value)}
    return known if len(known) == len(values) else None


def per_arm(arms: Mapping[str, Mapping[str, Any]], unit: Unit = "ms") -> go.Figure:
    """One stacked bar per arm from report.json."""
    split = {name: classes for name, arm in arms.items() if (classes := class_ms(arm)) is not None}
    frame = pd.DataFrame.from_dict(split, orient="index", columns=[item.key for item in CLASSES])
    frame["window"] = frame.sum(axis=1)
    figure = canvas(62 + 46 * len(split), barmode="stack", bargap=0.45, title_x=_axis_title(unit), hovermode="closest")
    values = shares(frame) if unit == "pct" else frame
    for item in CLASSES:
        figure.add_bar(
            orientation="h",
            y=[plain(name) for name in frame.index],
            x=values[item.key].tolist(),
            **_segment(item, frame),
        )
    if unit == "ms":
        _totals(figure, frame, "x", "y", [plain(name) for name in frame.index])
    _finish_rows(figure, unit)
    return figure


def per_rank(by_arm: Mapping[str, pd.DataFrame], unit: Unit = "ms") -> go.Figure:
    """One stacked bar per rank, a panel per arm, all panels on one scale.

    Args:
        by_arm: arm -> `measures.rank_classes`; arms without ranks are left out.
    """
    panels = {arm: frame for arm, frame in by_arm.items() if len(frame)}
    ranks = max((len(frame) for frame in panels.values()), default=0)
    return _rank_rows(panels, unit) if ranks <= ROWS_UP_TO else _rank_columns(panels, unit)


def _rank_rows(panels: Mapping[str, pd.DataFrame], unit: Unit) -> go.Figure:
    heights = [len(frame) * 30 + 44 for frame in panels.values()]
    figure = canvas(sum(heights) + 50, barmode="stack", bargap=0.32)
    top = 1.0
    for index, (arm, frame) in enumerate(panels.items(), start=1):
        share = heights[index - 1] / sum(heights)
        domain = [top - share, top - share * 44 / heights[index - 1] * 0.75]
        suffix = "" if index == 1 else str(index)
        values = shares(frame) if unit == "pct" else frame
        labels = [f"rank {rank}" for rank in frame.index]
        for item in CLASSES:
            figure.add_bar(
                orientation="h",
                y=labels,
                x=values[item.key].tolist(),
                xaxis=f"x{suffix}",
                yaxis=f"y{suffix}",
                **_segment(item, frame),
            )
        if unit == "ms":
            _totals(figure, frame, f"x{suffix}", f"y{suffix}", labels)
        last = index == len(panels)
        figure.update_layout(
            {
                f"xaxis{suffix}": {
                    "anchor": f"y{suffix}",
                    "matches": "x" if index > 1 else None,
                    "showticklabels": last,
                    "title": {"text": _axis_title(unit) if last else ""},
                },
                f"yaxis{suffix}": {
                    "domain": [max(0.0, domain[0]), domain[1]],
                    "anchor": f"x{suffix}",
                    "autorange": "reversed",
                    "showgrid": False,
                },
            }
        )
        _panel_title(figure, arm, domain[1])
        top -= share
    _finish_rows(figure, unit, reverse=False)
    return figure


def _rank_columns(panels: Mapping[str, pd.DataFrame], unit: Unit) -> go.Figure:
    figure = canvas(len(panels) * 230 + 50, barmode="stack", bargap=0.12, hovermode="x unified")
    # plotly's own range of matched axes forgets that areas are stacked
    top = 100.0 if unit == "pct" else 1.05 * max(float(frame["window"].max()) for frame in panels.values())
    for index, (arm, frame) in enumerate(panels.items(), start=1):
        suffix = "" if index == 1 else str(index)
        values = shares(frame) if unit == "pct" else frame
        ranks = [int(rank) for rank in frame.index]
        for item in CLASSES:
            common: dict[str, Any] = {
                "x": np.array(ranks, dtype=np.int32),
                "y": values[item.key].to_numpy(dtype=np.float32),
                "xaxis": f"x{suffix}",
                "yaxis": f"y{suffix}",
                "name": item.label,
                "customdata": frame[item.key].to_numpy(dtype=np.float32),
                "hovertemplate": "%{customdata:.2f} ms" if unit == "ms" else "%{y:.1f} %, %{customdata:.2f} ms",
            }
            if len(frame) <= BARS_UP_TO:
                figure.add_bar(marker_color=item.colour, **common)
            else:
                line = {"shape": "hvh", "width": 0, "color": item.colour}
                figure.add_scatter(mode="lines", stackgroup=f"arm{index}", line=line, fillcolor=item.colour, **common)
        high = 1 - (index - 1) / len(panels)
        domain = [high - 0.80 / len(panels), high - 0.10 / len(panels)]
        last = index == len(panels)
        figure.update_layout(
            {
                f"xaxis{suffix}": {
                    "anchor": f"y{suffix}",
                    "matches": "x" if index > 1 else None,
                    "title": {"text": "Rank" if last else ""},
                    "range": [ranks[0] - 0.5, ranks[-1] + 0.5],
                    "showgrid": False,
                },
                f"yaxis{suffix}": {
                    "domain": domain,
                    "anchor": f"x{suffix}",
                    "range": [0, top],
                    "title": {"text": UNIT_LABELS[unit]},
                },
            }
        )
        _panel_title(figure, arm, domain[1])
    return figure


def _segment(item: Class, frame: pd.DataFrame) -> dict[str, Any]:
    ms = frame[item.key].to_numpy(dtype=float)
    share = shares(frame)[item.key].to_numpy(dtype=float)
    return {
        "name": item.label,
        "marker_color": item.colour,
        "customdata": [[a, b] for a, b in zip(ms.tolist(), share.tolist(), strict=True)],
        "text": [f"{value:.0f} %" if value >= 6 else "" for value in share],
        "textposition": "inside",
        "insidetextanchor": "middle",
        "textangle": 0,
        "constraintext": "inside",
        "insidetextfont": {"size": 11, "color": _ink_on(item.colour)},
        "hovertemplate": f"<b>%{{y}}</b><br>{item.label}: {_BOTH}<extra></extra>",
    }


def _totals(figure: go.Figure, frame: pd.DataFrame, xaxis: str, yaxis: str, labels: list[str]) -> None:
    """The length of each bar, written at its end."""
    figure.add_scatter(
        mode="text",
        x=frame["window"].tolist(),
        y=labels,
        text=[f" {value:,.0f} ms" for value in frame["window"]],
        textposition="middle right",
        textfont={"size": 12},
        cliponaxis=False,
        hoverinfo="skip",
        xaxis=xaxis,
        yaxis=yaxis,
        name="Step",
    )


def _ink_on(colour: str) -> str:
    """Black or white, whichever reads better on a class colour."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#14181F" if 0.299 * red + 0.587 * green + 0.114 * blue > 140 else "#FFFFFF"


def _panel_title(figure: go.Figure, arm: str, y: float) -> None:
    figure.add_annotation(
        text=f"<b>{plain(arm) or 'all ranks'}</b>",
        xref="paper",
        yref="paper",
        x=0,
        y=y,
        xanchor="left",
        yanchor="bottom",
        showarrow=False,
    )


def _finish_rows(figure: go.Figure, unit: Unit, *, reverse: bool = True) -> None:
    figure.update_layout(uniformtext={"mode": "hide", "minsize": 10})
    if reverse:
        figure.update_yaxes(autorange="reversed", showgrid=False)
    figure.update_xaxes(rangemode="tozero")
    if unit == "pct":
        figure.update_xaxes(range=[0, 100])
    else:
        figure.update_layout(margin_r=60)  # room for the totals beside the bars


def _axis_title(unit: Unit) -> str:
    return "Mean per profiled step (ms)" if unit == "ms" else "Share of the profiled step (%)"
