"""The report as Markdown: the verdict and every table, for a pull request or a wiki. No figures."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from dashboard import attribution, exhibits, formats, notices, sections, theme
from dashboard.data import Run
from dashboard.exhibit import Table

TABLE_ROWS = 64
ARMS = ("step-time", "arm-split", "rank-split", "culprits", "collective-kinds")


def write_markdown(run: Run, arm: str | None = None) -> str:
    """The report as Markdown text. Names are escaped: none can become markup or break a table.

    Raises:
        AnalyzerError: a file of the run is damaged.
    """
    focus = run.focus(arm)
    parts = [
        f"# {_text(sections.headline(run))}",
        f"{_text(run.workload)} · {_text(sections.setting(run))} · **{run.provenance}**",
    ]
    if not run.complete:
        parts.append(f"> **Not complete:** {_text(run.why_incomplete)}. {_text(notices.measured_so_far(run))}")
    doubts = attribution.doubtful(run)
    if doubts:
        parts += ["## Before you rely on this", "\n".join(f"- {_text(doubt)}" for doubt in doubts)]
    layers = _exhibits(run, focus, exhibits.ABLATION)
    parts += layers
    if run.warnings:
        parts += ["## Warnings", "\n".join(f"- {_text(warning)}" for warning in run.warnings)]
    arms = [name for name in run.arms if run.arm(name)]
    if arms:
        parts += ["## Arms", _lines([name for name, _, _ in sections.ARM_COLUMNS], (_arm(run, name) for name in arms))]
    parts += _exhibits(run, focus, ARMS if layers else (*ARMS[:1], "paired-blocks", *ARMS[1:]))
    parts += ["## Method, machine, provenance", notices.METHOD]
    parts.append("\n".join(f"- **{term}**: {_text(value)}" for term, value in notices.facts(run)))
    return "\n\n".join(parts) + "\n"


def _exhibits(run: Run, focus: str | None, keys: Sequence[str]) -> list[str]:
    """Heading, note and table of the exhibits that the run has data for."""
    parts = []
    for key in keys:
        exhibit = exhibits.build(key, run, {"arm": focus})
        if exhibit is not None:
            parts += [f"## {exhibit.title}", f"{exhibit.note} *{_text(exhibit.source)}*", _table(exhibit.table)]
    return parts


def _arm(run: Run, arm: str) -> list[str]:
    cells = [number.partition("\n") for number in sections.arm_numbers(run, arm)]
    comparison = run.comparison(arm)
    verdict = theme.verdict(comparison.get("verdict")).label if comparison else "reference"
    return [arm, verdict, *(f"{main} ({interval})" if interval else main for main, _, interval in cells)]


def _table(table: Table) -> str:
    head = [column.title for column in table.columns]
    rows = [[column.text(row) for column in table.columns] for row in table.rows[:TABLE_ROWS]]
    text = _lines(head, rows, [column.numeric for column in table.columns])
    left_out = len(table.rows) - len(rows)
    return text + (f"\n\n…and {formats.count(left_out)} more rows in the run directory." if left_out else "")


def _lines(head: Sequence[str], rows: Iterable[Sequence[str]], numeric: Sequence[bool] | None = None) -> str:
    rule = ["---:" if right else "---" for right in numeric or [False] * len(head)]
    lines = [[_text(cell) for cell in row] for row in [head, *rows]]
    lines.insert(1, rule)
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _text(value: object) -> str:
    """Untrusted text on one line, with whatever Markdown or HTML would act on escaped."""
    flat = " ".join(str(value).split())
    return re.sub(r"([\\`*_\[\]<>#|~&!])", r"\\\1", flat)
