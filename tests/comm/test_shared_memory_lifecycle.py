"""However a rank ends, its peers notice within a bound and say which it was, and nothing is left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
BOUND_S = 30

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(120)]
Start = Callable[[str, int], list["subprocess.Popen[str]"]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """`start(scenario, world_size)` -> the ranks' processes; killed at the end whatever happens."""
    started: list[subprocess.Popen[str]] = []

    def run(scenario: str, world_size: int) -> list[subprocess.Popen[str]]:
        for rank in range(world_size):
            started.append(
                subprocess.Popen(
                    [
                        sys.executable,
                        str(HERE / "lifecycle_program.py"),
                        scenario,
                        str(rank),
                        str(world_size),
                        tmp_path,
                    ],
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                    env=os.environ | {"PYTHONPATH": str(HERE.parents[1])},
                )
            )
        return started

    yield run
    for process in started:
        process.kill()
        process.wait()


def said(process: subprocess.Popen[str]) -> str:
    return process.communicate(timeout=BOUND_S)[0]


def until_started(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    assert "started" in process.stdout.readline()


def traces_left() -> set[str]:
    """Names that shared memory could leave: files in /dev/shm and System V segments."""
    names = set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()
    return names | set(Path("/proc/sysvipc/shm").read_text().splitlines()[1:])


@pytest.mark.parametrize("world_size", [2, 3])
def test_survivors_name_a_killed_rank(start: Start, world_size: int) -> None:
    before = traces_left()
    ranks = start("peer is killed", world_size)
    for rank in [0, *range(2, world_size)]:
        text = said(ranks[rank])
        assert f"rank 1 (process {ranks[1].pid}) has died" in text, text
        assert f"rank {rank}, lane 'lane', all_gather 1" in text
    assert traces_left() == before


def test_a_rank_killed_before_its_bytes_were_fetched_is_named(start: Start) -> None:
    ranks = start("peer is killed before its bytes are fetched", 2)
    text = said(ranks[0])
    assert "FreeScaleError: shared_memory: rank 0, lane 'lane'" in text
    assert f"rank 1 (process {ranks[1].pid}) has died; see its log" in text


def test_survivors_name_a_rank_that_left_early(start: Start) -> None:
    ranks = start("peer leaves early", 2)
    text = said(ranks[0])
    assert "rank 1" in text
    assert "left after 1 calls" in text or "has died" in text, text


def test_survivors_name_a_rank_that_raised(start: Start) -> None:
    ranks = start("peer raises", 2)
    assert "this rank fails on purpose" in said(ranks[1])
    text = said(ranks[0])
    assert "left after 1 calls" in text or "has died" in text, text


def test_what_a_rank_sent_outlives_its_exit(start: Start) -> None:
    ranks = start("sender exits before receiver fetches", 2)
    for process in ranks:
        text = said(process)
        assert process.returncode == 0, text
        assert "done" in text


def test_a_forked_child_that_exits_is_not_the_rank(start: Start) -> None:
    for process in start("forked child exits", 2):
        text = said(process)
        assert process.returncode == 0, text
        assert "done" in text


def test_interrupt_ends_a_wait(start: Start) -> None:
    ranks = start("interrupted while waiting", 2)
    for process in ranks:
        until_started(process)
    time.sleep(0.3)  # let rank 0 reach its wait; were it earlier, it would be interrupted elsewhere, and pass as well
    for process in ranks:
        process.send_signal(signal.SIGINT)
    for process in ranks:
        assert "KeyboardInterrupt" in said(process)


def test_kills_in_a_row_leave_no_process_file_or_segment() -> None:
    """The soak takes 200 unless told otherwise."""
    soak = HERE.parents[1] / "benchmarks" / "soak_kills.py"
    environment = os.environ | {"PYTHONPATH": str(HERE.parents[1])}
    command = [sys.executable, str(soak), "--rounds", "25"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "left behind: nothing" in done.stdout
