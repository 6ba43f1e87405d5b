"""Exhibits of the Stragglers page: who is waited for, and whether its work explains it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from dashboard import formats, measures, waits
from dashboard.data import Run
from dashboard.exhibit import Column, Exhibit, Table, arm_options, fixed, source
from dashboard.figures import waits as figures

POINTS = 4_000  # dots of a scatter plot; of more, every n-th is drawn
PROFILED = "profiled steps"


def blame(run: Run, arm: str | None = None) -> Exhibit | None:
    chosen = _arm(run, arm)
    found = waits.blame(run.collectives, chosen) if chosen is not None else None
    if found is None or chosen is None:
        return None
    rows = [
        {"victim": victim, **{f"c{j}": value for j, value in enumerate(line)}, "sum": sum(line)}
        for victim, line in zip(found.ranks, found.ms.tolist(), strict=True)
    ]
    columns = [Column("victim", "Rank that waited", formats.count)]
    if len(found.ranks) <= figures.CULPRITS_SHOWN:
        columns += [Column(f"c{j}", f"for rank {rank} (ms)", fixed(2)) for j, rank in enumerate(found.ranks)]
    columns.append(Column("sum", "for all (ms)", fixed(2)))
    return Exhibit(
        "blame",
        "Who waits for whom",
        "Each wait inside a collective, charged to the rank that came last; ms per step, whether or not compute hid "
        "it. A strong column is a culprit, a strong row a victim.",
        source(run, f"{PROFILED}, arm {chosen}, {found.collectives:,} collectives matched"),
        figures.blame_matrix(found),
        Table(columns, rows),
        wide=len(found.ranks) > figures.CULPRITS_SHOWN,
        options=arm_options(waits.arms_with_collectives(run.collectives)),
        choices={"arm": chosen},
    )


def culprits(run: Run, arm: str | None = None) -> Exhibit | None:
    chosen = _arm(run, arm)
    found = waits.blame(run.collectives, chosen) if chosen is not None else None
    if found is None or chosen is None:
        return None
    total = max(float(found.ms.sum()), 1e-12)
    rows: list[dict[str, Any]] = [
        {
            "rank": rank,
            "charged": float(found.charged_ms[i]),
            "share": float(found.charged_ms[i]) / total * 100,
            "last": int(found.times_last[i]),
            "waited": float(found.waited_ms[i]),
        }
        for i, rank in enumerate(found.ranks)
    ]
    rows.sort(key=lambda row: -row["charged"])
    columns = [
        Column("rank", "Rank", formats.count),
        Column("charged", "Charged to it (ms per step)", fixed(2)),
        Column("share", "Share of all waits (%)", fixed(1)),
        Column("last", "Times last", formats.count),
        Column("waited", "Waited itself (ms per step)", fixed(2)),
    ]
    return Exhibit(
        "culprits",
        "Who is waited for",
        "A rank far above the others is late for a reason of its own. Bars of equal length mean that whoever has the "
        "most work is late, a different rank each time.",
        source(run, f"{PROFILED}, arm {chosen}"),
        figures.culprits(found),
        Table(columns, rows),
        wide=len(found.ranks) > figures.CULPRITS_SHOWN,
        options=arm_options(waits.arms_with_collectives(run.collectives)),
        choices={"arm": chosen},
    )


def arrival_skew(run: Run, arm: str | None = None) -> Exhibit | None:
    chosen = _arm(run, arm)
    found = waits.skew(run.collectives, chosen) if chosen is not None else None
    if found is None or chosen is None:
        return None
    rows = [
        {
            "place": place,
            "rank": found.ranks[int(np.nanargmax(late))],
            "most": np.nanmax(late),
            "mean": np.nanmean(late),
        }
        for place, late in zip(found.places, found.ms.T, strict=True)
    ]
    columns = [
        Column("place", "Collective"),
        Column("rank", "Latest rank", formats.count),
        Column("most", "Its lateness (ms)", fixed(2)),
        Column("mean", "Mean lateness (ms)", fixed(2)),
    ]
    return Exhibit(
        "arrival-skew",
        "How late each rank arrives",
        "Lateness behind the first rank, collective by collective in the order of a step, mean over steps. Lateness "
        "that grows along a row is work; lateness from the start is carried over from before.",
        source(run, f"{PROFILED}, arm {chosen}"),
        figures.arrival_skew(found),
        Table(columns, rows),
        options=arm_options(waits.arms_with_collectives(run.collectives)),
        choices={"arm": chosen},
    )


def tokens_against_compute(run: Run, arm: str | None = None) -> Exhibit | None:
    return _explained(
        run,
        arm,
        "tokens",
        key="tokens-compute",
        title="Tokens against compute time",
        title_x="Tokens on the rank",
        note="If the dots lie on a line, the length of the histories decides how long a rank computes, and balancing "
        "them balances the ranks.",
    )


def predicted_against_measured(run: Run, arm: str | None = None) -> Exhibit | None:
    return _explained(
        run,
        arm,
        "predicted_cost",
        key="predicted-measured",
        title="Predicted against measured cost",
        title_x="Predicted cost (the model's unit)",
        note="What the cost model said before the step against what the step then took. Balancing can be no better "
        "than this.",
    )


def _explained(
    run: Run, arm: str | None, column: str, *, key: str, title: str, title_x: str, note: str
) -> Exhibit | None:
    steps = measures.timed(run.steps)
    if column not in steps.columns or steps.empty:
        return None
    focus = run.focus(arm)
    points: dict[str, pd.DataFrame] = {}
    rows: list[dict[str, Any]] = []
    for name in dict.fromkeys([run.versus(focus), focus]):
        known = steps[(steps["arm"] == name) & steps[column].notna() & steps["compute_ms"].notna()]
        if name is not None and known[column].nunique() > 1:
            points[name] = known.iloc[:: -(-len(known) // POINTS)]
            rows.append({"arm": name, "n": len(known), "r": float(known[column].corr(known["compute_ms"]))})
    if not points:
        return None
    said = "; ".join(f"r = {row['r']:.2f} in {row['arm']}" for row in rows)
    thinned = " Not every dot is drawn." if any(len(points[row["arm"]]) < row["n"] for row in rows) else ""
    columns = [
        Column("arm", "Arm"),
        Column("n", "Ranks × steps", formats.count),
        Column("r", "Correlation r", fixed(3)),
    ]
    return Exhibit(
        key,
        title,
        f"{note} Correlation {said}.{thinned}",
        source(run, "timed steps, no profiler"),
        figures.against_compute(points, column, title_x),
        Table(columns, rows),
        wide=False,
        choices={"arm": focus or ""},
    )


def _arm(run: Run, wanted: str | None) -> str | None:
    """The arm asked for if it has collectives, else the reference of the one in focus: where the stragglers are."""
    known = waits.arms_with_collectives(run.collectives)
    if wanted in known:
        return wanted
    reference = run.versus(run.focus())
    return reference if reference in known else (known[0] if known else None)
