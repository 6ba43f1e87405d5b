"""NCCL's own SM-free collectives: CTA policy ZERO over symmetric windows (NCCL 2.28 or newer).

They come with equal splits only, so every round is padded to the largest chunk of any pair of ranks. NCCL falls back to
kernels without a word when a condition is not met, so opening a lane moves a little and looks in the profiler.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from freescale.comm.copy_engine import refuse_kernels
from freescale.comm.cuda_copies import CudaCopies
from freescale.comm.host_staged import open_host_leg
from freescale.comm.peers import agree
from freescale.comm.staging import SLOTS, Copies, Mark, Round, StagedTransport
from freescale.comm.transport import Transport

CHUNK_BYTES = 8 << 20
NEEDED_NCCL = (2, 28)

Buffers = Callable[[int], Tensor]
"""Makes a uint8 buffer of so many bytes that the collectives may use."""


def open_zero_cta(
    names: Sequence[str], device: torch.device | str = "cuda", chunk_bytes: int = CHUNK_BYTES
) -> dict[str, Transport]:
    """One lane for each name, each with its own NCCL communicator; collective.

    Raises:
        FreeScaleError: on every rank, naming what is missing on which, or the kernel that NCCL fell back to.
    """
    from torch.distributed import _symmetric_memory as symmetric

    device = torch.device(device)
    agree(None, {"error": unsupported(device)})
    device = torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)
    symmetric.set_backend("NCCL")
    lanes: dict[str, Transport] = {}
    for name, leg in zip(names, open_host_leg([f"{name}.host" for name in names]).values(), strict=True):
        nccl: Any = dist.ProcessGroupNCCL  # its type stubs lack the CTA policies
        options = nccl.Options()
        options.config.cta_policy = nccl.NCCL_CTA_POLICY_ZERO
        group = dist.new_group(backend="nccl", pg_options=options, device_id=device, group_desc=name)
        dist.all_reduce(torch.ones(1, device=device), group=group)  # windows need the communicator, made at first use

        def window(nbytes: int, group: dist.ProcessGroup = group) -> Tensor:
            buffer: Tensor = symmetric.empty(nbytes, dtype=torch.uint8, device=device)
            symmetric.rendezvous(buffer, group)
            return buffer

        mover = ZeroCtaMover(group, window, CudaCopies(device), chunk_bytes)
        lanes[name] = StagedTransport(name, leg, mover, device, chunk_bytes)
    for lane in list(lanes.values())[:1]:
        refuse_kernels("zero_cta", lane, device)
    return lanes


def unsupported(device: torch.device) -> str:
    """What this rank lacks, with the cure; empty if nothing."""
    if device.type != "cuda" or not torch.cuda.is_available():
        return "zero_cta needs a CUDA device, and torch sees none; use shared_memory on the CPU"
    if not dist.is_nccl_available():
        return "zero_cta needs a torch built with NCCL; install a CUDA build of torch"
    found = torch.cuda.nccl.version()
    if found[:2] < NEEDED_NCCL:
        return f"zero_cta needs NCCL 2.28, torch brings {'.'.join(map(str, found))}; upgrade torch or use host_staged"
    if not hasattr(dist.ProcessGroupNCCL, "NCCL_CTA_POLICY_ZERO"):
        return f"zero_cta needs a torch that can set NCCL's CTA policy (2.10), not {torch.__version__}; upgrade torch"
    return ""


class ZeroCtaMover:
    """See `staging.Mover`: pack into a window, one collective with equal splits, unpack; all on one stream."""

    engine = "zero_cta"

    def __init__(self, group: dist.ProcessGroup, window: Buffers, copies: Copies, chunk_bytes: int) -> None:
        self._group, self._copies = group, copies
        self._rank, self._world_size = dist.get_rank(group), dist.get_world_size(group)
        nbytes = self._world_size * chunk_bytes
        self._send = [window(nbytes) for _ in range(SLOTS)]
        self._receive = [window(nbytes) for _ in range(SLOTS)]

    def begin(self, send: Tensor, result: Tensor) -> None:
        self._copies.begin(send, result)

    def stage(self, one: Round, send: Tensor) -> None:
        for peer, (begin, end) in enumerate(one.out):
            if end > begin:
                place = 0 if one.shared else peer * one.largest
                self._copies.copy(self._send[one.slot][place : place + end - begin], send[begin:end])
                if one.shared:
                    break

    def exchange(self, one: Round) -> None:
        received = self._receive[one.slot][: self._world_size * one.largest]
        with self._copies.here():
            if one.shared:
                dist.all_gather_into_tensor(received, self._send[one.slot][: one.largest], group=self._group)
            else:
                sent = self._send[one.slot][: self._world_size * one.largest]
                dist.all_to_all_single(received, sent, group=self._group)

    def deliver(self, one: Round, result: Tensor) -> None:
        for peer, (begin, end) in enumerate(one.into):
            if end > begin:
                place = peer * one.largest
                self._copies.copy(result[begin:end], self._receive[one.slot][place : place + end - begin])

    def keep(self, target: Tensor, source: Tensor) -> None:
        self._copies.copy(target, source)

    def finish(self) -> Mark:
        return self._copies.mark()

    def join(self, mark: Mark) -> None:
        self._copies.join(mark)

    def close(self) -> None:
        dist.destroy_process_group(self._group)
