"""The house is kept: style, types and the arrows between packages, checked as part of the tests."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from freescale.bench.cli import VERBS, cli

ROOT = Path(__file__).resolve().parent.parent


def check(*command: str) -> None:
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}{done.stderr}"


def test_ruff_finds_nothing() -> None:
    check(sys.executable, "-m", "ruff", "check", ".")
    check(sys.executable, "-m", "ruff", "format", "--check", ".")


@pytest.mark.timeout(600)
def test_types_hold() -> None:
    check(sys.executable, "-m", "mypy")


def test_arrows_point_one_way() -> None:
    check(str(Path(sys.executable).parent / "lint-imports"))


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_and_is_in_the_readme(verb: str) -> None:
    shown = CliRunner().invoke(cli, [verb, "--help"])
    assert shown.exit_code == 0
    assert len(shown.output.splitlines()) > 5
    assert f"freescale-bench {verb}" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_analysis_verbs_start_without_torch() -> None:
    code = "import sys, freescale.bench.analyze, analyzer, freescale; sys.exit('torch' in sys.modules)"
    check(sys.executable, "-c", code)


def test_quick_start_has_two_one_line_commands() -> None:
    section = (ROOT / "README.md").read_text(encoding="utf-8").split("## Quick start")[1].split("\n## ")[0]
    lines = [line for block in re.findall(r"```\w*\n(.*?)```", section, re.S) for line in block.splitlines() if line]
    assert len(lines) == 2
    assert lines[0].endswith("freescale-bench run")
    assert lines[1].endswith("pytest")
