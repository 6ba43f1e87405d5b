"""DDP's gradient reduction under its own name: what torch does by default, with its facts in the trace."""

# No `from __future__ import annotations`: DDP inspects the hook's annotations, which must be classes, not strings.

from collections.abc import Callable
from itertools import count

import torch
import torch.distributed as dist

from freescale.comm.annotate import issue_range

Hook = Callable[[object, dist.GradBucket], torch.futures.Future[torch.Tensor]]


def annotated_all_reduce(process_group: dist.ProcessGroup, group: str) -> Hook:
    """For `DistributedDataParallel.register_comm_hook(None, …)`: averages each bucket over `process_group`.

    Args:
        group: the name that the trace shows.
    """
    share = 1 / dist.get_world_size(process_group)
    numbers = count()

    def hook(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        buffer = bucket.buffer().mul_(share)
        with issue_range("all_reduce", group, next(numbers), buffer.nbytes):
            work = dist.all_reduce(buffer, group=process_group, async_op=True)
        return work.get_future().then(lambda done: done.value()[0])

    return hook
