"""Simulations of ranks on CPUs: the batches of a real run, core time that gloo takes, noise, and learned costs."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import analyzer
from analyzer.bubbles import CLASSES
from freescale.bench import simulated_times
from freescale.bench.arms import parse_arm, parse_arms
from freescale.bench.config import RunConfig
from freescale.bench.simulated_run import Simulation, simulate, write_run
from freescale.bench.simulated_workload import SimulatedBatches
from freescale.simulate.cluster import CPU_RANGES, Cluster
from freescale.simulate.cost import PIECES
from freescale.simulate.engine import run
from freescale.simulate.ops import Collective, Work
from freescale.simulate.program import StepProgram, write_steps
from workloads import registry


def cpu_cluster(pauses: float = 0.0, **changes: float) -> Cluster:
    """Pieces of 1 ms, forward and backward of 2 µs per token; exchanges that take no time."""
    values = dict.fromkeys(CPU_RANGES, 0.0) | {"ranks_per_node": 2.0} | changes
    pieces = {piece: {"each": 1e6} for piece in PIECES}
    pieces |= {piece: {"each": 0.0, "tokens": 2e3} for piece in ("forward", "backward")}
    profiled = {piece: {unit: 2 * ns for unit, ns in units.items()} for piece, units in pieces.items()}
    shares = dict.fromkeys(PIECES, pauses)
    return Cluster("a-cpu", "cpu", "planted", values, dict.fromkeys(values, "planted"), pieces, profiled, shares)


def steps_on(machine: Cluster, arm: str = "baseline") -> StepProgram:
    workload = registry.build(registry.preset("hstu-tiny"), 0)
    batches = SimulatedBatches(workload, 2, 0, 4)
    return write_steps(parse_arm(arm), machine, batches.shape, *batches.under(None), 7)


@pytest.mark.parametrize("arm", ["baseline", "sdd", "overlap"])
def test_waiting_for_a_late_rank_takes_no_core_time_from_the_early_one(arm: str) -> None:
    busy = []
    for core_share in (0.0, 0.9):
        written = steps_on(cpu_cluster(gloo_core_share=core_share), arm)
        busy.append(simulated_times.host_compute_ms(written, run(written.program)))
    np.testing.assert_array_equal(*busy)
    assert np.ptp(busy[0], axis=1).max() > 0  # there is a late rank


def test_gloo_takes_core_time_while_bytes_flow() -> None:
    busy = []
    for core_share in (0.0, 0.5):
        written = steps_on(cpu_cluster(gloo_core_share=core_share, gloo_ns_per_byte=100), "overlap")
        busy.append(simulated_times.host_compute_ms(written, run(written.program)).sum())
    assert busy[1] > busy[0]


def test_noise_on_a_cpu_is_one_factor_for_all_that_a_rank_does_in_a_step() -> None:
    noisy, quiet = (steps_on(cpu_cluster(jitter=jitter)) for jitter in (0.2, 0.0))
    factors: dict[int, list[np.ndarray]] = {}
    for with_noise, without in zip(noisy.program.ops, quiet.program.ops, strict=True):
        if isinstance(with_noise, Work) and isinstance(without, Work) and np.any(without.work_ns):
            factors.setdefault(with_noise.step, []).append(with_noise.work_ns / without.work_ns)
    assert len(factors) >= 4
    for of_step in factors.values():
        assert np.ptp(np.array(of_step), axis=0).max() < 1e-3
    assert len({float(of_step[0][0]) for of_step in factors.values()}) == len(factors)


def a_simulation(arms: str, machine: Cluster | None = None) -> Simulation:
    return Simulation(
        registry.preset("hstu-tiny"), machine or cpu_cluster(), tuple(parse_arms(arms)), 2, blocks=2, steps=6, warmup=1
    )


def test_a_piece_is_cut_into_equal_parts_that_compute_and_then_pause() -> None:
    def of(start: int, end: int, ppm: int) -> list[tuple[int, int]]:
        parts = simulated_times.between_pauses(*(np.array([value]) for value in (start, end, ppm)), 100)
        return list(zip(*(bounds.tolist() for bounds in parts), strict=True))

    assert of(1_000, 2_000, 200_000) == [(1_000, 1_400), (1_500, 1_900)]  # pauses of 200 in all, 100 each
    assert of(0, 100, 300_000) == [(0, 70)]  # too short for more than one
    assert of(0, 1_000, 0) == [(0, 1_000)]
    assert of(5, 5, 300_000) == [(5, 5)]


def test_pauses_are_host_time_where_nothing_is_under_way_and_exposed_where_an_exchange_is() -> None:
    """Exchanges take no time here but those of data, which last longer than any step."""
    machine = cpu_cluster(pauses=0.25, pause_us=10)
    alone = simulate(a_simulation("baseline", machine)).tables["baseline"].bubbles
    busy = alone["compute_ns"] + alone["host_ns"]
    assert (alone["host_ns"] / busy).to_numpy() == pytest.approx(0.25, abs=5e-3)  # a little is straggler
    assert alone["exposed_comm_ns"].sum() == 0
    slow = dataclasses.replace(machine, values={**machine.values, "gloo_beside_latency_us": 3_000.0})
    beside = simulate(a_simulation("baseline", slow)).tables["baseline"].bubbles
    assert beside["exposed_comm_ns"].sum() > 0
    gone, more = (beside["host_ns"] - alone["host_ns"]).sum(), beside["exposed_comm_ns"].sum()
    assert gone == pytest.approx(-more, rel=0.02)
    assert beside["compute_ns"].sum() == pytest.approx(alone["compute_ns"].sum(), rel=1e-3)


def test_exchanges_beside_compute_have_a_latency_of_their_own_on_a_cpu() -> None:
    machine = cpu_cluster(gloo_latency_us=1, gloo_beside_latency_us=20, issue_us=2, issue_beside_us=30)
    for arm, beside in (("baseline", {"data"}), ("sdd", {"data", "ids"}), ("overlap", {"data", "ids", "bulk"})):
        ops = [op for op in steps_on(machine, arm).program.ops if isinstance(op, Collective)]
        later = [op for op in ops if op.step > 0 and op.lane != "dense"]
        assert {(op.lane, op.latency_ns) for op in later} == {
            (op.lane, 20_000 if op.lane in beside else 1_000) for op in later
        }


def test_analysing_the_traces_of_ranks_on_cpus_gives_the_simulated_classes_to_the_nanosecond(tmp_path: Path) -> None:
    machine = cpu_cluster(
        pauses=0.2, pause_us=40, jitter=0.1, gloo_latency_us=150, gloo_beside_latency_us=900, issue_us=70,
        issue_beside_us=110, gloo_reduce_latency_us=300, shared_issue_us=50, shared_latency_us=20, gloo_core_share=0.3,
    )  # fmt: skip
    simulation = a_simulation("baseline,sdd,balance,overlap,smfree,freescale", machine)
    path, _ = write_run(simulate(dataclasses.replace(simulation, trace_ranks=(0, 1))), tmp_path, {})
    written = pd.read_parquet(path / "bubbles.parquet")
    again = analyzer.analyze(path)
    for arm in simulation.arms:
        expected = written.query("arm == @arm.name").sort_values(["step", "rank"])
        found = again.arms[arm.name].tables.bubbles.sort_values(["step", "rank"])
        assert expected["host_ns"].sum() > 0
        np.testing.assert_array_equal(expected[list(CLASSES)].to_numpy(), found[list(CLASSES)].to_numpy(), arm.name)


def test_every_block_has_the_batches_of_the_same_block_of_a_run() -> None:
    config = RunConfig(preset="hstu-tiny", blocks=2, steps=6, warmup_steps=1)
    workload, steps = config.workload(), simulate(a_simulation("baseline")).steps
    for block in range(2):
        for step, number in enumerate(config.batches_of(block)[:-1]):
            rows = steps[(steps["block"] == block) & (steps["step"] == step)].set_index("rank")
            assert [workload.batch(number, rank, 2).tokens for rank in range(2)] == rows["tokens"].tolist()


def test_steps_are_timed_without_the_profiler_and_classes_measured_with_what_it_costs() -> None:
    result = simulate(a_simulation("baseline"))
    timed = result.steps[~result.steps["warmup"]]["compute_ms"].mean()
    assert result.tables["baseline"].bubbles["compute_ns"].mean() / 1e6 == pytest.approx(2 * timed, rel=1e-6)


def test_samples_are_balanced_by_the_costs_that_ranks_have_learned_as_in_a_run() -> None:
    """Here tokens cost and nothing else does; FLOPs would count a long history for more than that."""
    simulation = dataclasses.replace(a_simulation("balance"), workload=registry.preset("hstu-small"), steps=8, blocks=1)
    balanced = simulate(simulation).steps
    learned = np.ptp(balanced.pivot(index="step", columns="rank", values="tokens").to_numpy(), axis=1)
    workload = registry.build(simulation.workload, simulation.seed)
    shares, _ = SimulatedBatches(workload, 2, 0, 9).under("rounds")
    by_flops = [np.ptp(share.tokens) for share in shares[:9]]
    assert learned.sum() < 0.5 * sum(by_flops)
