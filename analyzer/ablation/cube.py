"""Which arms of a run make a full factorial design: every combination of some layers, each measured and right.

Where a combination is missing or computes something else, the largest complete design without it is used, and what
was left out is said.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from analyzer.ablation.contrasts import Subset, subsets

LAYERS = ("balance", "overlap", "smfree")
ALL, PREFETCH, AGAIN = "freescale", "sdd", "-aa"


@dataclass(frozen=True)
class Cube:
    """A complete design.

    Attributes:
        layers: those that are varied.
        arms: one for each of `subsets(layers)`, in that order; the first is the reference, the last has all layers.
    """

    layers: tuple[str, ...]
    arms: tuple[str, ...]


@dataclass(frozen=True)
class LeftOut:
    """A layer outside the design: `verdict` is wrong, cannot act or not measured."""

    layer: str
    verdict: str
    reason: str


def layers_of(arm: str) -> list[str]:
    """The layers that are on in an arm, by its name."""
    if arm == ALL:
        return list(LAYERS)
    return [layer for layer in LAYERS if layer in arm.split("+")]


def reference_of(arms: Sequence[str]) -> str:
    """The arm that the others are compared with: the baseline, else the first."""
    return "baseline" if "baseline" in arms else arms[0]


def aa_arm(arms: Sequence[str]) -> str | None:
    """The reference under another name, if there is such an arm."""
    name = reference_of(arms) + AGAIN if arms else ""
    return name if name in arms else None


def find_cube(
    arms: Sequence[str], wrong: Mapping[str, str], cannot_act: Mapping[str, str]
) -> tuple[Cube | None, list[LeftOut]]:
    """The largest complete design among `arms`, None without any layer, and the layers outside it.

    Args:
        wrong: arms that compute something else -> how; never part of a design.
        cannot_act: layers that change nothing in this run -> why.
    """
    left_out = [LeftOut(layer, "cannot act", cannot_act[layer]) for layer in LAYERS if layer in cannot_act]
    there = _by_layers(arms)
    layers = [layer for layer in LAYERS if layer not in cannot_act and any(layer in subset for subset in there)]
    usable = {subset for subset, arm in there.items() if arm not in wrong}
    chosen = next(
        (
            combination
            for size in range(len(layers), 0, -1)
            for combination in combinations(layers, size)
            if usable.issuperset(subsets(combination))
        ),
        (),
    )
    left_out += [_left_out(layer, chosen, there, wrong) for layer in layers if layer not in chosen]
    if not chosen:
        return None, left_out
    return Cube(chosen, tuple(there[subset] for subset in subsets(chosen))), left_out


def _by_layers(arms: Sequence[str]) -> dict[Subset, str]:
    """The arms that build on the reference, by their layers."""
    if not arms:
        return {}
    reference = reference_of(arms)
    if layers_of(reference):
        return {}
    found = {frozenset[str](): reference}
    for arm in arms:
        layers = frozenset(layers_of(arm))
        if layers and _same_schedule(arm, reference):
            found.setdefault(layers, arm)
    return found


def _same_schedule(arm: str, reference: str) -> bool:
    """Do the two exchange IDs alike, so that the layers alone tell them apart? Overlap always prefetches IDs."""
    if PREFETCH in reference.split("+"):
        return PREFETCH in arm.split("+") or "overlap" in layers_of(arm)
    return PREFETCH not in arm.split("+")


def _left_out(layer: str, chosen: Sequence[str], there: Mapping[Subset, str], wrong: Mapping[str, str]) -> LeftOut:
    needed = [subset for subset in subsets([*chosen, layer]) if layer in subset]
    for subset in needed:
        arm = there.get(subset)
        if arm in wrong:
            return LeftOut(layer, "wrong", f"{arm} is wrong: {wrong[str(arm)]}")
    missing = next(subset for subset in needed if subset not in there)
    name = "+".join(name for name in LAYERS if name in missing)
    return LeftOut(layer, "not measured", f"the run has no arm {name} beside {there[frozenset()]}")
