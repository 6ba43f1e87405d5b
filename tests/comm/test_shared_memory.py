"""What the shared-memory transport promises beyond delivering: nobody waits at issue, disagreements are named."""

from __future__ import annotations

import errno
import gc
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import example, given
from hypothesis import strategies as st

from freescale.comm import peers, segment, shared_memory
from freescale.comm.landing import LandingPool
from freescale.comm.outbox import Outbox, Region
from freescale.comm.shared_memory import open_shared_memory
from freescale.errors import FreeScaleError

MEGABYTE = 1 << 20
multiprocess = pytest.mark.multiprocess


def await_file(path: Path) -> None:
    end = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < end, f"{path.name} never came"
        time.sleep(0.002)


# The bodies below run on every rank.


def _issue_before_the_peer_comes(rank: int, world_size: int, folder: str) -> bool:
    lane = open_shared_memory(["lane"])["lane"]
    send = torch.full((5 * MEGABYTE + 3,), rank, dtype=torch.uint8)
    sign = Path(folder, "rank 0 has issued")
    if rank == 0:
        handles = [lane.all_gather(send) for _ in range(3)]
        send.zero_()  # the lane has taken it already
        sign.touch()
    else:
        await_file(sign)
        handles = [lane.all_gather(send) for _ in range(3)]
    good = all(bool(handle.wait()[peer].eq(peer).all()) for handle in handles for peer in range(world_size))
    lane.close()
    return good


def _disagree(rank: int, world_size: int, how: str) -> str:
    lane = open_shared_memory(["lane"])["lane"]
    rows = 200_000
    try:
        if how == "splits":
            mine = [rows, rows] if rank == 0 else [rows + 8, rows]
            lane.all_to_all(torch.zeros(sum(mine)), mine, [rows, rows]).wait()
        elif how == "dtype":
            lane.all_gather(torch.zeros(rows, dtype=torch.int32 if rank == 0 else torch.float32)).wait()
        else:
            send = torch.zeros(2 * rows)
            (lane.all_gather(send) if rank == 0 else lane.all_to_all(send, [rows] * 2, [rows] * 2)).wait()
    except FreeScaleError as error:
        return str(error)
    finally:
        dist.barrier()  # rank 1 may agree with what it got; nobody leaves before the other has looked
    return ""


def _run_far_ahead(rank: int, world_size: int) -> bool:
    lane = open_shared_memory(["lane"], limit_bytes=4 * MEGABYTE)["lane"]
    handles = [lane.all_gather(torch.full((MEGABYTE,), call % 251, dtype=torch.uint8)) for call in range(40)]
    good = all(bool(handle.wait().eq(call % 251).all()) for call, handle in enumerate(handles))
    lane.close()
    return good


def _wait_across_lanes_with_full_buffers(rank: int, world_size: int) -> bool:
    """Rank 0 fills lane a before it issues on b; rank 1 wants b before it issues on a."""
    lanes = open_shared_memory(["a", "b"], limit_bytes=2 * MEGABYTE)
    big, small = torch.full((MEGABYTE,), 7, dtype=torch.uint8), torch.arange(10)
    if rank == 0:
        handles = [lanes["a"].all_gather(big) for _ in range(8)]
        other = lanes["b"].all_gather(small)
        other.wait()
    else:
        lanes["b"].all_gather(small).wait()
        handles = [lanes["a"].all_gather(big) for _ in range(8)]
    return all(bool(handle.wait().eq(7).all()) for handle in handles)


def _wait_in_another_thread(rank: int, world_size: int) -> bool:
    lane = open_shared_memory(["lane"])["lane"]
    results: list[torch.Tensor] = []
    for call in range(30):
        handle = lane.all_gather(torch.full((1000,), call))
        thread = threading.Thread(target=lambda handle=handle: results.append(handle.wait()))
        thread.start()
        lane.all_gather(torch.zeros(300_000)).wait()
        thread.join(30)
    return len(results) == 30 and all(bool(result.eq(call).all()) for call, result in enumerate(results))


def _no_memory(rank: int, world_size: int) -> str:
    if rank == 1:
        segment.available_bytes = lambda: 1000  # type: ignore[assignment]
    try:
        open_shared_memory(["lane"])
    except FreeScaleError as error:
        return str(error)
    return ""


def _other_lanes(rank: int, world_size: int) -> str:
    try:
        open_shared_memory(["lane", f"only on {rank}"])
    except FreeScaleError as error:
        return str(error)
    return ""


def _closed(rank: int, world_size: int) -> tuple[str, int]:
    before = len(os.listdir("/proc/self/fd"))
    lane = open_shared_memory(["lane"])["lane"]
    for _ in range(3):
        lane.all_gather(torch.zeros(MEGABYTE)).wait()
    lane.close()
    lane.close()  # harmless
    try:
        lane.all_gather(torch.zeros(1))
    except FreeScaleError as error:
        return str(error), len(os.listdir("/proc/self/fd")) - before
    return "", 0


def _profiled(rank: int, world_size: int, folder: str) -> list[str]:
    sign = Path(folder, "rank 0 has issued")
    lane = open_shared_memory(["bulk"])["bulk"]
    rows = 100_000
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
        if rank == 1:
            await_file(sign)  # so that rank 0 has to stage, and rank 1 to fetch
        handle = lane.all_to_all(torch.zeros(2 * rows, dtype=torch.uint8), [rows] * 2, [rows] * 2)
        sign.touch()
        handle.wait()
        lane.all_gather(torch.zeros(5, dtype=torch.int64)).wait()
    return [event.name for event in profiler.events() if event.name.startswith("freescale.")]


def _overdue(rank: int, world_size: int, folder: str) -> str:
    lane = open_shared_memory(["lane"], timeout_s=0.3)["lane"]
    sign = Path(folder, "rank 0 gave up")
    try:
        if rank == 0:
            lane.all_gather(torch.zeros(5)).wait()
        else:
            await_file(sign)
    except FreeScaleError as error:
        return str(error)
    finally:
        sign.touch()
    return ""


@multiprocess
@pytest.mark.parametrize("world_size", [2, 3])
def test_issuing_does_not_wait_for_peers_and_gives_the_payload_back(
    run_ranks: Any, tmp_path: Path, world_size: int
) -> None:
    assert all(run_ranks(_issue_before_the_peer_comes, world_size, str(tmp_path)))


@multiprocess
@pytest.mark.parametrize(
    ("how", "seen"),
    [
        ("splits", "call 0: rank 1 sends 800032 bytes of float32 by all_to_all, rank 0 expects 800000 bytes"),
        ("dtype", "call 0: rank 1 sends 800000 bytes of float32 by all_gather, rank 0 expects 800000 bytes of int32"),
        ("op", "call 0: rank 1 sends 800000 bytes of float32 by all_to_all, rank 0 expects 1600000 bytes of float32"),
    ],
)
def test_calls_that_disagree_are_refused_with_both_sides(run_ranks: Any, how: str, seen: str) -> None:
    assert seen in run_ranks(_disagree, 2, how)[0]


@multiprocess
def test_a_sender_far_ahead_slows_down_and_loses_nothing(run_ranks: Any) -> None:
    assert all(run_ranks(_run_far_ahead, 2))


@multiprocess
def test_full_buffers_do_not_deadlock_ranks_that_issue_lanes_in_another_order(run_ranks: Any) -> None:
    assert all(run_ranks(_wait_across_lanes_with_full_buffers, 2))


@multiprocess
def test_issue_and_wait_may_come_from_different_threads(run_ranks: Any) -> None:
    assert all(run_ranks(_wait_in_another_thread, 2))


@multiprocess
def test_lack_of_memory_is_told_to_every_rank(run_ranks: Any) -> None:
    for message in run_ranks(_no_memory, 2):
        assert message.startswith("rank 1: shared_memory needs")
        assert "fewer ranks or smaller batches" in message


@multiprocess
def test_lanes_that_differ_between_ranks_are_refused(run_ranks: Any) -> None:
    assert all("opens lanes" in message for message in run_ranks(_other_lanes, 2))


@multiprocess
def test_a_closed_lane_says_so(run_ranks: Any) -> None:
    for message, _ in run_ranks(_closed, 2):
        assert "was closed; open it again" in message


@multiprocess
def test_traces_name_every_call_where_it_is_issued_moved_and_waited_for(run_ranks: Any, tmp_path: Path) -> None:
    early, late = run_ranks(_profiled, 2, str(tmp_path))
    for names in (early, late):
        for name in (
            "freescale.comm all_to_all group=bulk seq=0 bytes=100000",
            "freescale.move all_to_all group=bulk seq=0 bytes=100000",
            "freescale.wait all_to_all group=bulk seq=0",
            "freescale.comm all_gather group=bulk seq=1 bytes=40",
            "freescale.wait all_gather group=bulk seq=1",
        ):
            assert name in names
    assert late.count("freescale.move all_to_all group=bulk seq=0 bytes=100000") == 2, (
        "sent its part, fetched the other"
    )


@multiprocess
def test_a_peer_that_lives_but_does_not_come_is_named(run_ranks: Any, tmp_path: Path) -> None:
    assert "did not come within 0.3 s" in run_ranks(_overdue, 2, str(tmp_path))[0]


@multiprocess
@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a tiny /dev/shm takes root")
def test_a_tiny_dev_shm_does_not_matter(tmp_path: Path) -> None:
    """Containers give 64 MB of /dev/shm; the lanes take none of it."""
    program = Path(__file__).with_name("lifecycle_program.py")
    run = f"{sys.executable} {program} 'forked child exits'"
    script = f"mount -t tmpfs -o size=64k tmpfs /dev/shm && {{ {run} 0 2 {tmp_path} & {run} 1 2 {tmp_path}; wait; }}"
    environment = os.environ | {"PYTHONPATH": str(program.parents[2])}
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-c", script], capture_output=True, text=True, timeout=60, env=environment
    )
    if "unshare failed" in done.stderr:
        pytest.skip("this system does not let root make a mount namespace")
    assert done.stdout.count("done") == 2, done.stdout + done.stderr


def test_ranks_on_two_hosts_are_refused_by_name() -> None:
    here, there = peers.Host("node-a", "1", "pid:[1]"), peers.Host("node-b", "2", "pid:[1]")
    with pytest.raises(FreeScaleError, match="rank 0 runs on node-a and rank 2 on node-b; use process_group"):
        peers.refuse_other_hosts("shared_memory", [here, here, there])
    container = peers.Host("node-a", "1", "pid:[2]")
    with pytest.raises(FreeScaleError, match="ranks 0 and 1 run in two containers of node-a"):
        peers.refuse_other_hosts("shared_memory", [here, container])
    peers.refuse_other_hosts("shared_memory", [here, here])


def test_a_process_is_told_from_its_zombie_and_from_none() -> None:
    child = subprocess.Popen(["sleep", "60"])
    process = peers.Process(child.pid)
    assert process.is_alive()
    os.kill(child.pid, 9)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # dead, not yet reaped
    assert not process.is_alive()
    child.wait()
    assert not process.is_alive()


@given(
    st.lists(
        st.tuples(
            st.sampled_from([1, 64, 600_000, 900_000, 1_400_000, 1_900_000]),  # so that the first 4 MiB wrap often
            st.sampled_from([1.0, 1.0, 1.0, 0.5, 0.0]),
            st.integers(0, 3),
        ),
        min_size=10,
        max_size=40,
    )
)
@example([(1_400_000, 1.0, 0), (1_400_000, 1.0, 0), (900_000, 1.0, 1), (900_000, 1.0, 0), (600_000, 1.0, 0)])  # wraps
@example([(1_400_000, 1.0, 0), (1_400_000, 1.0, 0), (600_000, 1.0, 0), (1_400_000, 1.0, 0)])  # nothing free in front
def test_outbox_regions_never_overlap_and_go_in_order(steps: list[tuple[int, float, int]]) -> None:
    outbox = Outbox()
    live: list[Region] = []
    for nbytes, keep, releases in steps:
        region = outbox.reserve(nbytes)
        assert region.size >= nbytes
        assert region.offset + region.size <= region.segment.size
        kept = outbox.shrink_newest(round(nbytes * keep))
        if kept:
            assert kept.size >= round(nbytes * keep)
            live.append(kept)
        for _ in range(min(releases, len(live))):
            live.pop(0)
            outbox.release_oldest()
        for index, one in enumerate(live):
            assert one.segment.descriptor >= 0, "a segment with live regions is still open"
            for other in live[index + 1 :]:
                apart = one.offset + one.size <= other.offset or other.offset + other.size <= one.offset
                assert apart or one.segment is not other.segment
        assert outbox.held_bytes == sum(one.size for one in live)
    outbox.discard()


def test_a_result_in_use_is_never_handed_out_again() -> None:
    pool = LandingPool(limit_bytes=16 * MEGABYTE)
    first = pool.allocate(MEGABYTE, torch.uint8)
    second = pool.allocate(MEGABYTE, torch.uint8)
    assert first is not None
    assert second is not None
    assert first[1].key != second[1].key
    view = first[0].view(torch.float32)[10:20].clone(), first[0].view(torch.float32)[10:20]
    key = first[1].key
    del first
    held = pool.allocate(MEGABYTE, torch.uint8)
    assert held is not None
    assert held[1].key != key, "a view of the result still lives"
    del view
    again = pool.allocate(MEGABYTE - 100, torch.uint8)
    assert again is not None
    assert again[1].key == key, "once no tensor uses it, its pages serve the next result"


def test_results_beyond_the_limit_are_not_placed_in_shared_memory() -> None:
    pool = LandingPool(limit_bytes=4 * MEGABYTE)
    held = [pool.allocate(2 * MEGABYTE, torch.uint8), pool.allocate(2 * MEGABYTE, torch.uint8)]
    assert all(held)
    assert pool.allocate(MEGABYTE, torch.uint8) is None
    held.clear()
    assert pool.allocate(3 * MEGABYTE, torch.uint8) is not None, "idle blocks make room"


def test_a_kernel_that_refuses_memory_files_is_met_with_the_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str, flags: int) -> int:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "memfd_create", refuse)
    assert "seccomp profile" in segment.unsupported()
    with pytest.raises(
        FreeScaleError, match=r"refused a memory file \(Operation not permitted\); raise the limit on open"
    ):
        segment.create(100)


def test_an_old_kernel_is_asked_again_without_the_flag_it_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    create = os.memfd_create

    def old_kernel(name: str, flags: int) -> int:
        if flags != os.MFD_CLOEXEC:
            raise OSError(errno.EINVAL, "Invalid argument")
        return create(name, flags)

    monkeypatch.setattr(os, "memfd_create", old_kernel)
    assert segment.unsupported() == ""
    assert segment.create(100).size >= 100


def test_a_pool_that_is_given_up_leaves_tensors_in_use_intact_and_no_descriptor_open() -> None:
    before = len(os.listdir("/proc/self/fd"))
    pool = LandingPool(limit_bytes=16 * MEGABYTE)
    kept, dropped = pool.allocate(MEGABYTE, torch.uint8), pool.allocate(MEGABYTE, torch.uint8)
    assert kept is not None
    tensor = kept[0].fill_(7)
    del kept, dropped
    pool.discard()
    del pool
    assert bool(tensor.eq(7).all())
    del tensor
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


def test_dtype_codes_are_the_same_on_every_rank() -> None:
    names = [str(dtype) for dtype in shared_memory._DTYPES]
    assert names == sorted(names)
    assert len(set(names)) == len(names)
