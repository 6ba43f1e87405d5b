"""An exhibit: a figure, the table behind it, and the words around it. Pages and the HTML report show the same ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import plotly.graph_objects as go

from dashboard import formats
from dashboard.data import Run
from dashboard.theme import Class


@dataclass(frozen=True)
class Column:
    """A table column. `write` turns a value into text; a column without it holds text."""

    key: str
    title: str
    write: Callable[[Any], str] | None = None

    @property
    def numeric(self) -> bool:
        return self.write is not None

    def text(self, row: Mapping[str, Any]) -> str:
        value = row.get(self.key)
        return self.write(value) if self.write else ("" if value is None else str(value))


@dataclass(frozen=True)
class Table:
    columns: Sequence[Column]
    rows: Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Exhibit:
    """What a card shows.

    Attributes:
        key: names it in links, ids and tests.
        note: one or two sentences: what its numbers mean.
        drawing: a sentence on what only the figure shows; left out where there is a table alone.
        source: where its numbers come from: provenance, and timed or profiled steps.
        legend: the classes its colours stand for; empty when colour says nothing that a label does not.
        wide: takes the whole width of the page, not half.
        options: what can be chosen, name -> (value, label) pairs; the same names are its builder's keyword arguments.
        many: names of options that take several values, joined by commas.
        choices: what it was drawn with, name -> value.
    """

    key: str
    title: str
    note: str
    source: str
    figure: go.Figure
    table: Table
    drawing: str = ""
    legend: Sequence[Class] = ()
    wide: bool = True
    options: Mapping[str, Sequence[tuple[str, str]]] = field(default_factory=dict)
    many: frozenset[str] = frozenset()
    choices: Mapping[str, str] = field(default_factory=dict)

    @property
    def reading(self) -> str:
        """How to read the figure."""
        return f"{self.note} {self.drawing}".rstrip()


def fixed(digits: int) -> Callable[[Any], str]:
    """Writes numbers of one column with the same number of decimals, so that they line up."""

    def write(value: Any) -> str:
        return f"{value:,.{digits}f}".replace("-", "−") if formats.exists(value) else formats.MISSING

    return write


def estimate_cells(name: str, estimate: Mapping[str, Any]) -> dict[str, Any]:
    """An estimate of report.json as cells of a row, for `estimate_columns`."""
    low, high = formats.interval(estimate) or (None, None)
    return {name: estimate.get("value"), f"{name}-low": low, f"{name}-high": high}


def estimate_columns(name: str, title: str, write: Callable[[Any], str]) -> list[Column]:
    """Columns of a value and of the ends of its interval; a title that ends in a unit, "(ms)", hands it on."""
    unit = title[title.rindex("(") :] if title.endswith(")") else ""
    return [
        Column(name, title, write),
        Column(f"{name}-low", f"95 % CI from {unit}".rstrip(), write),
        Column(f"{name}-high", f"to {unit}".rstrip(), write),
    ]


def arm_options(arms: Sequence[str]) -> dict[str, Sequence[tuple[str, str]]]:
    """A choice of arm, where there is more than one."""
    return {"arm": [(arm, arm) for arm in arms]} if len(arms) > 1 else {}


def source(run: Run, where: str) -> str:
    """The line under a figure that says where its numbers come from."""
    return f"{run.provenance} · {where}"
