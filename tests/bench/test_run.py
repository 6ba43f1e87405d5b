"""`freescale-bench run`, as a person runs it: what it prints and leaves, and what happens when a rank dies or hangs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from analyzer.rundir import RunDirectory, list_runs, open_run

pytestmark = pytest.mark.multiprocess
COMMAND = [sys.executable, "-m", "freescale.bench.cli", "run", "hstu-tiny"]
ENDLESS = ["--blocks", "100000", "--steps", "1", "--profiled-steps", "1"]


def run(out: Path, *options: str, timeout_s: float = 120) -> subprocess.CompletedProcess[str]:
    command = [*COMMAND, "--out", str(out), *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], RunDirectory]:
    """One small complete run with `--json`."""
    out = tmp_path_factory.mktemp("runs")
    done = run(out, "--blocks", "3", "--steps", "3", "--json")
    assert done.returncode == 0, done.stderr
    (directory,) = list_runs(out)
    return done, directory


def test_json_alone_is_on_stdout_and_equals_the_report(finished: Any) -> None:
    done, directory = finished
    assert json.loads(done.stdout) == directory.report()


def test_every_step_of_every_rank_arm_and_block_is_recorded(finished: Any) -> None:
    _, directory = finished
    assert directory.complete
    steps = directory.steps()
    assert len(steps) == 3 * 2 * (2 + 3) * 2  # blocks × arms × (warm-up + timed) × ranks
    assert not steps.duplicated(["block", "arm", "step", "rank"]).any()
    assert (steps["warmup"] == (steps["step"] < 2)).all()
    assert (steps["step_ms"] > 0).all()
    assert (steps.groupby(["block", "step"])["loss"].nunique() <= 2).all()  # two arms, ranks agree
    moved = steps.groupby("arm")["moved_bytes"].sum()
    assert moved["baseline"] == 0
    assert moved["balance"] > 0


def test_arms_of_a_block_train_on_the_same_samples(finished: Any) -> None:
    _, directory = finished
    tokens = directory.steps().groupby(["block", "step", "arm"])["tokens"].sum().unstack()
    assert (tokens["baseline"] == tokens["balance"]).all()
    report = directory.report()
    assert report is not None
    assert report["compare"]["balance"]["loss_parity"]["max_rel"] < 1e-5


def test_the_five_classes_add_up_to_every_window(finished: Any) -> None:
    _, directory = finished
    bubbles = directory.bubbles()
    assert len(bubbles) == 2 * 2 * 3 * 2  # arms × ranks × blocks × profiled steps
    classes = ["compute_ns", "straggler_ns", "exposed_comm_ns", "exposed_copy_ns", "host_ns"]
    assert (bubbles[classes].sum(axis=1) == bubbles["window_ns"]).all()
    assert (bubbles["compute_ns"] > 0).all()
    assert (bubbles["exposed_comm_ns"] > 0).any()


def test_collectives_are_matched_across_ranks(finished: Any) -> None:
    _, directory = finished
    collectives = directory.collectives()
    assert collectives["matched"].mean() > 0.9
    assert {"all_to_all", "all_gather"} <= set(collectives["op"])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--arms", "baseline,turbo"], "arms: 'turbo' does not exist"),
        (["--ranks", "0"], "ranks: 0, must be at least 1"),
        (["--column", "user"], "column: 'user', expected MEANING=NAME"),
        (["--data", "no-such-file.csv"], "no-such-file.csv"),
    ],
)
def test_wrong_usage_exits_2_with_one_line_and_no_run_directory(
    tmp_path: Path, options: list[str], message: str
) -> None:
    done = run(tmp_path / "runs", *options)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "runs").exists()


@pytest.fixture
def endless(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts a run that would take for ever, and makes sure that it does not."""
    started = []

    def start(*options: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [*COMMAND, *ENDLESS, "--out", str(tmp_path / "runs"), *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(10)


def workers(process: subprocess.Popen[str], out: Path, ranks: int = 2) -> list[psutil.Process]:
    """The rank processes, in rank order, once the first block has been measured."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()[1]
        if any(not directory.steps().empty for directory in list_runs(out)):
            children = psutil.Process(process.pid).children(recursive=True)
            found = {int(c.environ()["RANK"]): c for c in children if "freescale.bench.worker" in " ".join(c.cmdline())}
            assert len(found) == ranks
            return [found[rank] for rank in range(ranks)]
        time.sleep(0.2)
    raise AssertionError("no block was measured within 60 s")


def shared_memory() -> set[str]:
    return set(os.listdir("/dev/shm")) if os.path.isdir("/dev/shm") else set()


def assert_ends_clean(process: subprocess.Popen[str], children: list[psutil.Process], within_s: float) -> str:
    """Exit code 1 within the bound, no child left; returns what was printed to stderr."""
    began = time.monotonic()
    _, stderr = process.communicate(timeout=within_s)
    assert time.monotonic() - began < within_s
    assert process.returncode == 1
    assert "Traceback" not in stderr
    _, alive = psutil.wait_procs(children, timeout=5)
    assert not alive
    return stderr


def only_run(tmp_path: Path) -> RunDirectory:
    (directory,) = list_runs(tmp_path / "runs")
    return open_run(directory.path)


def test_killing_a_rank_ends_the_run_and_names_it(tmp_path: Path, endless: Any) -> None:
    before = shared_memory()
    process = endless()
    children = workers(process, tmp_path / "runs")
    children[1].send_signal(signal.SIGKILL)
    stderr = assert_ends_clean(process, children, within_s=30)
    assert "error: rank 1 was killed by SIGKILL" in stderr
    directory = only_run(tmp_path)
    assert not directory.complete
    assert directory.manifest["failure"]["rank"] == 1
    assert not directory.steps().empty
    assert shared_memory() <= before


def test_ctrl_c_ends_the_run_and_leaves_nothing(tmp_path: Path, endless: Any) -> None:
    before = shared_memory()
    process = endless()
    children = workers(process, tmp_path / "runs")
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to everybody in the foreground
    stderr = assert_ends_clean(process, children, within_s=30)
    assert "error: interrupted; what was measured is in" in stderr
    assert only_run(tmp_path).manifest["failure"]["reason"] == "interrupted"
    assert shared_memory() <= before


def test_a_rank_that_hangs_is_named_and_ended(tmp_path: Path, endless: Any) -> None:
    process = endless("--stall-timeout", "6")
    children = workers(process, tmp_path / "runs")
    children[0].send_signal(signal.SIGSTOP)
    stderr = assert_ends_clean(process, children, within_s=40)
    assert "rank 0 made no progress for 6 s" in stderr
    assert only_run(tmp_path).manifest["failure"]["rank"] == 0


def test_killing_the_launcher_ends_the_ranks(tmp_path: Path, endless: Any) -> None:
    process = endless()
    children = workers(process, tmp_path / "runs")
    process.kill()
    process.wait(10)
    _, alive = psutil.wait_procs(children, timeout=15)
    assert not alive
