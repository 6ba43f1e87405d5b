"""Ablation of one run: what each layer is worth first, then the design and the blocks it rests on."""

from __future__ import annotations

from typing import Any

from dashboard import attribution, exhibits, notices, sections
from dashboard.data import Run
from dashboard.pages.cards import cards

LABEL = "Ablation"


def layout(run: Run, query: dict[str, str]) -> list[Any]:
    """Components of the page; empty when the run compares no layers."""
    if not run.attribution:
        return []
    return [
        sections.hero(run, run.focus()),
        notices.incomplete(run),
        attribution.key_figures(run),
        attribution.doubts(run),
        *cards(run, exhibits.ABLATION, {}),
        notices.warnings(run),
        notices.method(run),
    ]
