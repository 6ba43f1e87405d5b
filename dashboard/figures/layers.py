"""What each layer of an ablation is worth: the waterfall, its parts by class, alone and last, and interactions.

Layers have one colour each, classes the colours they have everywhere; the noise floor is a grey band around zero.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from dashboard import formats
from dashboard.figures.canvas import canvas, whiskers
from dashboard.figures.design import FAINT, floor_band, reach
from dashboard.theme import BASELINE_COLOUR, CLASSES, layer_colour, plain

WAYS = (("shapley_ms", "Shapley", "circle"), ("alone", "alone", "circle-open"), ("last", "last", "diamond-open"))
TOGETHER = "together"


def waterfall(
    arms: Mapping[str, str], reference_ms: float, total: Mapping[str, Any], layers: Mapping[str, Mapping[str, Any]]
) -> go.Figure:
    """From the reference's step time down to that of all layers, a bar per Shapley value, each with its interval.

    The axis is cut: bars are differences, and the two arms are drawn as levels, not as bars.

    Args:
        arms: the reference and the arm with all layers, with their colours.
        reference_ms: the reference's step.
        total: what all layers save together, {value, ci95} in ms.
        layers: layer -> its Shapley value, {value, ci95} in ms; the values add up to the total.
    """
    level = reference_ms
    ends: list[float] = []
    bounds: list[Mapping[str, Any]] = []
    figure = canvas(360, title_y="Step time (ms)", bargap=0.5)
    for place, (layer, estimate) in enumerate(layers.items(), start=1):
        value = float(estimate["value"])
        figure.add_bar(
            x=[place],
            y=[-value],
            base=[level],
            width=0.56,
            marker_color=layer_colour(layer),
            customdata=[[value, formats.between(estimate, formats.ms)]],
            hovertemplate=f"<b>{plain(layer)}</b> saves %{{customdata[0]:.2f}} ms<br>%{{customdata[1]}}<extra></extra>",
            name=plain(layer),
        )
        ends.append(level - value)
        bounds.append(_shifted(estimate, level))
        level -= value
    bounds.append(_shifted(total, reference_ms))
    ends.append(bounds[-1]["value"])
    last = len(layers) + 1
    for place, arm, ms in zip((0, last), arms, (reference_ms, ends[-1]), strict=True):
        figure.add_scatter(
            mode="lines",
            x=[place - 0.36, place + 0.36],
            y=[ms, ms],
            line={"width": 5, "color": arms[arm]},
            hovertemplate=f"<b>{plain(arm)}</b>: %{{y:.2f}} ms<extra></extra>",
            name=plain(arm),
        )
    figure.add_scatter(
        mode="markers",
        x=list(range(1, last + 1)),
        y=ends,
        marker={"size": 1, "color": "rgba(0,0,0,0)"},
        error_y=whiskers(bounds),
        hoverinfo="skip",
        name="Intervals",
    )
    for place, ms in enumerate([reference_ms, *ends[:-1]]):
        line = {"width": 1, "dash": "dot", "color": FAINT}
        figure.add_shape(type="line", x0=place + 0.3, x1=place + 0.7, y0=ms, y1=ms, line=line)
    _label_levels(figure, reference_ms, layers, ends, bounds)
    extremes = [reference_ms, *ends, *(end for bound in bounds for end in formats.interval(bound) or ())]
    low, high = min(extremes), max(extremes)
    air = 0.14 * (high - low) or 1.0
    figure.update_yaxes(range=[low - 0.5 * air, high + air])
    figure.update_xaxes(
        tickvals=list(range(last + 1)),
        ticktext=[plain(name) for name in (*list(arms)[:1], *layers, *list(arms)[1:])],
        tickangle=-35,
        range=[-0.6, last + 0.6],
        showgrid=False,
    )
    return figure


def removed(by_layer: Mapping[str, Mapping[str, float | None]], floors: Mapping[str, float | None]) -> go.Figure:
    """A row per layer: ms of each class that it removes from a profiled step, stacked; what it adds goes to the left.

    Args:
        by_layer: layer (or `TOGETHER`) -> class key -> ms; a class that is not known is None, and not drawn.
        floors: class key -> its noise floor in ms; what does not reach it is faint.
    """
    figure = canvas(
        92 + 46 * len(by_layer), barmode="relative", bargap=0.45, title_x="Removed from a profiled step (ms)"
    )
    labels = [plain(layer) for layer in by_layer]
    for item in CLASSES:
        values = [classes.get(item.key) for classes in by_layer.values()]
        floor = floors.get(item.key) or 0.0
        figure.add_bar(
            orientation="h",
            y=labels,
            x=values,
            marker={"color": item.colour, "opacity": [1.0 if abs(value or 0.0) >= floor else 0.4 for value in values]},
            hovertemplate=f"<b>%{{y}}</b><br>{item.label}: %{{x:.2f}} ms<extra></extra>",
            name=item.label,
        )
    net = [sum(value for value in classes.values() if value is not None) for classes in by_layer.values()]
    figure.add_scatter(
        mode="markers",
        y=labels,
        x=net,
        marker={"symbol": "diamond", "size": 9, "color": "#FFFFFF", "line": {"width": 1.5, "color": "#14181F"}},
        hovertemplate="<b>%{y}</b><br>in all: %{x:.2f} ms<extra></extra>",
        name="In all",
    )
    figure.update_yaxes(autorange="reversed", showgrid=False)
    figure.update_xaxes(zeroline=True)
    return figure


def worth(layers: Mapping[str, Mapping[str, Any]], floor_ms: float | None) -> go.Figure:
    """A row per layer: its Shapley value, what it saves alone, and what it saves last, with intervals, on one axis."""
    figure = canvas(112 + 64 * len(layers), title_x="Saved per step (ms)")
    for offset, (key, name, symbol) in zip((-0.22, 0.0, 0.22), WAYS, strict=True):
        estimates = [entry[key] for entry in layers.values()]
        figure.add_scatter(
            mode="markers",
            x=[estimate.get("value") for estimate in estimates],
            y=[place + offset for place in range(len(layers))],
            marker={"symbol": symbol, "size": 10, "color": [layer_colour(layer) for layer in layers]},
            error_x=whiskers(estimates, thickness=1.2),
            customdata=[
                [plain(layer), formats.between(estimate, formats.ms)]
                for layer, estimate in zip(layers, estimates, strict=True)
            ],
            hovertemplate=f"<b>%{{customdata[0]}}</b>, {name}<br>%{{x:.2f}} ms, %{{customdata[1]}}<extra></extra>",
            name=name,
        )
    _rows(figure, list(layers), [entry[key] for entry in layers.values() for key, _, _ in WAYS], floor_ms)
    figure.update_layout(
        showlegend=True,
        margin_t=36,
        legend={"orientation": "h", "x": 0, "y": 1.01, "yanchor": "bottom", "itemsizing": "constant"},
    )
    return figure


def interactions(estimates: Mapping[str, Mapping[str, Any]], floor_ms: float | None) -> go.Figure:
    """A row per group of layers: what they save together beyond the sum of their parts."""
    figure = canvas(84 + 40 * len(estimates), title_x="Beyond the parts (ms)")
    figure.add_scatter(
        mode="markers",
        x=[estimate.get("value") for estimate in estimates.values()],
        y=list(range(len(estimates))),
        marker={"size": 10, "color": BASELINE_COLOUR},
        error_x=whiskers(list(estimates.values()), thickness=1.4),
        customdata=[[plain(name), formats.between(e, formats.ms)] for name, e in estimates.items()],
        hovertemplate="<b>%{customdata[0]}</b><br>%{x:.2f} ms, %{customdata[1]}<extra></extra>",
        name="Interaction",
    )
    _rows(figure, list(estimates), list(estimates.values()), floor_ms)
    return figure


def _shifted(estimate: Mapping[str, Any], level: float) -> dict[str, Any]:
    """What is saved of a level, as the level that is left."""
    bounds = formats.interval(estimate)
    return {
        "value": level - float(estimate["value"]),
        "ci95": None if bounds is None else [level - bounds[1], level - bounds[0]],
    }


def _label_levels(
    figure: go.Figure,
    start: float,
    layers: Mapping[str, Mapping[str, Any]],
    ends: Sequence[float],
    bounds: Sequence[Mapping[str, Any]],
) -> None:
    """The step time of the two arms, and the change that each layer makes, above everything drawn there."""
    tops = [start]
    level = start
    for end, bound in zip(ends[:-1], bounds[:-1], strict=True):
        tops.append(max(level, end, *(formats.interval(bound) or ())))
        level = end
    tops.append(max(ends[-1], *(formats.interval(bounds[-1]) or (ends[-1],))))
    write = formats.saved_ms(start, unit="")
    changes = [write(-float(estimate["value"])) for estimate in layers.values()]
    texts = [write(start).lstrip("+"), *changes, write(ends[-1]).lstrip("+")]
    for place, (top, text) in enumerate(zip(tops, texts, strict=True)):
        figure.add_annotation(text=f"<b>{text}</b>", x=place, y=top, yanchor="bottom", yshift=3)


def _rows(
    figure: go.Figure, names: Sequence[str], estimates: Sequence[Mapping[str, Any]], floor_ms: float | None
) -> None:
    figure.update_yaxes(
        tickvals=list(range(len(names))),
        ticktext=[plain(name) for name in names],
        range=[len(names) - 0.45, -0.55],
        showgrid=False,
    )
    figure.update_xaxes(zeroline=True, range=reach(estimates, floor_ms))
    if floor_ms is not None:
        figure.add_shape(floor_band(floor_ms) | {"yref": "paper", "y0": 0, "y1": 1})
