"""Frames of a run, turned into what a chart draws. Sums, means and medians only: verdicts and intervals are the
analyzer's, and come from report.json.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd

from dashboard.theme import CLASSES

NS_PER_MS = 1e6


@dataclass(frozen=True)
class Measure:
    """Something that has a value for every rank and step.

    Attributes:
        colour_class: whose colour the heatmap takes.
        from_zero: its colours begin at zero; otherwise at the smallest value, for measures that are never near zero.
        reading: how to read the heatmap.
    """

    key: str
    label: str
    source: Literal["timed", "profiled"]
    colour_class: str
    from_zero: bool
    reading: str

    @property
    def where(self) -> str:
        return "timed steps, no profiler" if self.source == "timed" else "profiled steps"


@dataclass(frozen=True)
class Matrix:
    """A measure in ms, float64[ranks, steps]; NaN where a rank has no value for a step (it died before).

    `blocks` and `steps` name the columns; the block is −1 for profiled steps.
    """

    ranks: list[int]
    blocks: list[int]
    steps: list[int]
    ms: np.ndarray

    @property
    def places(self) -> list[str]:
        """Each column in words, unique."""
        pairs = zip(self.blocks, self.steps, strict=True)
        return [f"step {step}" if block < 0 else f"block {block}, step {step}" for block, step in pairs]


MEASURES: tuple[Measure, ...] = (
    Measure(
        "straggler",
        "Straggler",
        "profiled",
        "straggler",
        True,
        "How long each rank waited for a later one. The faint cell of a column is the rank the others waited for.",
    ),
    Measure("bubble", "Bubble", "profiled", "exposed_copy", True, "How long each rank was not computing."),
    Measure(
        "compute",
        "Compute",
        "timed",
        "compute",
        False,
        "Time outside waits for communication. A strong row is a rank that is slow all the time; "
        "strong cells that move from rank to rank follow the data.",
    ),
    Measure(
        "wait",
        "Wait",
        "timed",
        "exposed_comm",
        True,
        "Time each rank spent waiting for communication, for late ranks and for transfers together.",
    ),
    Measure("step", "Step", "timed", "host", False, "From the start to the end of the step on each rank."),
)


def timed(steps: pd.DataFrame) -> pd.DataFrame:
    """The rows that count: warm-up dropped."""
    return steps[~steps["warmup"].astype(bool)] if len(steps) else steps


def step_times(steps: pd.DataFrame, world_size: int | None) -> pd.DataFrame:
    """Time of each timed step: the slowest rank's. A step that some rank did not finish (the run died) is left out.

    Returns: columns block, arm, step, step_ms; empty when there is nothing.
    """
    rows = timed(steps)
    if rows.empty:
        return pd.DataFrame(columns=["block", "arm", "step", "step_ms"])
    grouped = rows.groupby(["block", "arm", "step"], sort=True)["step_ms"].agg(["max", "count"]).reset_index()
    ranks = world_size or int(rows["rank"].nunique())
    whole = grouped[grouped["count"] >= ranks]
    return whole.rename(columns={"max": "step_ms"})[["block", "arm", "step", "step_ms"]].reset_index(drop=True)


def plain_summary(steps: pd.DataFrame, world_size: int | None) -> dict[str, dict[str, Any]]:
    """Arms of a run that was not analysed, as report.json would have them: median and minimum, and no interval."""
    times = step_times(steps, world_size)
    summary = times.groupby("arm", sort=False)["step_ms"].agg(["median", "min", "count"])
    return {
        str(arm): {"step_ms": {"median": median, "ci95": None, "min": least, "n": int(count)}}
        for arm, median, least, count in summary.reset_index().to_numpy().tolist()
    }


def block_medians(steps: pd.DataFrame, world_size: int | None) -> pd.DataFrame:
    """Median step time per block × arm (ms) and the number of steps behind it: columns block, arm, step_ms, n."""
    times = step_times(steps, world_size)
    grouped = times.groupby(["block", "arm"], sort=True)["step_ms"].agg(["median", "count"]).reset_index()
    return grouped.rename(columns={"median": "step_ms", "count": "n"})


def rank_classes(bubbles: pd.DataFrame, arm: str) -> pd.DataFrame:
    """Mean over profiled steps of each class, per rank, in ms.

    Returns: index rank (ascending); columns window and the five class keys, float64 ms.
    """
    rows = bubbles[bubbles["arm"] == arm] if len(bubbles) else bubbles
    if rows.empty:
        return pd.DataFrame(columns=["window", *(item.key for item in CLASSES)], dtype=float)
    columns = ["window_ns", *(item.column for item in CLASSES)]
    means = rows.groupby("rank", sort=True)[columns].mean() / NS_PER_MS
    return means.rename(columns={column: column.removesuffix("_ns") for column in columns})


def profiled_arms(bubbles: pd.DataFrame) -> list[str]:
    return list(dict.fromkeys(bubbles["arm"].tolist())) if len(bubbles) else []


def available(measure: Measure, steps: pd.DataFrame, bubbles: pd.DataFrame, arm: str) -> bool:
    if measure.source == "profiled":
        return bool(len(bubbles)) and bool((bubbles["arm"] == arm).any())
    rows = timed(steps)
    return bool(len(rows)) and bool(rows.loc[rows["arm"] == arm, f"{measure.key}_ms"].notna().any())


def rank_by_step(measure: Measure, steps: pd.DataFrame, bubbles: pd.DataFrame, arm: str) -> Matrix:
    """One measure of one arm, for every rank and step it has."""
    if measure.source == "profiled":
        rows = bubbles[bubbles["arm"] == arm]
        value = rows["straggler_ns"] if measure.key == "straggler" else rows["window_ns"] - rows["compute_ns"]
        long = pd.DataFrame({"block": -1, "step": rows["step"], "rank": rows["rank"], "value": value / NS_PER_MS})
    else:
        rows = timed(steps)
        rows = rows[rows["arm"] == arm]
        long = rows[["block", "step", "rank"]].assign(value=rows[f"{measure.key}_ms"])
    wide = (
        long.dropna(subset=["value"])
        .pivot_table(index="rank", columns=["block", "step"], values="value", aggfunc="mean")
        .sort_index()
    )
    columns = wide.columns.to_frame(index=False)
    return Matrix(
        ranks=[int(rank) for rank in wide.index.to_numpy()],
        blocks=columns["block"].astype(int).tolist(),
        steps=columns["step"].astype(int).tolist(),
        ms=wide.to_numpy(dtype=float),
    )


def shares(classes: pd.DataFrame) -> pd.DataFrame:
    """`rank_classes` as per cent of each rank's window."""
    keys = [item.key for item in CLASSES]
    window = classes["window"].to_numpy(dtype=float)
    window = np.where(window > 0, window, np.nan)
    return classes[keys].div(window, axis=0) * 100
