"""How often do intervals over a few blocks cover the truth? Four methods on generated runs, for docs/method.md.

python benchmarks/intervals.py [REPEATS]
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "analyzer"))

from ablation_runs import ARMS, REFERENCE_MS, log_steps

from analyzer.ablation import noise_floor
from analyzer.stats import gain, holm, speedup, verdict

Float64 = NDArray[np.float64]
Bounds = tuple[Float64, Float64]
RESAMPLES = 500
LOW, HIGH = 0.025, 0.975
NOISES: dict[str, Callable[[np.random.Generator, tuple[int, ...]], np.ndarray] | None] = {
    "normal": None,
    "heavy tails": lambda rng, shape: rng.standard_t(3, shape) / np.sqrt(3),
    "skewed": lambda rng, shape: rng.exponential(1, shape) - 1,
}


def main() -> None:
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    rng = np.random.default_rng(0)
    print(f"coverage of nominal 95 %, {repeats} runs each; width relative to Student's")
    for blocks in (6, 12, 20):
        for name, noise in NOISES.items():
            logs = log_steps(rng, repeats, blocks, np.full(len(ARMS), REFERENCE_MS), noise=noise)
            medians = np.median(logs, axis=3)
            cells, unit = [], 1.0
            for method, (low, high) in methods(medians[:, :, 0] - medians[:, :, 1], rng).items():
                covered, width = float(((low <= 0) & (high >= 0)).mean()), float(np.median(high - low))
                unit = width if method == "student" else unit
                cells.append(f"{method} {100 * covered:.1f} % ({width / unit:.2f})")
            print(f"{blocks:>3} blocks, {name:<12}" + "   ".join(cells))
    for blocks in (6, 12):
        alarms = 100 * false_alarms(rng, repeats, blocks)
        print(f"A/A runs with any arm called better or worse, {blocks} blocks: {alarms:.1f} %")


def methods(values: Float64, rng: np.random.Generator) -> dict[str, Bounds]:
    """Intervals of the mean of float64[repeats, blocks], by method."""
    blocks = values.shape[1]
    mean, error = values.mean(1), values.std(1, ddof=1) / np.sqrt(blocks)
    margin = stats.t.ppf(HIGH, blocks - 1) * error
    chosen = rng.integers(0, blocks, (len(values), RESAMPLES, blocks))
    drawn = np.take_along_axis(values[:, None, :].repeat(RESAMPLES, 1), chosen, 2)
    means, errors = drawn.mean(2), drawn.std(2, ddof=1) / np.sqrt(blocks)
    with np.errstate(divide="ignore", invalid="ignore"):
        studentized = np.where(errors > 1e-12, (means - mean[:, None]) / errors, np.nan)
    low, high = np.nanquantile(studentized, [LOW, HIGH], axis=1)
    return {
        "student": (mean - margin, mean + margin),
        "studentized bootstrap": (mean - high * error, mean - low * error),
        "percentile": tuple(np.quantile(means, [LOW, HIGH], axis=1)),
        "BCa": bca(values, means),
    }


def bca(values: Float64, means: Float64) -> Bounds:
    """Source: Efron, Better Bootstrap Confidence Intervals (1987); acceleration from the jackknife."""
    centre = values.mean(1)
    below = (means < centre[:, None]).mean(1).clip(1 / RESAMPLES, 1 - 1 / RESAMPLES)
    bias, off = stats.norm.ppf(below), values - centre[:, None]
    acceleration = (off**3).sum(1) / (6 * (off**2).sum(1) ** 1.5)
    ordered = np.sort(means, 1)
    ends = []
    for level in (LOW, HIGH):
        shifted = bias + stats.norm.ppf(level)
        place = stats.norm.cdf(bias + shifted / (1 - acceleration * shifted))
        ends.append(ordered[np.arange(len(values)), np.clip((place * RESAMPLES).astype(int), 0, RESAMPLES - 1)])
    return ends[0], ends[1]


def false_alarms(rng: np.random.Generator, repeats: int, blocks: int) -> float:
    """Share of runs of nine equal arms in which any arm is called an improvement or a regression."""
    logs = log_steps(rng, repeats, blocks, np.full(len(ARMS), REFERENCE_MS))
    called = 0
    for medians in np.exp(np.median(logs, axis=3)):
        floor = noise_floor(ARMS, pd.DataFrame(medians, columns=ARMS))[1] or 0.0
        ratios = [speedup(medians[:, 0], medians[:, index]) for index in range(1, len(ARMS))]
        corrected = holm([ratio.p for ratio in ratios])
        said = {verdict(gain(ratio), False, p, floor) for ratio, p in zip(ratios, corrected, strict=True)}
        called += bool(said & {"improvement", "regression"})
    return called / repeats


if __name__ == "__main__":
    main()
