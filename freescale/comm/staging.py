"""What the GPU paths have in common: a call moves in rounds of one chunk per peer, driven by one thread per lane.

No bulk transfer is ever enqueued whole, because a copy engine serves its queue in order and knows no priority: at most
two rounds of a lane are under way, so a small urgent call of another lane waits for two chunks, not for a transfer.
Each lane has a thread of its own, so lanes that ranks drive in different orders cannot block each other.
"""

from __future__ import annotations

import math
import queue
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from freescale.comm.annotate import issue_range, move_range
from freescale.comm.transport import Handle, Transport, check_splits
from freescale.errors import FreeScaleError

SLOTS = 3
"""Rounds whose buffers are apart: one being staged, one being exchanged, one being delivered."""


class Mark(Protocol):
    """A place in a queue of copies."""

    def synchronize(self) -> object:
        """Block this thread until every copy before the mark is done."""
        ...


class Copies(Protocol):
    """A queue of copies that a device works off in order (a side stream)."""

    def begin(self, *tensors: Tensor) -> None:
        """On the caller's thread: what follows comes after the caller's work so far; the tensors are used here too."""
        ...

    def copy(self, target: Tensor, source: Tensor) -> None:
        """Enqueue one copy between uint8 tensors of one size."""
        ...

    def mark(self) -> Mark: ...

    def join(self, mark: Mark) -> None:
        """On the caller's thread: its later work comes after the mark."""
        ...

    def here(self) -> AbstractContextManager[object]:
        """Collectives issued inside take their turn in this queue."""
        ...

    def staging(self, nbytes: int) -> Tensor:
        """A host buffer that the device copies to and from directly."""
        ...


@dataclass(frozen=True)
class Round:
    """One chunk per peer.

    Attributes:
        number: of all rounds of the lane.
        shared: every peer gets the same bytes (all-gather).
        out: [begin, end) in the payload for each rank; into: [begin, end) in the result from each rank; both are empty
            for the rank itself.
        largest: bytes of the largest chunk that any rank sends to any other in this round.
    """

    number: int
    shared: bool
    out: tuple[tuple[int, int], ...]
    into: tuple[tuple[int, int], ...]
    largest: int

    @property
    def slot(self) -> int:
        return self.number % SLOTS


class Mover(Protocol):
    """Moves one lane's rounds; its methods run on the lane's thread, in order."""

    engine: str

    def begin(self, send: Tensor, result: Tensor) -> None:
        """On the caller's thread, when the call is issued."""
        ...

    def stage(self, one: Round, send: Tensor) -> None:
        """Start to bring this round's chunks where the exchange takes them from."""
        ...

    def exchange(self, one: Round) -> None:
        """Block until this round's chunks from every peer can be delivered."""
        ...

    def deliver(self, one: Round, result: Tensor) -> None:
        """Start to bring what came into the result."""
        ...

    def keep(self, target: Tensor, source: Tensor) -> None:
        """Start to copy what a rank sends to itself."""
        ...

    def finish(self) -> Mark:
        """A mark behind everything delivered so far."""
        ...

    def join(self, mark: Mark) -> None:
        """On the caller's thread, when it waits."""
        ...

    def close(self) -> None: ...


def plan_rounds(
    out: Sequence[int], into: Sequence[int], largest: int, chunk_bytes: int, rank: int, shared: bool, first: int
) -> list[Round]:
    """Cut a call's parts into rounds of at most `chunk_bytes` per peer.

    Args:
        out, into: bytes for and from each rank; with `shared`, all of `out` is the same payload.
        largest: the largest part of any pair of ranks: every rank must take part in the same number of rounds.
        first: the lane's number for the first round.
    """
    out_begins = [0] * len(out) if shared else _starts(out)
    into_begins = _starts(into)
    rounds = []
    for index, begin in enumerate(range(0, largest, chunk_bytes)):
        end = begin + chunk_bytes

        def pieces(
            sizes: Sequence[int], begins: list[int], begin: int = begin, end: int = end
        ) -> tuple[tuple[int, int], ...]:
            return tuple(
                (begins[peer] + min(begin, size), begins[peer] + min(end, size)) if peer != rank else (0, 0)
                for peer, size in enumerate(sizes)
            )

        rounds.append(
            Round(first + index, shared, pieces(out, out_begins), pieces(into, into_begins), min(end, largest) - begin)
        )
    return rounds


class StagedTransport:
    """A lane whose rounds a `Mover` moves; `host` is a CPU transport's lane, for the ranks to agree on sizes."""

    def __init__(self, group: str, host: Transport, mover: Mover, device: torch.device, chunk_bytes: int) -> None:
        if chunk_bytes < 1:
            raise FreeScaleError(f"chunk_bytes is {chunk_bytes}; it must be at least 1")
        self.group, self.rank, self.world_size = group, host.rank, host.world_size
        self.engine = mover.engine
        self._host, self._mover, self._device, self._chunk_bytes = host, mover, device, chunk_bytes
        self._seq = self._rounds = 0
        self._worker = _Worker(f"freescale {self.group}")

    def all_to_all(self, send: Tensor, send_splits: Sequence[int], recv_splits: Sequence[int]) -> Handle:
        """See `Transport.all_to_all`."""
        check_splits(send, send_splits, recv_splits, self.world_size)
        row_bytes = math.prod(send.shape[1:]) * send.element_size()
        out, into = [rows * row_bytes for rows in send_splits], [rows * row_bytes for rows in recv_splits]
        return self._issue("all_to_all", send, out, into, (sum(recv_splits), *send.shape[1:]))

    def all_gather(self, send: Tensor) -> Handle:
        """See `Transport.all_gather`."""
        each = [send.nbytes] * self.world_size
        return self._issue("all_gather", send, each, each, (self.world_size, *send.shape))

    def close(self) -> None:
        """See `Transport.close`."""
        self._worker.close()
        self._mover.close()
        self._host.close()

    def _issue(self, op: str, send: Tensor, out: list[int], into: list[int], shape: tuple[int, ...]) -> Handle:
        issued_ns = time.perf_counter_ns()
        if send.device != self._device:
            raise FreeScaleError(
                f"{self.engine} lane {self.group!r} moves tensors of {self._device}, not {send.device}"
            )
        away = sum(out) - out[self.rank]
        seq = self._seq
        self._seq += 1
        with issue_range(op, self.group, seq, away):
            payload = send.detach().contiguous()
            result = torch.empty(shape, dtype=send.dtype, device=send.device)
            source, target = _bytes_of(payload), _bytes_of(result)
            self._mover.begin(source, target)
            outcome = self._worker.submit(lambda: self._move(op, seq, source, target, out, into))
        return Handle(
            op,
            self.group,
            seq,
            away,
            self.engine,
            result,
            lambda: self._mover.join(outcome.get()),
            issued_ns,
            outcome.ready.is_set,
        )

    def _move(self, op: str, seq: int, send: Tensor, result: Tensor, out: list[int], into: list[int]) -> Mark:
        """On the lane's thread: the whole of one call."""
        shared = op == "all_gather"
        peers = [peer for peer in range(self.world_size) if peer != self.rank]
        with move_range(op, self.group, seq, sum(out[peer] for peer in peers)):
            largest = max((out[peer] for peer in peers), default=0)
            if peers and not shared:
                largest = int(self._host.all_gather(torch.tensor(largest)).wait().max())
            rounds = plan_rounds(out, into, largest, self._chunk_bytes, self.rank, shared, self._rounds)
            self._rounds += len(rounds)
            for one in rounds[:1]:
                self._mover.stage(one, send)
            for index, one in enumerate(rounds):
                for following in rounds[index + 1 : index + 2]:
                    self._mover.stage(following, send)
                self._mover.exchange(one)
                self._mover.deliver(one, result)
            if out[self.rank]:
                begin = 0 if shared else sum(out[: self.rank])
                place = sum(into[: self.rank])
                own = out[self.rank]
                self._mover.keep(result[place : place + own], send[begin : begin + own])
            return self._mover.finish()


class _Worker:
    """A thread that works off calls in order; it ends with the process."""

    def __init__(self, name: str) -> None:
        self._jobs: queue.SimpleQueue[tuple[Callable[[], Any], _Outcome] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, job: Callable[[], Any]) -> _Outcome:
        outcome = _Outcome()
        self._jobs.put((job, outcome))
        return outcome

    def close(self) -> None:
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        broken: BaseException | None = None
        while (entry := self._jobs.get()) is not None:
            job, outcome = entry
            try:
                if broken:
                    raise broken  # the lane's order is lost with its first failure
                outcome.value = job()
            except BaseException as error:
                broken = outcome.error = error
            outcome.ready.set()
            del entry, job, outcome  # hold no tensor while idle


class _Outcome:
    def __init__(self) -> None:
        self.ready = threading.Event()
        self.value: Any = None
        self.error: BaseException | None = None

    def get(self) -> Any:
        """Block until the job is done; return, or raise, what it did."""
        self.ready.wait()
        if self.error:
            raise self.error
        return self.value


def _starts(sizes: Sequence[int]) -> list[int]:
    starts, total = [], 0
    for size in sizes:
        starts.append(total)
        total += size
    return starts


def _bytes_of(tensor: Tensor) -> Tensor:
    """A contiguous tensor's bytes as a 1-D uint8 view."""
    return tensor.view(-1).view(torch.uint8) if tensor.numel() else tensor.new_empty(0, dtype=torch.uint8)
