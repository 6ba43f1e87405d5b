"""GPUs of one NVLink domain: each rank pulls its chunks out of the peers' windows with its own copy engine.

A window is symmetric memory: a piece of each GPU's memory that all the others map. The sender copies its chunks into
its window, tells the peers over the host (no kernel waits for a signal), and they pull straight into their results, at
any offset, so uneven splits cost nothing. A chunk in a window is free again once every peer has announced its next
round but one, which is why a window holds `SLOTS` rounds.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from freescale.comm.cuda_copies import CudaCopies
from freescale.comm.engine_check import kernels_during
from freescale.comm.host_staged import open_host_leg
from freescale.comm.peers import agree, this_host
from freescale.comm.staging import SLOTS, Copies, Mark, Round, StagedTransport
from freescale.comm.transport import Transport
from freescale.errors import FreeScaleError

CHUNK_BYTES = 8 << 20
"""Bytes to a peer in one round; a lane's window takes `SLOTS` × world size × this much of every GPU's memory."""


class Window(Protocol):
    """A piece of every rank's memory that this rank can copy from."""

    def of(self, rank: int) -> Tensor:
        """That rank's piece, uint8."""
        ...


def open_copy_engine(
    names: Sequence[str], device: torch.device | str = "cuda", chunk_bytes: int = CHUNK_BYTES
) -> dict[str, Transport]:
    """One lane for each name, for CUDA tensors of ranks in one NVLink domain; collective.

    Raises:
        FreeScaleError: on every rank, naming what is missing on which, or the kernel that ran where copy engines
            should have.
    """
    device = torch.device(device)
    reason = unsupported(device)
    host_name = this_host()
    told = agree(None, {"error": reason, "host": [host_name.name, host_name.boot], "gpu": _gpu(device)})
    if any(one["host"] != told[0]["host"] for one in told):
        raise FreeScaleError("copy_engine needs all ranks on one host, in one NVLink domain; use host_staged")
    apart = _without_peer_access(device, [one["gpu"] for one in told])
    agree(None, {"error": apart})
    device = torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)
    lanes: dict[str, Transport] = {}
    for name, leg in zip(names, open_host_leg([f"{name}.host" for name in names]).values(), strict=True):
        window = SymmetricWindow(device, SLOTS * leg.world_size * chunk_bytes)
        mover = CopyEngineMover(leg, window, CudaCopies(device), CudaCopies(device), chunk_bytes)
        lanes[name] = StagedTransport(name, leg, mover, device, chunk_bytes)
    for lane in list(lanes.values())[:1]:
        refuse_kernels("copy_engine", lane, device)
    return lanes


def unsupported(device: torch.device) -> str:
    """What this rank lacks, with the cure; empty if nothing."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return "copy_engine needs a CUDA device, and torch sees none; use shared_memory on the CPU"
    if torch.cuda.device_count() < 2:
        return "copy_engine needs at least two GPUs in one NVLink domain, and torch sees one; use host_staged"
    if importlib.util.find_spec("torch.distributed._symmetric_memory") is None:
        return f"copy_engine needs torch's symmetric memory, which torch {torch.__version__} lacks; upgrade torch"
    return ""


def refuse_kernels(
    transport: str,
    lane: Transport,
    device: torch.device,
    profile: Callable[[Callable[[], object]], list[str]] = kernels_during,
) -> None:
    """Move 1 MiB to every peer and raise FreeScaleError, on every rank, if any rank ran a communication kernel for it.

    Also raises when the bytes that came are not those that were sent.
    """
    rows = 1 << 20
    send = torch.arange(lane.world_size, dtype=torch.uint8, device=device).repeat_interleave(rows)
    splits = [rows] * lane.world_size
    received: list[Tensor] = []
    kernels = profile(lambda: received.append(lane.all_to_all(send, splits, splits).wait()))
    error = ""
    if kernels:
        error = f"{transport}: the kernel {kernels[0]} moved the bytes, not a copy engine; use host_staged"
    elif not bool((received[0] == lane.rank).all()):
        error = f"{transport}: the test transfer brought wrong bytes; use host_staged, and please report this"
    agree(None, {"error": error})


class SymmetricWindow:
    """torch symmetric memory (CUDA peer mappings); collective."""

    def __init__(self, device: torch.device, nbytes: int) -> None:
        from torch.distributed import _symmetric_memory as symmetric

        group = dist.group.WORLD
        assert group is not None
        self._nbytes = nbytes
        self._mine = symmetric.empty(nbytes, dtype=torch.uint8, device=device)
        self._handle = symmetric.rendezvous(self._mine, group)

    def of(self, rank: int) -> Tensor:
        buffer: Tensor = self._handle.get_buffer(rank, (self._nbytes,), torch.uint8)
        return buffer


class CopyEngineMover:
    """See `staging.Mover`: stage into the own window, tell, pull out of the peers'."""

    engine = "copy_engine"

    def __init__(self, host: Transport, window: Window, local: Copies, pull: Copies, chunk_bytes: int) -> None:
        self._host, self._local, self._pull, self._chunk_bytes = host, local, pull, chunk_bytes
        self._windows = [window.of(rank) for rank in range(host.world_size)]
        self._staged: list[Mark | None] = [None] * SLOTS
        self._pulled: Mark | None = None

    def begin(self, send: Tensor, result: Tensor) -> None:
        self._local.begin(send)
        self._pull.begin(send, result)

    def stage(self, one: Round, send: Tensor) -> None:
        mine = self._windows[self._host.rank]
        for peer, (begin, end) in enumerate(one.out):
            if end > begin:
                place = self._place(one, peer)
                self._local.copy(mine[place : place + end - begin], send[begin:end])
                if one.shared:
                    break  # one place serves all peers
        self._staged[one.slot] = self._local.mark()

    def exchange(self, one: Round) -> None:
        """Announce this round; that also says that all earlier rounds have been pulled here."""
        staged = self._staged[one.slot]
        assert staged is not None
        staged.synchronize()
        if self._pulled:
            self._pulled.synchronize()
        self._host.all_gather(torch.tensor(one.number)).wait()

    def deliver(self, one: Round, result: Tensor) -> None:
        rank = self._host.rank
        for peer, (begin, end) in enumerate(one.into):
            if end > begin:
                # A shared chunk lies where it was staged: at its owner's first peer.
                place = self._place(one, (1 if peer == 0 else 0) if one.shared else rank)
                self._pull.copy(result[begin:end], self._windows[peer][place : place + end - begin])
        self._pulled = self._pull.mark()

    def keep(self, target: Tensor, source: Tensor) -> None:
        self._pull.copy(target, source)

    def finish(self) -> Mark:
        return self._pull.mark()

    def join(self, mark: Mark) -> None:
        self._pull.join(mark)

    def close(self) -> None: ...

    def _place(self, one: Round, peer: int) -> int:
        return (one.slot * self._host.world_size + peer) * self._chunk_bytes


def _gpu(device: torch.device) -> int:
    if not torch.cuda.is_available() or device.type != "cuda":
        return -1
    return torch.cuda.current_device() if device.index is None else device.index


def _without_peer_access(device: torch.device, gpus: list[int]) -> str:
    mine = _gpu(device)
    for rank, other in enumerate(gpus):
        if other != mine and not torch.cuda.can_device_access_peer(mine, other):
            return f"copy_engine: GPU {mine} cannot access GPU {other} (rank {rank}); no NVLink there, use host_staged"
    if len(set(gpus)) < len(gpus):
        return f"copy_engine: several ranks share a GPU (ranks use {gpus}); give each rank its own"
    return ""
