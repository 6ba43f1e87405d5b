"""What to run: one frozen, checked description, written to JSON for the ranks and into the manifest for everybody."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from freescale.balance.policies import POLICIES
from freescale.bench.arms import Arm, parse_arm
from freescale.errors import FreeScaleError

if TYPE_CHECKING:
    from freescale.comm.link_model import Link
    from workloads.registry import Workload

DEFAULT_PRESET = "hstu-small"


@dataclass(frozen=True)
class RunConfig:
    """One run.

    Attributes:
        preset: name in `workloads.registry`.
        arms: names; the first is what the others are compared with.
        blocks: randomized rounds of all arms.
        steps: timed steps of an arm in a block.
        warmup_steps: steps before them, run and recorded but not timed into any result.
        profiled_steps: steps of an arm in a block recorded by the profiler, in a pass of their own after all timing;
            they repeat the block's batches, of which two come first in which the profiler warms up and settles.
        seed: of batches, initial weights and arm order.
        data: interaction log to train on instead of generated batches.
        columns: meaning -> column name in `data`.
        device: `cpu` or `cuda`.
        policy: of the balance layer, see `freescale.balance.policies.POLICIES`.
        collision_rate: of consecutive batches' item rows, instead of the preset's.
        link_gbps: emulate a link of this bandwidth per rank, Gb/s; makes the run *emulated*.
        link_latency_us: latency of that link.
        budget_min: minutes that the run may take: as many blocks as fit, at most `blocks`; None is no limit.
        stall_timeout_s: a rank without progress for so long ends the run.
    """

    preset: str = DEFAULT_PRESET
    ranks: int = 2
    arms: tuple[str, ...] = ("baseline", "balance")
    blocks: int = 6
    steps: int = 4
    warmup_steps: int = 2
    profiled_steps: int = 2
    seed: int = 0
    data: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    device: str = "cpu"
    policy: str = POLICIES[0]
    collision_rate: float | None = None
    link_gbps: float | None = None
    link_latency_us: float = 50.0
    budget_min: float | None = None
    stall_timeout_s: float = 60.0

    def __post_init__(self) -> None:
        least = {"ranks": 1, "blocks": 1, "steps": 1, "warmup_steps": 0, "profiled_steps": 1, "seed": 0}
        for name, low in least.items():
            value = getattr(self, name)
            if value < low:
                raise FreeScaleError(f"{name}: {value}, must be at least {low}")
        if self.stall_timeout_s < 5:
            raise FreeScaleError(f"stall_timeout_s: {self.stall_timeout_s:g}, must be at least 5")
        if self.steps_in_profile > self.steps_per_turn:
            raise FreeScaleError(
                f"profiled_steps: {self.profiled_steps}, must leave two unrecorded steps among the "
                f"{self.steps_per_turn} of a block; raise steps or warmup_steps"
            )
        if self.budget_min is not None and not self.budget_min >= 1:
            raise FreeScaleError(f"budget_min: {self.budget_min:g}, must be at least 1")
        if self.policy not in POLICIES:
            raise FreeScaleError(f"policy: {self.policy!r}, must be one of {', '.join(POLICIES)}")
        if self.link_gbps is not None and not self.link_gbps > 0:
            raise FreeScaleError(f"link_gbps: {self.link_gbps:g}, must be above 0")
        if not self.link_latency_us >= 0:
            raise FreeScaleError(f"link_latency_us: {self.link_latency_us:g}, must be at least 0")
        if self.device not in ("cpu", "cuda"):
            raise FreeScaleError(f"device: {self.device!r}, must be cpu or cuda")

    @property
    def parsed_arms(self) -> list[Arm]:
        return [parse_arm(name) for name in self.arms]

    @property
    def link(self) -> Link | None:
        """The link to emulate, if any."""
        if self.link_gbps is None:
            return None
        from freescale.comm.link_model import Link

        return Link(self.link_gbps, self.link_latency_us)

    def workload(self) -> Workload:
        """What to train on, built from the preset and what was asked for instead of it.

        Raises:
            FreeScaleError: no such preset, a value out of range, or a data file that cannot be used.
        """
        from workloads import registry

        preset = registry.preset(self.preset)
        if self.collision_rate is not None:
            if self.data is not None:
                raise FreeScaleError("collision_rate: an interaction log has its own; leave one of the two out")
            preset = replace(preset, collision_rate=self.collision_rate)
        return registry.build(preset, self.seed, self.data, self.columns)

    @property
    def steps_per_turn(self) -> int:
        """Steps of one arm in one block, warm-up included."""
        return self.warmup_steps + self.steps

    @property
    def steps_in_profile(self) -> int:
        """Steps of a profiled turn: others first, at least two in which the profiler warms up and settles."""
        return max(self.warmup_steps, 2) + self.profiled_steps

    @property
    def steps_in_all(self) -> int:
        return len(self.arms) * self.blocks * (self.steps_per_turn + self.steps_in_profile)

    @property
    def batches_needed(self) -> int:
        """Global batches that the run uses."""
        return self.batches_of(self.blocks - 1).stop

    def batches_of(self, block: int) -> range:
        """Numbers of a block's global batches: one for each step of a turn, and one that is only prepared."""
        each = self.steps_per_turn + 1
        return range(block * each, (block + 1) * each)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> RunConfig:
        """The configuration that `as_json` gave."""
        return cls(**{**values, "arms": tuple(values["arms"])})

    def save(self, file: Path) -> None:
        file.write_text(json.dumps(self.as_json()), encoding="utf-8")

    @classmethod
    def load(cls, file: Path) -> RunConfig:
        return cls.from_json(json.loads(file.read_text(encoding="utf-8")))
