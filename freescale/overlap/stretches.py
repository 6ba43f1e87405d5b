"""Where a long stretch of compute lies ahead: the moment to start a transfer that has time.

Between small operations there are pauses that hide nothing, so a transfer that starts at a layer boundary in the middle
of them is seen to run; one that starts ahead of a long operation is not. A model does the same work every step, so how
long each stretch took the last time says which ones are long.
"""

from __future__ import annotations

import time
from collections.abc import Callable


class Stretches:
    """Stretches of compute between the boundaries that a pass of the model goes through.

    A thing to wait for, like a handle: `done` at a boundary ahead of a stretch that took longer than the average one in
    the pass before. Nothing is known in the first pass, and every boundary will do.
    """

    def __init__(self, now_ns: Callable[[], int] = time.perf_counter_ns) -> None:
        self._now_ns = now_ns
        self._before: list[int] = []
        self._passed: list[int] = []
        self._since_ns: int | None = None

    def begin(self) -> None:
        """A pass begins."""
        self._before, self._passed, self._since_ns = self._passed or self._before, [], None

    def arrive(self) -> None:
        """The compute has come to the next boundary."""
        if self._since_ns is not None:
            self._passed.append(self._now_ns() - self._since_ns)

    def leave(self) -> None:
        """It goes on."""
        self._since_ns = self._now_ns()

    def done(self) -> bool:
        """Whether the stretch ahead is a long one."""
        place = len(self._passed)
        if place >= len(self._before):
            return True
        return self._before[place] * len(self._before) >= sum(self._before)

    def wait(self) -> None:
        """Nothing keeps a transfer from starting anywhere."""
