"""What an ablation is made of: its arms, its budget, the joining of profiled parts, and what is read of the machine."""

from __future__ import annotations

import gzip
import json
import time
from pathlib import Path
from typing import Any

import pytest

from freescale.bench import machine_state, parts
from freescale.bench.arms import ablation_arms, parse_arm
from freescale.bench.budget import PROFILING_SLOWDOWN, RESERVE_S, Budget
from freescale.bench.heartbeat import Heartbeats
from freescale.bench.profile import merge
from freescale.bench.session import differences, launch_facts
from freescale.errors import FreeScaleError


def test_the_arms_of_an_ablation_are_all_combinations_and_the_reference_again() -> None:
    arms = [parse_arm(name) for name in ablation_arms("baseline")]
    assert len(arms) == 9
    assert [arm.name for arm in arms[:2]] == ["baseline", "baseline-aa"]
    assert len({tuple(arm.layers) for arm in arms}) == 8
    assert not any(arm.prefetch_ids for arm in arms)


def test_on_top_of_sdd_every_arm_prefetches_ids() -> None:
    arms = [parse_arm(name) for name in ablation_arms("sdd")]
    assert len({tuple(arm.layers) for arm in arms}) == 8
    assert all(arm.batches_ahead == 2 for arm in arms)
    assert arms[0] == parse_arm("sdd")
    with pytest.raises(FreeScaleError, match=r"'sdd\+overlap' does not exist"):
        parse_arm("sdd+overlap")


def test_a_layer_that_cannot_act_is_not_run() -> None:
    assert ablation_arms("baseline", without={"balance"}) == (
        "baseline", "baseline-aa", "overlap", "smfree", "overlap+smfree",
    )  # fmt: skip


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def spend(budget: Budget, clock: Clock, phase: str, seconds: float) -> None:
    clock.now_s += seconds
    budget.block_took(phase, seconds)


def test_blocks_are_taken_until_one_more_and_the_profiling_would_not_fit() -> None:
    # GIVEN 10 minutes and blocks of 20 s whose profiled turns are half as long in steps
    clock = Clock()
    budget = Budget(10, clock)
    blocks = 0
    while budget.timed_block_fits(blocks, steps_per_turn=8, steps_in_profile=4):
        spend(budget, clock, "timed", 20)
        blocks += 1
    # THEN what is left is enough to profile them as slowly as is assumed, and not for another block
    per_block_s = 20 + 20 * PROFILING_SLOWDOWN / 2
    assert blocks == int((600 - RESERVE_S) / per_block_s)
    assert budget.blocks_that_fit(blocks, 8, 4) == blocks
    for _ in range(blocks):
        assert budget.profiled_block_fits()
        spend(budget, clock, "profiled", 20 * PROFILING_SLOWDOWN / 2)
    assert budget.elapsed_s <= 600 - RESERVE_S


def test_the_first_block_is_always_taken_and_without_a_budget_all_are() -> None:
    clock = Clock()
    assert Budget(1, clock).timed_block_fits(0, 8, 4)
    short = Budget(1, clock)
    spend(short, clock, "timed", 500)
    assert not short.timed_block_fits(1, 8, 4)
    assert short.profiled_block_fits()
    spend(short, clock, "profiled", 10)
    assert not short.profiled_block_fits()
    endless = Budget(None, clock)
    spend(endless, clock, "timed", 1e9)
    assert endless.timed_block_fits(1000, 8, 4)
    assert endless.profiled_block_fits()
    assert endless.blocks_that_fit(3, 8, 4) is None


def trace(pid: int, step: int, base: int = 7) -> bytes:
    events: list[dict[str, Any]] = [
        {"ph": "X", "name": f"ProfilerStep#{step}", "pid": pid, "tid": pid, "ts": step * 10.5, "dur": 9},
        {
            "ph": "X",
            "name": "kernel",
            "pid": 0,
            "tid": pid * 10,
            "ts": step * 10.5,
            "dur": 1,
            "args": {"correlation": 5},
        },
        {"ph": "s", "name": "ac2g", "id": 5, "pid": pid, "tid": pid, "ts": step * 10.5},
    ]
    facts = {"arm": "a", "pid": pid, "steps": [{"step": step, "block": step}]}
    return gzip.compress(json.dumps({"freescale": facts, "baseTimeNanoseconds": base, "traceEvents": events}).encode())


def test_processes_that_took_a_ranks_place_are_one_process_in_its_trace() -> None:
    merged = json.loads(gzip.decompress(merge([trace(41, 0), trace(41, 1), trace(522, 2)])))
    assert [step["step"] for step in merged["freescale"]["steps"]] == [0, 1, 2]
    marks = [event for event in merged["traceEvents"] if event["name"].startswith("ProfilerStep")]
    assert [(mark["pid"], mark["tid"], mark["ts"]) for mark in marks] == [(41, 41, 0.0), (41, 41, 10.5), (41, 41, 21.0)]
    first, second, other = [
        event["args"]["correlation"] for event in merged["traceEvents"] if event["name"] == "kernel"
    ]
    assert first == second == 5
    assert other > 1 << 32
    assert [event["id"] for event in merged["traceEvents"] if event["ph"] == "s"] == [5, 5, other]
    assert merged["traceEvents"][7]["tid"] == 5220  # another thread, whose number only begins like the process's


def test_traces_on_different_clocks_are_not_put_together() -> None:
    with pytest.raises(FreeScaleError, match="delete the run's parts/ and resume it"):
        merge([trace(41, 0), trace(41, 1, base=8)])


def test_a_profiled_turn_counts_when_every_rank_has_left_its_part(tmp_path: Path) -> None:
    for block, rank in ((0, 0), (0, 1), (1, 0)):
        file = parts.part_file(tmp_path, "a", block, rank)
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(trace(40 + rank, block))
    assert parts.recorded_turns(tmp_path, ["a", "b"], ranks=2) == {(0, "a")}
    parts.join(tmp_path, ["a", "b"], ranks=2)
    written = sorted(str(file.relative_to(tmp_path)) for file in tmp_path.glob("traces/*/*"))
    assert written == ["traces/a/rank-00000.json.gz", "traces/a/rank-00001.json.gz"]
    parts.discard(tmp_path)
    assert not (tmp_path / parts.PARTS).exists()


def test_work_done_between_two_readings_shows_in_the_counters() -> None:
    before = machine_state.read()
    until = time.process_time() + 0.3
    while time.process_time() < until:
        pass
    row = machine_state.between(before, machine_state.read())
    assert row["cpu_s"] >= 0.3
    assert row["wall_s"] >= 0.3
    assert row["busy_s"] >= 0.2  # counted in ticks of 10 ms
    assert row["cores"] >= 1
    assert row["available_bytes"] > 0
    assert row["involuntary_switches"] >= 0


def test_a_run_goes_on_only_where_nothing_that_timing_depends_on_has_changed() -> None:
    facts = launch_facts()
    manifest = json.loads(json.dumps(facts))
    assert differences(manifest, facts) == []
    manifest["machine"]["cores"] += 1
    manifest["versions"]["torch"] = "1.0"
    assert differences(manifest, facts) == ["versions", "cores"]


def test_a_rank_says_how_many_steps_it_expects(tmp_path: Path) -> None:
    page = Heartbeats(tmp_path / "page", 1)
    page.start(0)
    page.expect(0, 300)
    assert Heartbeats(tmp_path / "page", 1).read()[0].steps_expected == 300
