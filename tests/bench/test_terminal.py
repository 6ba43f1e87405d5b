"""What `run` and `ablate` print fits into 80 columns, keeps the words of the report, and gives a wrong arm no speed."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import ablation_rundirs
from rich.console import Console

from freescale.bench.terminal import print_report


def printed(run: Path) -> tuple[str, Any]:
    report = json.loads((run / "report.json").read_text())
    out = io.StringIO()
    print_report(report, Path("runs/x"), Console(file=out, width=80, highlight=False))
    return out.getvalue(), report


def lines_of(text: str, start: str) -> list[str]:
    return [line for line in text.splitlines() if line.split() and line.split()[0] == start]


def test_an_ablation_fits_into_80_columns_with_the_numbers_of_the_report(tmp_path: Path) -> None:
    text, report = printed(ablation_rundirs.write_ablation(tmp_path))
    assert max(map(len, text.splitlines())) <= 80
    assert text.split()[:3] == report["headline"].split()[:3]
    for layer, entry in report["attribution"].items():
        shapley = entry["shapley_ms"]
        expected = f"{shapley['value']:+.1f} ({shapley['ci95'][0]:+.1f} to {shapley['ci95'][1]:+.1f})"
        assert any(expected in line for line in lines_of(text, layer))
    assert f"noise floor: {report['noise_floor_ms']:.1f} ms" in text
    assert "-aa" in text
    (legend,) = (line for line in text.splitlines() if "exposed copy" in line)
    assert legend.rstrip().endswith("host")


def test_a_wrong_arm_has_no_speed(tmp_path: Path) -> None:
    text, report = printed(ablation_rundirs.write_ablation(tmp_path, wrong="overlap"))
    assert "overlap is wrong" in text.splitlines()[1]
    (row,) = (line for line in lines_of(text, "overlap") if line.split()[-1] == "wrong" and "off by" in line)
    assert f"{report['compare']['overlap']['speedup']['value']:.3f}" not in row
    assert "off by 1e-02" in row
