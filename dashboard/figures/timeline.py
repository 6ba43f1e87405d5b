"""One step on a few ranks: what each was doing when, on one clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd
import plotly.graph_objects as go

from dashboard.figures.canvas import canvas
from dashboard.theme import BY_KEY, plain

WAIT, TRANSFER = "Waiting for the last rank", "Transfer"
MOST_GROUPS = 6
"""Rows for process groups per rank; where there are more, those in which least time was spent share the last."""
OTHERS = "other groups"
_LONGEST = 18  # of a group's name beside its row


@dataclass(frozen=True)
class RankRows:
    """What is drawn for one rank; times in ms since the start of the step.

    Attributes:
        compute, copy: `lanes.bars`.
        collectives: columns group, start_ms, wait_ms, transfer_ms, what (its name), last_rank.
        window_ms: start and end of the rank's own step window.
    """

    rank: int
    compute: pd.DataFrame
    copy: pd.DataFrame
    collectives: pd.DataFrame
    window_ms: tuple[float, float]


def step_timeline(ranks: Sequence[RankRows]) -> go.Figure:
    """Rows per rank: compute, each process group (waiting, then transfer), and copies where there are any."""
    groups = _groups(ranks)
    kinds = ["compute", *dict.fromkeys(groups.values()), "copy"]
    rows = [(entry, kind) for entry in ranks for kind in kinds if kind != "copy" or len(entry.copy)]
    places = {(entry.rank, kind): place for place, (entry, kind) in enumerate(rows)}
    figure = canvas(height(len(rows)), title_x="Since the start of the step (ms)", barmode="overlay")
    for entry in ranks:
        _intervals(figure, entry.compute, places[entry.rank, "compute"], "compute")
        if (entry.rank, "copy") in places:
            _intervals(figure, entry.copy, places[entry.rank, "copy"], "exposed_copy")
        shown = entry.collectives["group"].map(groups)
        for group, mine in entry.collectives.groupby(shown, sort=False):
            _collectives(figure, mine, places[entry.rank, str(group)])
        _frame(figure, entry, places)
    end = max((entry.window_ms[1] for entry in ranks), default=1.0)
    figure.update_xaxes(range=[-0.004 * end, 1.004 * end])
    figure.update_yaxes(
        tickvals=list(range(len(rows))),
        ticktext=[f"rank {entry.rank} · {kind}" for entry, kind in rows],
        range=[len(rows) - 0.4, -0.6],
        showgrid=False,
        fixedrange=True,
    )
    return figure


def height(rows: int) -> int:
    """Of the figure with that many rows, in pixels."""
    return 90 + 26 * rows


def _groups(ranks: Sequence[RankRows]) -> dict[str, str]:
    """Process group -> its row, in the order in which they are first used."""
    every = pd.concat([entry.collectives for entry in ranks]).sort_values("start_ms", kind="stable")
    names = every["group"].drop_duplicates().tolist()
    if len(names) > MOST_GROUPS:
        busy = (every["wait_ms"] + every["transfer_ms"]).groupby(every["group"]).sum()
        own = set(busy.nlargest(MOST_GROUPS - 1).index)
        names = [name for name in names if name in own] + [name for name in names if name not in own]
        return {name: _short(name) if name in own else OTHERS for name in names}
    return {name: _short(name) for name in names}


def _short(group: str) -> str:
    """Never the name of another row."""
    cut = group if len(group) <= _LONGEST else group[: _LONGEST - 1] + "…"
    return plain(cut) if cut not in ("compute", "copy", OTHERS) else f"{cut} (group)"


def _intervals(figure: go.Figure, bars: pd.DataFrame, place: int, colour: str) -> None:
    figure.add_bar(
        orientation="h",
        base=bars["start_ms"].tolist(),
        x=bars["ms"].tolist(),
        y=[place] * len(bars),
        width=0.74,
        marker={"color": BY_KEY[colour].colour, "line": {"width": 0}},
        customdata=[[plain(_named(name, n)), busy] for name, n, busy in bars[["name", "count", "busy_ms"]].to_numpy()],
        hovertemplate="%{customdata[0]}<br>from %{base:.3f} ms, %{x:.3f} ms"
        "<br>busy for %{customdata[1]:.3f} ms<extra></extra>",
        name=BY_KEY[colour].label,
    )


def _collectives(figure: go.Figure, rows: pd.DataFrame, place: int) -> None:
    what = [plain(text) for text in rows["what"]]
    for name, start, length, colour in (
        (WAIT, rows["start_ms"], rows["wait_ms"], "straggler"),
        (TRANSFER, rows["start_ms"] + rows["wait_ms"], rows["transfer_ms"], "exposed_comm"),
    ):
        figure.add_bar(
            orientation="h",
            base=start.tolist(),
            x=length.tolist(),
            y=[place] * len(rows),
            width=0.74,
            marker={"color": BY_KEY[colour].colour, "line": {"width": 0}},
            customdata=[[text, last] for text, last in zip(what, rows["last_rank"].tolist(), strict=True)],
            hovertemplate=f"%{{customdata[0]}}<br>{name}: from %{{base:.3f}} ms, %{{x:.3f}} ms"
            "<br>last to arrive: rank %{customdata[1]}<extra></extra>",
            name=name,
        )


def _frame(figure: go.Figure, entry: RankRows, places: dict[tuple[int, str], int]) -> None:
    """The rank's own window: where its step starts and ends."""
    mine = [place for (rank, _), place in places.items() if rank == entry.rank]
    for at in entry.window_ms:
        line = {"width": 1, "dash": "dot", "color": "rgba(127,134,145,0.9)"}
        figure.add_shape(type="line", x0=at, x1=at, y0=min(mine) - 0.5, y1=max(mine) + 0.5, line=line)


def _named(name: str, count: int) -> str:
    return name if count == 1 else f"{count} intervals, the longest {name}"
