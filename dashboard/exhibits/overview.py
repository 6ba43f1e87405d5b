"""Exhibits of the Overview: how fast each arm is, and where its time goes."""

from __future__ import annotations

from typing import Any

import numpy as np

from dashboard import formats, measures
from dashboard.data import Run
from dashboard.exhibit import Column, Exhibit, Table, arm_options, fixed, source
from dashboard.figures import bubbles as bubble_figures
from dashboard.figures import heatmap, steps
from dashboard.figures.bubbles import UNIT_LABELS, Unit
from dashboard.theme import CLASSES

UNITS: list[tuple[str, str]] = [("ms", "ms"), ("pct", "%")]
SUMMARY_ABOVE_CELLS = 600  # a rank × step table larger than this has each rank's summary only


def step_time(run: Run) -> Exhibit | None:
    summary = run.reported_arms or measures.plain_summary(run.steps, run.world_size)
    arms = {arm: summary[arm] for arm in run.arms if isinstance(summary.get(arm), dict)}
    medians = measures.block_medians(run.steps, run.world_size)
    figure = steps.step_time(arms, medians)
    if not len(figure.data[0].y):
        return None
    whisker = ", with its 95 % interval" if any(formats.interval(arm.get("step_ms")) for arm in arms.values()) else ""
    rows = []
    for arm, values in arms.items():
        step = values.get("step_ms") or {}
        low, high = formats.interval(step) or (None, None)
        rows.append(
            {
                "arm": arm,
                "median": step.get("median"),
                "low": low,
                "high": high,
                "min": step.get("min"),
                "n": step.get("n"),
            }
        )
    ms = fixed(2)
    columns = [
        Column("arm", "Arm"),
        Column("median", "Median (ms)", ms),
        Column("low", "95 % CI from (ms)", ms),
        Column("high", "to (ms)", ms),
        Column("min", "Fastest (ms)", ms),
        Column("n", "Steps", formats.count),
    ]
    return Exhibit(
        "step-time",
        "Step time",
        f"Median over timed steps{whisker}.",
        source(run, "timed steps, no profiler"),
        figure,
        Table(columns, rows),
        drawing="Each dot is the median of one block.",
        wide=False,
    )


def paired_blocks(run: Run) -> Exhibit | None:
    medians = measures.block_medians(run.steps, run.world_size)
    arms = [arm for arm in run.arms if (medians["arm"] == arm).any()]
    if len(arms) < 2:
        return None
    table = medians.pivot(index="block", columns="arm", values="step_ms").reindex(columns=arms)
    rows = [
        {"block": int(block), **{f"arm{i}": value for i, value in enumerate(row)}}
        for block, row in zip(table.index, table.to_numpy().tolist(), strict=True)
    ]
    columns = [
        Column("block", "Block", formats.count),
        *(Column(f"arm{i}", f"{arm} (ms)", fixed(2)) for i, arm in enumerate(arms)),
    ]
    return Exhibit(
        "paired-blocks",
        "Block by block",
        "Every arm of a block ran the same batches from the same state.",
        source(run, "timed steps, no profiler"),
        steps.paired_blocks(medians, arms),
        Table(columns, rows),
        drawing="A line that falls is a faster arm.",
        wide=False,
    )


def arm_split(run: Run, unit: str = "ms") -> Exhibit | None:
    arms = {arm: run.arm(arm) for arm in run.arms if bubble_figures.class_ms(run.arm(arm)) is not None}
    if not arms:
        return None
    chosen = _unit(unit)
    rows = []
    for arm, values in arms.items():
        split = bubble_figures.class_ms(values) or {}
        window = sum(split.values())
        rows.append({"arm": arm, **split, "window": window} | ({} if run.is_split(arm) else {"straggler": None}))
    columns = [Column("arm", "Arm"), *_class_columns()]
    return Exhibit(
        "arm-split",
        "Where a step goes",
        "Each instant of a step has exactly one class; mean over ranks. Everything that is not compute is a bubble."
        + _not_split(run, list(arms)),
        source(run, "profiled steps: read the shares, take step times from above"),
        bubble_figures.per_arm(arms, chosen),
        Table(columns, rows),
        legend=CLASSES,
        options={"unit": UNITS},
        choices={"unit": chosen},
    )


def rank_split(run: Run, unit: str = "ms", arm: str | None = None) -> Exhibit | None:
    profiled = measures.profiled_arms(run.bubbles)
    focus = run.focus(arm)
    chosen = [name for name in (run.versus(focus), focus) if name in profiled] or profiled[:1]
    by_arm = {name: measures.rank_classes(run.bubbles, name) for name in chosen if name is not None}
    if not by_arm:
        return None
    rows: list[dict[str, Any]] = []
    for name, frame in by_arm.items():
        for row in frame.reset_index().to_dict("records"):
            named = {str(key): value for key, value in row.items()}
            rows.append({"arm": name, **named} | ({} if run.is_split(name) else {"straggler": None}))
    columns = [Column("arm", "Arm"), Column("rank", "Rank", formats.count), *_class_columns()]
    return Exhibit(
        "rank-split",
        "Bubbles, rank by rank",
        "Straggler is waiting for a later rank; the rank that has none of it is the one the others wait for."
        + _not_split(run, list(by_arm)),
        source(run, "profiled steps"),
        bubble_figures.per_rank(by_arm, _unit(unit)),
        Table(columns, rows),
        legend=CLASSES,
        options={"unit": UNITS},
        choices={"unit": _unit(unit), "arm": focus or ""},
    )


def rank_steps(run: Run, measure: str = "straggler", arm: str | None = None) -> Exhibit | None:
    chosen_arm = run.focus(arm)
    if chosen_arm is None:
        return None
    possible = [
        item
        for item in measures.MEASURES
        if measures.available(item, run.steps, run.bubbles, chosen_arm)
        and (item.key != "straggler" or run.is_split(chosen_arm))
    ]
    if not possible:
        return None
    chosen = next((item for item in possible if item.key == measure), possible[0])
    matrix = measures.rank_by_step(chosen, run.steps, run.bubbles, chosen_arm)
    return Exhibit(
        "rank-steps",
        "Rank × step",
        chosen.reading,
        source(run, f"{chosen.where}, arm {chosen_arm}"),
        heatmap.rank_step(matrix, chosen),
        _matrix_table(matrix),
        options={"measure": [(item.key, item.label) for item in possible], **arm_options(run.arms)},
        choices={"measure": chosen.key, "arm": chosen_arm},
    )


def _matrix_table(matrix: measures.Matrix) -> Table:
    ms = fixed(2)
    columns = [
        Column("rank", "Rank", formats.count),
        Column("median", "Median (ms)", ms),
        Column("max", "Largest (ms)", ms),
        Column("at", "Largest in"),
    ]
    cells = matrix.ms.size <= SUMMARY_ABOVE_CELLS
    rows: list[dict[str, Any]] = []
    for rank, line in zip(matrix.ranks, matrix.ms, strict=True):
        row: dict[str, Any] = {"rank": rank, "median": float(np.nanmedian(line)), "max": float(np.nanmax(line))}
        row["at"] = matrix.places[int(np.nanargmax(line))]
        if cells:
            row.update({f"s{i}": value for i, value in enumerate(line.tolist())})
        rows.append(row)
    if cells:
        columns += [Column(f"s{i}", f"{place} (ms)", ms) for i, place in enumerate(matrix.places)]
    return Table(columns, rows)


def _class_columns() -> list[Column]:
    return [
        *(Column(item.key, f"{item.label} (ms)", fixed(2)) for item in CLASSES),
        Column("window", "Step (ms)", fixed(2)),
    ]


def _not_split(run: Run, arms: list[str]) -> str:
    """A sentence when waiting and transfer could not be told apart in some arm; "" when they could in all."""
    mixed = [arm for arm in arms if not run.is_split(arm)]
    where = f"In {', '.join(mixed)}, waiting" if len(arms) > 1 else "Waiting"
    clocks = "could not be told from transfer, because the ranks' clocks do not agree well enough"
    return f" {where} {clocks}: both stand under exposed communication." if mixed else ""


def _unit(unit: str) -> Unit:
    return unit if unit in UNIT_LABELS else "ms"
