"""Sweeps: one simulation per point, one table over all of them, and a plot."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from freescale.bench.simulated_run import Result, Simulation, simulate
from freescale.errors import FreeScaleError
from freescale.simulate import cluster
from freescale.simulate.scenario import Point, Reported
from workloads.config import WorkloadConfig

MEASURES = (
    "step_ms", "compute_ms", "straggler_ms", "straggler_pct", "exposed_comm_ms", "exposed_total_ms",
    "exposed_embedding_ms", "host_ms", "bubble_pct", "samples_per_s", "travelling_collision_pct",
)  # fmt: skip
_EMBEDDING_LANES = ("ids", "bulk", "urgent")


def at_point(base: Simulation, point: Point) -> Simulation:
    """The simulation with the settings of one point of a sweep.

    Raises:
        FreeScaleError: no such key, or a value that is not allowed.
    """
    for key, value in point.items():
        owner, _, field = key.rpartition(".")
        if key in ("ranks", "policy", "steps", "blocks"):
            base = dataclasses.replace(base, **{key: value})
        elif key == "cluster":
            base = dataclasses.replace(base, cluster=cluster.load(str(value)))
        elif owner == "workload":
            base = dataclasses.replace(base, workload=changed(base.workload, {field: value}))
        elif owner == "cluster":
            base = dataclasses.replace(base, cluster=base.cluster.with_values({field: value}))
        else:
            raise FreeScaleError(
                f"sweep: {key!r} is none of ranks, policy, steps, blocks, cluster, workload.FIELD, cluster.CONSTANT"
            )
    return base


def changed(config: WorkloadConfig, changes: Mapping[str, Any]) -> WorkloadConfig:
    """A workload with other fields; raises FreeScaleError for a field that does not exist or a value out of range."""
    known = {field.name for field in dataclasses.fields(config)} - {"name"}
    for name in changes:
        if name not in known:
            raise FreeScaleError(f"workload.{name}: no such field; there are {', '.join(sorted(known))}")
    return dataclasses.replace(config, **changes)


def sweep(base: Simulation, points: Sequence[Point], progress: Callable[[int], None]) -> pd.DataFrame:
    """A row per point and arm: the point's keys, `arm`, and `MEASURES`; all times are ms."""
    rows = []
    for number, point in enumerate(points):
        simulation = at_point(base, point)
        result = simulate(simulation)
        rows += [{**point, "arm": arm.name, **measures(result, arm.name)} for arm in simulation.arms]
        progress(number + 1)
    return pd.DataFrame(rows)


def measures(result: Result, arm: str) -> dict[str, float]:
    """`MEASURES` of one arm, means over ranks and timed steps; step_ms is the median of the slowest rank's.

    travelling_collision_pct: collision rows among the rows that travel. A popular row travels to every rank that wants
    it, so these are more than the collision rows among the distinct rows of a batch, which `collision_rate` is about.
    """
    bubbles, collectives = result.tables[arm].bubbles, result.tables[arm].collectives
    rows = result.steps[(result.steps["arm"] == arm) & ~result.steps["warmup"]]
    steps = rows.groupby(["block", "step"]).agg(step_ms=("step_ms", "max"), samples=("samples", "sum"))
    mean = bubbles.mean(numeric_only=True) / 1e6
    window = bubbles["window_ns"]
    embedding = collectives[collectives["group"].str.split(".").str[0].isin(_EMBEDDING_LANES)]
    shown = collectives["rank"].nunique() * len(steps)
    return {
        "step_ms": float(steps["step_ms"].median()),
        "compute_ms": float(mean["compute_ns"]),
        "straggler_ms": float(mean["straggler_ns"]),
        "straggler_pct": float((bubbles["straggler_ns"] / window).mean() * 100),
        "exposed_comm_ms": float(mean["exposed_comm_ns"]),
        "exposed_total_ms": float(mean["straggler_ns"] + mean["exposed_comm_ns"]),
        "exposed_embedding_ms": float(embedding["exposed_ns"].sum()) / 1e6 / max(shown, 1),
        "host_ms": float(mean["host_ns"]),
        "bubble_pct": float(((window - bubbles["compute_ns"]) / window).mean() * 100),
        "samples_per_s": float(steps["samples"].sum() * 1e3 / steps["step_ms"].sum()),
        "travelling_collision_pct": float(rows["travelling_collision_rate"].mean() * 100),
    }


def against_reported(table: pd.DataFrame, reported: Sequence[Reported]) -> pd.DataFrame:
    """Reported and simulated side by side: a row per reported figure and point of the sweep that it applies to.

    `arm` may be "A/B": the ratio of A's measure to B's, in percent less than B's.
    """
    rows = []
    for figure in reported:
        here = table
        for key, value in figure.at.items():
            here = here[here[key] == value] if key in here else here.iloc[:0]
        keys = [key for key in table.columns if key not in (*MEASURES, "arm")]
        arm, _, versus = figure.arm.partition("/")
        for point, group in here.groupby(keys, dropna=False) if keys else [((), here)]:
            by_arm = group.set_index("arm")[figure.measure]
            if not {arm, versus or arm} <= set(by_arm.index):
                continue
            simulated = float(by_arm[arm])
            if versus:
                simulated = 100 * (1 - simulated / float(by_arm[versus]))
            where = dict(zip(keys, point if isinstance(point, tuple) else (point,), strict=True))
            error = 100 * (simulated - figure.value) / figure.value if figure.value else float("nan")
            rows.append(
                {
                    **where,
                    "measure": figure.measure + (" reduction %" if versus else ""),
                    "arm": figure.arm,
                    "reported": figure.value,
                    "simulated": simulated,
                    "off_pct": error,
                    "source": figure.source,
                }
            )
    return pd.DataFrame(rows)


def plot(table: pd.DataFrame, title: str, file: Path) -> None:
    """One self-contained HTML page: the measures against the first swept key, a line per arm (and other keys)."""
    import plotly.graph_objects as go
    from plotly.subplots import make_subplots

    keys = [key for key in table.columns if key not in (*MEASURES, "arm")]
    shown = ("step_ms", "straggler_pct", "exposed_embedding_ms", "compute_ms")
    figure = make_subplots(rows=2, cols=2, subplot_titles=shown)
    colours = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#f0e442")
    lines = table.groupby(["arm", *keys[1:]], sort=False, dropna=False)
    for number, (names, line) in enumerate(lines):
        label = " ".join(map(str, names))
        for place, measure in enumerate(shown):
            figure.add_trace(
                go.Scatter(
                    x=line[keys[0]],
                    y=line[measure],
                    name=label,
                    legendgroup=label,
                    showlegend=place == 0,
                    mode="lines+markers",
                    line={"color": colours[number % len(colours)]},
                ),
                row=place // 2 + 1,
                col=place % 2 + 1,
            )
    figure.update_xaxes(title_text=keys[0])
    figure.update_layout(title=f"{title} · simulated", template="plotly_white", height=800)
    figure.write_html(file, include_plotlyjs=True)
