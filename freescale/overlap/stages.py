"""A chain of exchanges that moves on whenever it can, and waits only when told to finish.

The chain is a generator that yields the handle it needs next. One thread runs it in small pieces between layers of the
model (`advance`), so the exchanges of batch N+1 progress under the compute of batch N without a thread of their own.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Generic, TypeVar

from freescale.comm.transport import Handle

Result = TypeVar("Result")
Chain = Generator[Handle, None, Result]


class Stages(Generic[Result]):
    """A chain under way."""

    def __init__(self, chain: Chain[Result]) -> None:
        self._chain = chain
        self._needs: Handle | None = None
        self._step()

    def advance(self) -> None:
        """Go as far as possible without waiting."""
        while self._needs is not None and self._needs.done():
            self._step()

    def finish(self) -> Result:
        """Go to the end, waiting where necessary."""
        while self._needs is not None:
            self._needs.wait()
            self._step()
        return self._result

    def _step(self) -> None:
        try:
            self._needs = next(self._chain)
        except StopIteration as stop:
            self._needs = None
            self._result: Result = stop.value


def run(chain: Chain[Result]) -> Result:
    """The chain from beginning to end, waiting at every handle."""
    return Stages(chain).finish()
