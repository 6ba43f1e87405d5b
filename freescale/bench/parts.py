"""The profiled pass in parts: a file per block, arm and rank, so that a run that is stopped keeps what it has recorded.

When the run ends, the parts of an arm and a rank become one trace.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from analyzer import rundir
from freescale.bench.profile import merge

PARTS = "parts"


def part_file(run: Path, arm: str, block: int, rank: int) -> Path:
    """Where the trace of one profiled turn of one rank is kept until the run ends."""
    return run / PARTS / arm / f"block-{block:05d}-rank-{rank:05d}.json.gz"


def recorded_turns(run: Path, arms: list[str], ranks: int) -> set[tuple[int, str]]:
    """(block, arm) of the profiled turns that every rank has left its part of."""
    found: dict[tuple[int, str], int] = {}
    for arm in arms:
        for file in (run / PARTS / arm).glob("block-*-rank-*.json.gz"):
            turn = int(file.name.split("-")[1]), arm
            found[turn] = found.get(turn, 0) + 1
    return {turn for turn, files in found.items() if files == ranks}


def join(run: Path, arms: list[str], ranks: int) -> None:
    """Write traces/<arm>/rank-*.json.gz from the parts of complete turns. The parts stay."""
    blocks_of: dict[str, list[int]] = {}
    for block, arm in sorted(recorded_turns(run, arms, ranks)):
        blocks_of.setdefault(arm, []).append(block)
    for arm, blocks in blocks_of.items():
        for rank in range(ranks):
            traces = [part_file(run, arm, block, rank).read_bytes() for block in blocks]
            rundir.write_bytes(run / rundir.TRACES / arm / f"rank-{rank:05d}.json.gz", merge(traces))


def discard(run: Path) -> None:
    """Remove the parts, when the run is complete and nothing will be added."""
    shutil.rmtree(run / PARTS, ignore_errors=True)
