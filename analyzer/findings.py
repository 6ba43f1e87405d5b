"""What the tables mean: culprits and causes, contention, overlap, and what host time was."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analyzer.arrivals import charged_by_step
from analyzer.bubbles import Tables, overlap_efficiency
from analyzer.causes import Culprit, find_culprits
from analyzer.contention import Contention, measure_contention
from analyzer.hostgaps import split_host_time
from analyzer.scope import Scope
from analyzer.timeline import Timeline

_MIN_POINTS = 6


@dataclass(frozen=True)
class Findings:
    """`host_gaps` has a row per step and rank. Correlations are None where the traces do not allow them."""

    culprits: list[Culprit]
    lateness_compute_r: float | None
    compute_tokens_r: float | None
    contention: dict[str, Contention]
    overlap_efficiency: float | None
    host_gaps: pd.DataFrame
    tokens: dict[tuple[int, int], int]  # by rank and step, where the job wrote them down


def investigate(timelines: Sequence[Timeline], tables: Tables, scope: Scope | None = None) -> Findings:
    """Explain what `tables` measured on the same timelines, in the same scope."""
    scope = scope or Scope()
    timelines = scope.limit(timelines)
    charged = charged_by_step(tables.arrivals, tables.waited_ns)
    shown = [(rank, timeline) for rank, timeline in zip(tables.ranks, timelines, strict=True) if scope.shows(rank)]
    gaps = [split_host_time(timeline).assign(rank=rank) for rank, timeline in shown]
    tokens = {
        (rank, step): facts.tokens
        for rank, timeline in shown
        for step, facts in timeline.info.step_facts.items()
        if facts.tokens
    }
    lateness, per_token = _correlations(tables, tokens)
    waited_for = np.where(tables.waited_ns > 0, tables.arrivals.last_rank, -1)
    return Findings(
        culprits=find_culprits(
            timelines, tables.ranks, tables.matching, tables.clocks, tables.arrivals.last_rank, waited_for, charged
        ),
        lateness_compute_r=lateness,
        compute_tokens_r=per_token,
        contention=measure_contention([timeline for _, timeline in shown]),
        overlap_efficiency=overlap_efficiency(tables.bubbles),
        host_gaps=pd.concat(gaps, ignore_index=True),
        tokens=tokens,
    )


def _correlations(tables: Tables, tokens: dict[tuple[int, int], int]) -> tuple[float | None, float | None]:
    """Over ranks and steps, each against its step's mean: lateness with compute, and compute with tokens."""
    shared = tables.collectives[tables.collectives["matched"] & (tables.collectives["step"] >= 0)]
    late = (shared["arrival_ns"] - shared["first_arrival_ns"]).groupby([shared["step"], shared["rank"]]).mean()
    compute = tables.bubbles.set_index(["step", "rank"])["compute_ns"].astype(float)
    counts = pd.Series({(step, rank): count for (rank, step), count in tokens.items()}, dtype=float)
    return _correlation(late, compute), _correlation(compute, counts)


def _correlation(a: pd.Series[float], b: pd.Series[float]) -> float | None:
    if a.empty or b.empty:
        return None
    both = pd.concat([a.rename("a"), b.rename("b")], axis=1, join="inner").dropna()
    both = both - both.groupby(level=0).transform("mean")
    if len(both) < _MIN_POINTS or not (both.std() > 0).all():
        return None
    return float(both["a"].corr(both["b"]))
