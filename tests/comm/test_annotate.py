"""Ranges in the trace: read back with their facts, and always annotations where a trace may lack its operators."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch.autograd.profiler import record_function
from torch.profiler import profile

from analyzer import analyze, read_trace
from analyzer.lanes import Lane
from freescale.comm import annotate


@pytest.mark.parametrize("as_range", [annotate._RANGE, record_function])
def test_the_analyzer_reads_a_call_and_its_wait_and_takes_neither_for_compute(
    as_range: annotate.Range, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(annotate, "_RANGE", as_range)
    with profile() as profiler:
        torch.ones(3).sum()
        with annotate.issue_range("all_to_all", "urgent", 4, 64):
            pass
        torch.ones(5).sum()
        with annotate.wait_range("all_to_all", "urgent", 4):
            pass
    profiler.export_chrome_trace(str(tmp_path / "rank0.json"))
    timeline = read_trace(tmp_path / "rank0.json")
    computed = {timeline.names[timeline.name_id[row]] for row in (timeline.lane == int(Lane.COMPUTE)).nonzero()[0]}
    assert "aten::sum" in computed
    assert not any("freescale" in name for name in computed)
    (call,) = analyze(tmp_path).arm().tables.collectives.to_dict("records")
    assert (call["op"], call["group"], call["bytes"]) == ("all_to_all", "urgent", 64)


def test_ranges_are_annotations_on_a_machine_with_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert annotate._fastest() is record_function


def test_outside_a_profile_there_is_no_range(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_range(name: str) -> record_function:
        raise AssertionError(name)

    monkeypatch.setattr(annotate, "_RANGE", no_range)
    with annotate.wait_range("all_gather", "data", 0):
        pass
