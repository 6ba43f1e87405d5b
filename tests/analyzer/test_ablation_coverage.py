"""Intervals cover what they promise, measured on generated runs whose truth is known."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from ablation_runs import ARMS, LAYERS, REFERENCE_MS, arm_name, arms_of, log_steps, planted_ms, steps_table

from analyzer.ablation import Measured, ablate, block_medians, contrasts, noise_floor
from analyzer.ablation.attribution import Saved
from analyzer.ablation.cube import Cube
from analyzer.stats import estimate, gain, holm, speedup, verdict

CUBE = Cube(LAYERS, tuple(arm_name(layers) for layers in arms_of()))
PLANTED = {
    ("balance",): 30.0, ("overlap",): 20.0, ("smfree",): -4.0, ("balance", "overlap"): -9.0, ("overlap", "smfree"): 6.0,
    ("balance", "overlap", "smfree"): 3.0,
}  # fmt: skip
NOISES = {
    "normal": None,
    "heavy tails": lambda rng, shape: rng.standard_t(3, shape) / np.sqrt(3),
    "skewed": lambda rng, shape: rng.exponential(1, shape) - 1,
}
REPEATS = 1500


def truth(times):
    """Every contrast of the planted game, straight from the definition of the dividends."""
    saved = np.array([times["baseline"] - times[arm] for arm in CUBE.arms])
    named = {layer: contrasts.shapley(LAYERS, layer) for layer in LAYERS}
    named |= {"×".join(group): contrasts.interaction(LAYERS, group) for group in contrasts.groups(LAYERS)}
    named |= {"total": contrasts.total(LAYERS), "last": contrasts.last(LAYERS, "overlap")}
    return {name: (weights, float(weights @ saved)) for name, weights in named.items()}


def test_the_planted_game_is_what_was_meant():
    by_hand = truth(planted_ms(PLANTED))
    assert by_hand["total"][1] == pytest.approx(30 + 20 - 4 - 9 + 6 + 3)
    assert by_hand["balance"][1] == pytest.approx(30 - 9 / 2 + 3 / 3)
    assert by_hand["overlap×smfree"][1] == pytest.approx(6 + 3 / 2)
    assert by_hand["balance×overlap×smfree"][1] == pytest.approx(3)


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("blocks", [6, 12])
def test_planted_effects_and_interactions_lie_in_their_intervals_at_the_nominal_rate(blocks, noise):
    times = planted_ms(PLANTED)
    rng = np.random.default_rng(blocks)
    logs = log_steps(rng, REPEATS, blocks, np.array([times[arm] for arm in CUBE.arms]), noise=NOISES[noise])
    medians = np.median(logs, axis=3)
    runs = [Saved(repeat - repeat[:, :1], REFERENCE_MS) for repeat in medians]
    for name, (weights, planted) in truth(times).items():
        intervals = np.array([run.contrast(weights).ci95 for run in runs])
        covered = ((intervals[:, 0] <= planted) & (planted <= intervals[:, 1])).mean()
        assert 0.93 <= covered <= 0.97, (name, covered)


def test_arms_that_do_the_same_are_rarely_called_better_or_worse():
    # GIVEN 200 runs of nine equal arms
    rng = np.random.default_rng(7)
    logs = log_steps(rng, 200, 6, np.full(len(ARMS), REFERENCE_MS))
    called = 0
    for medians in np.exp(np.median(logs, axis=3)):
        # WHEN each is judged as a run is: all arms together, against the noise floor
        of_blocks = pd.DataFrame(medians, columns=ARMS)
        floor = noise_floor(ARMS, of_blocks)[1]
        ratios = [speedup(medians[:, 0], medians[:, index]) for index in range(1, len(ARMS))]
        corrected = holm([ratio.p for ratio in ratios])
        said = [verdict(gain(r), False, p, floor) for r, p in zip(ratios, corrected, strict=True)]
        called += any(word in ("improvement", "regression") for word in said)
    # THEN hardly any run calls even one of them different
    assert called <= 0.05 * 200


def test_layers_worth_nothing_are_rarely_given_something():
    rng = np.random.default_rng(8)
    logs = log_steps(rng, 200, 6, np.full(len(ARMS), REFERENCE_MS), steps=4)
    called = 0
    for repeat in logs:
        steps = steps_table(repeat, ARMS, ranks=1, warmup=0)
        report = ablate(Measured(ARMS, steps, steps, pd.DataFrame()))
        verdicts = {entry["verdict"] for entry in report["attribution"].values()}
        called += bool(verdicts & {"improvement", "regression"})
    assert called <= 0.05 * 200


def test_a_real_gain_is_seen():
    rng = np.random.default_rng(9)
    times = planted_ms({("balance",): 30.0, ("overlap",): 30.0})
    steps = steps_table(log_steps(rng, 1, 12, np.array([times[arm] for arm in ARMS]))[0], ARMS)
    timed = steps[~steps["warmup"]].groupby(["arm", "block", "step"], as_index=False)["step_ms"].max()
    report = ablate(Measured(ARMS, timed, steps, pd.DataFrame()))
    assert report["attribution"]["balance"]["verdict"] == "improvement"
    assert report["attribution"]["overlap"]["verdict"] == "improvement"
    assert report["attribution"]["smfree"]["verdict"] in ("neutral", "inconclusive")


def test_students_interval_of_a_hand_computed_sample():
    # mean 3, deviation √2.5, √5 of it; t(0.975, 4) = 2.7764 from tables; |3| / 0.7071 = 4.243 has p = 0.0132
    found = estimate(3.0, np.array([1.0, 2.0, 3.0, 4.0, 5.0]))
    assert found.ci95 == pytest.approx((3 - 2.7764 * 0.70711, 3 + 2.7764 * 0.70711), abs=1e-3)
    assert found.p == pytest.approx(0.0132, abs=1e-4)


def test_two_blocks_give_a_value_but_no_interval():
    found = estimate(1.5, np.array([1.0, 2.0]))
    assert (found.value, found.ci95, found.p) == (1.5, None, None)


def test_holm_against_an_example_by_hand():
    # sorted 0.005, 0.01, 0.03, 0.04 times 4, 3, 2, 1 is 0.02, 0.03, 0.06, 0.04; the last may not fall below the third
    assert holm([0.01, 0.04, 0.03, None, 0.005]) == pytest.approx([0.03, 0.06, 0.06, None, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]


def test_medians_are_of_a_blocks_timed_steps():
    timed = pd.DataFrame(
        {"block": [0, 0, 0, 1], "arm": ["a"] * 4, "step": [0, 1, 2, 0], "step_ms": [1.0, 9.0, 2.0, 5.0]}
    )
    assert block_medians(timed)["a"].tolist() == [2.0, 5.0]
