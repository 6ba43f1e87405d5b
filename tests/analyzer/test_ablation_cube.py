"""Which arms make a complete design; what is missing, wrong or idle is named, not guessed."""

from __future__ import annotations

import pytest

from analyzer.ablation.cube import LAYERS, LeftOut, aa_arm, find_cube, layers_of

FULL = (
    "baseline", "balance", "overlap", "smfree", "balance+overlap", "balance+smfree", "overlap+smfree", "freescale",
)  # fmt: skip


def test_all_eight_arms_in_the_order_of_the_weights():
    cube, left_out = find_cube(["baseline-aa", *reversed(FULL)], {}, {})
    assert cube is not None
    assert (cube.layers, cube.arms, left_out) == (LAYERS, FULL, [])


def test_names_are_read_in_any_order():
    cube, _ = find_cube(["baseline", "overlap", "overlap+balance", "balance"], {}, {})
    assert cube is not None
    assert cube.arms == ("baseline", "balance", "overlap", "overlap+balance")
    assert layers_of("smfree+balance") == ["balance", "smfree"]
    assert layers_of("baseline-aa") == layers_of("sdd") == []


def test_without_the_arm_of_two_layers_only_one_of_them_is_attributed():
    cube, left_out = find_cube(["baseline", "balance", "overlap"], {}, {})
    assert cube is not None
    assert cube.arms == ("baseline", "balance")
    assert left_out == [LeftOut("overlap", "not measured", "the run has no arm balance+overlap beside baseline")]


def test_a_wrong_arm_takes_its_layer_out_of_the_design():
    cube, left_out = find_cube(list(FULL), {"overlap": "its loss is not finite"}, {})
    assert cube is not None
    assert cube.layers == ("balance", "smfree")
    assert left_out == [LeftOut("overlap", "wrong", "overlap is wrong: its loss is not finite")]


def test_a_wrong_combination_costs_one_layer_only():
    cube, left_out = find_cube(list(FULL), {"freescale": "off"}, {})
    assert cube is not None
    assert cube.layers == ("balance", "overlap")
    assert [(out.layer, out.verdict) for out in left_out] == [("smfree", "wrong")]


def test_a_layer_that_cannot_act_is_not_part_of_the_design():
    cube, left_out = find_cube(["baseline", "overlap", "smfree", "overlap+smfree"], {}, {"balance": "one rank"})
    assert cube is not None
    assert cube.layers == ("overlap", "smfree")
    assert left_out == [LeftOut("balance", "cannot act", "one rank")]


def test_on_top_of_sdd_the_arms_without_overlap_must_prefetch_too():
    arms = ["sdd", "sdd-aa", "sdd+balance", "overlap", "balance+overlap"]
    cube, _ = find_cube(arms, {}, {})
    assert cube is not None
    assert cube.arms == ("sdd", "sdd+balance", "overlap", "balance+overlap")
    assert aa_arm(arms) == "sdd-aa"
    only_overlap, left_out = find_cube(["sdd", "balance", "overlap", "balance+overlap"], {}, {})
    assert only_overlap is not None
    assert only_overlap.layers == ("overlap",)
    assert left_out[0].reason == "the run has no arm balance beside sdd"


@pytest.mark.parametrize("arms", [[], ["balance", "overlap"], ["baseline"], ["baseline", "sdd"]])
def test_arms_without_a_design(arms):
    assert find_cube(arms, {}, {})[0] is None
