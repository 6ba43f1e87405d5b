"""Start ranks that share memory and kill them, over and over: nothing may be left, and survivors must say who died.

    python benchmarks/soak_kills.py [--rounds 200]

Each round starts two ranks that exchange all the time, ends them in one of five ways at a random moment, and bounds
how long the survivor takes to notice. At the end there must be no process, no name in /dev/shm, no System V segment
and no shared memory more than at the start. Exit code 1 otherwise.
"""

from __future__ import annotations

import argparse
import datetime
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch
import torch.distributed as dist

from freescale.comm.shared_memory import open_shared_memory
from freescale.errors import FreeScaleError

BOUND_S = 20.0
BYTES = 2 << 20


def exchange_for_ever(rank: int, folder: str) -> None:
    """One rank; leaves `running-RANK` when it exchanges, and `said-RANK` with the error that ended it."""
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115 (gloo's complaints about dying peers; ends with the process)
    os.dup2(sys.stderr.fileno(), 2)
    torch.set_num_threads(1)
    try:
        store = f"file://{folder}/store"
        patience = datetime.timedelta(seconds=BOUND_S)
        dist.init_process_group("gloo", init_method=store, rank=rank, world_size=2, timeout=patience)
        lanes = open_shared_memory(["urgent", "bulk"])
        bulk, small = torch.full((BYTES,), rank, dtype=torch.uint8), torch.tensor([rank])
        while True:
            first, second = lanes["bulk"].all_gather(bulk), lanes["urgent"].all_gather(small)
            assert second.wait().tolist() == [[0], [1]]
            assert int(first.wait()[1, -1]) == 1
            Path(folder, f"running-{rank}").touch()
    except (FreeScaleError, KeyboardInterrupt) as error:
        Path(folder, f"said-{rank}").write_text(f"{type(error).__name__}: {error}")


def kill_one(ranks: list[BaseProcess]) -> None:
    os.kill(pid_of(ranks[1]), signal.SIGKILL)


def kill_both(ranks: list[BaseProcess]) -> None:
    for rank in ranks:
        os.kill(pid_of(rank), signal.SIGKILL)


def terminate_one(ranks: list[BaseProcess]) -> None:
    os.kill(pid_of(ranks[0]), signal.SIGTERM)


def interrupt_both(ranks: list[BaseProcess]) -> None:
    for rank in ranks:
        os.kill(pid_of(rank), signal.SIGINT)


def stop_then_kill_one(ranks: list[BaseProcess]) -> None:
    os.kill(pid_of(ranks[1]), signal.SIGSTOP)
    time.sleep(0.1)
    os.kill(pid_of(ranks[1]), signal.SIGKILL)


WAYS: list[tuple[Callable[[list[BaseProcess]], None], int | None]] = [
    (kill_one, 0),
    (kill_both, None),
    (terminate_one, 1),
    (interrupt_both, None),
    (stop_then_kill_one, 0),
]
"""How to end the ranks, and which of them survives to say who died."""


def pid_of(process: BaseProcess) -> int:
    assert process.pid is not None
    return process.pid


def one_round(number: int, chance: random.Random) -> float | None:
    """Seconds until a survivor had ended, None without one. Raises AssertionError when a rank hangs or is mute."""
    end, survivor = WAYS[number % len(WAYS)]
    folder = tempfile.mkdtemp(prefix="soak-")
    context = multiprocessing.get_context("fork")  # torch is imported once, here
    ranks: list[BaseProcess] = [context.Process(target=exchange_for_ever, args=(rank, folder)) for rank in range(2)]
    try:
        for rank in ranks:
            rank.start()
        limit = time.monotonic() + BOUND_S
        while not all(Path(folder, f"running-{rank}").exists() for rank in range(2)):
            assert time.monotonic() < limit, f"round {number}: the ranks did not start"
            assert all(rank.is_alive() for rank in ranks), f"round {number}: a rank ended before it was killed"
            time.sleep(0.005)
        time.sleep(chance.uniform(0, 0.05))
        begin = time.monotonic()
        end(ranks)
        for rank in ranks:
            rank.join(BOUND_S)
            assert rank.exitcode is not None, f"round {number}: {end.__name__} left a rank hanging"
        took = time.monotonic() - begin
        if survivor is not None:
            said = Path(folder, f"said-{survivor}")
            dead = f"rank {1 - survivor} (process {pid_of(ranks[1 - survivor])})"
            text = said.read_text() if said.exists() else "nothing"
            assert dead in text, f"round {number}: after {end.__name__} the survivor said: {text}"
            return took
        return None
    finally:
        for rank in ranks:
            if rank.is_alive():
                rank.kill()
            rank.join(5)
        shutil.rmtree(folder, ignore_errors=True)


def leftovers() -> set[str]:
    """Names and processes that should be the same before and after."""
    found = {f"/dev/shm/{name}" for name in os.listdir("/dev/shm")} if os.path.isdir("/dev/shm") else set()
    found |= {f"System V {line}" for line in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]}
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return found | {f"process {pid}" for pid in children}


def shared_kilobytes() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("Shmem:"):
            return int(line.split()[1])
    return 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    chance = random.Random(options.seed)
    before, kilobytes_before = leftovers(), shared_kilobytes()
    begin = time.monotonic()
    noticed = []
    for number in range(options.rounds):
        try:
            took = one_round(number, chance)
        except AssertionError as error:
            sys.exit(f"failed: {error}")
        noticed += [took] if took is not None else []
        if sys.stderr.isatty():
            print(f"\r{number + 1}/{options.rounds}", end="", file=sys.stderr)
    left = leftovers() - before
    grown = shared_kilobytes() - kilobytes_before
    print(
        f"{options.rounds} starts and kills in {time.monotonic() - begin:.0f} s; survivors ended "
        f"{sorted(noticed)[len(noticed) // 2]:.2f} s after the kill (median), {max(noticed):.2f} s at most; "
        f"left behind: {', '.join(sorted(left)) or 'nothing'}; shared memory {grown:+d} KiB"
    )
    if left or grown > options.rounds * BYTES // 4096:  # others use shared memory too; a leak would be one a round
        sys.exit("failed: something was left behind")


if __name__ == "__main__":
    main()
