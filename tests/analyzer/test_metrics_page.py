"""docs/metrics.md: its example is analysed, so that the page says what the code does."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from kineto_text import TraceText

from analyzer import Report, analyze

PAGE = Path(__file__).parents[2] / "docs" / "metrics.md"
MS = 1_000_000
EPOCH = 1_700_000_000_000_000_000
BEHIND = {0: 0, 1: 3 * MS}
KERNELS = {
    "gemm": ("kernel", "gemm", None),
    "memcpy": ("gpu_memcpy", "Memcpy DtoH (Device -> Pageable)", None),
    "all_reduce": ("kernel", "ncclDevKernel_AllReduce_Sum_f32_RING_LL", 0),
    "all_to_all": ("kernel", "ncclDevKernel_SendRecv", 1),
}


def table(first_column: str) -> list[dict[str, str]]:
    """The rows of the page's table whose first column is called so."""
    lines = PAGE.read_text(encoding="utf-8").splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(f"| {first_column} |"))
    header, _, *rows = lines[start : lines.index("", start)]
    names, *cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in (header, *rows)]
    return [dict(zip(names, row, strict=True)) for row in cells]


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    folder = tmp_path_factory.mktemp("example")
    manifest = {"schema": 1, "provenance": "measured", "complete": True, "arms": ["baseline"], "world_size": 2}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    (folder / "traces" / "baseline").mkdir(parents=True)
    for rank, behind in BEHIND.items():
        text, now = TraceText(rank=rank, world_size=2), EPOCH - behind
        text.step(1, now - 5 * MS, now + 105 * MS)
        for row in table("rank"):
            if int(row["rank"]) != rank:
                continue
            category, name, seq = KERNELS[row["interval"]]
            facts = {"grid": [int(row["grid"]), 1, 1]} if row["grid"] else {}
            if seq is not None:
                facts = {"Collective name": row["interval"], "Process Group Name": "0", "Seq": seq}
            start, end = (now + int(row[column]) * MS for column in ("start", "end"))
            text.kernel(name, start, end, int(row["stream"]), launched=start - MS, cat=category, args=facts)
        text.write(folder / "traces" / "baseline" / f"rank-{rank:05d}.json.gz")
    return analyze(folder)


def test_the_numbers_of_each_rank_are_those_on_the_page(report: Report) -> None:
    found = report.as_json()
    of_rank = [
        {key.removesuffix("_us"): value / 1e3 for key, value in row.items() if key.endswith("_us")}
        | {f"host: {key.removesuffix('_us')}": us / 1e3 for key, us in gaps.items() if key.endswith("_us")}
        | {"clock offset": found["clock"]["offset_us"][str(row["rank"])] / 1e3}
        for row, gaps in zip(found["per_rank"], found["host_gaps"], strict=True)
    ]
    for row in table("ms"):
        assert [float(row["rank 0"]), float(row["rank 1"])] == [rank[row["ms"]] for rank in of_rank], row["ms"]
    assert {row["ms"] for row in table("ms")} >= set(of_rank[0]) - {"host: data_loading", "host: synchronisation"}


def test_the_numbers_of_the_job_are_those_on_the_page(report: Report) -> None:
    assert report.run is not None
    for row in table("of the job"):
        assert report.run["arms"]["baseline"][row["of the job"]] == pytest.approx(float(row["value"]), abs=5e-5), row


def test_the_sentence_on_the_page_is_the_verdict(report: Report) -> None:
    quoted = [line.removeprefix("> ") for line in PAGE.read_text(encoding="utf-8").splitlines() if line[:2] == "> "]
    assert quoted == [report.headline]


def test_waiting_that_compute_hides_is_charged_to_nobody(report: Report) -> None:
    found = report.as_json()
    waits = {one["op"]: one["wait_us"]["0"] / 1e3 for one in found["collectives"]}
    assert waits == {"all_reduce": 25, "all_to_all": 1}
    assert found["stragglers"]["blame"] == [[0, 25], [0, 0]]
