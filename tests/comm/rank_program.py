"""One rank of the conformance suite: reads scripts of calls from stdin, runs them, answers with digests of the results.

Run as a program by `conftest.RankPool`. A script is a JSON object with the transport's name and a list of steps that
every rank runs; payloads are made from (seed, rank, call), so that parent and rank agree on them without sending any.
"""

from __future__ import annotations

import datetime
import json
import sys
import time
import traceback
from typing import Any

import conformance_payload as payload
import torch
import torch.distributed as dist
from fake_device import open_on_fake_device

from freescale.comm.emulated_link import Link, emulate
from freescale.comm.host_staged import open_host_staged
from freescale.comm.process_group import open_lanes
from freescale.comm.shared_memory import open_shared_memory
from freescale.comm.transport import Handle, Transport

LANES = ("urgent", "bulk", "data")
FAST_LINK = Link(gbit_per_s=400.0, latency_us=20.0)


def open_transport(name: str) -> dict[str, Transport]:
    """The three lanes of one transport; collective."""
    if name == "process_group":
        return dict(open_lanes(LANES))
    if name == "shared_memory":
        return dict(open_shared_memory(LANES))
    if name == "shared_memory:fine":
        # So fine that the suite's sizes take every path: landed, staged, half and half, no room to land, outbox full.
        return dict(open_shared_memory(LANES, limit_bytes=1 << 20, direct_bytes=200, chunk_bytes=1000))
    if name == "host_staged":
        return open_host_staged(LANES)
    kind, _, inner = name.partition(":")
    if kind == "fake_device":
        return open_on_fake_device(inner, LANES)
    assert kind == "emulated_link", name
    return dict(emulate(open_transport(inner), FAST_LINK))


def run_script(lanes: dict[str, Transport], script: dict[str, Any], rank: int) -> list[str]:
    """Digest of every call's result, in call order."""
    seed = script["seed"]
    handles: list[Handle] = []
    sent: list[torch.Tensor] = []
    kept: dict[int, torch.Tensor] = {}
    digests: dict[int, str] = {}

    def wait(call: int) -> None:
        if call % 2:  # half of the calls are polled to their end, which must not take a wait of its own
            deadline = time.monotonic() + 30
            while not handles[call].done():
                assert time.monotonic() < deadline, f"call {call} is never done"
                time.sleep(2e-4)
        result = handles[call].wait()
        assert handles[call].wait() is result, "waiting again returns the same tensor"
        sent[call].zero_()  # after the wait the payload is the caller's again
        if script["calls"][call]["keep"]:
            kept[call] = result  # must not change while later calls come and go
        else:
            digests[call] = payload.digest(result)

    for step in script["steps"][rank]:
        if step["do"] == "issue":
            call = script["calls"][step["call"]]
            lane = lanes[call["lane"]]
            send = payload.make(seed, rank, step["call"], call)
            sent.append(send)
            if call["op"] == "all_to_all":
                matrix = call["splits"]
                handles.append(lane.all_to_all(send, matrix[rank], [row[rank] for row in matrix]))
            else:
                handles.append(lane.all_gather(send))
        elif step["do"] == "wait":
            wait(step["call"])
        else:
            time.sleep(step["ms"] / 1e3)
    for call, result in kept.items():
        digests[call] = payload.digest(result)
    for handle in handles:
        assert handle.completed_ns is not None
        assert handle.completed_ns >= handle.issued_ns
        assert handle.waited_ns >= 0
    return [digests[call] for call in range(len(handles))]


def main() -> None:
    rank, world_size, store = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=world_size,
        timeout=datetime.timedelta(seconds=60),
    )
    opened: dict[str, dict[str, Transport]] = {}
    print("ready", flush=True)
    for line in sys.stdin:
        script = json.loads(line)
        try:
            name = script["transport"]
            if name not in opened:
                opened[name] = open_transport(name)
            answer = {"digests": run_script(opened[name], script, rank)}
        except BaseException:
            answer = {"error": traceback.format_exc()}
        print(json.dumps(answer), flush=True)
    for lanes in opened.values():
        for lane in lanes.values():
            lane.close()
    dist.barrier()
    dist.destroy_process_group()


main()
