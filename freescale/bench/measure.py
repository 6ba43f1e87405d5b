"""A rank's part of the measuring: blocks of timed turns, then the same blocks under the profiler.

What a turn leaves is stored when the turn ends, so a run that is stopped loses the turn that it was in, and one that
is resumed takes the turns that are missing. Batches, the order of the arms and the initial state depend on the block's
number alone, not on what ran before.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch.distributed as dist

from analyzer import rundir
from freescale.bench import machine_state
from freescale.bench.arms import Arm
from freescale.bench.budget import Budget
from freescale.bench.collect import bring_to_rank_0, gather_rows, same_everywhere, steps_table
from freescale.bench.config import RunConfig
from freescale.bench.heartbeat import Heartbeats
from freescale.bench.parts import part_file, recorded_turns
from freescale.bench.profile import profiled_turn
from freescale.bench.trainer import Trainer
from workloads.batch import JaggedBatch

Turn = tuple[int, str]
_SAMPLES_INT32 = dict.fromkeys(("block", "position", "rank", "launch", "cores"), "int32")


@dataclass(frozen=True)
class Done:
    """What earlier launches of the run have left, the same on every rank.

    Attributes:
        launch: number of this launch, 0 for the first.
        timed, profiled: (block, arm) of finished turns.
        timed_blocks: how many blocks there are to be, once the timed pass has ended.
    """

    launch: int = 0
    timed: set[Turn] = field(default_factory=set)
    profiled: set[Turn] = field(default_factory=set)
    timed_blocks: int | None = None

    def sampled(self, row: pd.Series) -> bool:
        """Whether a row of samples belongs to a finished turn, and not to one that was stopped just after it."""
        return (row["block"], row["arm"]) in (self.timed if row["phase"] == "timed" else self.profiled)


class Measuring:
    """Both passes of one rank.

    Args:
        run: run directory on rank 0, None elsewhere.
        control: gloo group of all ranks.
        page: where to leave signs of life.
    """

    def __init__(
        self,
        config: RunConfig,
        trainer: Trainer,
        run: Path | None,
        control: dist.ProcessGroup,
        page: Heartbeats | None,
    ) -> None:
        self.config, self.trainer, self.run, self.control, self.page = config, trainer, run, control, page
        self.rank, self.world_size = trainer.rank, trainer.world_size
        self.budget = Budget(config.budget_min, time.monotonic)
        self.tables = {name: _Table(run / name) for name in (rundir.STEPS, rundir.SAMPLES)} if run else {}

    def measure(self) -> None:
        """Take the turns that are missing, and store what they show."""
        done: Done = same_everywhere(self._done() if self.run else None, self.control)
        self._settle()
        blocks = done.timed_blocks or self._timed_pass(done)
        if self.run:
            rundir.update_manifest(self.run, blocks=blocks, timed_blocks=blocks)
        self._profiled_pass(done, blocks)

    def _done(self) -> Done:
        assert self.run is not None
        manifest, steps = rundir.read_json(self.run / rundir.MANIFEST), self.tables[rundir.STEPS].frame
        turns = steps[["block", "arm"]].drop_duplicates() if len(steps) else steps
        done = Done(
            launch=len(manifest["launches"]) - 1,
            timed=set(turns.itertuples(index=False, name=None)),
            profiled=recorded_turns(self.run, list(self.config.arms), self.world_size),
            timed_blocks=manifest.get("timed_blocks"),
        )
        self.tables[rundir.SAMPLES].keep(done.sampled)  # a turn that is taken again is sampled again
        return done

    def _settle(self) -> None:
        """A turn of the first and the last arm that counts for nothing: what a process does once is done after it."""
        batches = self._batches(0)
        arms = self.config.parsed_arms
        for arm in dict.fromkeys((arms[0], arms[-1])):
            self.trainer.run_turn(arm, batches[:-1], then=batches[-1])

    def _timed_pass(self, done: Done) -> int:
        """Returns the number of blocks."""
        config, block = self.config, 0
        while block < config.blocks:
            missing = self._missing(block, done.timed)
            must = block == 0 or len(missing) < len(config.arms)
            fits = must or self.budget.timed_block_fits(block, config.steps_per_turn, config.steps_in_profile)
            if not same_everywhere(fits, self.control):
                break
            self._expect(done, self._blocks_expected(block))
            start_s = self.budget.elapsed_s
            for position, arm, batches in self._turns(block, missing):
                place = {"block": block, "arm": arm.name, "position": position, "rank": self.rank}
                place["launch"] = done.launch
                with self._sampled({**place, "phase": "timed"}):
                    rows = self.trainer.run_turn(arm, batches[:-1], self._step_done, then=batches[-1])
                rows = [{**row, **place, "warmup": row["step"] < config.warmup_steps} for row in rows]
                self._store(rundir.STEPS, rows)
            if missing:
                self.budget.block_took("timed", (self.budget.elapsed_s - start_s) * len(config.arms) / len(missing))
            block += 1
        return block

    def _profiled_pass(self, done: Done, blocks: int) -> None:
        self._expect(done, blocks)
        for block in range(blocks):
            missing = self._missing(block, done.profiled)
            must = block == 0 or len(missing) < len(self.config.arms)
            if not same_everywhere(must or self.budget.profiled_block_fits(), self.control):
                break
            start_s = self.budget.elapsed_s
            for position, arm, batches in self._turns(block, missing):
                place = {"block": block, "arm": arm.name, "position": position, "rank": self.rank}
                with self._sampled({**place, "launch": done.launch, "phase": "profiled"}):
                    trace = profiled_turn(self.trainer, arm, batches, block, self.config, self._step_done)
                for source in range(self.world_size):
                    held = bring_to_rank_0(trace if source == self.rank else b"", source, self.control)
                    if self.run and held is not None:
                        rundir.write_bytes(part_file(self.run, arm.name, block, source), held)
            if missing:
                self.budget.block_took("profiled", self.budget.elapsed_s - start_s)

    def _missing(self, block: int, done: set[Turn]) -> list[tuple[int, Arm]]:
        """(position, arm) of a block's turns that have not been taken yet."""
        arms = self.config.parsed_arms
        order = np.random.default_rng([self.config.seed, block]).permutation(len(arms))
        in_order = [arms[index] for index in order]
        return [(position, arm) for position, arm in enumerate(in_order) if (block, arm.name) not in done]

    def _turns(self, block: int, missing: list[tuple[int, Arm]]) -> Iterator[tuple[int, Arm, list[JaggedBatch]]]:
        batches = self._batches(block) if missing else []
        for position, arm in missing:
            yield position, arm, batches

    def _batches(self, block: int) -> list[JaggedBatch]:
        batches = []
        for step in self.config.batches_of(block):
            batches.append(self.trainer.workload.batch(step, self.rank, self.world_size))
            self.trainer.beat()
        return batches

    @contextlib.contextmanager
    def _sampled(self, place: dict[str, Any]) -> Iterator[None]:
        """Store what the machine does meanwhile."""
        before = machine_state.read()
        yield
        self._store(rundir.SAMPLES, [{**place, **machine_state.between(before, machine_state.read())}])

    def _store(self, name: str, rows: list[dict[str, Any]]) -> None:
        """Add all ranks' rows to a table of the run directory."""
        gathered = gather_rows(rows, self.control)
        if self.run:
            self.tables[name].add(steps_table(gathered) if name == rundir.STEPS else _samples_table(gathered))

    def _step_done(self) -> None:
        if self.page:
            self.page.beat(self.rank, step_done=True)

    def _blocks_expected(self, block: int) -> int | None:
        if self.config.budget_min is None:
            return self.config.blocks
        fit = self.budget.blocks_that_fit(block, self.config.steps_per_turn, self.config.steps_in_profile)
        return None if fit is None else min(self.config.blocks, fit)

    def _expect(self, done: Done, blocks: int | None) -> None:
        """Say how many steps this launch will take, for the time left."""
        if self.page and blocks:
            turns = blocks * len(self.config.arms)
            timed = max(0, turns - len(done.timed)) * self.config.steps_per_turn
            self.page.expect(self.rank, timed + max(0, turns - len(done.profiled)) * self.config.steps_in_profile)


class _Table:
    """A Parquet file of the run directory that grows by turns."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self.frame = pd.read_parquet(file) if file.exists() else pd.DataFrame()

    def add(self, rows: pd.DataFrame) -> None:
        self.frame = pd.concat([self.frame, rows], ignore_index=True) if len(self.frame) else rows
        rundir.write_parquet(self._file, self.frame)

    def keep(self, wanted: Callable[[pd.Series], bool]) -> None:
        """Drop the rows that are not wanted."""
        if len(self.frame):
            self.frame = self.frame[self.frame.apply(wanted, axis=1)].reset_index(drop=True)


def _samples_table(rows: list[dict[str, Any]]) -> pd.DataFrame:
    whole = ("start_unix_ns", "voluntary_switches", "involuntary_switches", "migrations", "major_faults")
    types = {**dict.fromkeys((*whole, "available_bytes"), "int64"), **_SAMPLES_INT32}
    return pd.DataFrame(rows).astype(types)
