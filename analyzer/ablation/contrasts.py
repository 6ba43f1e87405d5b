"""What a layer is worth as weights over the arms of a full factorial design.

A game: `v(S)` is the time that the arm with exactly the layers `S` saves. Alone, last, Shapley value and interaction
are all linear in `v`, so each is one vector of weights, and any linear measure can be attributed with the same vectors.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import combinations
from math import factorial

import numpy as np

from analyzer.stats import Float64

Subset = frozenset[str]


def subsets(layers: Sequence[str]) -> list[Subset]:
    """All 2^n subsets, the empty one first, all layers last: the order of every weight vector."""
    return [frozenset(chosen) for size in range(len(layers) + 1) for chosen in combinations(layers, size)]


def total(layers: Sequence[str]) -> Float64:
    """float64[2^n]: all layers against none."""
    return _weights(layers, {frozenset(layers): 1.0, frozenset(): -1.0} if layers else {})


def alone(layers: Sequence[str], layer: str) -> Float64:
    """float64[2^n]: `layer` and nothing else against nothing."""
    return _weights(layers, {frozenset([layer]): 1.0, frozenset(): -1.0})


def last(layers: Sequence[str], layer: str) -> Float64:
    """float64[2^n]: all layers against all but `layer`."""
    return _weights(layers, {frozenset(layers): 1.0, frozenset(layers) - {layer}: -1.0})


def shapley(layers: Sequence[str], layer: str) -> Float64:
    """float64[2^n]: what `layer` adds, averaged over all orders of adding layers. Over layers they sum to `total`.

    Source: Shapley, A Value for n-Person Games (1953).
    """
    return interaction(layers, [layer])


def interaction(layers: Sequence[str], group: Collection[str]) -> Float64:
    """float64[2^n]: what the layers of `group` do together beyond what fewer of them do, averaged over the others.

    Positive: more than the sum of the parts. Negative: they remove the same time. For one layer it is the Shapley
    value. Source: Grabisch & Roubens, An axiomatic approach to the concept of interaction (1999).
    """
    others = [layer for layer in layers if layer not in group]
    n, k = len(layers), len(group)
    weights: dict[Subset, float] = {}
    for present in subsets(others):
        share = factorial(len(present)) * factorial(n - len(present) - k) / factorial(n - k + 1)
        for part in subsets(sorted(group)):
            sign = (-1) ** (k - len(part))
            weights[present | part] = weights.get(present | part, 0.0) + sign * share
    return _weights(layers, weights)


def groups(layers: Sequence[str]) -> list[tuple[str, ...]]:
    """The pairs, triples, … of layers, smaller ones first."""
    return [group for size in range(2, len(layers) + 1) for group in combinations(layers, size)]


def _weights(layers: Sequence[str], of: dict[Subset, float]) -> Float64:
    return np.array([of.get(subset, 0.0) for subset in subsets(layers)])
