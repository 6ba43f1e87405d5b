"""The launcher of the conformance suite: ranks that start once per world size and run one script after another."""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]


class RankPool:
    """`world_size` real processes; a rank that hangs or dies fails the test that noticed, with its log."""

    def __init__(self, world_size: int, folder: Path) -> None:
        self.world_size, self.folder = world_size, folder
        self._processes: list[subprocess.Popen[str]] = []
        self._answers: list[queue.Queue[str]] = []
        self._starts = 0

    def run(self, script: dict[str, Any], timeout_s: float = 60) -> list[list[str]]:
        """Digests per rank and call; `pytest.fail` when a rank fails, dies, or does not answer within `timeout_s`."""
        if not self._processes:
            self._start()
        line = json.dumps(script) + "\n"
        for rank, process in enumerate(self._processes):
            try:
                assert process.stdin is not None
                process.stdin.write(line)
                process.stdin.flush()
            except BrokenPipeError:
                self._fail(rank, "died before the script")
        answers = [self._answer(rank, timeout_s) for rank in range(self.world_size)]
        return [answer["digests"] for answer in answers]

    def close(self) -> None:
        for process in self._processes:
            if process.stdin is not None:
                process.stdin.close()  # end of input asks the rank to leave
        for process in self._processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(5)
        self._processes, self._answers = [], []

    def _start(self) -> None:
        self._starts += 1
        store = self.folder / f"store-{self._starts}"
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(REPOSITORY), str(HERE)])}
        for rank in range(self.world_size):
            with open(self._log(rank), "w") as log:
                process = subprocess.Popen(
                    [sys.executable, str(HERE / "rank_program.py"), str(rank), str(self.world_size), str(store)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                    env=environment,
                )
            self._processes.append(process)
            answers: queue.Queue[str] = queue.Queue()
            self._answers.append(answers)
            threading.Thread(target=_drain, args=(process, answers), daemon=True).start()
        for rank in range(self.world_size):
            if self._line(rank, 60) != "ready":
                self._fail(rank, "did not start")

    def _answer(self, rank: int, timeout_s: float) -> dict[str, Any]:
        line = self._line(rank, timeout_s)
        if not line:
            self._fail(rank, f"died or did not answer within {timeout_s} s")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            self._fail(rank, answer["error"])
        return answer

    def _line(self, rank: int, timeout_s: float) -> str:
        try:
            return self._answers[rank].get(timeout=timeout_s).strip()
        except queue.Empty:
            return ""

    def _log(self, rank: int) -> Path:
        return self.folder / f"rank-{rank}.log"

    def _fail(self, rank: int, reason: str) -> None:
        logs = "\n".join(f"--- rank {r}\n{self._log(r).read_text()[-4000:]}" for r in range(self.world_size))
        for process in self._processes:
            process.kill()
            process.wait(5)
        self._processes, self._answers = [], []
        pytest.fail(f"rank {rank} of {self.world_size}: {reason}\n{logs}")


def _drain(process: subprocess.Popen[str], answers: queue.Queue[str]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        answers.put(line)
    answers.put("")


@pytest.fixture(scope="session")
def rank_pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[int], RankPool]]:
    """`rank_pool(world_size)`: the ranks of that world size, started at the first use of the session."""
    pools: dict[int, RankPool] = {}

    def pool(world_size: int) -> RankPool:
        for size, other in pools.items():
            if size != world_size:
                other.close()  # two cores: only one world at a time
        if world_size not in pools:
            pools[world_size] = RankPool(world_size, tmp_path_factory.mktemp(f"world-{world_size}"))
        return pools[world_size]

    yield pool
    for one in pools.values():
        one.close()
