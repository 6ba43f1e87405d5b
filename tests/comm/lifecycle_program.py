"""One rank of a scenario in which ranks end in every way they can: `lifecycle_program.py SCENARIO RANK WORLD FOLDER`.

Prints what the rank saw, a line each; the folder holds the rendezvous file and the signs that ranks leave each other.
"""

from __future__ import annotations

import atexit
import datetime
import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from freescale.comm.shared_memory import open_shared_memory
from freescale.errors import FreeScaleError

BIG = 3 << 20


def say(text: str) -> None:
    print(text, flush=True)


def until(path: Path) -> None:
    """Wait for a sign of another rank; bounded."""
    end = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < end, f"{path.name} never came"
        time.sleep(0.005)


def main() -> None:
    scenario, rank, world_size, folder = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=world_size,
        timeout=datetime.timedelta(seconds=30),
    )
    lane = open_shared_memory(["lane"])["lane"]
    payload = torch.full((BIG,), rank, dtype=torch.uint8)
    lane.all_gather(payload).wait()
    dist.barrier()  # so that what follows is the lane's second call on every rank
    say("started")
    try:
        if scenario == "peer is killed":
            if rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            lane.all_gather(payload).wait()
        elif scenario == "peer is killed before its bytes are fetched":
            large = torch.full((24 << 20,), rank, dtype=torch.uint8)
            if rank == 1:
                lane.all_gather(large)
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(0.7)
            lane.all_gather(large).wait()
        elif scenario == "peer leaves early":
            if rank != 1:
                lane.all_gather(payload).wait()
        elif scenario == "peer raises":
            if rank == 1:
                raise RuntimeError("this rank fails on purpose")
            lane.all_gather(payload).wait()
        elif scenario == "sender exits before receiver fetches":
            # Larger than any segment that is mapped already, so the receiver must still be able to open it.
            large = torch.full((24 << 20,), rank, dtype=torch.uint8)
            if rank == 0:
                handle = lane.all_gather(large)
                (folder / "issued").touch()
                assert handle.wait()[1].eq(1).all()
            else:
                until(folder / "issued")
                handle = lane.all_gather(large)
                time.sleep(0.5)
                assert handle.wait()[0].eq(0).all()
        elif scenario == "interrupted while waiting":
            lane.all_gather(payload).wait() if rank == 0 else time.sleep(60)
        elif scenario == "forked child exits":
            child = os.fork()
            if child == 0:
                atexit._run_exitfuncs()  # what an exit does first; gloo's threads hang a forked child later on
                os._exit(0)
            os.waitpid(child, 0)
            assert lane.all_gather(payload).wait()[world_size - 1].eq(world_size - 1).all()
        else:
            raise AssertionError(scenario)
        say("done")
    except FreeScaleError as error:
        say(f"FreeScaleError: {error}")
    except KeyboardInterrupt:
        say("KeyboardInterrupt")


main()
