"""Which of several failed ranks began it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from freescale.bench.launch import Failure, _failure

ECHO = "error: shared_memory: rank 0, lane 'ids', all_to_all 0: rank 1 (process 7) left after 0 calls; see its log"
CAUSE = "error: table 'item': ID 9 is outside 0…8; give the table more rows or map the IDs"


def failed(tmp_path: Path, *ranks: tuple[int, int, str]) -> Failure:
    """Ranks as (exit code, when it ended, last line of its log)."""
    failures = {}
    for rank, (exit_code, ended, last) in enumerate(ranks):
        failures[rank] = SimpleNamespace(exitcode=exit_code, timestamp=ended)
        log = tmp_path / "attempt_0" / str(rank) / "stderr.log"
        log.parent.mkdir(parents=True)
        log.write_text(f"something before\n{last}\n", encoding="utf-8")
    error: Any = SimpleNamespace(failures=failures)
    watch: Any = SimpleNamespace(hung=[])
    return _failure(error, watch, tmp_path)


@pytest.mark.parametrize("echo_ended", [10, 30])
def test_a_rank_that_blames_another_is_not_the_cause_though_it_ended_first(tmp_path: Path, echo_ended: int) -> None:
    failure = failed(tmp_path, (1, echo_ended, ECHO), (1, 20, CAUSE))
    assert (failure.rank, failure.reason) == (1, f"rank 1 failed: {CAUSE.removeprefix('error: ')}")


def test_a_signal_is_never_an_echo(tmp_path: Path) -> None:
    assert failed(tmp_path, (1, 10, CAUSE), (-9, 20, "")).reason == "rank 1 was killed by SIGKILL"


def test_of_ranks_that_blame_nobody_the_first_to_end_began_it(tmp_path: Path) -> None:
    assert failed(tmp_path, (1, 20, CAUSE), (1, 10, "RuntimeError: out of memory")).rank == 1
