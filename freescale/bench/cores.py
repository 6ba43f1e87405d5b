"""Which cores a rank computes on."""

from __future__ import annotations

import os


def keep_to_own_cores() -> None:
    """Bind this process to its share of the host's cores, as LOCAL_RANK and LOCAL_WORLD_SIZE say, where there is at
    least one for each rank: ranks that move about disturb each other."""
    if not hasattr(os, "sched_setaffinity"):
        return
    cores = sorted(os.sched_getaffinity(0))
    local_rank, ranks = int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    share = len(cores) // ranks
    if share and ranks > 1:
        os.sched_setaffinity(0, cores[local_rank * share : (local_rank + 1) * share])
