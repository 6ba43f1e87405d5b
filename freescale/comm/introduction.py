"""How ranks of one host come to map a segment of each other; collective, and all ranks fail together or none."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import torch.distributed as dist

from freescale.comm import peers as known
from freescale.comm import segment as segments
from freescale.comm.segment import Segment
from freescale.errors import FreeScaleError


def introduce(
    transport: str,
    process_group: dist.ProcessGroup | None,
    lanes: Sequence[str],
    nbytes: int,
    initialise: Callable[[Segment], None],
) -> tuple[list[Segment], list[known.Process]]:
    """Make a segment of `nbytes` on every rank and map everybody's; returns them and the processes, by rank.

    Args:
        initialise: called with this rank's segment before anybody else maps it.

    Raises:
        FreeScaleError: on every rank, when any of them cannot: not Linux, not one host, not one user, no memory,
            or not the same lanes.
    """
    rank = dist.get_rank(process_group)
    host = known.this_host()
    record: dict[str, object]
    try:
        mine = segments.create(nbytes)
        initialise(mine)
        record = {"host": [host.name, host.boot, host.process_numbers], "lanes": " ".join(lanes)}
        record |= {"pid": os.getpid(), "key": mine.key, "descriptor": mine.descriptor, "size": mine.size}
    except FreeScaleError as error:
        record = {"error": str(error)}
    told = known.agree(process_group, record)
    known.refuse_other_hosts(transport, [known.Host(*one["host"]) for one in told])
    record = {}
    everyone: list[Segment] = []
    try:
        for peer, one in enumerate(told):
            if one["lanes"] != " ".join(lanes):
                raise FreeScaleError(f"opens lanes {list(lanes)}, rank {peer} opens {one['lanes'].split()}")
            here = peer == rank
            everyone.append(mine if here else segments.attach(one["pid"], one["key"], one["descriptor"], one["size"]))
    except FreeScaleError as error:
        record = {"error": str(error)}
    known.agree(process_group, record)
    return everyone, [known.Process(one["pid"]) for one in told]
