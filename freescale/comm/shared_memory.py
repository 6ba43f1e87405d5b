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
from collections import OrderedDict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor

from freescale.comm import peers as known
from freescale.comm import segment as segments
from freescale.comm import semaphore
from freescale.comm.annotate import issue_range, move_range
from freescale.comm.board import ACCEPTED, ARRIVED, LANDING, SLOTS, Board, Landing, Parcel, board_bytes
from freescale.comm.introduction import introduce
from freescale.comm.landing import LandingPool
from freescale.comm.outbox import Outbox, Region
from freescale.comm.segment import Segment
from freescale.comm.transport import Handle, check_splits
from freescale.errors import FreeScaleError

DIRECT_BYTES = 64 << 10
"""Parts at least this large may land in the peer's result; below, announcing a place costs more than it saves."""

CHUNK_BYTES = 1 << 20
"""How much goes to the outbox before the sender looks again whether the peer has come."""

SPIN_NS = 50_000
SLICE_S = 0.05
"""A waiting rank looks this long, then sleeps, and looks every slice whether its peers still live."""

PATIENCE_S = 0.25
LINGER_S = 5.0
_PEER_SEGMENTS = 64
_OPS = ("all_to_all", "all_gather")
_DTYPES = sorted({value for value in vars(torch).values() if isinstance(value, torch.dtype)}, key=str)


def open_shared_memory(
    names: Sequence[str],
    process_group: dist.ProcessGroup | None = None,
    limit_bytes: int = 1 << 30,
    timeout_s: float = 300.0,
) -> dict[str, SharedMemoryTransport]:
    """One lane for each name over the ranks of `process_group` (default: all), which is used only to introduce them.

    Collective: every rank calls it with the same names in the same order.

    Args:
        limit_bytes: for each lane and rank, how much may wait in the outbox for late peers before issuing slows down
            (it grows beyond that rather than stand still), and how much results may take in shared memory (further
            results are private and cost a second copy).
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
            name, rank, [Board(each, lane, world_size) for each in everyone], processes, limit_bytes, timeout_s
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


@dataclass
class _Stage:
    """Room in the outbox that fills from the front; an all-gather's peers share one."""

    region: Region
    offset: int
    source: int
    filled: int = 0

    def fill(self, upto: int) -> None:
        if upto > self.filled:
            ctypes.memmove(
                self.region.address + self.offset + self.filled, self.source + self.filled, upto - self.filled
            )
            self.filled = upto


@dataclass
class _Part:
    peer: int
    nbytes: int
    stage: _Stage
    staged: int = field(default=0)


class SharedMemoryTransport:
    """One lane; make it with `open_shared_memory`.

    A call completes here when every rank has issued it, as with a process group. `wait` completes earlier calls of the
    lane first. Issue and wait may come from different threads.
    """

    engine = "shared_memory"

    def __init__(
        self,
        group: str,
        rank: int,
        boards: list[Board],
        processes: list[known.Process],
        limit_bytes: int,
        timeout_s: float,
    ) -> None:
        self.group, self.rank, self.world_size = group, rank, len(boards)
        self._boards, self._board, self._processes = boards, boards[rank], processes
        self._limit_bytes, self._timeout_s = limit_bytes, timeout_s
        self._peers = [(rank + hop) % self.world_size for hop in range(1, self.world_size)]
        self._lock = threading.RLock()
        self._outbox, self._pool = Outbox(), LandingPool(limit_bytes)
        self._mapped: list[OrderedDict[int, Segment]] = [OrderedDict() for _ in boards]
        self._seq = self._completed = self._freed = 0
        self._incoming: deque[_Call] = deque()
        self._regions: deque[tuple[int, Region]] = deque()  # by call, what the outbox holds for it
        self._accepted = [0] * self.world_size
        self._landings_due, self._landings_seen = [0] * self.world_size, [0] * self.world_size
        self._broken = ""
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
            if not self._broken:
                self._complete(self._seq - 1)
                self._linger(self._timeout_s)
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
            self._raise_if_unusable()
            seq = self._seq
            with issue_range(op, self.group, seq, away):
                try:
                    self._make_room(away)
                    result, block = self._place(incoming, send.dtype, shape)
                    offsets = _running_sums(incoming)
                    call = _Call(seq, op, send.dtype, result, incoming, offsets, list(self._peers))
                    self._seq += 1
                    self._announce(call, block)
                    self._send(call, send, outgoing)
                    self._incoming.append(call)
                    own = 0 if op == "all_gather" else sum(outgoing[: self.rank])
                    ctypes.memmove(result.data_ptr() + offsets[self.rank], send.data_ptr() + own, outgoing[self.rank])
                except BaseException as error:
                    self._broken = self._broken or f"{type(error).__name__} in {op} {seq}"
                    raise
        return Handle(
            op,
            self.group,
            seq,
            away,
            self.engine,
            result,
            lambda: self._complete(seq),
            issued_ns,
            lambda: self._has_come(seq),
        )

    def _place(self, incoming: list[int], dtype: torch.dtype, shape: tuple[int, ...]) -> tuple[Tensor, Segment | None]:
        """An empty result, in shared memory if a peer would land in it."""
        if any(incoming[peer] >= DIRECT_BYTES for peer in self._peers):
            found = self._pool.allocate(sum(incoming))
            if found:
                return found[0].view(dtype).view(shape), found[1]
        return torch.empty(shape, dtype=dtype), None

    def _announce(self, call: _Call, block: Segment | None) -> None:
        for peer in self._peers:
            nbytes = call.incoming[peer]
            if nbytes < DIRECT_BYTES:
                continue  # the sender knows the size too, and will not look
            where = (block.key, block.descriptor, block.size, call.offsets[peer]) if block else (0, -1, 0, 0)
            self._board.write_landing(peer, Landing(call.seq, nbytes, *where))
            semaphore.post(self._boards[peer].signal(LANDING, self.rank))

    def _send(self, call: _Call, send: Tensor, outgoing: list[int]) -> None:
        shared = call.op == "all_gather"
        total = outgoing[self.rank] if shared else sum(outgoing) - outgoing[self.rank]
        if not self._peers:
            return
        region = self._outbox.reserve(total)
        begins = _running_sums(outgoing)
        everyone = _Stage(region, 0, send.data_ptr())
        waiting: deque[_Part] = deque()
        offset = 0
        for peer in self._peers:
            stage = everyone if shared else _Stage(region, offset, send.data_ptr() + begins[peer])
            waiting.append(_Part(peer, outgoing[peer], stage))
            offset += outgoing[peer]
            if outgoing[peer] >= DIRECT_BYTES:
                self._landings_due[peer] += 1
        kept = 0
        with move_range(call.op, self.group, call.seq, sum(part.nbytes for part in waiting)):
            while waiting:
                part = waiting.popleft()
                if self._land(call, part) or part.staged == part.nbytes:
                    self._hand_over(call, part)
                    kept = max(kept, part.stage.offset + part.stage.filled if part.stage.filled else 0)
                else:
                    part.staged = min(part.staged + CHUNK_BYTES, part.nbytes)
                    part.stage.fill(part.staged)
                    waiting.append(part)  # the others next, so that this one's peer has time to come
        left = self._outbox.shrink_newest(kept)
        if left:
            self._regions.append((call.seq, left))

    def _land(self, call: _Call, part: _Part) -> bool:
        """Write what is not staged yet into the peer's result, if it has announced where."""
        if part.nbytes < DIRECT_BYTES or part.staged == part.nbytes:
            return False
        peer = part.peer
        while self._landings_seen[peer] < self._landings_due[peer]:
            if not semaphore.take(self._board.signal(LANDING, peer)):
                return False
            self._landings_seen[peer] += 1
        landing = self._boards[peer].read_landing(self.rank, call.seq)
        if landing.key == 0 or landing.seq != call.seq or landing.nbytes != part.nbytes:
            return False  # the peer sees from the parcel that the sizes disagree, and says so
        there = self._segment_of(peer, landing.key, landing.descriptor, landing.size)
        ctypes.memmove(
            there.address + landing.offset + part.staged, part.stage.source + part.staged, part.nbytes - part.staged
        )
        return True

    def _hand_over(self, call: _Call, part: _Part) -> None:
        region = part.stage.region
        where = (region.segment.key, region.segment.descriptor, region.segment.size, region.offset + part.stage.offset)
        parcel = Parcel(call.seq, _code(call.op, call.dtype), part.nbytes, part.staged, *where)
        self._board.write_parcel(part.peer, parcel)
        semaphore.post(self._boards[part.peer].signal(ARRIVED, self.rank))

    def _make_room(self, nbytes: int) -> None:
        """Slow down while peers are far behind, but not for long: they may be waiting for this rank."""
        self._collect()
        begin = time.monotonic()
        while self._seq - self._freed >= SLOTS or (
            self._outbox.held_bytes > 0
            and self._outbox.held_bytes + nbytes > self._limit_bytes
            and time.monotonic() < begin + PATIENCE_S
        ):
            self._receive()  # peers that slow down likewise wait for this
            peer = min(self._peers, key=self._accepted.__getitem__)
            self._sleep(ACCEPTED, peer, begin, f"issuing call {self._seq}, {SLOTS} calls ahead")
            self._collect()

    def _collect(self) -> None:
        """Free what all peers have taken."""
        for peer in self._peers:
            while semaphore.take(self._board.signal(ACCEPTED, peer)):
                self._accepted[peer] += 1
        self._freed = min((self._accepted[peer] for peer in self._peers), default=self._seq)
        while self._regions and self._regions[0][0] < self._freed:
            self._regions.popleft()
            self._outbox.release_oldest()

    # Receiving: fetch what was staged, in call order.

    def _complete(self, seq: int) -> None:
        begin = time.monotonic()
        while True:
            with self._lock:
                if self._completed > seq:
                    return
                self._raise_if_unusable()
                self._receive()
                if self._completed > seq:
                    return
                call = self._incoming[0]
                peer = call.missing[0]
            self._sleep(ARRIVED, peer, begin, f"{call.op} {call.seq}", call.seq)

    def _has_come(self, seq: int) -> bool:
        with self._lock:
            if self._completed <= seq:
                self._raise_if_unusable()
                self._receive()
            return self._completed > seq

    def _receive(self) -> None:
        while self._incoming:
            call = self._incoming[0]
            for peer in list(call.missing):
                if semaphore.take(self._board.signal(ARRIVED, peer)):
                    self._fetch(call, peer)
                    call.missing.remove(peer)
            if call.missing:
                return
            self._incoming.popleft()
            self._completed = call.seq + 1

    def _fetch(self, call: _Call, peer: int) -> None:
        parcel = self._boards[peer].read_parcel(self.rank, call.seq)
        code, nbytes = _code(call.op, call.dtype), call.incoming[peer]
        if (parcel.op_and_dtype, parcel.nbytes) != (code, nbytes):
            self._broken = (
                f"call {call.seq}: rank {peer} sends {_describe(parcel.op_and_dtype, parcel.nbytes)}, "
                f"rank {self.rank} expects {_describe(code, nbytes)}; make their calls and splits agree"
            )
            self._raise_if_unusable()
        if parcel.staged:
            there = self._segment_of(peer, parcel.key, parcel.descriptor, parcel.size)
            with move_range(call.op, self.group, call.seq, parcel.staged):
                ctypes.memmove(
                    call.result.data_ptr() + call.offsets[peer], there.address + parcel.offset, parcel.staged
                )
        semaphore.post(self._boards[peer].signal(ACCEPTED, self.rank))

    def _segment_of(self, peer: int, key: int, descriptor: int, size: int) -> Segment:
        mapped = self._mapped[peer]
        if key in mapped:
            mapped.move_to_end(key)
            return mapped[key]
        process = self._processes[peer]
        try:
            mapped[key] = found = segments.attach(process.pid, key, descriptor, size)
        except FreeScaleError as error:
            died = f"rank {self.rank}, lane {self.group!r}: rank {peer} (process {process.pid}) has died; see its log"
            self._broken = str(error) if process.is_alive() else died
            raise FreeScaleError(f"shared_memory: {self._broken}") from None
        if len(mapped) > _PEER_SEGMENTS:
            mapped.popitem(last=False)
        return found

    # Waiting, and noticing that there is nobody to wait for.

    def _sleep(self, kind: int, peer: int, begin: float, doing: str, seq: int | None = None) -> None:
        """Until the peer posts, at most a slice; FreeScaleError when it cannot post any more or is overdue."""
        signal = self._board.signal(kind, peer)
        spin_until = time.perf_counter_ns() + SPIN_NS
        while time.perf_counter_ns() < spin_until:
            if semaphore.is_posted(signal):
                return
        # Asked before sleeping: what the peer did before it went has then been posted, or never will be.
        left = self._boards[peer].left_after
        gone = not self._processes[peer].is_alive()
        if semaphore.sleep_until_posted(signal, 0.0 if gone else SLICE_S):
            return
        name = f"rank {self.rank}, lane {self.group!r}, {doing}"
        pid = self._processes[peer].pid
        if gone:
            self._broken = f"{name}: rank {peer} (process {pid}) has died; see its log"
        elif left >= 0 and (seq is None or left <= seq):
            self._broken = f"{name}: rank {peer} (process {pid}) left after {left} calls; see its log"
        elif time.monotonic() > begin + self._timeout_s:
            self._broken = f"{name}: rank {peer} (process {pid}) did not come within {self._timeout_s:g} s; see its log"
        self._raise_if_unusable()

    def _raise_if_unusable(self) -> None:
        if not self._broken and self._board.left_after >= 0:
            self._broken = f"lane {self.group!r} was closed; open it again"
        if self._broken:
            raise FreeScaleError(f"shared_memory: {self._broken}")

    def _leave(self) -> None:
        """At exit or close: say so, let the peers fetch what only this process has, and give the memory back."""
        if os.getpid() != self._opened_by or self._board.left_after >= 0:
            return  # a forked child is not the rank
        self._board.left_after = self._seq
        self._linger(LINGER_S)
        self._outbox.discard()

    def _linger(self, timeout_s: float) -> None:
        until = time.monotonic() + timeout_s
        while time.monotonic() < until:
            self._collect()
            if not self._regions:
                return
            oldest = self._regions[0][0]
            owed = [
                peer
                for peer in self._peers
                if self._accepted[peer] <= oldest
                and self._boards[peer].left_after < 0
                and self._processes[peer].is_alive()
            ]
            if not owed:
                return
            semaphore.sleep_until_posted(self._board.signal(ACCEPTED, owed[0]), SLICE_S)


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
