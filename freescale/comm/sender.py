"""The sending side of a shared-memory lane: into the peer's result if it has announced one, else into the outbox.

A part for a peer that has not come is staged chunk by chunk, looking again after each: so of a transfer between ranks
that come within a millisecond of each other nearly everything is copied once.
"""

from __future__ import annotations

import ctypes
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from freescale.comm import semaphore
from freescale.comm.attendance import Attendance
from freescale.comm.board import ACCEPTED, ARRIVED, LANDING, Parcel
from freescale.comm.outbox import Outbox, Region


class Sender:
    """What this rank has sent on one lane, and what of it the peers still have to take."""

    def __init__(self, attendance: Attendance, direct_bytes: int, chunk_bytes: int) -> None:
        self._there = attendance
        self._direct_bytes, self._chunk_bytes = direct_bytes, chunk_bytes
        self._outbox = Outbox()
        self._regions: deque[tuple[int, Region]] = deque()  # by call, what the outbox holds for it
        self._accepted = [0] * len(attendance.boards)
        self._landings_due, self._landings_seen = [0] * len(attendance.boards), [0] * len(attendance.boards)

    @property
    def held_bytes(self) -> int:
        return self._outbox.held_bytes

    def send(self, seq: int, code: int, payload: int, sizes: Sequence[int], shared: bool) -> None:
        """Send call `seq`; returns when the payload is no longer needed.

        Args:
            code: operation and dtype, for the peers to check.
            payload: address of what goes to all ranks, rank by rank; with `shared`, of what each of them gets.
            sizes: bytes for each rank.
        """
        peers = self._there.peers
        if not peers:
            return
        region = self._outbox.reserve(sizes[peers[0]] if shared else sum(sizes[peer] for peer in peers))
        everyone = _Stage(region, 0, payload)
        waiting: deque[_Part] = deque()
        offset = 0
        for peer in peers:
            stage = everyone if shared else _Stage(region, offset, payload + sum(sizes[:peer]))
            waiting.append(_Part(peer, sizes[peer], stage))
            offset += sizes[peer]
            if sizes[peer] >= self._direct_bytes:
                self._landings_due[peer] += 1
        kept = 0
        while waiting:
            part = waiting.popleft()
            if part.staged == part.nbytes or self._land(seq, part):
                self._hand_over(seq, code, part)
                kept = max(kept, part.stage.offset + part.stage.filled if part.stage.filled else 0)
            else:
                part.staged = min(part.staged + self._chunk_bytes, part.nbytes)
                part.stage.fill(part.staged)
                waiting.append(part)  # the others next, so that this one's peer has time to come
        left = self._outbox.shrink_newest(kept)
        if left:
            self._regions.append((seq, left))

    def collect(self, issued: int) -> int:
        """Free what all peers have taken; how many of the `issued` calls that is."""
        for peer in self._there.peers:
            while semaphore.take(self._there.mine.signal(ACCEPTED, peer)):
                self._accepted[peer] += 1
        taken = min((self._accepted[peer] for peer in self._there.peers), default=issued)
        while self._regions and self._regions[0][0] < taken:
            self._regions.popleft()
            self._outbox.release_oldest()
        return taken

    def slowest_first(self) -> list[int]:
        """The peers, those that have taken least first."""
        return sorted(self._there.peers, key=self._accepted.__getitem__)

    def owing(self) -> list[int]:
        """Peers that are still there and have not taken what the outbox holds for them."""
        if not self._regions:
            return []
        newest = self._regions[-1][0]
        return [peer for peer in self._there.peers if self._accepted[peer] <= newest and self._there.is_there(peer)]

    def discard(self) -> None:
        self._regions.clear()
        self._outbox.discard()

    def _land(self, seq: int, part: _Part) -> bool:
        """Write what is not staged yet into the peer's result, if it has announced where."""
        if part.nbytes < self._direct_bytes:
            return False
        peer = part.peer
        while self._landings_seen[peer] < self._landings_due[peer]:
            if not semaphore.take(self._there.mine.signal(LANDING, peer)):
                return False
            self._landings_seen[peer] += 1
        landing = self._there.boards[peer].read_landing(self._there.rank, seq)
        if landing.key == 0 or landing.seq != seq or landing.nbytes != part.nbytes:
            return False  # the peer sees from the parcel that the sizes disagree, and says so
        there = self._there.segment_of(peer, landing.key, landing.descriptor, landing.size)
        rest = part.nbytes - part.staged
        ctypes.memmove(there.address + landing.offset + part.staged, part.stage.source + part.staged, rest)
        return True

    def _hand_over(self, seq: int, code: int, part: _Part) -> None:
        segment, place = part.stage.region.segment, part.stage.region.offset + part.stage.offset
        parcel = Parcel(seq, code, part.nbytes, part.staged, segment.key, segment.descriptor, segment.size, place)
        self._there.mine.write_parcel(part.peer, parcel)
        semaphore.post(self._there.boards[part.peer].signal(ARRIVED, self._there.rank))


@dataclass
class _Stage:
    """Room in the outbox that fills from the front; an all-gather's peers share one."""

    region: Region
    offset: int
    source: int
    filled: int = 0

    def fill(self, upto: int) -> None:
        if upto > self.filled:
            place = self.region.address + self.offset
            ctypes.memmove(place + self.filled, self.source + self.filled, upto - self.filled)
            self.filled = upto


@dataclass
class _Part:
    peer: int
    nbytes: int
    stage: _Stage
    staged: int = 0
