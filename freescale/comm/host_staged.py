"""The paper's transport: device to host, host to host, host to device, chunk by chunk, with no SM taking part.

While one round's chunks pass between hosts, the next round's come down from the device and the previous round's go up,
each on a stream of its own. The host leg is any CPU transport: shared_memory within a host, gloo between hosts.
CPU tensors are there already, so for them it is the host leg itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from freescale.comm import segment
from freescale.comm.cuda_copies import CudaCopies
from freescale.comm.peers import tell_all, this_host
from freescale.comm.process_group import open_lanes
from freescale.comm.shared_memory import open_shared_memory
from freescale.comm.staging import SLOTS, Copies, Mark, Round, StagedTransport
from freescale.comm.transport import Handle, Transport
from freescale.errors import FreeScaleError

CHUNK_BYTES = 4 << 20
"""Bytes to a peer in one round: large enough for full PCIe bandwidth, small enough to let urgent chunks pass."""


def open_host_staged(
    names: Sequence[str],
    device: torch.device | str = "cpu",
    chunk_bytes: int = CHUNK_BYTES,
) -> dict[str, Transport]:
    """One lane for each name, for tensors of `device`; collective.

    Raises:
        FreeScaleError: `device` is not there.
    """
    device = torch.device(device)
    reason = unsupported(device)
    if reason:
        raise FreeScaleError(reason)
    if device.type == "cpu":
        return {name: _OnTheHost(lane) for name, lane in open_host_leg(names).items()}
    device = torch.device("cuda", torch.cuda.current_device() if device.index is None else device.index)
    host = open_host_leg([f"{name}.host" for name in names])  # lanes of their own, so that traces tell the legs apart
    lanes: dict[str, Transport] = {}
    for name, leg in zip(names, host.values(), strict=True):
        mover = HostStagedMover(leg, CudaCopies(device), CudaCopies(device), chunk_bytes)
        lanes[name] = StagedTransport(name, leg, mover, device, chunk_bytes)
    return lanes


def open_host_leg(names: Sequence[str]) -> Mapping[str, Transport]:
    """The best CPU lanes these ranks can have: shared_memory if they share a host, gloo otherwise; collective."""
    host = this_host()
    told = tell_all(None, {"host": [host.name, host.boot, host.process_numbers], "no": segment.unsupported()})
    if all(one["host"] == told[0]["host"] and not one["no"] for one in told):
        return {**open_shared_memory(names)}
    return {**open_lanes(names, backend="gloo")}


def unsupported(device: torch.device) -> str:
    """Why tensors of `device` cannot be staged; empty if they can."""
    if device.type == "cpu":
        return ""
    if device.type != "cuda":
        return f"host_staged moves CPU and CUDA tensors, not {device.type}; use process_group"
    if not torch.cuda.is_available():
        return "host_staged of CUDA tensors needs a CUDA device, and torch sees none; check nvidia-smi, or use the CPU"
    return ""


class HostStagedMover:
    """See `staging.Mover`. `down` and `up` are two streams, so that both directions of the bus are in use at once."""

    def __init__(self, host: Transport, down: Copies, up: Copies, chunk_bytes: int) -> None:
        self.engine = f"host_staged over {host.engine}"
        self._host, self._down, self._up = host, down, up
        nbytes = host.world_size * chunk_bytes
        self._outgoing = [down.staging(nbytes) for _ in range(SLOTS)]
        self._incoming = [up.staging(nbytes) for _ in range(SLOTS)]
        self._staged: list[Mark | None] = [None] * SLOTS
        self._delivered: list[Mark | None] = [None] * SLOTS

    def begin(self, send: Tensor, result: Tensor) -> None:
        self._down.begin(send)
        self._up.begin(send, result)

    def stage(self, one: Round, send: Tensor) -> None:
        buffer, filled = self._outgoing[one.slot], 0
        for begin, end in _distinct(one):
            self._down.copy(buffer[filled : filled + end - begin], send[begin:end])
            filled += end - begin
        self._staged[one.slot] = self._down.mark()

    def exchange(self, one: Round) -> None:
        staged, delivered = self._staged[one.slot], self._delivered[one.slot]
        assert staged is not None
        staged.synchronize()
        received = self._pass_between_hosts(one)
        if delivered:
            delivered.synchronize()  # the round that last used this buffer has gone up
        self._incoming[one.slot][: received.numel()].copy_(received)

    def _pass_between_hosts(self, one: Round) -> Tensor:
        sizes = [end - begin for begin, end in one.out]
        if one.shared:
            chunk = self._outgoing[one.slot][: max(sizes)]
            gathered = self._host.all_gather(chunk).wait()
            others = [gathered[peer] for peer in range(self._host.world_size) if peer != self._host.rank]
            return torch.cat(others)
        chunks = self._outgoing[one.slot][: sum(sizes)]
        return self._host.all_to_all(chunks, sizes, [end - begin for begin, end in one.into]).wait()

    def deliver(self, one: Round, result: Tensor) -> None:
        buffer, taken = self._incoming[one.slot], 0
        for begin, end in one.into:
            if end > begin:
                self._up.copy(result[begin:end], buffer[taken : taken + end - begin])
                taken += end - begin
        self._delivered[one.slot] = self._up.mark()

    def keep(self, target: Tensor, source: Tensor) -> None:
        self._up.copy(target, source)

    def finish(self) -> Mark:
        return self._up.mark()

    def join(self, mark: Mark) -> None:
        self._up.join(mark)

    def close(self) -> None: ...


def _distinct(one: Round) -> list[tuple[int, int]]:
    """The pieces of the payload this round moves; an all-gather's peers share one."""
    pieces = [piece for piece in one.out if piece[1] > piece[0]]
    return pieces[:1] if one.shared else pieces


class _OnTheHost:
    """CPU tensors need no staging: the host leg under the name of this transport."""

    def __init__(self, host: Transport) -> None:
        self.group, self.rank, self.world_size = host.group, host.rank, host.world_size
        self.engine = f"host_staged over {host.engine}"
        self._host = host

    def all_to_all(self, send: Tensor, send_splits: Sequence[int], recv_splits: Sequence[int]) -> Handle:
        return self._host.all_to_all(send, send_splits, recv_splits).then(lambda: None, self.engine)

    def all_gather(self, send: Tensor) -> Handle:
        return self._host.all_gather(send).then(lambda: None, self.engine)

    def close(self) -> None:
        self._host.close()
