"""The contention benchmark's method, on a machine whose slowdowns are known."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

PROGRAM = Path(__file__).resolve().parents[2] / "benchmarks" / "contention.py"


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("contention_benchmark", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


contention = load()


class KnownMachine:
    """A kernel on K blocks of 100 takes K % from the product, memory loses a tenth to any mover, and all drifts."""

    def __init__(self) -> None:
        self.random = np.random.default_rng(3)
        self.order: list[tuple[str, str, str]] = []

    def drift(self) -> float:
        return (1 + len(self.order) / 4000) * float(self.random.normal(1, 0.002))

    def victim_ms(self, victim: str, arm: str) -> float:
        self.order.append(("victim", victim, arm))
        kind, _, blocks = arm.rpartition(" ")
        slower = 1.0
        if victim == "matmul" and kind in ("kernel", "occupy"):
            slower = 1 / (1 - int(blocks) / 100)
        if victim == "memory" and kind in ("kernel", "copy"):
            slower = 1.1
        return 10 * slower * self.drift()

    def transfer_ms(self, victim: str | None, arm: str) -> float:
        self.order.append(("transfer", victim or "nothing", arm))
        return (12 if victim and arm.startswith("kernel") else 10) * self.drift()


def test_known_slowdowns_are_found_in_spite_of_drift() -> None:
    machine = KnownMachine()
    result = contention.summarise(contention.measure(machine, repeats=30, seed=0), seed=0)
    product, memory = result["victim_slowdown"]["matmul"], result["victim_slowdown"]["memory"]
    assert product["copy engine"]["value"] == pytest.approx(1.0, abs=0.03)
    assert product["kernel 32"]["value"] == pytest.approx(1 / 0.68, rel=0.03)
    assert product["occupy 16"]["value"] == pytest.approx(1 / 0.84, rel=0.03)
    assert memory["copy engine"]["value"] == pytest.approx(1.1, rel=0.03)
    assert memory["occupy 32"]["value"] == pytest.approx(1.0, abs=0.03)
    assert result["transfer_slowdown"]["matmul"]["kernel 4"]["value"] == pytest.approx(1.2, rel=0.03)
    assert product["alone"]["value"] == 1.0, "the null arm is its own yardstick"
    for table in (*result["victim_slowdown"].values(), *result["transfer_slowdown"].values()):
        for figure in table.values():
            assert figure["ci95"][0] <= figure["value"] <= figure["ci95"][1]
            assert figure["n"] == 30


def test_arms_take_turns_in_an_order_that_changes() -> None:
    machine = KnownMachine()
    contention.measure(machine, repeats=5, seed=1)
    counts = Counter(machine.order)
    assert set(counts.values()) == {6}, "five repeats and one to warm up, for every trial"
    trials = len(counts)
    first, second = machine.order[:trials], machine.order[trials : 2 * trials]
    assert sorted(first) == sorted(second)
    assert first != second


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_it_says_so_in_one_line() -> None:
    done = subprocess.run([sys.executable, str(PROGRAM)], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert done.stderr.strip().splitlines() == [
        "error: this benchmark needs a CUDA device, and torch sees none; run it on a machine with one GPU"
    ]
