"""Why a run is too noisy to tell: what its steps and its machine samples show, in sentences with a cure.

A turn's residual is how much slower it was than its arm and its block explain; a disturbance that is to blame shows in
the samples of the turns with large residuals.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pandas as pd

FEW_BLOCKS = 6
_LEAST_TURNS = 20  # below which no correlation is looked for
_CORRELATED, _BY_CHANCE = 0.3, 0.01
_SMALLER_MODE, _MODES_APART = 0.1, 4.5


@dataclass(frozen=True)
class Cause:
    """One likely cause of noise; `text` says what was seen and what to do."""

    cause: str
    text: str


def find_causes(timed: pd.DataFrame, steps: pd.DataFrame, samples: pd.DataFrame) -> list[Cause]:
    """Likely causes of noise, the most general first.

    Args:
        timed: a row per timed step, columns arm, block, step, step_ms.
        steps: steps.parquet.
        samples: samples.parquet; empty when the run has none.
    """
    if timed.empty:
        return []
    causes = [_few_blocks(timed), _launches(steps), _two_modes(timed)]
    if not samples.empty:
        turns = _turns(samples[samples["phase"] == "timed"])
        causes += [look(turns, _residuals(timed)) for look in _MACHINE]
    return [cause for cause in causes if cause is not None]


def _few_blocks(timed: pd.DataFrame) -> Cause | None:
    blocks = timed["block"].nunique()
    if blocks >= FEW_BLOCKS:
        return None
    return Cause(
        "few_blocks",
        f"only {blocks} block{'s' * (blocks > 1)}; intervals of so few are wide: run at least {FEW_BLOCKS}",
    )


def _launches(steps: pd.DataFrame) -> Cause | None:
    if "launch" not in steps:
        return None
    per_block = steps.groupby("block")["launch"].nunique()
    split = [str(block) for block in per_block.index[per_block > 1]]
    if not split:
        return None
    blocks = f"block {split[0]}" if len(split) == 1 else f"blocks {', '.join(split)}"
    return Cause("launches", f"{blocks} began before the run was stopped and ended after it was resumed")


def _two_modes(timed: pd.DataFrame) -> Cause | None:
    """Two clusters of step times that neither batch nor arm explains."""
    log_ms = np.log(timed["step_ms"])
    of_batch = log_ms - log_ms.groupby([timed["block"], timed["step"]]).transform("median")
    for arm, residual in of_batch.groupby(timed["arm"]):
        values = np.sort(residual.to_numpy(np.float64))
        if len(values) < _LEAST_TURNS:
            continue
        small, apart, factor = _two_means(values)
        if small >= _SMALLER_MODE and apart >= _MODES_APART:
            return Cause(
                "two_modes",
                f"step times of {arm} have two modes, {factor:.2f}× apart ({100 * small:.0f} % of its steps in the "
                "smaller): something switches on and off, such as clock boost or a neighbour",
            )
    return None


def _two_means(values: np.ndarray) -> tuple[float, float, float]:
    """(share of the smaller cluster, distance in within-cluster deviations, exp of the distance) of sorted values.

    Clusters of a normal distribution are 2.7 deviations apart, of a uniform one 3.5.
    """
    count = len(values)
    cuts = np.arange(1, count)
    sums, squares = np.cumsum(values), np.cumsum(values**2)
    left, right = sums[:-1] / cuts, (sums[-1] - sums[:-1]) / (count - cuts)
    within = squares[-1] - cuts * left**2 - (count - cuts) * right**2
    best = int(within.argmin())
    distance = float(right[best] - left[best])
    deviation = float(np.sqrt(max(within[best], 0.0) / count))
    small = min(best + 1, count - best - 1) / count
    return small, distance / deviation if deviation else 0.0, float(np.exp(distance))


def _residuals(timed: pd.DataFrame) -> pd.Series[float]:
    """By (block, arm): log of the turn's median beyond its block's and its arm's mean."""
    table = np.log(timed.groupby(["block", "arm"])["step_ms"].median()).unstack("arm")
    table = table.sub(table.mean(axis=1), axis=0)
    return table.sub(table.mean(axis=0), axis=1).stack()


def _turns(samples: pd.DataFrame) -> pd.DataFrame:
    """By (block, arm): the worst host's shares of core-seconds, and rates per second of the worst rank."""
    keys = ["block", "arm", "host"]
    hosts = samples.groupby(keys).agg(
        wall_s=("wall_s", "max"), cores=("cores", "max"), own_s=("cpu_s", "sum"), busy_s=("busy_s", "max"),
        steal_s=("steal_s", "max"), mhz=("cpu_mhz", "mean"), throttled_s=("throttled_s", "max"),
    )  # fmt: skip
    capacity = hosts["cores"] * hosts["wall_s"]
    shares = pd.DataFrame(
        {
            "others": ((hosts["busy_s"] - hosts["own_s"]) / capacity).clip(lower=0),
            "steal": hosts["steal_s"] / capacity,
            "throttled": hosts["throttled_s"] / hosts["wall_s"],
            "slowness": -hosts["mhz"],
        }
    )
    of_turns = shares.groupby(["block", "arm"]).max()
    for name in ("migrations", "involuntary_switches"):
        known = samples[name].where(samples[name] >= 0)
        of_turns[name] = (known / samples["wall_s"]).groupby([samples["block"], samples["arm"]]).max()
    return of_turns


def _others(turns: pd.DataFrame, residuals: pd.Series[float]) -> Cause | None:
    return _share(
        turns["others"], residuals, 0.05, "other_processes", "other processes used", "of the CPU: stop them, or rerun"
    )


def _stolen(turns: pd.DataFrame, residuals: pd.Series[float]) -> Cause | None:
    return _share(
        turns["steal"], residuals, 0.01, "other_processes", "the hypervisor took", "of the CPU: use a quieter machine"
    )


def _throttled(turns: pd.DataFrame, residuals: pd.Series[float]) -> Cause | None:
    return _share(
        turns["throttled"], residuals, 0.01, "throttling", "the container's CPU quota stopped the ranks for",
        "of a turn: raise the quota",
    )  # fmt: skip


def _frequency(turns: pd.DataFrame, residuals: pd.Series[float]) -> Cause | None:
    mhz = -turns["slowness"].dropna()
    if mhz.empty or mhz.quantile(0.95) - mhz.quantile(0.05) < 0.05 * mhz.median():
        return None
    return Cause(
        "frequency",
        f"the CPU's clock went from {mhz.min():.0f} to {mhz.max():.0f} MHz"
        f"{_together(turns['slowness'], residuals, 'when it was low')}: fix the clock, or let the machine cool",
    )


def _migrations(turns: pd.DataFrame, residuals: pd.Series[float]) -> Cause | None:
    return _rate(turns["migrations"], residuals, "migration", "moved between cores")


def _interruptions(turns: pd.DataFrame, residuals: pd.Series[float]) -> Cause | None:
    return _rate(turns["involuntary_switches"], residuals, "interruptions", "lost its core to others")


_MACHINE: tuple[Callable[[pd.DataFrame, pd.Series[float]], Cause | None], ...] = (
    _others, _stolen, _throttled, _frequency, _migrations, _interruptions,
)  # fmt: skip


def _share(
    share: pd.Series[float], residuals: pd.Series[float], much: float, cause: str, did: str, end: str
) -> Cause | None:
    known = share.dropna()
    together = _together(known, residuals, "when it was more")
    if known.empty or (known.median() < much and not together):
        return None
    seen = f"{did} {100 * known.median():.0f} % (up to {100 * known.max():.0f} %)"
    what, _, cure = end.partition(":")
    return Cause(cause, f"{seen} {what}{together}:{cure}")


def _rate(rate: pd.Series[float], residuals: pd.Series[float], cause: str, did: str) -> Cause | None:
    """Switches and moves are normal in numbers: only those that go with slow turns are a cause."""
    known = rate.dropna()
    together = _together(known, residuals, "when it was more often")
    if not together:
        return None
    return Cause(cause, f"a rank {did} {known.median():.1f} times a second{together}: pin ranks, or free cores")


def _together(measure: pd.Series[float], residuals: pd.Series[float], when: str) -> str:
    """ ", and turns were slower …" where the two go together by more than chance; else nothing."""
    both = pd.concat([measure, residuals], axis=1, join="inner").dropna()
    if len(both) < _LEAST_TURNS or both.iloc[:, 0].nunique() < 2:
        return ""
    from scipy.stats import spearmanr  # takes long to import, and few runs ask

    correlation = spearmanr(both.iloc[:, 0], both.iloc[:, 1])
    if not (correlation.statistic >= _CORRELATED and correlation.pvalue < _BY_CHANCE):
        return ""
    return f", and turns were slower {when} (rank correlation {correlation.statistic:.2f})"
