"""`freescale-bench ablate`: every combination measured; stopped at a random moment and resumed, it is the same run."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psutil
import pytest

from analyzer import rundir
from analyzer.rundir import RunDirectory, list_runs, open_run

COMMAND = [sys.executable, "-m", "freescale.bench.cli", "ablate"]
SMALL = ["hstu-tiny", "--steps", "2", "--warmup", "1", "--profiled-steps", "1"]
TURN = ["block", "arm", "step", "rank"]


def ablate(*options: str, timeout_s: float = 170) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *options], capture_output=True, text=True, timeout=timeout_s, check=False)


def only_run(out: Path) -> RunDirectory:
    (directory,) = list_runs(out)
    return open_run(directory.path)


def start_and_kill(out: Path, turns: int, *options: str) -> None:
    """SIGKILL the launcher once so many turns, timed and profiled, are stored; returns when all ranks are gone."""
    process = subprocess.Popen(
        [*COMMAND, *SMALL, "--out", str(out), *options],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        deadline = time.monotonic() + 90
        while not any(len(run.samples()) >= 2 * turns for run in list_runs(out)):  # a row per turn and rank
            assert process.poll() is None, "the run ended before it was killed"
            assert time.monotonic() < deadline, f"{turns} turns were not taken within 90 s"
            time.sleep(0.05)
        time.sleep(random.uniform(0, 0.2))  # somewhere inside the next turn
        children = psutil.Process(process.pid).children(recursive=True)
        process.kill()
        process.wait(10)
        _, alive = psutil.wait_procs(children, timeout=20)
        assert not alive
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(10)


@pytest.mark.multiprocess
@pytest.mark.timeout(400)
def test_a_run_that_was_killed_at_a_random_moment_goes_on_and_loses_at_most_the_running_turn(tmp_path: Path) -> None:
    turns = random.randint(1, 30)  # of 36, the second half of them profiled
    start_and_kill(tmp_path, turns, "--blocks", "2", "--seed", "3")
    stopped = only_run(tmp_path)
    assert not stopped.complete
    before, parts = stopped.steps(), sorted(stopped.path.glob("parts/*/*.json.gz"))
    # As if it had been killed between storing a turn's samples and its trace, or its steps.
    seen, begun = stopped.samples(), stopped.manifest["arms"]
    taken = set(seen[["block", "arm", "phase"]].itertuples(index=False, name=None))
    arm = next(arm for arm in begun if (1, arm, "profiled") not in taken)
    rundir.write_parquet(
        stopped.path / rundir.SAMPLES,
        pd.concat([seen, seen.iloc[-2:].assign(block=np.int32(1), arm=arm, phase="profiled")], ignore_index=True),
    )

    done = ablate("--resume", str(stopped.path), "--json", "--force")  # somebody may commit meanwhile

    assert done.returncode == 0, f"killed after {turns} turns\n{done.stderr}"
    resumed = only_run(tmp_path)
    steps, report = resumed.steps(), json.loads(done.stdout)
    assert resumed.complete
    assert report == resumed.report()
    assert len(before) >= min(turns, 18) * (1 + 2) * 2
    # every turn is there once, and those from before are untouched
    assert len(steps) == 2 * 9 * (1 + 2) * 2
    assert not steps.duplicated(TURN).any()
    kept = steps.merge(before, on=[*TURN, "start_unix_ns", "step_ms"])
    assert len(kept) == len(before)
    assert (steps["launch"] == 0).sum() == len(before)
    assert report["blocks"] == 2
    assert report["ablation"]["profiled_blocks"] == 2
    assert (resumed.bubbles().groupby("arm").size() == 2 * 1 * 2).all()
    assert not any(part.exists() for part in parts)
    assert len(resumed.manifest["launches"]) == 2
    # nothing that does not depend on time differs from a run that was never stopped
    whole_out = tmp_path / "whole"
    assert ablate(*SMALL, "--blocks", "2", "--seed", "3", "--out", str(whole_out)).returncode == 0
    both = steps.merge(only_run(whole_out).steps(), on=TURN, suffixes=("", "_whole"))
    assert len(both) == len(steps)
    assert (both["position"] == both["position_whole"]).all()
    still = ~both["arm"].str.contains("balance|freescale")
    assert (both["loss"] == both["loss_whole"])[still].all()
    assert ((both["loss"] / both["loss_whole"] - 1).abs() < 1e-5).all()
    samples = resumed.samples()
    assert len(samples) == (2 * 9 * 2) * 2  # a row per turn and rank, timed and profiled
    assert (samples["wall_s"] > 0).all()
    assert (samples["cpu_s"] > 0).all()


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], RunDirectory]:
    """On top of sdd, within a minute, as many blocks as fit but at most two."""
    out = tmp_path_factory.mktemp("runs")
    done = ablate(*SMALL, "--baseline", "sdd", "--blocks", "2", "--budget-min", "2", "--out", str(out))
    assert done.returncode == 0, done.stderr
    return done, only_run(out)


@pytest.mark.multiprocess
def test_layers_are_added_to_the_reference_that_was_asked_for(finished: Any) -> None:
    done, directory = finished
    report = directory.report()
    assert report is not None
    assert report["ablation"]["reference"] == "sdd"
    assert report["ablation"]["layers"] == ["balance", "overlap", "smfree"]
    assert set(report["arms"]) == {
        "sdd", "sdd-aa", "sdd+balance", "overlap", "sdd+smfree", "balance+overlap", "sdd+balance+smfree",
        "overlap+smfree", "freescale",
    }  # fmt: skip
    for arm, compared in report["compare"].items():
        parity = compared["loss_parity"]
        assert parity["max_rel"] < 1e-5
        assert parity["bit_exact"] or "balance" in arm or arm == "freescale"
    assert "Shapley" in done.stdout


@pytest.mark.multiprocess
def test_attribution_adds_up_and_the_classes_add_up(finished: Any) -> None:
    _, directory = finished
    report = directory.report()
    assert report is not None
    shapley = [entry["shapley_ms"]["value"] for entry in report["attribution"].values()]
    assert sum(shapley) == pytest.approx(report["ablation"]["total_ms"]["value"], abs=1e-9)
    for name, totals in report["ablation"]["classes"].items():
        parts = [entry["by_class"][name]["shapley_ms"]["value"] for entry in report["attribution"].values()]
        assert sum(parts) == pytest.approx(totals["total_ms"]["value"], abs=1e-9)
        assert totals["reference_ms"] - totals["full_ms"] == pytest.approx(totals["total_ms"]["value"], abs=1e-9)


@pytest.mark.multiprocess
def test_a_complete_run_is_not_resumed(finished: Any) -> None:
    _, directory = finished
    done = ablate("--resume", str(directory.path))
    assert done.returncode == 1
    assert "complete already" in done.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--budget-min", "0.1"], "budget_min: 0.1, must be at least 1"),
        (["--blocks", "0"], "blocks: 0, must be at least 1"),
        (["--force"], "--force goes with --resume"),
        (["--resume", "nowhere", "--steps", "3"], "leave out --steps"),
        (["--resume", "nowhere", "hstu-tiny"], "leave out preset"),
    ],
)
def test_wrong_usage_exits_2_with_one_line(tmp_path: Path, options: list[str], message: str) -> None:
    done = ablate(*options, "--out", str(tmp_path / "runs")) if "--resume" not in options else ablate(*options)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_only_an_unfinished_run_on_the_same_machine_is_resumed(tmp_path: Path) -> None:
    assert "not a run directory" in ablate("--resume", str(tmp_path)).stderr
    manifest = {"schema": 1, "complete": False, "warnings": [], "launches": [{}], "machine": {"host": "elsewhere"}}
    (tmp_path / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    assert "has no config" in ablate("--resume", str(tmp_path)).stderr
    from freescale.bench.config import RunConfig

    (tmp_path / "manifest.json").write_text(json.dumps({**manifest, "config": RunConfig().as_json()}), encoding="utf-8")
    done = ablate("--resume", str(tmp_path))
    assert done.returncode == 1
    assert "began with other versions, git_commit, host" in done.stderr
    assert "--force" in done.stderr


@pytest.mark.multiprocess
def test_on_one_rank_balance_cannot_act_and_the_others_are_measured(tmp_path: Path) -> None:
    done = ablate(*SMALL, "--ranks", "1", "--blocks", "3", "--out", str(tmp_path), "--json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert set(report["arms"]) == {"baseline", "baseline-aa", "overlap", "smfree", "overlap+smfree"}
    balance = report["attribution"]["balance"]
    assert (balance["verdict"], balance["reason"]) == ("cannot act", "one rank has nobody to share with")
    assert balance["shapley_ms"]["value"] is None
    assert report["ablation"]["layers"] == ["overlap", "smfree"]
    assert report["ablation"]["cube"][-1]["arm"] == "overlap+smfree"
