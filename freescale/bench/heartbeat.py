"""A page of memory in which every rank says how far it is, for the launcher to read: progress, and who hangs.

The file is mapped by all processes of a host, so a beat is a store, not a system call, and survives the rank's death.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

_FIELDS = ("pid", "steps_done", "beats", "beat_ns", "steps_expected")


@dataclass(frozen=True)
class Beat:
    """What a rank last said.

    Attributes:
        pid: process ID, 0 before the rank has started.
        steps_done: training steps finished, over all turns.
        beats: signs of life so far, several per step; equal numbers are equal places in the program.
        beat_ns: `time.monotonic_ns` of the last one, 0 before the first.
        steps_expected: training steps until the end, as far as can be told; 0 before that.
    """

    pid: int
    steps_done: int
    beats: int
    beat_ns: int
    steps_expected: int = 0


class Heartbeats:
    """The page, one row of int64 per rank. Every rank writes its own row only."""

    def __init__(self, file: Path, ranks: int) -> None:
        size = ranks * len(_FIELDS) * 8
        with open(os.open(file, os.O_RDWR | os.O_CREAT, 0o600), "r+b") as opened:
            if os.fstat(opened.fileno()).st_size < size:
                opened.truncate(size)
            page = mmap.mmap(opened.fileno(), size)
        self._rows = np.frombuffer(page, dtype=np.int64).reshape(ranks, len(_FIELDS))

    def start(self, rank: int) -> None:
        self._rows[rank] = (os.getpid(), 0, 1, time.monotonic_ns(), 0)

    def beat(self, rank: int, step_done: bool = False) -> None:
        self._rows[rank, 1] += step_done
        self._rows[rank, 2] += 1
        self._rows[rank, 3] = time.monotonic_ns()

    def expect(self, rank: int, steps: int) -> None:
        self._rows[rank, 4] = steps

    def read(self) -> list[Beat]:
        return [Beat(*map(int, row)) for row in self._rows.tolist()]


def hung_ranks(beats: Sequence[Beat], stopped: Sequence[bool], busy: Sequence[bool]) -> list[int]:
    """Whom to blame when nobody moves.

    Ranks that wait for others sleep; one that is stopped, or computes without end, is the cause. Where no process
    tells, it is who got least far, since the others went on until they needed it. Several ranks: they cannot be told
    apart.
    """
    for guilty in (stopped, busy):
        if any(guilty):
            return [rank for rank, is_guilty in enumerate(guilty) if is_guilty]
    least = min(beat.beats for beat in beats)
    return [rank for rank, beat in enumerate(beats) if beat.beats == least]
