"""Which ranks of a lane are still there: sleeping until one posts, and saying who is to blame when none will."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import NoReturn

from freescale.comm import segment as segments
from freescale.comm import semaphore
from freescale.comm.board import Board
from freescale.comm.peers import Process
from freescale.comm.segment import Segment
from freescale.errors import FreeScaleError

SPIN_NS = 50_000
SLICE_S = 0.05
"""A waiting rank looks this long, then sleeps, and looks every slice whether its peers still live."""

_PEER_SEGMENTS = 64


class Attendance:
    """One lane's view of its peers; `broken` is why the lane is of no use any more, or empty."""

    def __init__(
        self, group: str, rank: int, boards: Sequence[Board], processes: Sequence[Process], timeout_s: float
    ) -> None:
        self.rank, self.boards, self.mine = rank, boards, boards[rank]
        self.peers = [(rank + hop) % len(boards) for hop in range(1, len(boards))]
        self.broken = ""
        self._name = f"rank {rank}, lane {group!r}"
        self._processes, self.timeout_s = processes, timeout_s
        self._mapped: list[OrderedDict[int, Segment]] = [OrderedDict() for _ in boards]

    def fail(self, reason: str) -> NoReturn:
        """Give the lane up: this call and every later one raises FreeScaleError."""
        self.broken = self.broken or f"{self._name}, {reason}"
        raise FreeScaleError(f"shared_memory: {self.broken}")

    def raise_if_unusable(self) -> None:
        if self.broken:
            raise FreeScaleError(f"shared_memory: {self.broken}")
        if self.mine.left_after >= 0:
            self.fail("was closed; open it again")

    def is_there(self, peer: int) -> bool:
        return self.boards[peer].left_after < 0 and self._processes[peer].is_alive()

    def sleep(self, kind: int, awaited: Sequence[int], begin_s: float, doing: str, seq: int) -> None:
        """Until the first of `awaited` posts, at most a slice.

        Args:
            begin_s: `time.monotonic` when the wait began; doing: what it is for.
            seq: the call that the awaited ranks must come to, or take this rank's part of.

        Raises:
            FreeScaleError: one of `awaited` cannot post any more, or is overdue; names the rank that began it.
        """
        signal = self.mine.signal(kind, awaited[0])
        spin_until = time.perf_counter_ns() + SPIN_NS
        while time.perf_counter_ns() < spin_until:
            if semaphore.is_posted(signal):
                return
        # Asked before sleeping: what a peer did before it went has then been posted, or never will be.
        reasons = [self._absence(peer, seq) for peer in awaited]
        absent = next((reason for reason in reasons if reason), "")
        if semaphore.sleep_until_posted(signal, 0.0 if absent else SLICE_S):
            return
        if any(
            reason and not semaphore.is_posted(self.mine.signal(kind, peer))
            for peer, reason in zip(awaited, reasons, strict=True)
        ):
            self.fail(f"{doing}: {self._first_to_die() or absent}; see its log")
        if time.monotonic() > begin_s + self.timeout_s:
            late = self._described(awaited[0])
            self.fail(f"{doing}: {late} did not come within {self.timeout_s:g} s; see its log")

    def segment_of(self, peer: int, key: int, descriptor: int, size: int) -> Segment:
        """A peer's segment, mapped at first use."""
        mapped = self._mapped[peer]
        if key in mapped:
            mapped.move_to_end(key)
            return mapped[key]
        try:
            mapped[key] = found = segments.attach(self._processes[peer].pid, key, descriptor, size)
        except FreeScaleError as error:
            gone = not self._processes[peer].is_alive()
            self.fail(f"{self._described(peer)} has died; see its log" if gone else str(error))
        if len(mapped) > _PEER_SEGMENTS:
            mapped.popitem(last=False)
        return found

    def _absence(self, peer: int, seq: int) -> str:
        """Why the peer will not come to call `seq`; empty if it may."""
        left = self.boards[peer].left_after
        if 0 <= left <= seq:
            return f"{self._described(peer)} left after {left} calls"
        return "" if self._processes[peer].is_alive() else f"{self._described(peer)} has died"

    def _first_to_die(self) -> str:
        """A rank that ended without leaving; others may have left because of it."""
        for peer in self.peers:
            if self.boards[peer].left_after < 0 and not self._processes[peer].is_alive():
                return f"{self._described(peer)} has died"
        return ""

    def _described(self, peer: int) -> str:
        return f"rank {peer} (process {self._processes[peer].pid})"
