"""The ablation part of report.json, from tables: what adds up, what is left out, which cause is named."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pandas as pd
import pytest
from ablation_runs import ARMS, LAYERS, log_steps, planted_ms, steps_table
from hypothesis import given, settings
from hypothesis import strategies as st

from analyzer.ablation import Measured, ablate
from analyzer.ablation.classes import EXPOSED_TOTAL, NAMES, class_times, in_all, of_layer
from analyzer.ablation.cube import Cube
from analyzer.ablation.noise import find_causes
from analyzer.parity import faults
from analyzer.power import blocks_needed
from analyzer.report import timed_steps
from analyzer.stats import Estimate, estimate, verdict


def measured(dividends: dict[tuple[str, ...], float], blocks: int = 8, seed: int = 0, **fields: Any) -> Measured:
    times = planted_ms(dividends)
    logs = log_steps(np.random.default_rng(seed), 1, blocks, np.array([times[arm] for arm in ARMS]))
    steps = steps_table(logs[0], ARMS)
    return Measured(**{"arms": ARMS, "timed": timed_steps(steps), "steps": steps, "samples": pd.DataFrame()} | fields)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(-40, 40), min_size=3, max_size=3), st.integers(3, 7), st.integers(0, 1000))
def test_shapley_values_add_up_to_the_total_and_every_arm_is_in_the_cube(worth, blocks, seed):
    run = measured({(layer,): ms for layer, ms in zip(LAYERS, worth, strict=True)}, blocks, seed)
    report = ablate(run)
    values = [report["attribution"][layer]["shapley_ms"]["value"] for layer in LAYERS]
    total = report["ablation"]["total_ms"]["value"]
    assert sum(values) == pytest.approx(total, abs=1e-9)
    assert report["ablation"]["reference_ms"] - report["ablation"]["full_ms"] == pytest.approx(total, abs=1e-9)
    alone = sum(report["attribution"][layer]["alone_ms"] for layer in LAYERS)
    triple = report["interactions"].pop("balance×overlap×smfree")
    # a pair averaged over the third layer holds half of the triple, so three pairs hold it one and a half times
    assert alone + sum(report["interactions"].values()) - triple / 2 == pytest.approx(total, abs=1e-6)
    assert {corner["arm"] for corner in report["ablation"]["cube"]} == set(ARMS) - {"baseline-aa"}
    json.dumps(report, allow_nan=False)


def test_the_blocks_of_the_paired_plot_are_log_ratios_to_the_reference():
    run = measured({("balance",): 30.0}, blocks=3)
    blocks = ablate(run)["ablation"]["blocks"]
    medians = run.timed.groupby(["block", "arm"])["step_ms"].median()
    assert [entry["block"] for entry in blocks] == [0, 1, 2]
    for entry in blocks:
        assert entry["values"]["baseline"] == 0
        assert set(entry["values"]) == set(ARMS)
        for arm in ARMS:
            expected = np.log(medians[entry["block"], "baseline"] / medians[entry["block"], arm])
            assert entry["values"][arm] == pytest.approx(expected)


def test_a_run_with_one_layer_has_no_ablation():
    run = measured({})
    two = ["baseline", "balance"]
    report = ablate(Measured(two, run.timed[run.timed["arm"].isin(two)], run.steps, run.samples))
    assert report["attribution"] == report["interactions"] == {}
    assert report["ablation"] is report["noise_floor_ms"] is None


def test_a_wrong_arm_is_left_out_and_named():
    report = ablate(measured({}, wrong={"overlap": "its loss is not finite"}))
    assert report["attribution"]["overlap"]["verdict"] == "wrong"
    assert report["attribution"]["overlap"]["shapley_ms"]["value"] is None
    assert report["ablation"]["layers"] == ["balance", "smfree"]
    assert set(report["interactions"]) == {"balance×smfree"}


def test_a_layer_that_moved_nothing_cannot_act():
    run = measured({})
    idle = run.steps.assign(moved_bytes=0)
    report = ablate(Measured(ARMS, run.timed, idle, run.samples))
    balance = report["attribution"]["balance"]
    assert (balance["verdict"], balance["reason"]) == ("cannot act", "it never moved a sample")
    assert balance["alone_ms"] is balance["shapley_ms"]["value"] is None
    alone = ablate(Measured(ARMS, run.timed, idle[idle["rank"] == 0], run.samples))
    assert alone["attribution"]["balance"]["reason"] == "one rank has nobody to share with"


def test_a_block_that_lacks_an_arm_does_not_count():
    run = measured({("overlap",): 20.0}, blocks=5)
    cut = run.timed[~((run.timed["block"] == 4) & (run.timed["arm"] == "smfree"))]
    report = ablate(Measured(ARMS, cut, run.steps, run.samples))
    assert report["ablation"]["noise"]["blocks"] == 4
    assert [entry["block"] for entry in report["ablation"]["blocks"]] == [0, 1, 2, 3]


class FakeTables:
    """What `class_times` reads of an arm's traces."""

    def __init__(self, bubbles: pd.DataFrame, split: bool = True) -> None:
        self.bubbles, self.split = bubbles, split


def bubbles(rng: np.random.Generator, compute: float, comm: float) -> pd.DataFrame:
    rows = []
    for step in range(6):
        for rank in range(2):
            values = {"compute_ns": compute, "straggler_ns": 5e6, "exposed_comm_ns": comm}
            values |= {"exposed_copy_ns": 0.0, "host_ns": 2e6}
            noisy = {name: int(value * rng.uniform(0.9, 1.1)) for name, value in values.items()}
            rows.append({"step": step, "rank": rank, **noisy, "window_ns": sum(noisy.values())})
    return pd.DataFrame(rows)


def test_classes_are_attributed_like_the_step_and_add_up_to_the_window():
    # GIVEN overlap halves 20 ms of communication and balance takes 10 of 100 ms of compute
    rng = np.random.default_rng(1)
    cube = Cube(("balance", "overlap"), ("baseline", "balance", "overlap", "balance+overlap"))
    tables: Any = {
        arm: FakeTables(bubbles(rng, 1e8 - 1e7 * ("balance" in arm), 2e7 - 1e7 * ("overlap" in arm)))
        for arm in cube.arms
    }
    blocks_of = {arm: {step: step // 2 for step in range(6)} for arm in cube.arms}
    # WHEN
    times = class_times(cube, tables, blocks_of)
    # THEN
    assert times is not None
    assert times.blocks == 3
    found = {layer: of_layer(times, cube.layers, layer) for layer in cube.layers}
    assert found["overlap"]["exposed_comm"]["shapley_ms"]["value"] == pytest.approx(10, abs=1.5)
    assert found["balance"]["exposed_comm"]["shapley_ms"]["value"] == pytest.approx(0, abs=1.5)
    assert found["balance"]["compute"]["shapley_ms"]["value"] == pytest.approx(10, abs=6)
    windows = {arm: tables[arm].bubbles["window_ns"].mean() / 1e6 for arm in cube.arms}
    by_class = [found[layer][name]["shapley_ms"]["value"] for layer in cube.layers for name in NAMES]
    assert sum(by_class) == pytest.approx(windows["baseline"] - windows["balance+overlap"], abs=1e-9)
    totals = in_all(times, cube.layers)
    for layer in cube.layers:
        both = [found[layer][name]["shapley_ms"]["value"] for name in ("straggler", "exposed_comm")]
        assert found[layer][EXPOSED_TOTAL]["shapley_ms"]["value"] == pytest.approx(sum(both), abs=1e-9)
    assert totals["exposed_comm"]["reference_ms"] == pytest.approx(20, abs=1.5)


def test_the_noise_floor_of_a_class_is_what_two_equal_arms_differ_by():
    # GIVEN three blocks in which the A/A arm has 1, 2 and 3 ms less straggler time than the reference
    def of_arm(less: tuple[float, ...]) -> FakeTables:
        rows = [
            {"step": block, "rank": 0, "compute_ns": 1e8, "straggler_ns": 3e7 - ms * 1e6, "exposed_comm_ns": 2e7}
            | {"exposed_copy_ns": 0.0, "host_ns": 0.0}
            for block, ms in enumerate(less)
        ]
        return FakeTables(pd.DataFrame(rows))

    blocks_of = {"baseline": {0: 0, 1: 1, 2: 2}, "again": {0: 0, 1: 1, 2: 2}}
    pair: Any = {"baseline": of_arm((0, 0, 0)), "again": of_arm((1, 2, 3))}
    again = class_times(Cube(("again",), ("baseline", "again")), pair, blocks_of)
    totals = in_all(again, ("again",), again)
    # THEN mean 2, deviation 1, t(0.975, 2) = 4.303 from tables: half an interval is 4.303 / √3 = 2.484, more than 2
    assert totals["straggler"]["noise_floor_ms"] == pytest.approx(2.484, abs=1e-3)
    assert totals[EXPOSED_TOTAL]["noise_floor_ms"] == pytest.approx(2.484, abs=1e-3)
    assert totals["compute"]["noise_floor_ms"] == 0
    assert in_all(again, ("again",))["straggler"]["noise_floor_ms"] is None


def test_where_clocks_cannot_be_trusted_only_the_sum_of_waiting_and_transfer_is_given():
    rng = np.random.default_rng(1)
    cube = Cube(("overlap",), ("baseline", "overlap"))
    tables: Any = {
        "baseline": FakeTables(bubbles(rng, 1e8, 2e7)),
        "overlap": FakeTables(bubbles(rng, 1e8, 1e7), split=False),
    }
    times = class_times(cube, tables, {arm: {step: step for step in range(6)} for arm in cube.arms})
    found = of_layer(times, cube.layers, "overlap")
    assert found["straggler"]["shapley_ms"]["value"] is found["exposed_comm"]["alone_ms"] is None
    assert found[EXPOSED_TOTAL]["shapley_ms"]["value"] == pytest.approx(10, abs=2)
    assert class_times(cube, {"baseline": tables["baseline"]}, {}) is None


def losses(arms: dict[str, float]) -> pd.DataFrame:
    rows = [
        {"block": 0, "step": step, "rank": 0, "arm": arm, "loss": 0.5 + off}
        for arm, off in arms.items()
        for step in (0, 1)
    ]
    return pd.DataFrame(rows)


@pytest.mark.parametrize(
    ("arm", "off", "device", "wrong"),
    [
        ("overlap", 0.0, "cpu", False),
        ("overlap", 1e-9, "cpu", True),
        ("smfree", 1e-9, "cpu", True),
        ("sdd", 1e-9, "cpu", True),
        ("balance", 1e-6, "cpu", False),
        ("freescale", 1e-6, "cpu", False),
        ("balance", 1e-4, "cpu", True),
        ("balance", float("nan"), "cpu", True),
        ("overlap", 1e-9, "cuda", False),
        ("overlap", 1e-4, "cuda", True),
    ],
)
def test_only_arms_that_move_samples_may_differ_by_rounding(arm, off, device, wrong):
    found, warnings = faults(losses({"baseline": 0.0, arm: off}), ["baseline", arm], device)
    assert (arm in found) is wrong
    assert warnings == []


def test_a_platform_that_does_not_repeat_itself_is_held_to_rounding_and_said():
    arms = {"baseline": 0.0, "baseline-aa": 1e-8, "overlap": 1e-8, "smfree": 1e-3}
    found, warnings = faults(losses(arms), list(arms), "cpu")
    assert list(found) == ["smfree"]
    assert "does not repeat itself" in warnings[0]
    exact, _ = faults(
        losses({"baseline": 0.0, "baseline-aa": 0.0, "overlap": 1e-8}), ["baseline", "baseline-aa", "overlap"], "cuda"
    )
    assert list(exact) == ["overlap"]


def samples(run: Measured, **columns: Any) -> pd.DataFrame:
    turns = run.timed[["block", "arm"]].drop_duplicates().reset_index(drop=True)
    quiet = {
        "phase": "timed", "rank": 0, "host": "h", "cores": 2, "wall_s": 2.0, "cpu_s": 1.0, "busy_s": 1.02,
        "steal_s": 0.0, "throttled_s": 0.0, "cpu_mhz": 3000.0, "migrations": 2, "involuntary_switches": 40,
    }  # fmt: skip
    return turns.assign(**quiet).assign(**columns)


def causes_of(run: Measured) -> dict[str, str]:
    return {cause.cause: cause.text for cause in find_causes(run.timed, run.steps, run.samples)}


def test_a_quiet_run_has_no_cause_of_noise():
    run = measured({})
    assert causes_of(Measured(run.arms, run.timed, run.steps, samples(run))) == {}


def test_few_blocks_and_a_block_in_two_launches_are_named():
    run = measured({}, blocks=3)
    split = run.steps.assign(launch=(run.steps["block"] == 1) & (run.steps["arm"] > "c"))
    found = causes_of(Measured(run.arms, run.timed, split, run.samples))
    assert "only 3 blocks" in found["few_blocks"]
    assert found["launches"].startswith("block 1 began before")


@pytest.mark.parametrize(
    ("columns", "cause", "said"),
    [
        ({"busy_s": 2.6}, "other_processes", "other processes used 40 %"),
        ({"steal_s": 0.4}, "other_processes", "the hypervisor took 10 %"),
        ({"throttled_s": 0.5}, "throttling", "quota stopped the ranks for 25 %"),
        ({"cpu_mhz": np.linspace(2000, 3000, 72)}, "frequency", "from 2000 to 3000 MHz"),
    ],
)
def test_what_the_machine_did_is_named(columns, cause, said):
    run = measured({})
    assert said in causes_of(Measured(run.arms, run.timed, run.steps, samples(run, **columns)))[cause]


def test_moves_between_cores_are_a_cause_only_where_they_go_with_slow_turns():
    run = measured({})
    turns = samples(run)
    assert "migration" not in causes_of(Measured(run.arms, run.timed, run.steps, turns.assign(migrations=500)))
    rng = np.random.default_rng(2)
    turns["migrations"] = rng.integers(0, 100, len(turns))
    slow = run.timed.merge(turns[["block", "arm", "migrations"]], on=["block", "arm"])
    slow["step_ms"] *= 1 + slow["migrations"] / 100
    found = causes_of(Measured(run.arms, slow, run.steps, turns))
    assert "slower when it was more often" in found["migration"]


def test_two_modes_are_named_and_one_is_not():
    run = measured({})
    assert "two_modes" not in causes_of(run)
    rng = np.random.default_rng(4)
    boost = np.where(rng.random(len(run.timed)) < 0.3, 2.0, 1.0)
    boosted = run.timed.assign(step_ms=run.timed["step_ms"] * boost)
    found = causes_of(Measured(run.arms, boosted, run.steps, run.samples))
    assert re.search(r"two modes, (1\.9|2\.0)\d× apart", found["two_modes"])


def test_the_blocks_that_a_run_needs_do_settle_it_four_times_in_five():
    # GIVEN an effect of 3 % with a spread of 5 % between blocks, not significant among three after six blocks
    rng = np.random.default_rng(5)
    shape = np.array([-1.0, 1, -1, 1, -1, 1])
    six = 0.03 + 0.05 * shape / shape.std(ddof=1)
    effect = estimate(0.03, six)
    needed = blocks_needed(effect, 6, 3)
    assert needed is not None
    # WHEN so many blocks are drawn again and again
    settled = [
        verdict(found, False, None if found.p is None else 3 * found.p) == "improvement"
        for found in (estimate(float(b.mean()), b) for b in rng.normal(0.03, 0.05, (600, needed)))
        if found.value is not None and found.value >= 0.01
    ]
    # THEN
    assert 0.76 <= sum(settled) / 600 <= 0.86
    assert needed > 6


def test_what_cannot_be_settled_has_no_number_of_blocks():
    assert blocks_needed(Estimate(0.02), 2, 3) is None
    assert blocks_needed(Estimate(0.011, (-5.0, 5.0), 0.9), 6, 3) is None
