"""DDP's gradient reduction under its own name: what torch does by default, with its facts in the trace."""

from __future__ import annotations

from itertools import count

import torch
import torch.distributed as dist
from torch import Tensor

from freescale.comm.annotate import issue_range


class AnnotatedAllReduce:
    """For `DistributedDataParallel.register_comm_hook(None, AnnotatedAllReduce(group, name))`.

    Averages each bucket over `process_group`, as DDP does without a hook, bit for bit.
    """

    __name__ = "annotated_all_reduce"  # DDP asks a hook for its name
    __qualname__ = "AnnotatedAllReduce"

    def __init__(self, process_group: dist.ProcessGroup, group: str) -> None:
        self._process_group, self._group = process_group, group
        self._world_size = dist.get_world_size(process_group)
        self._seq = count()

    def __call__(self, state: object, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        buffer = bucket.buffer().mul_(1 / self._world_size)
        with issue_range("all_reduce", self._group, next(self._seq), buffer.nbytes):
            work = dist.all_reduce(buffer, group=self._process_group, async_op=True)
        return work.get_future().then(lambda done: done.value()[0])
