"""Start real ranks on this host with torch's elastic agent, watch them, and leave nothing behind.

The agent starts the processes and ends them all when one fails; this module adds who is to blame in one line, a bound
on silence, and progress.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException, Std
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from freescale.bench.config import RunConfig
from freescale.bench.heartbeat import Heartbeats, hung_ranks
from freescale.errors import FreeScaleError

_POLL_S = 0.2
_LOG_TAIL_LINES = 15
_BLAMES = "; see its "  # log, or message: how transports end an error that another rank began


@dataclass(frozen=True)
class Failure:
    """Why a run ended early. `rank` is None when no single rank is to blame."""

    rank: int | None
    reason: str
    log_tail: str


class RunFailed(FreeScaleError):
    """The ranks ended early; `failure` says who and why."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.reason)
        self.failure = failure


def launch(config: RunConfig, run: Path, on_progress: Callable[[int, int], None]) -> None:
    """Run `config.ranks` workers to their end.

    Args:
        on_progress: called with the number of steps that all ranks have finished and the number that they expect to
            finish in all (0 before they can tell), a few times a second.

    Raises:
        RunFailed: a rank died, failed or hung. All others have been ended.
        KeyboardInterrupt: Ctrl-C. All ranks have been ended.
    """
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)  # its report of a failure is ours to make
    with tempfile.TemporaryDirectory(prefix="freescale-run-") as scratch, environment_of_ranks(), _signals_as_before():
        folder = Path(scratch)
        config.save(folder / "config.json")
        page = Heartbeats(folder / "heartbeats", config.ranks)
        watch = _Watch(config, page, on_progress)
        agent = elastic_launch(
            LaunchConfig(
                min_nodes=1,
                max_nodes=1,
                nproc_per_node=config.ranks,
                run_id=uuid.uuid4().hex,
                rdzv_backend="c10d",
                rdzv_endpoint="localhost:0",
                local_addr="127.0.0.1",
                max_restarts=0,
                monitor_interval=0.1,
                logs_specs=DefaultLogsSpecs(log_dir=str(folder / "logs"), redirects=Std.ALL),
            ),
            sys.executable,
        )
        arguments = ["-m", "freescale.bench.worker", str(folder / "config.json"), str(run), str(folder / "heartbeats")]
        with watch:
            try:
                agent(*arguments)
            except ChildFailedError as error:
                raise RunFailed(_failure(error, watch, folder / "logs")) from None
            except SignalException as error:
                if error.sigval == signal.SIGINT:
                    raise KeyboardInterrupt from None
                raise RunFailed(Failure(None, f"ended by {error.sigval.name}; run it again", "")) from None


class _Watch:
    """A thread that reports progress, and kills the rank that keeps everybody waiting for too long."""

    def __init__(self, config: RunConfig, page: Heartbeats, on_progress: Callable[[int, int], None]) -> None:
        self.stall_timeout_s = config.stall_timeout_s
        self._page, self._on_progress = page, on_progress
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="freescale-watch", daemon=True)
        self.hung: list[int] = []

    def __enter__(self) -> _Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        last_beat_ns = time.monotonic_ns()
        while not self._stop.wait(_POLL_S):
            beats = self._page.read()
            self._on_progress(min(beat.steps_done for beat in beats), beats[0].steps_expected)
            last_beat_ns = max(last_beat_ns, *(beat.beat_ns for beat in beats))
            if time.monotonic_ns() - last_beat_ns > self.stall_timeout_s * 1e9 and not self.hung:
                looks = [_look_at(beat.pid) for beat in beats]
                self.hung = hung_ranks(beats, [stopped for stopped, _ in looks], [busy for _, busy in looks])
                for rank in self.hung:
                    with contextlib.suppress(ProcessLookupError):
                        if beats[rank].pid:
                            os.kill(beats[rank].pid, signal.SIGKILL)


def _look_at(pid: int, seconds: float = 0.2) -> tuple[bool, bool]:
    """Is the process stopped, is it busy?"""
    try:
        process = psutil.Process(pid)
        return process.status() == psutil.STATUS_STOPPED, process.cpu_percent(seconds) > 50
    except psutil.Error:
        return False, False


def _failure(error: ChildFailedError, watch: _Watch, logs: Path) -> Failure:
    failures: dict[int, ProcessFailure] = error.failures
    if watch.hung:
        rank = watch.hung[0]
        rank_is_known = len(watch.hung) == 1
        who = f"rank {rank}" if rank_is_known else f"ranks {', '.join(map(str, watch.hung))}"
        reason = (
            f"{who} made no progress for {watch.stall_timeout_s:g} s, and {'was' if rank_is_known else 'were'} ended"
        )
        return Failure(rank if rank_is_known else None, reason, _log_tail(logs, rank))
    tails = {rank: _log_tail(logs, rank) for rank in failures}
    lasts = {rank: tail.strip().splitlines()[-1] if tail.strip() else "no message" for rank, tail in tails.items()}

    def is_echo(rank: int) -> bool:
        """A rank that goes may stay for its peers, so that those who blame it end before it does."""
        return _BLAMES in lasts[rank]

    # A peer of a dead rank fails too, a moment later, over its lost connection; a signal is never an echo.
    rank = min(failures, key=lambda r: (failures[r].exitcode >= 0, is_echo(r), failures[r].timestamp))
    exit_code, tail, last = failures[rank].exitcode, tails[rank], lasts[rank]
    if exit_code < 0:
        return Failure(rank, f"rank {rank} was killed by {signal.Signals(-exit_code).name}", tail)
    return Failure(rank, f"rank {rank} failed: {last.removeprefix('error: ')}", tail)


def _log_tail(logs: Path, rank: int) -> str:
    lines: list[str] = []
    for name in ("stdout.log", "stderr.log"):
        for file in sorted(logs.rglob(f"{rank}/{name}")):
            lines += file.read_text(encoding="utf-8", errors="replace").splitlines()[-_LOG_TAIL_LINES:]
    return "\n".join(line.removeprefix(f"[rank{rank}]: ") for line in lines if not line.startswith("USDT:"))


@contextlib.contextmanager
def environment_of_ranks() -> Iterator[None]:
    """What the ranks inherit: gloo on the loopback (the host's name need not resolve), one thread each."""
    wanted = {"GLOO_SOCKET_IFNAME": "lo" if sys.platform == "linux" else "lo0", "OMP_NUM_THREADS": "1"}
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update({name: value for name, value in wanted.items() if before[name] is None})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)


@contextlib.contextmanager
def _signals_as_before() -> Iterator[None]:
    """The agent leaves its signal handlers behind; processes forked later would inherit them."""
    before = {
        number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:
                signal.signal(number, handler)
