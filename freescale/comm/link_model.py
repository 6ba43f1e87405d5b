"""When a link would have delivered: a port whose concurrent transfers share its bandwidth equally.

Pure arithmetic over times that the caller gives; nothing here reads a clock.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from freescale.errors import FreeScaleError


@dataclass(frozen=True)
class Link:
    """One full-duplex link per rank, to all its peers: `gbit_per_s` of payload each way, `latency_us` end to end."""

    gbit_per_s: float
    latency_us: float = 0.0

    def __post_init__(self) -> None:
        if not self.gbit_per_s > 0:
            raise FreeScaleError(f"link: gbit_per_s is {self.gbit_per_s}; it must be above 0")
        if not self.latency_us >= 0:
            raise FreeScaleError(f"link: latency_us is {self.latency_us}; it must not be negative")

    @property
    def bytes_per_ns(self) -> float:
        return self.gbit_per_s / 8

    @property
    def latency_ns(self) -> int:
        return round(self.latency_us * 1e3)

    def __str__(self) -> str:
        return f"{self.gbit_per_s:g} Gb/s, {self.latency_us:g} µs"


def shared_finish_ns(starts_ns: Sequence[int], sizes: Sequence[int], bytes_per_ns: float) -> list[int]:
    """When each transfer ends if all that are under way share the bandwidth equally (processor sharing).

    Every transfer under way has received the same number of bytes since any instant, so one running total of "bytes
    given to each" orders the ends: a transfer ends when the total has grown by its size.
    """
    arrivals = sorted(range(len(sizes)), key=lambda i: starts_ns[i])
    finish = [0] * len(sizes)
    active: list[tuple[float, int]] = []
    now = given = 0.0
    following = 0
    while active or following < len(arrivals):
        if not active:
            now = max(now, float(starts_ns[arrivals[following]]))
        if active:
            target, first = active[0]
            ends = now + (target - given) * len(active) / bytes_per_ns
            if following >= len(arrivals) or ends <= starts_ns[arrivals[following]]:
                heapq.heappop(active)
                now, given = ends, target
                finish[first] = round(ends)
                continue
            arrives = float(starts_ns[arrivals[following]])
            given += (arrives - now) * bytes_per_ns / len(active)
            now = arrives
        heapq.heappush(active, (given + sizes[arrivals[following]], arrivals[following]))
        following += 1
    return finish


class Port:
    """One direction of a rank's link, with the transfers that can still matter."""

    def __init__(self, link: Link) -> None:
        self._link = link
        self._transfers: dict[int, tuple[int, int]] = {}  # number -> start, size
        self._finish: dict[int, int] = {}
        self._needed: set[int] = set()
        self._next = 0

    def add(self, start_ns: int, nbytes: int) -> int:
        """A transfer that could start at `start_ns`; returns its number."""
        number = self._next
        self._next += 1
        self._transfers[number] = (start_ns, nbytes)
        self._needed.add(number)
        self._finish.clear()
        return number

    def finish_ns(self, number: int) -> int:
        """When the transfer's last byte has passed, by what is known so far: a transfer added later can put it off."""
        if not self._finish:
            starts, sizes = zip(*self._transfers.values(), strict=True)
            ends = shared_finish_ns(starts, sizes, self._link.bytes_per_ns)
            self._finish = dict(zip(self._transfers, ends, strict=True))
        return self._finish[number]

    def forget(self, numbers: Sequence[int], horizon_ns: int) -> None:
        """Nobody will ask for these again, and no transfer yet to be added starts before the horizon.

        Busy periods that ended by then and hold nothing needed are dropped; within a period every transfer counts,
        since it slowed the others.
        """
        self._needed.difference_update(numbers)
        period: list[int] = []
        busy_until_ns = 0
        for number in sorted(self._transfers, key=lambda one: self._transfers[one][0]):
            if period and self._transfers[number][0] >= busy_until_ns:
                self._drop(period)
                period = []
            busy_until_ns = max(busy_until_ns, self.finish_ns(number))
            if busy_until_ns > horizon_ns:
                return
            period.append(number)
        self._drop(period)

    def _drop(self, period: Sequence[int]) -> None:
        if self._needed.isdisjoint(period):
            for number in period:
                del self._transfers[number]
                del self._finish[number]
