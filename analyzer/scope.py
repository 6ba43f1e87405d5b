"""Which part of a job is asked about: some steps, some ranks, one process group."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from analyzer.errors import AnalyzerError
from analyzer.timeline import Steps, Timeline


@dataclass(frozen=True)
class Scope:
    """None asks about all. Every rank's trace is read in any case: whom a rank waits for may be one not asked about.

    `steps` limits windows and collectives, `ranks` the ranks shown (as waiting, not as waited for), `group` the
    collectives shown and the blame.
    """

    steps: frozenset[int] | None = None
    ranks: frozenset[int] | None = None
    group: str | None = None

    @classmethod
    def of(
        cls, steps: Collection[int] | None = None, ranks: Collection[int] | None = None, group: str | None = None
    ) -> Scope:
        return cls(None if steps is None else frozenset(steps), None if ranks is None else frozenset(ranks), group)

    def limit(self, timelines: Sequence[Timeline]) -> list[Timeline]:
        """The timelines with only the windows asked about.

        Raises:
            AnalyzerError: a step or a rank that no trace has.
        """
        known = {int(step) for timeline in timelines for step in timeline.steps.number}
        _check("step", self.steps, known)
        _check("rank", self.ranks, {t.info.rank for t in timelines if t.info.rank is not None})
        if self.steps is None:
            return list(timelines)
        return [dataclasses.replace(timeline, steps=_only(timeline.steps, self.steps)) for timeline in timelines]

    def shows(self, rank: int) -> bool:
        return self.ranks is None or rank in self.ranks


def _only(steps: Steps, wanted: frozenset[int]) -> Steps:
    keep = np.isin(steps.number, list(wanted))
    return Steps(steps.number[keep], steps.start_ns[keep], steps.end_ns[keep])


def _check(what: str, wanted: frozenset[int] | None, known: set[int]) -> None:
    unknown = sorted((wanted or frozenset()) - known)
    if unknown:
        there = ", ".join(map(str, sorted(known)[:8])) + (", …" if len(known) > 8 else "")
        raise AnalyzerError(f"{what} {unknown[0]}: not in these traces; there are {there or 'none'}")
