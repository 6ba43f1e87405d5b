"""A simulation from end to end: batches, programs, times, and the run directory in which everything else finds them."""

from __future__ import annotations

import dataclasses
import datetime
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas as pd

from analyzer import rundir
from analyzer.bubbles import Tables
from analyzer.findings import Findings
from analyzer.report import build_report
from freescale.balance.cost_model import CostModel, work_of
from freescale.bench import simulated_times as measured
from freescale.bench.arms import Arm, parse_arm
from freescale.bench.machine import git_commit, machine, versions
from freescale.bench.simulated_trace import RankTrace
from freescale.bench.simulated_workload import SimulatedBatches
from freescale.errors import FreeScaleError
from freescale.simulate.batches import LABELS_UP_TO, Rows, Share
from freescale.simulate.cluster import Cluster
from freescale.simulate.engine import Times
from freescale.simulate.engine import run as run_program
from freescale.simulate.program import StepProgram, write_steps
from workloads import registry
from workloads.config import WorkloadConfig
from workloads.registry import Workload

_GAP_NS = 1_000_000
_PLAIN = parse_arm("baseline")


@dataclass(frozen=True)
class Simulation:
    """What to simulate.

    Attributes:
        policy: of arms with the balance layer.
        blocks, steps, warmup: as in a run: each block has its own batches, and its first `warmup` steps do not count.
        trace_ranks: ranks whose traces are written.
    """

    workload: WorkloadConfig
    cluster: Cluster
    arms: tuple[Arm, ...]
    ranks: int
    policy: str = "rounds"
    blocks: int = 3
    steps: int = 6
    warmup: int = 2
    seed: int = 0
    trace_ranks: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        for name, low, high in (("ranks", 2, 65_536), ("blocks", 1, 1000), ("steps", 1, 10_000), ("warmup", 0, 1000)):
            value = getattr(self, name)
            if not low <= value <= high:
                raise FreeScaleError(f"{name}: {value}, expected {low} to {high}")
        wrong = [rank for rank in self.trace_ranks if not 0 <= rank < self.ranks]
        if wrong:
            raise FreeScaleError(f"trace_ranks: {wrong[0]} of {self.ranks} ranks, expected 0 to {self.ranks - 1}")

    @property
    def shown_ranks(self) -> tuple[int, ...]:
        """Ranks that collectives.parquet has rows of: those with traces, or else the first few."""
        return self.trace_ranks or tuple(range(min(self.ranks, 8)))

    @property
    def warnings(self) -> list[str]:
        notes = [f"simulated: times are computed for {self.cluster.name}, nothing was measured", self.cluster.accuracy]
        if self.cluster.assumed:
            notes.append(f"{self.cluster.name}: assumed, not known: {', '.join(self.cluster.assumed)}")
        if self.ranks > LABELS_UP_TO and any(arm.balance for arm in self.arms):
            notes.append(
                f"balance: above {LABELS_UP_TO} ranks groups are not labelled to stay at home, and the time for that "
                "(it grows with the square of the ranks) is not counted"
            )
        if 0 < len(self.trace_ranks) < self.ranks:
            notes.append("analyze sees the traced ranks only; the report here was made from all of them")
        return notes


@dataclass(frozen=True)
class SimulatedTables:
    """What `analyzer.report` reads of an arm's tables: bubbles of all ranks, collectives of the shown ones.

    Whom a rank waits for is left to the analysis of the traces.
    """

    ranks: list[int]
    bubbles: pd.DataFrame
    collectives: pd.DataFrame
    split: bool = True

    @property
    def blame_ns(self) -> np.ndarray:
        return np.broadcast_to(np.int64(0), (len(self.ranks), len(self.ranks)))


@dataclass
class Result:
    """What was simulated, by arm: rows of steps.parquet, and the analyzer's tables."""

    simulation: Simulation
    steps: pd.DataFrame
    tables: dict[str, SimulatedTables]
    traces: dict[str, list[RankTrace]] = field(default_factory=dict)
    blocks_of: dict[int, int] = field(default_factory=dict)


def simulate(simulation: Simulation) -> Result:
    """Simulate all arms.

    Raises:
        FreeScaleError: what was asked for cannot be simulated.
    """
    workload = registry.build(simulation.workload, simulation.seed)
    per_turn = simulation.warmup + simulation.steps
    rows: list[pd.DataFrame] = []
    parts: dict[str, list[tuple[pd.DataFrame, pd.DataFrame]]] = {arm.name: [] for arm in simulation.arms}
    gpu = simulation.cluster.device == "cuda"
    result = Result(simulation, pd.DataFrame(), {})
    for arm in simulation.arms:
        result.traces[arm.name] = [
            RankTrace(arm.name, rank, simulation.ranks, gpu, arm.smfree) for rank in simulation.trace_ranks
        ]
    offset_ns = dict.fromkeys(parts, 0)
    rates, cost = None, workload.cost
    if not gpu and any(arm.balance for arm in simulation.arms):
        cost = _learned_cost(simulation, workload)
    for block in range(simulation.blocks):
        first_number = block * (per_turn + 1) + simulation.warmup
        # The numbers of the batches of a real run: RunConfig.batches_of.
        batches = SimulatedBatches(workload, simulation.ranks, block * (per_turn + 1), per_turn, rates)
        recorded = range(simulation.warmup, per_turn)
        result.blocks_of |= {first_number + place: block for place in range(simulation.steps)}
        for position, arm in enumerate(simulation.arms):
            shares, row_counts = batches.under(simulation.policy if arm.balance else None, cost)
            rates = batches.rates
            noise = hash_seed(simulation.seed, block)
            timed = profiled = _run(arm, simulation.cluster, batches, shares, row_counts, noise)
            if simulation.cluster.profiled:  # as in a run: steps without the profiler, classes under it
                profiled = _run(arm, simulation.cluster.under_the_profiler, batches, shares, row_counts, noise)
            recording = measured.record(*profiled, gpu, recorded)
            parts[arm.name].append(measured.tables(recording, first_number, simulation.shown_ranks))
            rows.append(_step_rows(simulation, arm, block, position, shares, row_counts, *timed, gpu))
            for trace in result.traces[arm.name]:
                facts = [
                    {
                        "block": block,
                        "turn_step": step,
                        "tokens": int(shares[step].tokens[trace.rank]),
                        "samples": int(shares[step].samples[trace.rank]),
                    }
                    for step in recorded
                ]
                trace.add(recording, first_number, offset_ns[arm.name], facts)
            offset_ns[arm.name] += int(max(end.max() for end in profiled[1].end)) + _GAP_NS
    result.steps = pd.concat(rows, ignore_index=True)
    for name, tables in parts.items():
        bubbles, collectives = (pd.concat(frames, ignore_index=True) for frames in zip(*tables, strict=True))
        result.tables[name] = SimulatedTables(list(range(simulation.ranks)), bubbles, collectives)
    return result


def _run(
    arm: Arm, cluster: Cluster, batches: SimulatedBatches, shares: Sequence[Share], rows: Sequence[Rows], seed: int
) -> tuple[StepProgram, Times]:
    written = write_steps(arm, cluster, batches.shape, shares, rows, seed)
    return written, run_program(written.program)


def _learned_cost(simulation: Simulation, workload: Workload) -> CostModel:
    """Costs of samples as the ranks of a run learn them from how long they compute; on a GPU none are measured."""
    steps = simulation.warmup + simulation.steps
    batches = SimulatedBatches(workload, simulation.ranks, 0, steps)
    busy_ms = measured.host_compute_ms(
        *_run(_PLAIN, simulation.cluster, batches, *batches.under(None), simulation.seed)
    )
    model = CostModel(workload.cost)
    for step in range(steps):
        work = np.array([work_of(lengths) for lengths in batches.lengths_at_home(step)])
        model.observe(work, busy_ms[step])
    model.refit()
    return model


def hash_seed(seed: int, block: int) -> int:
    """Every block has its own noise, every arm of a block the same."""
    return int(np.random.SeedSequence([seed, block]).generate_state(1)[0])


def report(result: Result, run: rundir.RunDirectory) -> dict[str, Any]:
    """report.json, over all ranks."""
    blocks_of = dict.fromkeys(result.tables, result.blocks_of)
    nothing = cast(Findings, None)  # of whom a rank waits for and why; see SimulatedTables
    found = {name: (cast(Tables, tables), nothing) for name, tables in result.tables.items()}
    made = build_report(run, found, blocks_of)
    made["warnings"] = [*result.simulation.warnings, *made.get("warnings", [])]
    return made


def write_run(result: Result, out: Path, inputs: dict[str, Any]) -> tuple[Path, dict[str, Any]]:
    """Write a run directory under `out`; returns its path and its report."""
    simulation = result.simulation
    now = datetime.datetime.now(datetime.timezone.utc)
    name = f"{now:%Y%m%dT%H%M%SZ}-{simulation.workload.name}-simulated-{simulation.cluster.name}x{simulation.ranks}"
    run = rundir.make_run(out, name)
    workload = registry.build(simulation.workload, simulation.seed).describe()
    manifest = {
        "schema": rundir.SCHEMA,
        "provenance": "simulated",
        "complete": True,
        "created_utc": now.isoformat(timespec="seconds"),
        "command": ["freescale-bench", *sys.argv[1:]],
        "seed": simulation.seed,
        "workload": workload,
        "world_size": simulation.ranks,
        "backend": "nccl" if simulation.cluster.device == "cuda" else "gloo",
        "device": simulation.cluster.device,
        "arms": [arm.name for arm in simulation.arms],
        "blocks": simulation.blocks,
        "steps_per_turn": simulation.warmup + simulation.steps,
        "warmup_steps": simulation.warmup,
        "profiled_steps": simulation.steps,
        "policy": simulation.policy,
        "simulation": inputs,
        "machine": machine(),
        "versions": versions(),
        "git_commit": git_commit(),
        "warnings": simulation.warnings,
    }
    rundir.write_json(run / rundir.MANIFEST, manifest)
    rundir.write_parquet(run / rundir.STEPS, result.steps)
    for arm, traces in result.traces.items():
        for trace in traces:
            rundir.write_bytes(run / rundir.TRACES / arm / f"rank-{trace.rank:05d}.json.gz", trace.as_bytes())
    for file, attribute in ((rundir.BUBBLES, "bubbles"), (rundir.COLLECTIVES, "collectives")):
        frames = [getattr(tables, attribute).assign(arm=arm) for arm, tables in result.tables.items()]
        rundir.write_parquet(run / file, pd.concat(frames, ignore_index=True))
    made = report(result, rundir.open_run(run))
    rundir.write_json(run / rundir.REPORT, made)
    return run, made


def describe_cluster(cluster: Cluster) -> dict[str, Any]:
    """The manifest's entry on what was assumed."""
    return dataclasses.asdict(cluster)


def _step_rows(
    simulation: Simulation,
    arm: Arm,
    block: int,
    position: int,
    shares: Sequence[Any],
    row_counts: Sequence[Any],
    written: Any,
    times: Any,
    gpu: bool,
) -> pd.DataFrame:
    step_ms = measured.step_ms(written, times)
    compute_ms = np.full_like(step_ms, np.nan) if gpu else measured.host_compute_ms(written, times)
    steps, ranks = step_ms.shape
    step, rank = np.divmod(np.arange(steps * ranks), ranks)
    taken = shares[:steps]

    def each(values: list[Any]) -> np.ndarray:
        return np.concatenate([np.broadcast_to(value, ranks) for value in values])

    return pd.DataFrame(
        {
            "block": np.int32(block),
            "arm": arm.name,
            "position": np.int32(position),
            "step": step.astype(np.int32),
            "rank": rank.astype(np.int32),
            "warmup": step < simulation.warmup,
            "step_ms": step_ms.ravel(),
            "compute_ms": compute_ms.ravel(),
            "wait_ms": (step_ms - compute_ms).ravel(),
            "samples": each([share.samples for share in taken]).astype(np.int64),
            "tokens": each([share.tokens for share in taken]).astype(np.int64),
            "candidates": each([share.candidates for share in taken]).astype(np.int64),
            "predicted_cost": each([share.projection_flop + share.attention_flop for share in taken]),
            "moved_bytes": each([share.moved_out for share in taken]).astype(np.int64),
            "batch_bytes": each([share.home_bytes for share in taken]).astype(np.int64),
            "collision_rate": each([rows.collision_rate for rows in row_counts[:steps]]),
            "travelling_collision_rate": each(
                [rows.late_asked.sum() / rows.asked.sum() for rows in row_counts[:steps]]
            ),
            "start_unix_ns": each([times.start[number] for number in written.first]).astype(np.int64),
        }
    )
