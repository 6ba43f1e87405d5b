"""The shapes of manifest.json and report.json that the pages rely on: checked once on opening, so that nothing after
has to doubt a type. Keys may be absent; a key of the wrong type is an error that names it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypedDict

import msgspec

from analyzer.errors import AnalyzerError

Number = float | None


class Estimate(TypedDict, total=False):
    value: Number
    ci95: list[Number] | None


class StepTime(TypedDict, total=False):
    median: Number
    ci95: list[Number] | None
    min: Number
    n: int | None


class Arm(TypedDict, total=False):
    step_ms: StepTime | None
    samples_per_s: Number
    bubble_pct: Number
    straggler_pct: Number
    compute_ms: Number
    exposed_comm_ms: Number
    exposed_copy_ms: Number
    exposed_total_ms: Number
    host_ms: Number
    imbalance: Number


class Parity(TypedDict, total=False):
    max_abs: Number
    max_rel: Number
    bit_exact: bool | None


class Comparison(TypedDict, total=False):
    versus: str
    speedup: Estimate | None
    bubble_reduction_pct: Estimate | None
    exposed_reduction_pct: Estimate | None
    loss_parity: Parity | None
    verdict: str | None
    blocks_needed: Number


class ClassShare(TypedDict, total=False):
    alone_ms: Number
    last_ms: Number
    shapley_ms: Estimate | None


class Attribution(TypedDict, total=False):
    alone: Estimate | None
    last: Estimate | None
    shapley_ms: Estimate | None
    share_pct: Number
    p_holm: Number
    verdict: str | None
    reason: str | None
    blocks_needed: Number
    by_class: dict[str, ClassShare]


class Interaction(Estimate, total=False):
    p_holm: Number
    verdict: str | None


class Corner(TypedDict):
    arm: str
    layers: list[str]
    step_ms: Number
    saved_ms: Estimate
    speedup: Estimate


class Again(TypedDict):
    arm: str
    saved_ms: Estimate
    floor_pct: Number


class PairedBlock(TypedDict):
    block: int
    values: dict[str, float]


class ClassTotal(TypedDict, total=False):
    reference_ms: Number
    full_ms: Number
    total_ms: Estimate | None
    noise_floor_ms: Number


class LeftOut(TypedDict):
    layer: str
    verdict: str
    reason: str | None


class Cause(TypedDict):
    cause: str
    text: str


class Noise(TypedDict):
    causes: list[Cause]
    floor_pct: Number
    blocks: int


class Method(TypedDict):
    interval: str
    level: float
    correction: str
    min_effect_pct: float
    neutral_band_pct: float


class Ablation(TypedDict):
    """Written as a whole by the analyzer, so that every key is there."""

    reference: str
    full: str
    layers: list[str]
    reference_ms: float
    full_ms: float
    total_ms: Estimate
    cube: list[Corner]
    aa: Again | None
    blocks: list[PairedBlock]
    classes: dict[str, ClassTotal]
    profiled_blocks: int
    left_out: list[LeftOut]
    noise: Noise
    method: Method


class Report(TypedDict, total=False):
    provenance: str
    world_size: int | None
    headline: str | None
    warnings: list[str]
    arms: dict[str, Arm]
    compare: dict[str, Comparison]
    attribution: dict[str, Attribution]
    interaction_estimates: dict[str, Interaction]
    noise_floor_ms: Number
    ablation: Ablation | None


class Machine(TypedDict, total=False):
    host: str | None
    cpu: str | None
    cores: int | None
    memory_bytes: int | None
    gpus: list[Any] | None


class Failure(TypedDict, total=False):
    rank: int | None
    reason: str | None
    log_tail: str | list[str] | None


class Manifest(TypedDict, total=False):
    provenance: str
    complete: bool
    created_utc: str | None
    command: list[str] | None
    seed: int | None
    workload: dict[str, Any] | str | None
    world_size: int | None
    backend: str | None
    device: str | None
    arms: list[str]
    blocks: int | None
    steps_per_turn: int | None
    warmup_steps: int | None
    profiled_steps: int | None
    machine: Machine | None
    versions: dict[str, Any] | None
    git_commit: str | None
    warnings: list[str]
    failure: Failure | None


def check(file: Path, value: dict[str, Any], shape: type) -> dict[str, Any]:
    """The value as it is, once it is known to have the shape.

    Raises:
        AnalyzerError: a key has the wrong type; the message names file and key.
    """
    try:
        msgspec.convert(value, shape)
    except msgspec.ValidationError as error:
        raise AnalyzerError(f"{file}: {error}; analyse the run again, or take it from where it was made") from error
    return value
