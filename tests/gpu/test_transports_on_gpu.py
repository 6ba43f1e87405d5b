"""What needs a real GPU: run with `pytest tests/gpu`; skipped where torch sees none.

One GPU is enough for the staged path (two ranks share it, and gloo or shared memory carry the host leg) and for the
engine check; copy engines between GPUs and NCCL's collectives take two.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "comm"))
import conformance_payload as payload

from freescale.comm import copy_engine, zero_cta
from freescale.comm.cuda_copies import CudaCopies
from freescale.comm.engine_check import kernels_during
from freescale.comm.host_staged import open_host_staged
from freescale.comm.select import select, survey
from freescale.comm.transport import Transport
from freescale.errors import FreeScaleError

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device"),
    pytest.mark.multiprocess,
    pytest.mark.timeout(300),
]
two_gpus = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="takes two GPUs")


def _exchange_everything(lane: Transport, rank: int, world_size: int, device: torch.device) -> list[str]:
    """What went wrong, over dtypes, shapes, sizes with and without remainders, and both operations."""
    wrong = []
    index = 0
    for dtype in payload.DTYPES:
        for tail in ([], [3], [64]):
            for scale in (0, 1, 1000, 50_000):
                splits = [[(scale * (1 + a + 2 * b)) // 3 for b in range(world_size)] for a in range(world_size)]
                calls: list[dict[str, Any]] = [
                    {"op": "all_to_all", "dtype": dtype, "tail": tail, "splits": splits},
                    {"op": "all_gather", "dtype": dtype, "tail": tail, "rows": scale},
                ]
                for call in calls:
                    send = payload.make(11, rank, index, call).to(device)
                    if call["op"] == "all_to_all":
                        handle = lane.all_to_all(send, splits[rank], [row[rank] for row in splits])
                    else:
                        handle = lane.all_gather(send)
                    want = payload.digest(payload.expected(11, rank, index, call, world_size))
                    if payload.digest(handle.wait().cpu()) != want:
                        wrong.append(f"{call['op']} {dtype} {tail} scale {scale}")
                    index += 1
    return wrong


def _staged(rank: int, world_size: int) -> list[str]:
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    lane = open_host_staged(["lane"], device, chunk_bytes=300_000)["lane"]
    wrong = _exchange_everything(lane, rank, world_size, device)
    lane.close()
    return wrong


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_host_staged_delivers_exactly(run_ranks: Any, world_size: int) -> None:
    assert run_ranks(_staged, world_size, timeout_s=200) == [[]] * world_size


def _staged_order(rank: int, world_size: int) -> tuple[bool, list[str]]:
    """The payload is still being computed when the call is issued; the result is used right after the wait."""
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    lane = open_host_staged(["lane"], device)["lane"]
    rows = 4_000_000
    splits = [rows] * world_size

    def call() -> torch.Tensor:
        send = torch.full((rows * world_size,), -1.0, device=device)
        torch.cuda._sleep(50_000_000)
        send.fill_(float(rank))
        return lane.all_to_all(send, splits, splits).wait() + 0

    good = True
    for _ in range(5):
        result = call()
        good &= all(bool((result[peer * rows : (peer + 1) * rows] == peer).all()) for peer in range(world_size))
    send = torch.full((rows * world_size,), float(rank), device=device)
    kernels = kernels_during(lambda: lane.all_to_all(send, splits, splits).wait())
    lane.close()
    return good, kernels


def test_host_staged_waits_for_the_payload_and_takes_no_sm(run_ranks: Any) -> None:
    for good, kernels in run_ranks(_staged_order, 2, timeout_s=120):
        assert good
        assert kernels == []


def test_copies_run_on_copy_engines_and_marks_wait_for_them() -> None:
    device = torch.device("cuda", torch.cuda.current_device())
    copies = CudaCopies(device)
    host = copies.staging(64 << 20)
    assert host.is_pinned()
    there = torch.randint(0, 256, (64 << 20,), dtype=torch.uint8, device=device)
    copies.begin(there)

    def down() -> None:
        copies.copy(host, there)
        copies.mark().synchronize()

    assert kernels_during(down) == []
    assert bool((host == there.cpu()).all())


def test_the_engine_check_sees_kernels() -> None:
    left = torch.randn(512, 512, device="cuda")
    assert kernels_during(lambda: left @ left)


def _over_nccl(rank: int, world_size: int, opener: str) -> list[str] | str:
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    openers = {"copy_engine": copy_engine.open_copy_engine, "zero_cta": zero_cta.open_zero_cta}
    dist.destroy_process_group()
    return _in_an_nccl_world(openers[opener], rank, world_size, device)


def _in_an_nccl_world(opener: Any, rank: int, world_size: int, device: torch.device) -> list[str] | str:
    dist.init_process_group("cpu:gloo,cuda:nccl", init_method="tcp://127.0.0.1:29631", rank=rank, world_size=world_size)
    try:
        lane = opener(["lane"], device, chunk_bytes=300_000)["lane"]
    except FreeScaleError as error:
        return str(error)
    return _exchange_everything(lane, rank, world_size, device)


@two_gpus
@pytest.mark.parametrize("opener", ["copy_engine", "zero_cta"])
def test_sm_free_paths_between_gpus_deliver_exactly_or_refuse_with_the_reason(run_ranks: Any, opener: str) -> None:
    for outcome in run_ranks(_over_nccl, 2, opener, timeout_s=200):
        if isinstance(outcome, str):
            pytest.skip(outcome)
        assert outcome == []


def _selected(rank: int, world_size: int) -> tuple[str, float]:
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    chosen = select(device, survey(device), "host_staged")
    lane = chosen.open(["lane"])["lane"]
    total = float(lane.all_gather(torch.tensor([float(rank)], device=device)).wait().sum())
    lane.close()
    return chosen.name, total


def test_a_selected_path_opens(run_ranks: Any) -> None:
    assert run_ranks(_selected, 2, timeout_s=120) == [("host_staged", 1.0)] * 2


def test_the_contention_benchmark_runs_and_its_null_arm_shows_nothing() -> None:
    program = Path(__file__).resolve().parents[2] / "benchmarks" / "contention.py"
    command = [sys.executable, str(program), "--repeats", "5", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["victim_slowdown"]["matmul"]["alone"]["value"] == 1.0
    assert result["victim_slowdown"]["matmul"]["copy engine"]["n"] == 5
