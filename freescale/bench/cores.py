"""Which cores a rank computes on."""

from __future__ import annotations

import os


def keep_to_own_cores() -> None:
    """Bind this thread, and those it starts later, to its share of the host's cores, where there is one for each rank.

    Ranks that move about disturb each other. LOCAL_RANK and LOCAL_WORLD_SIZE say which share; call it after the
    process groups are open, so that their threads stay free to run where there is room.
    """
    if not hasattr(os, "sched_setaffinity"):
        return
    cores = sorted(os.sched_getaffinity(0))
    local_rank, ranks = int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    share = len(cores) // ranks
    if share and ranks > 1:
        os.sched_setaffinity(0, cores[local_rank * share : (local_rank + 1) * share])
