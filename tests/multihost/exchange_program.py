"""One rank under torchrun: `facts`, or `waits TRANSPORT [GIGABITS_PER_S]`; prints one JSON line."""

from __future__ import annotations

import datetime
import json
import os
import sys
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

from freescale.comm.emulated_link import Link, emulate
from freescale.comm.process_group import open_lanes
from freescale.comm.select import select, survey
from freescale.comm.shared_memory import open_shared_memory
from freescale.comm.transport import Handle, Transport
from freescale.errors import FreeScaleError

MESSAGE_BYTES = 8 << 20
COMPUTE_S = 0.04
STEPS = 12


def facts() -> dict[str, object]:
    """What these ranks choose, what they are refused, and whether lanes deliver between them."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    topology = survey("cpu")
    try:
        select("cpu", topology, "shared_memory")
        refused = ""
    except FreeScaleError as error:
        refused = str(error)
    try:
        open_shared_memory(["lane"])
        refused_when_opened = ""
    except FreeScaleError as error:
        refused_when_opened = str(error)
    lanes = select("cpu", topology).open(["bulk", "urgent"])
    splits = [rank + peer for peer in range(world_size)]
    handles = [
        lane.all_to_all(torch.full((sum(splits), 3), rank), splits, [peer + rank for peer in range(world_size)])
        for lane in lanes.values()
    ]
    want = torch.cat([torch.full((peer + rank, 3), peer) for peer in range(world_size)])
    return {
        "rank": rank,
        "local_rank": int(os.environ["LOCAL_RANK"]),
        "hosts": topology.hosts,
        "chosen": select("cpu", topology).name,
        "refused": refused,
        "refused_when_opened": refused_when_opened,
        "delivered": all(handle.wait().equal(want) for handle in reversed(handles)),
    }


def waits(transport: str) -> dict[str, list[float]]:
    """Milliseconds waited for an exchange per step: right after it was issued, or `COMPUTE_S` later.

    `overlapped` leaves the cores idle meanwhile, as when a GPU computes; `busy_cores` computes on them. Each direction
    has a lane of its own, but for `one_lane`: gloo uses a lane's connection in one direction at a time, which doubles
    what the link takes.
    """
    opened: dict[str, Transport]
    if transport == "gloo":
        opened = dict(open_lanes(["up", "down"]))
    else:
        names = ["up", "down"]
        under = open_shared_memory(names) if transport == "emulated shared_memory" else open_lanes(names)
        opened = dict(emulate(under, Link(gbit_per_s=float(sys.argv[3]), latency_us=30)))
    rank = dist.get_rank()
    payload, nothing = torch.zeros(MESSAGE_BYTES, dtype=torch.uint8), torch.empty(0, dtype=torch.uint8)
    none, away = [0, 0], [0, MESSAGE_BYTES] if rank == 0 else [MESSAGE_BYTES, 0]

    def both_ways() -> list[Handle]:
        mine, theirs = ("up", "down") if rank == 0 else ("down", "up")
        calls = {mine: (payload, away, none), theirs: (nothing, none, away)}
        return [opened[name].all_to_all(*calls[name]) for name in ("up", "down")]

    left = torch.randn(200, 200)

    def compute() -> None:
        until = time.perf_counter() + COMPUTE_S
        while time.perf_counter() < until:
            left @ left

    modes: dict[str, tuple[Callable[[], list[Handle]], Callable[[], None]]] = {
        "blocking": (both_ways, lambda: None),
        "overlapped": (both_ways, lambda: time.sleep(COMPUTE_S)),
        "busy_cores": (both_ways, compute),
        "one_lane": (lambda: [opened["up"].all_to_all(payload, away, away)], lambda: None),
    }
    waited: dict[str, list[float]] = {mode: [] for mode in modes}
    for _ in range(STEPS):
        for mode, (issue, meanwhile) in modes.items():
            dist.barrier()
            handles = issue()
            meanwhile()
            for handle in handles:
                handle.wait()
            waited[mode].append(sum(handle.waited_ns for handle in handles) / 1e6)
    return {mode: samples[2:] for mode, samples in waited.items()}


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=40))
    answer = facts() if sys.argv[1] == "facts" else waits(sys.argv[2])
    print(json.dumps(answer), flush=True)
    dist.barrier()
    dist.destroy_process_group()


main()
