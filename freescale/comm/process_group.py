"""The reference transport: torch's own process groups (gloo on the CPU, NCCL on CUDA)."""

from __future__ import annotations

from collections.abc import Sequence

import torch.distributed as dist
from torch import Tensor

from freescale.comm.annotate import issue_range
from freescale.comm.transport import Handle, check_splits


class ProcessGroupTransport:
    """Collectives of one process group.

    gloo and NCCL run the collectives of a group in order, so urgent traffic needs a group of its own: make one
    transport per lane, with `open_lanes`.
    """

    def __init__(self, process_group: dist.ProcessGroup, group: str) -> None:
        self.group = group
        self.rank = dist.get_rank(process_group)
        self.world_size = dist.get_world_size(process_group)
        self.engine = str(dist.get_backend(process_group))
        self.process_group = process_group
        self._seq = 0

    def all_to_all(self, send: Tensor, send_splits: Sequence[int], recv_splits: Sequence[int]) -> Handle:
        """See `Transport.all_to_all`."""
        check_splits(send, send_splits, recv_splits, self.world_size)
        received = send.new_empty((sum(recv_splits), *send.shape[1:]))
        row_bytes = send[:1].nbytes if send.shape[0] else 0
        away = (send.shape[0] - send_splits[self.rank]) * row_bytes
        seq = self._next_seq()
        with issue_range("all_to_all", self.group, seq, away):
            # The group's own method: torch.distributed's function around it adds 0.1 ms to an issue of 0.15.
            work = self.process_group.alltoall_base(
                received, send, list(recv_splits), list(send_splits), dist.AllToAllOptions()
            )
        return Handle("all_to_all", self.group, seq, away, self.engine, received, work.wait, poll=work.is_completed)

    def all_gather(self, send: Tensor) -> Handle:
        """See `Transport.all_gather`."""
        send = send.contiguous()
        gathered = send.new_empty((self.world_size, *send.shape))
        away = send.nbytes * (self.world_size - 1)
        seq = self._next_seq()
        with issue_range("all_gather", self.group, seq, away):
            work = dist.all_gather(list(gathered.unbind(0)), send, group=self.process_group, async_op=True)
        return Handle("all_gather", self.group, seq, away, self.engine, gathered, work.wait, poll=work.is_completed)

    def close(self) -> None:
        """See `Transport.close`."""
        dist.destroy_process_group(self.process_group)

    def _next_seq(self) -> int:
        seq = self._seq
        self._seq += 1
        return seq


def open_lanes(names: Sequence[str], backend: str | None = None) -> dict[str, ProcessGroupTransport]:
    """One process group over all ranks for each name; every rank must call this with the same names in the same order.

    The name becomes the group's description, which the profiler writes into its traces.
    """
    return {name: ProcessGroupTransport(dist.new_group(backend=backend, group_desc=name), name) for name in names}
