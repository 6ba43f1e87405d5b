"""How many blocks fit into the time there is, decided while running, from what blocks have taken so far."""

from __future__ import annotations

from collections.abc import Callable

PROFILING_SLOWDOWN = 2.5  # of a step that is recorded, its trace's writing and its analysis included
RESERVE_S = 20.0  # start of the ranks before the clock runs, report after it has stopped


class Budget:
    """A clock that runs from its making.

    Args:
        minutes: what there is; None is for ever.
        now_s: the clock.
    """

    def __init__(self, minutes: float | None, now_s: Callable[[], float]) -> None:
        self._now_s, self._start_s = now_s, now_s()
        self._limit_s = None if minutes is None else minutes * 60 - RESERVE_S
        self._spent_s: dict[str, list[float]] = {}

    @property
    def elapsed_s(self) -> float:
        return self._now_s() - self._start_s

    def block_took(self, phase: str, seconds: float) -> None:
        """Remember what a block of a phase, `timed` or `profiled`, has taken."""
        self._spent_s.setdefault(phase, []).append(seconds)

    def timed_block_fits(self, blocks_done: int, steps_per_turn: int, steps_in_profile: int) -> bool:
        """Is there time for one more timed block, and for profiling it and all before it?"""
        if self._limit_s is None or not self._spent_s.get("timed"):
            return True
        block_s = self._typical_s("timed")
        profile_s = block_s * PROFILING_SLOWDOWN * steps_in_profile / steps_per_turn
        return self.elapsed_s + block_s + (blocks_done + 1) * profile_s <= self._limit_s

    def blocks_that_fit(self, blocks_done: int, steps_per_turn: int, steps_in_profile: int) -> int | None:
        """Timed blocks in all, by what is known now; None while nothing is, or without a limit."""
        if self._limit_s is None or not self._spent_s.get("timed"):
            return None
        block_s = self._typical_s("timed")
        profile_s = block_s * PROFILING_SLOWDOWN * steps_in_profile / steps_per_turn
        more = (self._limit_s - self.elapsed_s - blocks_done * profile_s) / (block_s + profile_s)
        return blocks_done + max(0, int(more))

    def profiled_block_fits(self) -> bool:
        """Is there time to profile one more block? The first always gets it: without any there is no mechanism."""
        if self._limit_s is None or not self._spent_s.get("profiled"):
            return True
        return self.elapsed_s + self._typical_s("profiled") <= self._limit_s

    def _typical_s(self, phase: str) -> float:
        spent = self._spent_s[phase]
        return sum(spent) / len(spent)
