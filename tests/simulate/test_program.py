"""Step programs: exchanges in the real schedules' order, and traces in which the analyzer finds what was simulated."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import analyzer
from freescale.bench.arms import parse_arm, parse_arms
from freescale.bench.simulated_run import Simulation, simulate, write_run
from freescale.bench.simulated_workload import SimulatedBatches
from freescale.comm.transport import Handle
from freescale.overlap.blocking import BlockingSchedule
from freescale.overlap.embedding import ShardedEmbedding
from freescale.overlap.hooks import ComputeHooks
from freescale.overlap.prioritized import PrioritizedSchedule
from freescale.overlap.row_optimizer import RowOptimizer
from freescale.overlap.schedule import Parts
from freescale.overlap.tables import TableSpec
from freescale.simulate import cluster
from freescale.simulate.engine import run
from freescale.simulate.ops import Collective
from freescale.simulate.program import write_steps
from workloads import registry


class LoopbackLane:
    """A lane of one rank that notes every call, and is done at once."""

    rank, world_size, engine = 0, 1, "loopback"

    def __init__(self, group: str, calls: list[str]) -> None:
        self.group, self._calls = group, calls

    def all_to_all(self, send: torch.Tensor, send_splits: Sequence[int], recv_splits: Sequence[int]) -> Handle:
        self._calls.append(self.group)
        return Handle("all_to_all", self.group, 0, 0, self.engine, send.clone(), lambda: None, poll=lambda: True)

    def all_gather(self, send: torch.Tensor) -> Handle:
        raise AssertionError("schedules exchange rows only")

    def close(self) -> None:
        pass


def lanes_of_real_steps(name: str, steps: int) -> list[list[str]]:
    """For each step of the real schedule, the lanes on which it issues exchanges, in order."""
    calls: list[str] = []
    embedding = ShardedEmbedding({"t": TableSpec(50, 4)}, {"f": "t"}, 0, 1, RowOptimizer("sgd"))
    dense = torch.nn.Linear(4, 1)
    lanes = {lane: LoopbackLane(lane, calls) for lane in ("ids", "bulk", "urgent")}
    parts = Parts(embedding, torch.optim.SGD(dense.parameters(), lr=0.1), lanes, ComputeHooks(dense))
    arm = parse_arm(name)
    schedule = PrioritizedSchedule(parts) if arm.overlap else BlockingSchedule(parts, prefetch_ids=arm.prefetch_ids)
    batches = [{"f": torch.arange(n, n + 10)} for n in range(steps + 1)]
    seen = []
    for now, after in itertools.pairwise(batches):
        before = len(calls)
        ahead = after if arm.batches_ahead > 1 else None
        schedule.step(now, ahead, lambda embedded: dense(embedded["f"]).sum())
        seen.append(calls[before:])
    return seen


@pytest.mark.parametrize("name", ["baseline", "sdd", "overlap"])
def test_every_step_issues_the_same_exchanges_on_the_same_lanes_in_the_same_order_as_the_real_schedule(
    name: str,
) -> None:
    workload = registry.build(registry.preset("hstu-tiny"), 0)
    batches = SimulatedBatches(workload, 2, 0, 4)
    shares, rows = batches.under(None)
    written = write_steps(parse_arm(name), cluster.load("h100-ib"), batches.shape, shares, rows, 0)
    simulated: list[list[str]] = [[] for _ in range(4)]
    for op in written.program.ops:
        if isinstance(op, Collective) and op.step >= 0 and op.lane not in ("data", "dense"):
            simulated[op.step].append(op.lane)
    assert simulated == lanes_of_real_steps(name, 4)


@pytest.mark.parametrize(("ranks", "machine"), [(4, "h100-ib"), (8, "h200-nvl")])
def test_analysing_the_traces_gives_the_simulated_classes_to_the_nanosecond(
    tmp_path: Path, ranks: int, machine: str
) -> None:
    simulation = Simulation(
        registry.preset("hstu-tiny"),
        cluster.load(machine),
        tuple(parse_arms("baseline,sdd,overlap,smfree,freescale")),
        ranks,
        blocks=2,
        steps=2,
        warmup=1,
        trace_ranks=tuple(range(ranks)),
    )
    path, report = write_run(simulate(simulation), tmp_path, {})
    written = {name: pd.read_parquet(path / f"{name}.parquet") for name in ("bubbles", "collectives")}
    again = analyzer.analyze(path)
    for arm in report["arms"]:
        times = [column for column in written["bubbles"] if column.endswith("_ns") and column != "start_ns"]
        expected = written["bubbles"].query("arm == @arm").sort_values(["step", "rank"])
        found = again.arms[arm].tables.bubbles.sort_values(["step", "rank"])
        assert len(expected) == len(found) == 2 * 2 * ranks
        np.testing.assert_array_equal(expected[times].to_numpy(), found[times].to_numpy(), err_msg=arm)
        assert (again.arms[arm].tables.collectives["matched"]).all()
    assert again.run is not None
    for arm, entry in report["arms"].items():
        for measure in ("straggler_pct", "exposed_comm_ms", "compute_ms"):
            assert again.run["arms"][arm][measure] == pytest.approx(entry[measure])
    assert report["provenance"] == "simulated"


def times_of(name: str, ranks: int = 16, **changes: float) -> Any:
    workload = registry.build(registry.preset("hstu-small"), 0)
    batches = SimulatedBatches(workload, ranks, 0, 6)
    shares, rows = batches.under("rounds" if parse_arm(name).balance else None)
    where = cluster.load("h100-ib").with_values({"jitter": 0, **changes})
    return run(write_steps(parse_arm(name), where, batches.shape, shares, rows, 0).program)


def test_a_slower_network_makes_no_step_shorter() -> None:
    for name in ("baseline", "freescale"):
        ends = [times_of(name, nic_gb_per_s=gb).end[-1].max() for gb in (50, 10, 2)]
        assert ends == sorted(ends)


def test_noise_is_the_same_for_every_arm_of_a_block_and_its_mean_is_one() -> None:
    workload = registry.build(registry.preset("hstu-tiny"), 0)
    batches = SimulatedBatches(workload, 64, 0, 3)
    shares, rows = batches.under(None)
    noisy = cluster.load("h100-ib").with_values({"jitter": 0.3})
    quiet = noisy.with_values({"jitter": 0.0})
    work = [
        np.concatenate([np.broadcast_to(op.work_ns, 64) for op in program.program.ops if hasattr(op, "work_ns")])
        for program in (write_steps(parse_arm("baseline"), at, batches.shape, shares, rows, 7) for at in (noisy, quiet))
    ]
    assert work[0].sum() == pytest.approx(work[1].sum(), rel=0.03)
    assert (work[0] != work[1]).any()


def test_more_ranks_than_fit_one_node_reduce_in_groups() -> None:
    workload = registry.build(registry.preset("hstu-tiny"), 0)
    batches = SimulatedBatches(workload, 16, 0, 1)
    shares, rows = batches.under(None)
    ops = write_steps(parse_arm("baseline"), cluster.load("h100-ib"), batches.shape, shares, rows, 0).program.ops
    groups = [op.group for op in ops if isinstance(op, Collective) and op.label == "all_reduce"]
    assert [len(np.unique(group)) for group in groups] == [2, 8, 2]


def test_a_simulation_is_checked_where_it_is_built() -> None:
    base = Simulation(registry.preset("hstu-tiny"), cluster.load("h100-ib"), tuple(parse_arms("baseline")), 4)
    with pytest.raises(Exception, match="ranks: 1, expected 2"):
        dataclasses.replace(base, ranks=1)
    with pytest.raises(Exception, match="trace_ranks: 4 of 4 ranks"):
        dataclasses.replace(base, trace_ranks=(4,))
