"""Two runs are compared only where that means something, and no more surely than two launches allow."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ablation_runs import log_steps, steps_table
from scipy.stats import ttest_ind

import analyzer
from analyzer.errors import AnalyzerError
from analyzer.rundir import MANIFEST, STEPS, write_json, write_parquet
from analyzer.stats import welch

ARMS = ["baseline", "balance", "overlap"]
MANIFEST_OF_BOTH: dict[str, Any] = {
    "schema": 1, "complete": True, "arms": ARMS, "seed": 1, "world_size": 2, "backend": "gloo", "device": "cpu",
    "provenance": "measured", "workload": {"preset": "p", "samples_per_rank": 8},
    "machine": {"host": "h", "cpu": "c", "cores": 2, "gpus": []},
}  # fmt: skip


def write_run(path: Path, arm_ms: list[float], noise_seed: int, blocks: int = 8, **manifest: Any) -> Path:
    steps = steps_table(log_steps(np.random.default_rng(noise_seed), 1, blocks, np.array(arm_ms))[0], ARMS)
    write_parquet(path / STEPS, steps)
    write_json(path / MANIFEST, MANIFEST_OF_BOTH | manifest)
    return path


def test_a_run_against_itself_is_as_fast_to_the_bit(tmp_path: Path) -> None:
    run = write_run(tmp_path / "a", [240, 200, 220], 1)
    found = analyzer.compare(run, run)
    assert found.comparable
    for entry in found.arms.values():
        assert entry["speedup"]["value"] == 1
        assert entry["loss"]["bit_exact"]
        assert entry["verdict"] != "improvement"
    json.dumps(found.as_json(), allow_nan=False)


def test_a_faster_machine_moves_all_arms_and_the_speedups_over_the_reference_stay(tmp_path: Path) -> None:
    a = write_run(tmp_path / "a", [240, 200, 220], 1, blocks=40)
    b = write_run(tmp_path / "b", [120, 100, 110], 2, blocks=40)
    arms = analyzer.compare(a, b).arms
    assert arms["balance"]["verdict"] == "improvement"
    assert arms["balance"]["speedup"]["value"] == pytest.approx(2, rel=0.2)
    low, high = arms["balance"]["relative"]["ci95"]
    assert low <= 1 <= high
    assert arms["baseline"]["relative"]["value"] is None


@pytest.mark.parametrize(
    ("other", "field"),
    [
        ({"world_size": 4}, "world_size"),
        ({"provenance": "simulated"}, "provenance"),
        ({"workload": {"preset": "p", "samples_per_rank": 16}}, "workload.samples_per_rank"),
        ({"machine": {"host": "h", "cpu": "other", "cores": 2, "gpus": []}}, "machine.cpu"),
    ],
)
def test_what_makes_runs_incomparable_is_listed(tmp_path: Path, other: dict[str, Any], field: str) -> None:
    a = write_run(tmp_path / "a", [240, 200, 220], 1)
    b = write_run(tmp_path / "b", [240, 200, 220], 2, **other)
    found = analyzer.compare(a, b)
    assert not found.comparable
    assert [difference["field"] for difference in found.differences] == [field]
    assert found.headline == f"Not comparable: {field} differs."


def test_another_host_of_the_same_kind_is_comparable_and_another_seed_is_noted(tmp_path: Path) -> None:
    a = write_run(tmp_path / "a", [240, 200, 220], 1)
    machine = {**MANIFEST_OF_BOTH["machine"], "host": "other"}
    b = write_run(tmp_path / "b", [240, 200, 220], 2, machine=machine, seed=5)
    found = analyzer.compare(a, b)
    assert found.comparable
    assert found.arms["balance"]["loss"]["bit_exact"] is None
    assert any("different batches" in note for note in found.notes)
    assert any("between launches" in note for note in found.notes)


def test_an_arm_that_computes_something_else_in_b_is_wrong(tmp_path: Path) -> None:
    a = write_run(tmp_path / "a", [240, 200, 220], 1)
    b = write_run(tmp_path / "b", [240, 20, 220], 2)
    steps = analyzer.rundir.open_run(b).steps()
    steps.loc[steps["arm"] == "balance", "loss"] *= 1.001
    write_parquet(b / STEPS, steps)
    assert analyzer.compare(a, b).arms["balance"]["verdict"] == "wrong"


def test_runs_without_an_arm_or_a_step_in_common_are_refused(tmp_path: Path) -> None:
    a = write_run(tmp_path / "a", [240, 200, 220], 1)
    b = write_run(tmp_path / "b", [240, 200, 220], 2, arms=["sdd"])
    with pytest.raises(AnalyzerError, match="no arm in common"):
        analyzer.compare(a, b)
    (b / STEPS).unlink()
    with pytest.raises(AnalyzerError, match="no timed step to compare"):
        analyzer.compare(a, b)


def test_welchs_comparison_agrees_with_scipys() -> None:
    rng = np.random.default_rng(3)
    a, b = rng.normal(1, 1, 7), rng.normal(0, 3, 12)
    found = welch(a, b)
    theirs = ttest_ind(a, b, equal_var=False)
    assert found.p == pytest.approx(theirs.pvalue)
    assert found.ci95 == pytest.approx(tuple(theirs.confidence_interval(0.95)))
