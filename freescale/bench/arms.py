"""Arms: settings of the layers, by name. The one place that knows which names exist."""

from __future__ import annotations

from dataclasses import dataclass

from freescale.errors import FreeScaleError

BASELINE = "baseline"
LAYERS = ("balance",)


@dataclass(frozen=True)
class Arm:
    """One setting of the layers."""

    name: str
    balance: bool = False

    @property
    def layers(self) -> list[str]:
        return [layer for layer in LAYERS if getattr(self, layer)]


def parse_arm(name: str) -> Arm:
    """`baseline`, or a layer.

    Raises:
        FreeScaleError: no such arm; lists those that exist.
    """
    if name == BASELINE:
        return Arm(name)
    if name in LAYERS:
        return Arm(name, **{name: True})
    raise FreeScaleError(f"arms: {name!r} does not exist; choose from {', '.join((BASELINE, *LAYERS))}")


def parse_arms(names: str) -> list[Arm]:
    """Comma-separated arms; the first is the one that the others are compared with."""
    arms = [parse_arm(name.strip()) for name in names.split(",") if name.strip()]
    if not arms:
        raise FreeScaleError("arms: none given; for example --arms baseline,balance")
    twice = {arm.name for arm in arms if [a.name for a in arms].count(arm.name) > 1}
    if twice:
        raise FreeScaleError(f"arms: {', '.join(sorted(twice))} given twice; name each arm once")
    return arms
