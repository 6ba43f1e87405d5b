"""Where a sender leaves bytes for ranks that have not come yet: a ring that grows instead of making anybody wait.

Regions are given back in the order they were reserved, as a lane's calls complete in order. A region is one piece of
one segment; when it does not fit, a larger segment takes over, and the old one goes with its last region.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from freescale.comm import segment as segments
from freescale.comm.segment import Segment

_ALIGN = 64
_FIRST_BYTES = 4 << 20


@dataclass
class Region:
    """`size` bytes of `segment` from `offset`."""

    segment: Segment
    offset: int
    size: int

    @property
    def address(self) -> int:
        return self.segment.address + self.offset


class Outbox:
    """First in, first out. `held_bytes` is what the live regions take."""

    def __init__(self) -> None:
        self.held_bytes = 0
        self._rings: deque[_Ring] = deque()  # the newest takes new regions, older ones run empty

    def reserve(self, nbytes: int) -> Region:
        """A region of at least `nbytes`, aligned for every dtype. FreeScaleError when memory has run out."""
        nbytes = -(-nbytes // _ALIGN) * _ALIGN
        offset = self._rings[-1].room(nbytes) if self._rings else None
        if offset is None:
            size = 2 * self._rings[-1].segment.size if self._rings else _FIRST_BYTES
            while size < 2 * nbytes:
                size *= 2
            self._rings.append(_Ring(segments.create(size)))
            self._drop_empty()
            offset = 0
        ring = self._rings[-1]
        region = Region(ring.segment, offset, nbytes)
        ring.live.append(region)
        self.held_bytes += nbytes
        return region

    def shrink_newest(self, nbytes: int) -> Region | None:
        """Keep only the first `nbytes` of the region reserved last; with none left it is given back, and None."""
        nbytes = -(-nbytes // _ALIGN) * _ALIGN
        region = self._rings[-1].live[-1]
        self.held_bytes -= region.size - nbytes
        region.size = nbytes
        if nbytes:
            return region
        self._rings[-1].live.pop()
        return None

    def release_oldest(self) -> None:
        """Give back the region reserved first; nobody will read it any more."""
        self.held_bytes -= self._rings[0].live.popleft().size
        self._drop_empty()

    def discard(self) -> None:
        """Give all memory back, live regions too."""
        for ring in self._rings:
            ring.segment.discard()
        self._rings.clear()
        self.held_bytes = 0

    def _drop_empty(self) -> None:
        while len(self._rings) > 1 and not self._rings[0].live:
            self._rings.popleft().segment.discard()


class _Ring:
    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self.live: deque[Region] = deque()

    def room(self, nbytes: int) -> int | None:
        """Offset where `nbytes` fit; None if nowhere."""
        if not self.live:
            return 0 if nbytes <= self.segment.size else None  # from the start again: those pages are warm
        first, last = self.live[0], self.live[-1]
        head = last.offset + last.size
        if last.offset < first.offset:  # wrapped: what is free lies between the newest and the oldest
            return head if head + nbytes < first.offset else None
        if head + nbytes <= self.segment.size:
            return head
        return 0 if nbytes < first.offset else None
