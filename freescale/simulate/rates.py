"""When work ends whose speed changes as other things begin and end: exact integer arithmetic, all ranks at once.

Progress is counted in units so small that every rate is a whole number of units per nanosecond. The end is therefore
the same however the time in between is cut up.
"""

from __future__ import annotations

import numpy as np

from freescale.simulate.ops import LEAST_RATE_PPM, PPM, Ns

NEVER = 1 << 62
_HORIZON = 1 << 42
PORT_UNITS = 840
"""Units per nanosecond of an unshared port: 840 / n is whole for up to eight equals."""


class Changes:
    """Instants at which two counters change, per rank."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._times: list[Ns] = []
        self._first: list[int] = []
        self._second: list[int] = []

    def add(self, begin: Ns, end: Ns, first: int, second: int) -> None:
        """The counters are higher by `first` and `second` from `begin` to `end` (int64[ranks])."""
        self._times += [begin, end]
        self._first += [first, -first]
        self._second += [second, -second]

    def until(self, start: Ns) -> tuple[Ns, Ns, Ns]:
        """(bounds, first, second): int64[changes + 1, ranks] segment starts, and both counters in each segment."""
        zero = np.zeros((1, self._ranks), np.int64)
        if not self._times:
            return start[None, :], zero, zero
        times = np.clip(np.stack(self._times), start, start + _HORIZON)
        order = np.argsort(times, axis=0, kind="stable")
        times = np.take_along_axis(times, order, axis=0)
        first = np.concatenate([zero, np.cumsum(np.array(self._first, np.int64)[order], axis=0)])
        second = np.concatenate([zero, np.cumsum(np.array(self._second, np.int64)[order], axis=0)])
        return np.concatenate([start[None, :], times]), first, second


def compute_rate(held: Ns, drawn: Ns, flop_share: int, byte_share: int) -> Ns:
    """Units (of 1/1,000,000 ns) per nanosecond of a kernel while communication holds `held` ppm of the compute units
    and draws `drawn` ppm of the memory bandwidth: its roofline with both ceilings lowered."""
    rate = np.full(held.shape, PPM, np.int64)
    if flop_share:
        rate = np.minimum(rate, np.maximum(PPM - held, 0) * PPM // flop_share)
    if byte_share:
        rate = np.minimum(rate, np.maximum(PPM - drawn, 0) * PPM // byte_share)
    return np.maximum(rate, LEAST_RATE_PPM)


def port_rate(above: Ns, equal: Ns) -> Ns:
    """Units per nanosecond of a transfer beside `equal` others of its priority; none while more urgent ones run."""
    return np.where(above > 0, 0, PORT_UNITS // (1 + equal))


def finish(start: Ns, units: Ns, bounds: Ns, rate: Ns) -> Ns:
    """int64[ranks]: the first instant at which the progress since `start` has reached `units`; NEVER if it does not.

    Args:
        bounds, rate: int64[segments, ranks]: where each segment begins (the first at `start`), and its rate.
    """
    never = start >= NEVER
    gained = np.cumsum(np.diff(bounds, axis=0) * rate[:-1], axis=0)
    segment = (gained < units).sum(axis=0)[None, :]
    before = np.take_along_axis(np.concatenate([np.zeros((1, start.size), np.int64), gained]), segment, axis=0)[0]
    begun = np.take_along_axis(bounds, segment, axis=0)[0]
    speed = np.take_along_axis(rate, segment, axis=0)[0]
    rest = units - before
    end = begun - (-rest // np.maximum(speed, 1))
    end = np.where((speed == 0) & (rest > 0), NEVER, end)
    return np.where(never, NEVER, np.where(units == 0, start, end))
