"""Weights of a full design, against the definitions: orders counted one by one, and games solved by hand."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzer.ablation import contrasts

LAYERS = ("balance", "overlap", "smfree")
games = st.integers(1, 4).flatmap(
    lambda n: st.tuples(
        st.just(tuple("abcd"[:n])), st.lists(st.floats(-1e3, 1e3), min_size=2**n, max_size=2**n).map(np.array)
    )
)


def value(layers, saved, subset):
    return saved[contrasts.subsets(layers).index(frozenset(subset))]


@given(games)
def test_shapley_is_the_mean_of_what_a_layer_adds_over_all_orders(game):
    layers, saved = game
    for layer in layers:
        added = []
        for order in permutations(layers):
            before = order[: order.index(layer)]
            added.append(value(layers, saved, (*before, layer)) - value(layers, saved, before))
        assert contrasts.shapley(layers, layer) @ saved == pytest.approx(np.mean(added), abs=1e-9)


@given(games)
def test_shapley_values_add_up_to_the_total(game):
    layers, saved = game
    assert sum(contrasts.shapley(layers, layer) @ saved for layer in layers) == pytest.approx(
        saved[-1] - saved[0], abs=1e-9
    )
    assert contrasts.total(layers) @ saved == saved[-1] - saved[0]


def test_a_game_solved_by_hand():
    # GIVEN balance 10, overlap 20, smfree 0 alone; balance+overlap 24, balance+smfree 16, overlap+smfree 20; all 30
    saved = np.array([0, 10, 20, 0, 24, 16, 20, 30.0])
    assert [sorted(subset) for subset in contrasts.subsets(LAYERS)[4:6]] == [
        ["balance", "overlap"],
        ["balance", "smfree"],
    ]
    # THEN
    assert contrasts.alone(LAYERS, "balance") @ saved == 10
    assert contrasts.last(LAYERS, "balance") @ saved == 30 - 20
    # orders b o s: 10, b s o: 10, o b s: 24 − 20, s b o: 16 − 0, o s b and s o b: 30 − 20
    assert contrasts.shapley(LAYERS, "balance") @ saved == pytest.approx((10 + 10 + 4 + 16 + 10 + 10) / 6)
    # without smfree 24 − 10 − 20 = −6, with it 30 − 16 − 20 + 0 = −6
    assert contrasts.interaction(LAYERS, ("balance", "overlap")) @ saved == pytest.approx(-6)
    # without overlap 16 − 10 − 0 = 6, with it 30 − 24 − 20 + 20 = 6
    assert contrasts.interaction(LAYERS, ("balance", "smfree")) @ saved == pytest.approx(6)
    # 30 − 24 − 16 − 20 + 10 + 20 + 0
    assert contrasts.interaction(LAYERS, LAYERS) @ saved == pytest.approx(0)


@given(st.lists(st.floats(-100, 100), min_size=3, max_size=3))
def test_layers_that_ignore_each_other_have_no_interaction(worth):
    of = dict(zip(LAYERS, worth, strict=True))
    saved = np.array([sum(of[layer] for layer in subset) for subset in contrasts.subsets(LAYERS)])
    for layer in LAYERS:
        assert contrasts.shapley(LAYERS, layer) @ saved == pytest.approx(of[layer], abs=1e-9)
    for group in contrasts.groups(LAYERS):
        assert contrasts.interaction(LAYERS, group) @ saved == pytest.approx(0, abs=1e-9)


def test_pairs_come_before_the_triple():
    assert contrasts.groups(LAYERS) == [
        ("balance", "overlap"), ("balance", "smfree"), ("overlap", "smfree"), ("balance", "overlap", "smfree"),
    ]  # fmt: skip
