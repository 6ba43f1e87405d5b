"""Arms: settings of the layers, by name. The one place that knows which names exist."""

from __future__ import annotations

from dataclasses import dataclass

from freescale.errors import FreeScaleError

BASELINE, BASELINE_AGAIN, SDD, ALL = "baseline", "baseline-aa", "sdd", "freescale"
LAYERS = ("balance", "overlap", "smfree")


@dataclass(frozen=True)
class Arm:
    """One setting of the layers.

    Attributes:
        prefetch_ids: exchange IDs a step ahead; no layer, but what TorchRec does (`sdd`).
    """

    name: str
    balance: bool = False
    overlap: bool = False
    smfree: bool = False
    prefetch_ids: bool = False

    @property
    def layers(self) -> list[str]:
        return [layer for layer in LAYERS if getattr(self, layer)]

    @property
    def batches_ahead(self) -> int:
        """How many batches must be prepared before the current one computes."""
        return 2 if self.overlap or self.prefetch_ids else 1


def parse_arm(name: str) -> Arm:
    """`baseline`, `sdd`, `freescale` (all layers), or layers joined by `+`, in any order (the name is kept as given).

    `baseline-aa` is the baseline under another name: what it seems to gain is noise.

    Raises:
        FreeScaleError: no such arm; lists those that exist.
    """
    if name in (BASELINE, BASELINE_AGAIN):
        return Arm(name)
    if name == SDD:
        return Arm(name, prefetch_ids=True)
    layers = list(LAYERS) if name == ALL else name.split("+")
    if len(set(layers)) == len(layers) and set(layers) <= set(LAYERS):
        return Arm(name, **dict.fromkeys(layers, True))
    raise FreeScaleError(
        f"arms: {name!r} does not exist; choose from {BASELINE}, {SDD}, {', '.join(LAYERS)}, {ALL}, {BASELINE_AGAIN}, "
        "or layers joined by +, as balance+overlap"
    )


def parse_arms(names: str) -> list[Arm]:
    """Comma-separated arms; the first is the one that the others are compared with."""
    arms = [parse_arm(name.strip()) for name in names.split(",") if name.strip()]
    if not arms:
        raise FreeScaleError("arms: none given; for example --arms baseline,balance")
    twice = {arm.name for arm in arms if [a.name for a in arms].count(arm.name) > 1}
    if twice:
        raise FreeScaleError(f"arms: {', '.join(sorted(twice))} given twice; name each arm once")
    return arms
