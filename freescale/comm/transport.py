"""The one interface through which ranks exchange bytes: issue now, wait later.

A `Transport` is bound to one named group (a *lane*): calls on a lane complete in the order they were issued, calls on
different lanes may pass each other. Every rank of the group must issue the same calls in the same order.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from freescale.comm.annotate import wait_range
from freescale.errors import FreeScaleError


class Handle:
    """A collective under way.

    Attributes:
        op: `all_to_all` or `all_gather`.
        group: name of the lane.
        seq: number of the call on its lane, from 0.
        sent_bytes: bytes that this rank sends to the others.
        engine: what moves the bytes (`gloo`, `nccl`, `shared_memory`, …).
        issued_ns, completed_ns: `time.perf_counter_ns` when the call was made, and when `wait` saw its end, else None.
        waited_ns: how long `wait` blocked the caller.
    """

    def __init__(
        self,
        op: str,
        group: str,
        seq: int,
        sent_bytes: int,
        engine: str,
        result: Tensor,
        block: Callable[[], object],
        issued_ns: int | None = None,
        poll: Callable[[], bool] | None = None,
    ) -> None:
        self.op, self.group, self.seq = op, group, seq
        self.sent_bytes, self.engine = sent_bytes, engine
        self.issued_ns = time.perf_counter_ns() if issued_ns is None else issued_ns
        self.completed_ns: int | None = None
        self.waited_ns = 0
        self._result, self._block, self._poll = result, block, poll

    def done(self) -> bool:
        """Whether `wait` would return at once; looks, moves things along where it can, and never blocks.

        A transport that cannot tell says False until it was waited for.
        """
        return self.completed_ns is not None or (self._poll is not None and self._poll())

    def wait(self) -> Tensor:
        """Block until the result is there, and return it. May be called again, at no cost."""
        if self.completed_ns is None:
            begin_ns = time.perf_counter_ns()
            with wait_range(self.op, self.group, self.seq):
                self._block()
            self.completed_ns = time.perf_counter_ns()
            self.waited_ns = self.completed_ns - begin_ns
        if self._result.is_cuda:  # whichever stream it was made on, and waited for first, this one uses it
            self._result.record_stream(torch.cuda.current_stream(self._result.device))
        return self._result

    def then(self, more: Callable[[], object], engine: str, more_done: Callable[[], bool] = lambda: True) -> Handle:
        """The same collective, over only when `more` has returned too; wait for it instead of for this one.

        `more_done` says, once this collective is over, whether `more` would return at once.
        """

        def block() -> None:
            self._block()
            more()

        return Handle(
            self.op,
            self.group,
            self.seq,
            self.sent_bytes,
            engine,
            self._result,
            block,
            self.issued_ns,
            lambda: self.done() and more_done(),
        )


class Transport(Protocol):
    """Collectives that move bytes and reduce nothing. Rows lie along dimension 0; splits count rows."""

    group: str
    rank: int
    world_size: int
    engine: str

    def all_to_all(self, send: Tensor, send_splits: Sequence[int], recv_splits: Sequence[int]) -> Handle:
        """Send `send_splits[r]` consecutive rows to each rank r; the result holds what each rank sent, in rank order.

        Args:
            send: [Σ send_splits, …], contiguous; must not be changed before the handle was waited for.
            send_splits, recv_splits: one entry per rank, zeros allowed; `recv_splits[r]` is what r sends here.

        Raises:
            FreeScaleError: splits that do not fit `send` or the world size.
        """
        ...

    def all_gather(self, send: Tensor) -> Handle:
        """Result [world_size, *send.shape]; `send` has the same shape and dtype on every rank."""
        ...

    def close(self) -> None:
        """Give back what the lane holds. Every rank calls it after its last wait; the lane is of no use afterwards."""
        ...


def check_splits(send: Tensor, send_splits: Sequence[int], recv_splits: Sequence[int], world_size: int) -> None:
    """Raise FreeScaleError unless the splits fit `send` and the world size."""
    if send.dim() == 0:
        raise FreeScaleError("all_to_all: send has no dimension to split along; give it at least one")
    for name, splits in (("send_splits", send_splits), ("recv_splits", recv_splits)):
        if len(splits) != world_size:
            raise FreeScaleError(f"all_to_all: {name} has {len(splits)} entries for {world_size} ranks; give one each")
        if any(rows < 0 for rows in splits):
            raise FreeScaleError(f"all_to_all: {name} {list(splits)} has a negative entry; rows are counted from 0")
    if sum(send_splits) != send.shape[0]:
        raise FreeScaleError(
            f"all_to_all: send_splits add up to {sum(send_splits)} rows, but send has {send.shape[0]}; make them agree"
        )
