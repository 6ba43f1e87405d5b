"""Arms: settings of the layers, by name. The one place that knows which names exist."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from itertools import combinations

from freescale.errors import FreeScaleError

BASELINE, SDD, ALL = "baseline", "sdd", "freescale"
AGAIN = "-aa"
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

    `sdd+` before layers without overlap adds them to `sdd`. `baseline-aa` and `sdd-aa` are those arms under another
    name: what they seem to gain is noise.

    Raises:
        FreeScaleError: no such arm; lists those that exist.
    """
    if name.removesuffix(AGAIN) in (BASELINE, SDD):
        return Arm(name, prefetch_ids=name.startswith(SDD))
    layers = list(LAYERS) if name == ALL else name.split("+")
    prefetch_ids = layers[0] == SDD
    layers = layers[prefetch_ids:]
    if len(set(layers)) == len(layers) and set(layers) <= set(LAYERS) and not (prefetch_ids and "overlap" in layers):
        return Arm(name, prefetch_ids=prefetch_ids, **dict.fromkeys(layers, True))
    raise FreeScaleError(
        f"arms: {name!r} does not exist; choose from {BASELINE}, {SDD}, {', '.join(LAYERS)}, {ALL}, {BASELINE}{AGAIN}, "
        "or layers joined by +, as balance+overlap"
    )


def ablation_arms(reference: str, without: Collection[str] = ()) -> tuple[str, ...]:
    """Names of all combinations of the layers on top of `reference`, the reference first, and its A/A copy.

    Args:
        reference: `baseline` or `sdd`.
        without: layers that are left out.
    """
    layers = [layer for layer in LAYERS if layer not in without]
    names = [reference, reference + AGAIN]
    for size in range(1, len(layers) + 1):
        for chosen in combinations(layers, size):
            on_top = [SDD] if reference == SDD and "overlap" not in chosen else []
            names.append(ALL if chosen == LAYERS else "+".join([*on_top, *chosen]))
    return tuple(names)


def parse_arms(names: str) -> list[Arm]:
    """Comma-separated arms; the first is the one that the others are compared with."""
    arms = [parse_arm(name.strip()) for name in names.split(",") if name.strip()]
    if not arms:
        raise FreeScaleError("arms: none given; for example --arms baseline,balance")
    twice = {arm.name for arm in arms if [a.name for a in arms].count(arm.name) > 1}
    if twice:
        raise FreeScaleError(f"arms: {', '.join(sorted(twice))} given twice; name each arm once")
    return arms
