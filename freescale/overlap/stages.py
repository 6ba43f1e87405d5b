"""A chain of exchanges that moves on whenever it can, and waits only when told to finish.

The chain is a generator that yields what it needs next, most often a handle. One thread runs it in small pieces between
layers of the model (`advance`), so the exchanges of batch N+1 progress under the compute of batch N without a thread of
their own.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Generic, Protocol, TypeVar

from freescale.comm.transport import Handle
from freescale.overlap.side_stream import SideStream


class Awaited(Protocol):
    """What a chain can need: a handle, or a good moment."""

    def done(self) -> bool: ...
    def wait(self) -> object: ...


Result = TypeVar("Result")
Chain = Generator[Awaited, None, Result]
Exchanges = Generator[Handle, None, Result]
"""A chain that needs nothing but handles."""


class Stages(Generic[Result]):
    """A chain under way, on a stream of its own."""

    def __init__(self, chain: Chain[Result], side: SideStream) -> None:
        self._chain, self._side = chain, side
        self._needs: Awaited | None = None
        side.begin()
        self._step()

    def advance(self) -> None:
        """Go as far as possible without waiting."""
        while self._needs is not None and self._needs.done():
            self._step()

    def finish(self) -> Result:
        """Go to the end, waiting where necessary; the result is for the current stream."""
        while self._needs is not None:
            with self._side.entered():
                self._needs.wait()
            self._step()
        self._side.join(self._result)
        return self._result

    def _step(self) -> None:
        try:
            with self._side.entered():
                self._needs = next(self._chain)
        except StopIteration as stop:
            self._needs = None
            self._result: Result = stop.value


def run(chain: Chain[Result], side: SideStream) -> Result:
    """The chain from beginning to end, waiting at every handle."""
    return Stages(chain, side).finish()
