"""`freescale.capture` leaves a run directory of any PyTorch job, that the analyzer opens."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

import analyzer
import freescale
from analyzer.rundir import list_runs, open_run
from freescale.errors import FreeScaleError

ROOT = Path(__file__).resolve().parents[2]


def job(rank: int, world_size: int, out: str, steps: int) -> str | None:
    model = DistributedDataParallel(torch.nn.Linear(128, 128))
    with freescale.capture(out, steps=3, wait=2, warmup=1, name="toy") as capture:
        for step in range(steps):
            if rank == 1:
                time.sleep(0.08)  # the straggler that analysis must find, however noisy the machine
            model(torch.randn(32, 128)).sum().backward()
            capture.step(tokens=100 * (rank + 1) + step, samples=32)
    return str(capture.run) if capture.run else None


@pytest.mark.multiprocess
def test_every_rank_is_captured_and_analysis_names_the_late_one(run_ranks: Any, tmp_path: Path) -> None:
    first, second = run_ranks(job, 2, str(tmp_path / "runs"), 8)
    assert second is None
    run = open_run(first)
    assert run.complete
    assert run.manifest["workload"] == {"preset": "toy"}
    assert run.manifest["world_size"] == 2
    assert [file.name for file in run.traces("capture")] == ["rank-00000.json.gz", "rank-00001.json.gz"]
    steps = run.steps()
    assert len(steps) == 6 * 2  # nothing is recorded after the last captured step
    assert steps.set_index(["rank", "step"])["tokens"].loc[(1, 4)] == 204
    timed = steps[~steps["warmup"]]
    assert sorted(timed["step"].unique()) == [0, 1]

    report = analyzer.analyze(first)
    bubbles = open_run(first).bubbles()
    assert sorted(bubbles["step"].unique()) == [3, 4, 5]
    waiting = bubbles.groupby("rank")["straggler_ns"].mean() / 1e6
    assert waiting[0] > 30  # 80 ms asleep, less what the machine's noise takes away
    assert waiting[1] < waiting[0] / 2
    assert "rank 1" in report.headline


@pytest.mark.multiprocess
def test_a_loop_that_ends_early_still_leaves_what_there_is(run_ranks: Any, tmp_path: Path) -> None:
    (path,) = run_ranks(job, 1, str(tmp_path / "runs"), 4)
    run = open_run(path)
    assert run.complete
    assert run.manifest["warnings"] == [
        "the loop ended after 4 steps, of the 2 + 1 + 3 that capture was to wait, warm up and record"
    ]
    assert len(run.steps()) == 4


def test_without_torch_distributed_one_rank_is_captured(tmp_path: Path) -> None:
    with freescale.capture(tmp_path, steps=1, wait=0, warmup=1, tokens=lambda: 7) as capture:
        for _ in range(3):
            torch.randn(64, 64).matmul(torch.randn(64, 64))
            capture.step()
    assert capture.run is not None
    assert (open_run(capture.run).steps()["tokens"] == 7).all()
    assert not open_run(capture.run).steps()["warmup"].any()
    assert len(analyzer.analyze(capture.run).arms) == 1


def test_an_error_in_the_loop_is_not_hidden(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), freescale.capture(tmp_path, wait=0):
        raise ZeroDivisionError
    with freescale.capture(tmp_path, wait=0, warmup=1, steps=1):  # and the next capture may start
        pass


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "capture steps: 0, must be at least 1"),
        ({"wait": -1}, "capture wait: -1, must be at least 0"),
        ({"name": "a/b"}, "capture name: 'a/b', must be usable in a file name"),
    ],
)
def test_wrong_options_are_named(tmp_path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises(FreeScaleError) as error:
        freescale.capture(tmp_path, **options)
    assert str(error.value) == message


def test_two_captures_at_once_are_refused(tmp_path: Path) -> None:
    with freescale.capture(tmp_path, wait=100), pytest.raises(FreeScaleError, match="another one is active"):
        freescale.capture(tmp_path).__enter__()


def test_the_example_in_the_docs_runs(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "adopting.md").read_text(encoding="utf-8")
    (example,) = [code for code in re.findall(r"```python\n(.*?)```", text, re.S) if "capture" in code]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", example], cwd=tmp_path, env=environment, check=True, timeout=120)
    (run,) = list_runs(tmp_path / "runs")
    assert run.complete
    assert "my-job" in run.path.name
