"""`freescale-bench compare`: exit codes, the gate, and JSON alone on stdout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from click.testing import CliRunner

from analyzer.rundir import MANIFEST, STEPS, write_json, write_parquet
from freescale.bench.cli import cli
from freescale.errors import FreeScaleError


def write_run(path: Path, step_ms: float, **manifest: Any) -> str:
    rows = [
        {"block": block, "arm": "baseline", "step": step, "rank": 0, "warmup": False, "loss": 0.5}
        | {"step_ms": step_ms + block + step}
        for block in range(4)
        for step in range(3)
    ]
    write_parquet(path / STEPS, pd.DataFrame(rows))
    write_json(path / MANIFEST, {"schema": 1, "complete": True, "arms": ["baseline"], "world_size": 1} | manifest)
    return str(path)


def test_json_alone_is_on_stdout(tmp_path: Path) -> None:
    a, b = write_run(tmp_path / "a", 100), write_run(tmp_path / "b", 50)
    done = CliRunner().invoke(cli, ["compare", a, b, "--json"], catch_exceptions=False)
    found = json.loads(done.stdout)
    assert found["comparable"] is True
    assert found["arms"]["baseline"]["speedup"]["value"] == pytest.approx(102.5 / 52.5, rel=0.01)
    assert found["arms"]["baseline"]["verdict"] == "improvement"


def test_runs_that_differ_need_force(tmp_path: Path) -> None:
    a, b = write_run(tmp_path / "a", 100), write_run(tmp_path / "b", 50, world_size=2)
    with pytest.raises(
        FreeScaleError, match=r"not comparable: world_size is 1 in A, 2 in B\. Compare .* --force"
    ) as error:
        CliRunner().invoke(cli, ["compare", a, b], catch_exceptions=False)
    assert "\n" not in str(error.value)
    done = CliRunner().invoke(cli, ["compare", a, b, "--force"], catch_exceptions=False)
    assert done.exit_code == 0
    assert "Not comparable: world_size differs." in done.stdout
    assert "note: each run is one launch" in done.stdout
