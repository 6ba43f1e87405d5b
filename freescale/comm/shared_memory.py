"""Ranks on one host exchange bytes through memory they all map: one copy where both are there, two where one is late.

Issuing a call announces where this rank wants its parts (`landing`), then sends its own: straight into the peer's
result if the peer has announced a place, else chunk by chunk into this rank's outbox, from which the peer fetches in
its `wait`. So issuing never waits for a peer, nothing is left to do for a sender once its call returned, and no thread
works in the background. Semaphores carry the order; see `board` for who writes what.
"""

from __future__ import annotations

import atexit
import ctypes
import math
import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from freescale.comm import semaphore
from freescale.comm.annotate import issue_range, move_range
from freescale.comm.attendance import SLICE_S, Attendance
from freescale.comm.board import ACCEPTED, ARRIVED, LANDING, SLOTS, Board, Landing, board_bytes
from freescale.comm.introduction import introduce
from freescale.comm.landing import LandingPool
from freescale.comm.segment import Segment
from freescale.comm.sender import Sender
from freescale.comm.transport import Handle, check_splits
from freescale.errors import FreeScaleError

PATIENCE_S = 0.25
"""How long issuing slows down for a peer that is far behind, before the outbox grows instead."""

LINGER_S = 5.0
"""How long a rank that exits without `close` stays for peers that have not fetched their parts."""

_OPS = ("all_to_all", "all_gather")
_DTYPES = sorted({value for value in vars(torch).values() if isinstance(value, torch.dtype)}, key=str)


def open_shared_memory(
    names: Sequence[str],
    process_group: dist.ProcessGroup | None = None,
    limit_bytes: int = 1 << 30,
    direct_bytes: int = 64 << 10,
    chunk_bytes: int = 1 << 20,
    timeout_s: float = 300.0,
) -> dict[str, SharedMemoryTransport]:
    """One lane for each name over the ranks of `process_group` (default: all), which is used only to introduce them.

    Collective: every rank calls it with the same names in the same order.

    Args:
        limit_bytes: for each lane and rank, how much may wait in the outbox for late peers before issuing slows down
            (it grows beyond that rather than stand still), and how much results may take in shared memory (further
            results are private and cost a second copy).
        direct_bytes: parts at least this large may land in the peer's result; below, announcing a place costs more
            than it saves. The same on every rank.
        chunk_bytes: how much goes to the outbox before the sender looks again whether the peer has come.
        timeout_s: a call whose peers live but do not come within this time raises FreeScaleError.

    Raises:
        FreeScaleError: on every rank, when any of them cannot: not Linux, not one host, not one user, no memory.
    """
    rank, world_size = dist.get_rank(process_group), dist.get_world_size(process_group)

    def initialise(mine: Segment) -> None:
        for lane in range(len(names)):
            Board(mine, lane, world_size).initialise(world_size)

    everyone, processes = introduce(
        "shared_memory", process_group, names, board_bytes(len(names), world_size), initialise
    )
    return {
        name: SharedMemoryTransport(
            name,
            Attendance(name, rank, [Board(each, lane, world_size) for each in everyone], processes, timeout_s),
            limit_bytes,
            direct_bytes,
            chunk_bytes,
        )
        for lane, name in enumerate(names)
    }


@dataclass
class _Call:
    """A call of which parts may still be missing here."""

    seq: int
    op: str
    dtype: torch.dtype
    result: Tensor
    incoming: list[int]
    offsets: list[int]
    missing: list[int]


class SharedMemoryTransport:
    """One lane; make it with `open_shared_memory`.

    A call completes here when every rank has issued it, as with a process group. `wait` completes earlier calls of the
    lane first. Issue and wait may come from different threads.
    """

    engine = "shared_memory"

    def __init__(
        self, group: str, attendance: Attendance, limit_bytes: int, direct_bytes: int, chunk_bytes: int
    ) -> None:
        self.group, self.rank, self.world_size = group, attendance.rank, len(attendance.boards)
        self._there, self._peers, self._board = attendance, attendance.peers, attendance.mine
        self._limit_bytes, self._direct_bytes = limit_bytes, direct_bytes
        self._lock = threading.RLock()
        self._sender, self._pool = Sender(attendance, direct_bytes, chunk_bytes), LandingPool(limit_bytes)
        self._seq = self._completed = 0
        self._incoming: deque[_Call] = deque()
        self._opened_by = os.getpid()
        atexit.register(self._leave)

    def all_to_all(self, send: Tensor, send_splits: Sequence[int], recv_splits: Sequence[int]) -> Handle:
        """See `Transport.all_to_all`. Returns when `send` may be changed again; the peers need not have come."""
        check_splits(send, send_splits, recv_splits, self.world_size)
        row_bytes = math.prod(send.shape[1:]) * send.element_size()
        outgoing = [rows * row_bytes for rows in send_splits]
        incoming = [rows * row_bytes for rows in recv_splits]
        return self._issue("all_to_all", send, outgoing, incoming, (sum(recv_splits), *send.shape[1:]))

    def all_gather(self, send: Tensor) -> Handle:
        """See `Transport.all_gather`."""
        each = [send.nbytes] * self.world_size
        return self._issue("all_gather", send, each, each, (self.world_size, *send.shape))

    def close(self) -> None:
        """See `Transport.close`. Waits until the peers have fetched what they need from here."""
        with self._lock:
            if self._board.left_after >= 0:
                return
            if not self._there.broken:
                self._complete(self._seq - 1)
                self._linger(self._there.timeout_s)
            self._leave()
            self._pool.discard()
        atexit.unregister(self._leave)

    # Issuing: announce, send, go.

    def _issue(self, op: str, send: Tensor, outgoing: list[int], incoming: list[int], shape: tuple[int, ...]) -> Handle:
        issued_ns = time.perf_counter_ns()
        if send.device.type != "cpu":
            raise FreeScaleError(f"shared_memory moves CPU tensors, not {send.device}; use host_staged for those")
        send = send.detach().contiguous()
        away = sum(outgoing) - outgoing[self.rank]
        with self._lock:
            self._there.raise_if_unusable()
            seq = self._seq
            with issue_range(op, self.group, seq, away):
                try:
                    self._make_room(away)
                    result, block = self._place(incoming, send.dtype, shape)
                    call = _Call(seq, op, send.dtype, result, incoming, _running_sums(incoming), list(self._peers))
                    self._seq += 1
                    self._announce(call, block)
                    shared = op == "all_gather"
                    with move_range(op, self.group, seq, away):
                        self._sender.send(seq, _code(op, send.dtype), send.data_ptr(), outgoing, shared)
                    self._incoming.append(call)
                    own = 0 if shared else sum(outgoing[: self.rank])
                    place = result.data_ptr() + call.offsets[self.rank]
                    ctypes.memmove(place, send.data_ptr() + own, outgoing[self.rank])
                except BaseException as error:
                    self._there.broken = self._there.broken or f"{type(error).__name__} in {op} {seq} of {self.group!r}"
                    raise
        block_until_done, look = (lambda: self._complete(seq)), (lambda: self._has_come(seq))
        return Handle(op, self.group, seq, away, self.engine, result, block_until_done, issued_ns, look)

    def _place(self, incoming: list[int], dtype: torch.dtype, shape: tuple[int, ...]) -> tuple[Tensor, Segment | None]:
        """An empty result, in shared memory if a peer would land in it."""
        if any(incoming[peer] >= self._direct_bytes for peer in self._peers):
            found = self._pool.allocate(sum(incoming), dtype)
            if found:
                result, block = found
                return result if len(shape) == 1 else result.view(shape), block
        return torch.empty(shape, dtype=dtype), None

    def _announce(self, call: _Call, block: Segment | None) -> None:
        for peer in self._peers:
            nbytes = call.incoming[peer]
            if nbytes < self._direct_bytes:
                continue  # the sender knows the size too, and will not look
            where = (block.key, block.descriptor, block.size, call.offsets[peer]) if block else (0, -1, 0, 0)
            self._board.write_landing(peer, Landing(call.seq, nbytes, *where))
            semaphore.post(self._there.boards[peer].signal(LANDING, self.rank))

    def _make_room(self, nbytes: int) -> None:
        """Slow down while peers are far behind, but not for long: they may be waiting for this rank."""
        begin_s = time.monotonic()
        while True:
            behind = self._seq - self._sender.collect(self._seq)
            held = self._sender.held_bytes
            full = held > 0 and held + nbytes > self._limit_bytes and time.monotonic() < begin_s + PATIENCE_S
            if behind < SLOTS and not full:
                return
            self._receive()  # peers that slow down likewise wait for this
            doing = f"call {self._seq}, {behind} calls ahead"
            self._there.sleep(ACCEPTED, self._sender.slowest_first(), begin_s, doing, self._seq - behind)

    # Receiving: fetch what was staged, in call order.

    def _complete(self, seq: int) -> None:
        begin_s = time.monotonic()
        while True:
            with self._lock:
                if self._completed > seq:
                    return
                self._there.raise_if_unusable()
                self._receive()
                if self._completed > seq:
                    return
                call = self._incoming[0]
                awaited = list(call.missing)
            self._there.sleep(ARRIVED, awaited, begin_s, f"{call.op} {call.seq}", call.seq)

    def _has_come(self, seq: int) -> bool:
        with self._lock:
            if self._completed <= seq:
                self._there.raise_if_unusable()
                self._receive()
            return self._completed > seq

    def _receive(self) -> None:
        while self._incoming:
            call = self._incoming[0]
            for peer in list(call.missing):
                if semaphore.take(self._board.signal(ARRIVED, peer)):
                    try:
                        self._fetch(call, peer)
                    except BaseException as error:
                        self._there.broken = self._there.broken or f"{type(error).__name__} in {call.op} {call.seq}"
                        raise
                    call.missing.remove(peer)
            if call.missing:
                return
            self._incoming.popleft()
            self._completed = call.seq + 1

    def _fetch(self, call: _Call, peer: int) -> None:
        parcel = self._there.boards[peer].read_parcel(self.rank, call.seq)
        code, nbytes = _code(call.op, call.dtype), call.incoming[peer]
        if (parcel.op_and_dtype, parcel.nbytes) != (code, nbytes):
            self._there.fail(
                f"call {call.seq}: rank {peer} sends {_describe(parcel.op_and_dtype, parcel.nbytes)}, "
                f"rank {self.rank} expects {_describe(code, nbytes)}; make their calls and splits agree"
            )
        if parcel.staged:
            there = self._there.segment_of(peer, parcel.key, parcel.descriptor, parcel.size)
            with move_range(call.op, self.group, call.seq, parcel.staged):
                place = call.result.data_ptr() + call.offsets[peer]
                ctypes.memmove(place, there.address + parcel.offset, parcel.staged)
        semaphore.post(self._there.boards[peer].signal(ACCEPTED, self.rank))

    # Leaving.

    def _leave(self) -> None:
        """At exit or close: say so, let the peers fetch what only this process has, and give the memory back."""
        if os.getpid() != self._opened_by or self._board.left_after >= 0:
            return  # a forked child is not the rank
        self._board.left_after = self._seq
        self._linger(LINGER_S)
        self._sender.discard()

    def _linger(self, timeout_s: float) -> None:
        until_s = time.monotonic() + timeout_s
        while time.monotonic() < until_s:
            self._sender.collect(self._seq)
            owing = self._sender.owing()
            if not owing:
                return
            semaphore.sleep_until_posted(self._board.signal(ACCEPTED, owing[0]), SLICE_S)


def _running_sums(counts: list[int]) -> list[int]:
    sums, total = [], 0
    for count in counts:
        sums.append(total)
        total += count
    return sums


def _code(op: str, dtype: torch.dtype) -> int:
    return _DTYPES.index(dtype) * len(_OPS) + _OPS.index(op)


def _describe(code: int, nbytes: int) -> str:
    dtype, op = divmod(code, len(_OPS))
    return f"{nbytes} bytes of {str(_DTYPES[dtype]).removeprefix('torch.')} by {_OPS[op]}"
