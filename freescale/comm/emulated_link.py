"""A slower link than the machine has, in front of any transport: real bytes, emulated time.

Every rank has one full-duplex port. When a call is issued, the rank stamps on its board when its parts could leave and
when they will have left; the receiver's `wait` reads the stamps, runs its own port's arithmetic (`link_model`), and
sleeps until the last byte would have come. Runs over such lanes are *emulated*, and say so.
"""

from __future__ import annotations

import math
import struct
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch.distributed as dist
from torch import Tensor

from freescale.comm.annotate import link_range
from freescale.comm.introduction import introduce
from freescale.comm.link_model import Link, Port
from freescale.comm.segment import Segment
from freescale.comm.transport import Handle, Transport, check_splits
from freescale.errors import FreeScaleError

__all__ = ["EmulatedLink", "Link", "emulate"]

_SLOTS = 4096
_STAMP = struct.Struct("3q")  # call number + 1, issued, last byte sent (both CLOCK_MONOTONIC, one for the whole host)


def emulate(
    lanes: Mapping[str, Transport], link: Link, process_group: dist.ProcessGroup | None = None
) -> dict[str, EmulatedLink]:
    """The same lanes behind one emulated link per rank; collective.

    Raises:
        FreeScaleError: the ranks do not share a host, whose clock the emulation needs.
    """
    rank, world_size = dist.get_rank(process_group), dist.get_world_size(process_group)
    nbytes = len(lanes) * _lane_bytes(world_size)
    boards, _ = introduce("emulated_link", process_group, list(lanes), nbytes, lambda mine: None)
    ports = Ports(link, rank, boards)
    return {name: EmulatedLink(inner, ports, lane) for lane, (name, inner) in enumerate(lanes.items())}


class EmulatedLink:
    """One lane behind the link; make it with `emulate`.

    A call is over when its last byte has come and its last byte has gone. `overruns` counts the calls whose bytes the
    transport underneath delivered later than the link would have: with more than a few, the machine, not the link, was
    measured.
    """

    emulated = True

    def __init__(
        self, inner: Transport, ports: Ports, lane: int, sleep_s: Callable[[float], object] = time.sleep
    ) -> None:
        self.group, self.rank, self.world_size = inner.group, inner.rank, inner.world_size
        self.engine = f"{inner.engine} emulating {ports.link}"
        self._sleep_s = sleep_s
        self.calls = self.overruns = 0
        self._inner, self._ports, self._lane = inner, ports, lane

    def all_to_all(self, send: Tensor, send_splits: Sequence[int], recv_splits: Sequence[int]) -> Handle:
        """See `Transport.all_to_all`."""
        check_splits(send, send_splits, recv_splits, self.world_size)
        row_bytes = math.prod(send.shape[1:]) * send.element_size()
        call = self._ports.open(
            self._lane, self.calls, [n * row_bytes for n in send_splits], [n * row_bytes for n in recv_splits]
        )
        return self._emulated(self._inner.all_to_all(send, send_splits, recv_splits), call)

    def all_gather(self, send: Tensor) -> Handle:
        """See `Transport.all_gather`."""
        each = [send.nbytes] * self.world_size
        call = self._ports.open(self._lane, self.calls, each, each)
        return self._emulated(self._inner.all_gather(send), call)

    def close(self) -> None:
        """See `Transport.close`."""
        self._inner.close()

    def _emulated(self, handle: Handle, call: _Call) -> Handle:
        self.calls += 1
        earliest_ns = call.issued_ns  # calls made later can only put the end off
        seen = False

        def delivered() -> bool:
            nonlocal earliest_ns, seen
            now_ns = self._ports.now_ns()
            if seen or now_ns < earliest_ns:
                return seen
            earliest_ns = self._ports.end_ns(call)
            if earliest_ns > now_ns:
                return False
            with link_range(handle.op, handle.group, handle.seq, late_ns=now_ns - earliest_ns):
                seen = True
            return True

        def sleep_until_delivered() -> None:
            self.overruns += delivered()
            while not delivered():
                with link_range(handle.op, handle.group, handle.seq):
                    self._sleep_s(max(earliest_ns - self._ports.now_ns(), 0) * 1e-9)
            self._ports.close(call)

        return handle.then(sleep_until_delivered, self.engine, delivered)


@dataclass
class _Call:
    lane: int
    seq: int
    issued_ns: int
    incoming: list[int]
    outgoing: dict[int, int]  # peer -> number at the port
    arriving: dict[int, int] = field(default_factory=dict)


class Ports:
    """Both directions of this rank's link, shared by its lanes, and the boards on which ranks stamp their calls.

    `now_ns` is one clock for all ranks.
    """

    def __init__(
        self, link: Link, rank: int, boards: list[Segment], now_ns: Callable[[], int] = time.monotonic_ns
    ) -> None:
        self.link, self.now_ns = link, now_ns
        self._rank, self._boards, self._world_size = rank, boards, len(boards)
        self._peers = [peer for peer in range(len(boards)) if peer != rank]
        self._out, self._in = Port(link), Port(link)
        self._open: list[_Call] = []
        self._lock = threading.Lock()

    def open(self, lane: int, seq: int, outgoing: list[int], incoming: list[int]) -> _Call:
        now_ns = self.now_ns()
        with self._lock:
            leaving = {peer: self._out.add(now_ns, outgoing[peer]) for peer in self._peers if outgoing[peer]}
            call = _Call(lane, seq, now_ns, incoming, leaving)
            self._open.append(call)
            for one in self._open:
                self._stamp(one)  # the new call slows the older ones down
        return call

    def end_ns(self, call: _Call) -> int:
        """When the call is over, by what has been stamped so far; its own parts must have been."""
        with self._lock:
            for one in self._open:
                self._read_stamps(one, must=one is call)
            ends = [self._out.finish_ns(number) for number in call.outgoing.values()]
            for peer, number in call.arriving.items():
                _, sent_ns = self._stamped(call, peer)
                ends.append(max(sent_ns, self._in.finish_ns(number)) + self.link.latency_ns)
            return max(ends, default=call.issued_ns)

    def close(self, call: _Call) -> None:
        with self._lock:
            self._open.remove(call)
            horizon_ns = min((one.issued_ns for one in self._open), default=self.now_ns())
            self._out.forget(list(call.outgoing.values()), horizon_ns)
            self._in.forget(list(call.arriving.values()), horizon_ns)

    def _stamp(self, call: _Call) -> None:
        board = self._boards[self._rank].memory
        for peer in self._peers:
            number = call.outgoing.get(peer)
            sent_ns = call.issued_ns if number is None else self._out.finish_ns(number)
            _STAMP.pack_into(board, self._offset(call, peer), call.seq + 1, call.issued_ns, sent_ns)

    def _read_stamps(self, call: _Call, must: bool) -> None:
        for peer in self._peers:
            if call.incoming[peer] == 0 or peer in call.arriving:
                continue
            issued_ns, _ = self._stamped(call, peer)
            if issued_ns:
                # Bytes flow once both sides have issued the call, as with gloo and NCCL.
                call.arriving[peer] = self._in.add(max(issued_ns, call.issued_ns), call.incoming[peer])
            elif must:
                raise FreeScaleError(
                    f"emulated_link: rank {peer} is {_SLOTS} calls or more ahead of rank {self._rank}; wait more often"
                )

    def _stamped(self, call: _Call, peer: int) -> tuple[int, int]:
        number, issued_ns, sent_ns = _STAMP.unpack_from(self._boards[peer].memory, self._offset(call, self._rank))
        return (issued_ns, sent_ns) if number == call.seq + 1 else (0, 0)

    def _offset(self, call: _Call, peer: int) -> int:
        return call.lane * _lane_bytes(self._world_size) + (peer * _SLOTS + call.seq % _SLOTS) * _STAMP.size


def _lane_bytes(world_size: int) -> int:
    return world_size * _SLOTS * _STAMP.size
