"""A device made of host memory whose copies happen as late as its contract allows, so that a missing wait shows.

`LazyCopies` does nothing until a mark is synchronised or joined, as a side stream may; windows are memory that the
ranks really share. With these the chunked GPU paths run the conformance suite between real processes.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor

from freescale.comm.copy_engine import CopyEngineMover
from freescale.comm.host_staged import HostStagedMover, open_host_leg
from freescale.comm.introduction import introduce
from freescale.comm.staging import SLOTS, StagedTransport
from freescale.comm.transport import Transport
from freescale.comm.zero_cta import ZeroCtaMover

CHUNK_BYTES = 50_000  # so that the suite's sizes take from none to dozens of rounds
CPU = torch.device("cpu")


class LazyCopies:
    """See `freescale.comm.staging.Copies`; `pending` holds what has been enqueued and not done."""

    def __init__(self) -> None:
        self.pending: deque[tuple[int, Tensor, Tensor]] = deque()
        self.enqueued = 0
        self.lock = threading.Lock()

    def begin(self, *tensors: Tensor) -> None: ...

    def copy(self, target: Tensor, source: Tensor) -> None:
        assert target.dtype == source.dtype == torch.uint8
        assert target.numel() == source.numel()
        with self.lock:
            self.enqueued += 1
            self.pending.append((self.enqueued, target, source))

    def mark(self) -> LazyMark:
        return LazyMark(self, self.enqueued)

    def join(self, mark: LazyMark) -> None:
        mark.synchronize()

    @contextmanager
    def here(self) -> Iterator[None]:
        self.mark().synchronize()
        yield

    def staging(self, nbytes: int) -> Tensor:
        return torch.empty(nbytes, dtype=torch.uint8)


class LazyMark:
    def __init__(self, copies: LazyCopies, upto: int) -> None:
        self._copies, self._upto = copies, upto

    def synchronize(self) -> None:
        with self._copies.lock:
            while self._copies.pending and self._copies.pending[0][0] <= self._upto:
                _, target, source = self._copies.pending.popleft()
                target.copy_(source)


class SharedWindow:
    """Host memory that all ranks map; collective."""

    def __init__(self, nbytes: int) -> None:
        self._segments, _ = introduce("window", None, [], nbytes, lambda mine: None)

    def of(self, rank: int) -> Tensor:
        return torch.frombuffer(self._segments[rank].memory, dtype=torch.uint8)


def open_on_fake_device(name: str, lanes: Sequence[str]) -> dict[str, Transport]:
    """Lanes of `host_staged`, `copy_engine` or `zero_cta`; collective."""
    opened: dict[str, Transport] = {}
    for lane, leg in zip(lanes, open_host_leg([f"{lane}.host" for lane in lanes]).values(), strict=True):
        if name == "host_staged":
            mover = HostStagedMover(leg, LazyCopies(), LazyCopies(), CHUNK_BYTES)
        elif name == "copy_engine":
            window = SharedWindow(SLOTS * leg.world_size * CHUNK_BYTES)
            mover = CopyEngineMover(leg, window, LazyCopies(), LazyCopies(), CHUNK_BYTES)
        else:
            group = dist.new_group(backend="gloo")
            mover = ZeroCtaMover(group, lambda n: torch.empty(n, dtype=torch.uint8), LazyCopies(), CHUNK_BYTES)
        opened[lane] = StagedTransport(lane, leg, mover, CPU, CHUNK_BYTES)
    return opened
