"""The merged trace: what Perfetto opens, on one clock, with the classes as slices that add up."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from planted import Clock, World

from analyzer import AnalyzerError
from analyzer.bubbles import Tables, measure
from analyzer.perfetto import write_merged
from analyzer.timeline import Timeline


@pytest.fixture
def job() -> tuple[list[Timeline], Tables]:
    plan = [[("all_reduce", "dense", [100_000, 400_000, 200_000], 50_000)] * 2 for _ in range(3)]
    clocks = [Clock(), Clock(3_000_000, 5e-6), Clock(-4_000_000)]
    world = World(3, clocks, jitter_ns=0, numbered=True).run(plan, 0)
    timelines = [world.timeline(rank) for rank in range(3)]
    return timelines, measure(timelines)


def opened(file: Path) -> dict[str, Any]:
    content = file.read_bytes()
    return json.loads(gzip.decompress(content) if file.suffix == ".gz" else content)


@pytest.mark.parametrize("name", ["merged.json", "merged.json.gz"])
def test_ranks_are_processes_and_bubbles_are_coloured(
    tmp_path: Path, job: tuple[list[Timeline], Tables], name: str
) -> None:
    write_merged(tmp_path / name, *job)
    events = opened(tmp_path / name)["traceEvents"]
    names = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert names == {0: "rank 0", 1: "rank 1", 2: "rank 2"}
    bubbles = [e for e in events if e.get("cname")]
    assert {e["name"] for e in bubbles} == {"straggler", "exposed_comm", "host"}
    assert len({e["cname"] for e in bubbles}) == 3
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_slices_add_up_to_the_classes_of_each_rank(tmp_path: Path, job: tuple[list[Timeline], Tables]) -> None:
    timelines, tables = job
    write_merged(tmp_path / "m.json", timelines, tables)
    events = opened(tmp_path / "m.json")["traceEvents"]
    for rank in range(3):
        expected = tables.bubbles[tables.bubbles["rank"] == rank]
        for kind in ("straggler", "exposed_comm", "host"):
            shown_us = sum(e["dur"] for e in events if e["pid"] == rank and e["name"] == kind)
            assert shown_us == pytest.approx(expected[f"{kind}_ns"].sum() / 1e3, abs=0.1)


def test_collectives_end_together_on_the_common_clock(tmp_path: Path, job: tuple[list[Timeline], Tables]) -> None:
    timelines, tables = job
    write_merged(tmp_path / "m.json", timelines, tables)
    events = [e for e in opened(tmp_path / "m.json")["traceEvents"] if e["name"] == "all_reduce"]
    by_rank = [sorted(e["ts"] + e["dur"] for e in events if e["pid"] == rank) for rank in range(3)]
    for ends in zip(*by_rank, strict=True):
        assert max(ends) - min(ends) <= 1 + tables.clocks.residual_ns / 1e3
    assert events[0]["args"] == {"lane": "comm", "op": "all_reduce", "group": "dense", "bytes": 1024}


@pytest.mark.parametrize(
    ("name", "message"), [("merged.txt", "must end in .json or .json.gz"), ("no/such/folder.json", "cannot be written")]
)
def test_a_file_that_cannot_be_written_is_named(
    tmp_path: Path, job: tuple[list[Timeline], Tables], name: str, message: str
) -> None:
    with pytest.raises(AnalyzerError, match=message):
        write_merged(tmp_path / name, *job)
