"""Synthetic runs with planted effects: steps that drift, autocorrelate and depend on their batch, in random order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import combinations

import numpy as np
import pandas as pd

LAYERS = ("balance", "overlap", "smfree")
REFERENCE_MS = 240.0


def arm_name(layers: tuple[str, ...]) -> str:
    if len(layers) == len(LAYERS):
        return "freescale"
    return "+".join(layers) if layers else "baseline"


def arms_of(layers: tuple[str, ...] = LAYERS) -> list[tuple[str, ...]]:
    return [chosen for size in range(len(layers) + 1) for chosen in combinations(layers, size)]


ARMS = [arm_name(layers) for layers in arms_of()] + ["baseline-aa"]


def planted_ms(dividends: Mapping[tuple[str, ...], float]) -> dict[str, float]:
    """Step time of every arm, from what each group of layers saves beyond its parts, in ms."""
    times = {
        arm_name(layers): REFERENCE_MS - sum(ms for group, ms in dividends.items() if set(group) <= set(layers))
        for layers in arms_of()
    }
    return {**times, "baseline-aa": REFERENCE_MS}


Noise = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]


def log_steps(
    rng: np.random.Generator, repeats: int, blocks: int, arm_ms: np.ndarray, steps: int = 6, noise: Noise | None = None
) -> np.ndarray:
    """float64[repeats, blocks, arms, steps], ln of step ms.

    Steps follow one another in time: their noise is AR(1) across turns and arms, on a drift of up to 30 % over the
    run; arms take their turns in random order; batches differ by 20 %, and are the same in all arms.
    """
    arms = len(arm_ms)
    count = blocks * arms * steps
    shocks = (noise or (lambda generator, shape: generator.standard_normal(shape)))(rng, (count, repeats))
    wave = np.empty_like(shocks)
    wave[0] = shocks[0]
    for now in range(1, count):
        wave[now] = 0.7 * wave[now - 1] + shocks[now]
    drift = np.linspace(0, 1, count)[:, None] * rng.uniform(-0.3, 0.3, repeats)
    in_time = (0.03 * wave + drift).T.reshape(repeats, blocks, arms, steps)
    position = rng.random((repeats, blocks, arms)).argsort(axis=2)
    of_arms = np.take_along_axis(in_time, position[..., None], axis=2)
    batch = rng.normal(0, 0.2, (repeats, blocks, 1, steps))
    return np.log(arm_ms)[None, None, :, None] + of_arms + batch


def steps_table(logs: np.ndarray, arms: list[str], ranks: int = 2, warmup: int = 1) -> pd.DataFrame:
    """steps.parquet of one repeat, float64[blocks, arms, steps]: losses alike, one rank a little faster."""
    blocks, _, steps = logs.shape
    rows = [
        {
            "block": block, "arm": arm, "position": index, "step": step + warmup * (not warm), "rank": rank,
            "warmup": warm, "step_ms": float(np.exp(logs[block, index, step])) * (1 if rank == 0 else 0.97),
            "samples": 8, "moved_bytes": 100 * ("balance" in arm or arm == "freescale"),
            "loss": 0.5 + 0.01 * block + 0.001 * step,
        }
        for block in range(blocks)
        for index, arm in enumerate(arms)
        for warm, chosen in ((True, range(warmup)), (False, range(steps)))
        for step in chosen
        for rank in range(ranks)
    ]  # fmt: skip
    return pd.DataFrame(rows)
