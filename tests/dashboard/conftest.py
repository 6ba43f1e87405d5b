"""A folder of run directories as a user would have: complete, died, not analysed, damaged, hostile, large."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import ablation_rundirs as _ablation_rundirs
import pytest
import rundirs as _rundirs

PLAIN = "20260301T101500Z-hstu-small-gloox2"
EIGHT = "20260302T090000Z-hstu-small-gloox8"
DIED = "20260303T090000Z-hstu-small-gloox4"
LARGE = "20260304T090000Z-hstu-small-ncclx256"
EVIL = "20260305T090000Z-hostile"
RAW = "20260306T090000Z-not-analysed"
BROKEN = "20260307T090000Z-broken"
ABLATION = "20260308T090000Z-hstu-small-ablation"


@pytest.fixture(scope="session")
def rundirs() -> ModuleType:
    """The module that writes run directories: `write_run(root, name, …)`, `HOSTILE`."""
    return _rundirs


@pytest.fixture(scope="session")
def ablation_rundirs() -> ModuleType:
    """The module that writes run directories of ablations: `write_ablation(root, name, …)`."""
    return _ablation_rundirs


@pytest.fixture(scope="session")
def runs_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder with one run of every kind. Read only: tests that change a run write their own."""
    root = tmp_path_factory.mktemp("runs")
    write, hostile = _rundirs.write_run, _rundirs.HOSTILE
    write(root, PLAIN, warnings=["Block 2 was noisy."], traces=True)
    write(root, EIGHT, ranks=8, arms=("baseline", "sdd", "balance", "overlap", "balance+overlap"))
    failure = {"rank": 1, "reason": "killed by signal 9 (SIGKILL)", "log_tail": "step 12\nstep 13"}
    write(root, DIED, ranks=4, failure=failure)
    write(root, LARGE, ranks=256, blocks=6, steps=20, provenance="simulated", backend="nccl")
    write(
        root,
        EVIL,
        arms=("baseline", hostile),
        workload={"preset": hostile},
        warnings=[hostile],
        backend=hostile,
        machine={"host": hostile, "cpu": hostile},
    )
    write(root, RAW, analysed=False)
    _ablation_rundirs.write_ablation(root, ABLATION)
    (root / BROKEN).mkdir()
    (root / BROKEN / "manifest.json").write_text("{not json", encoding="utf-8")
    return root


@pytest.fixture
def names() -> dict[str, str]:
    """The names of the runs in `runs_root`, by what they are."""
    return {
        "plain": PLAIN,
        "eight": EIGHT,
        "died": DIED,
        "large": LARGE,
        "evil": EVIL,
        "raw": RAW,
        "broken": BROKEN,
        "ablation": ABLATION,
    }
