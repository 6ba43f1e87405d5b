"""`freescale-bench analyze` from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from kineto_text import TraceText
from planted import Clock, World

from analyzer import AnalyzerError
from freescale.bench.analyze import command


def run(*arguments: str) -> Result:
    return CliRunner().invoke(command, list(arguments))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    plan = [[("all_reduce", "dense", [100_000, 400_000, 200_000], 50_000)] * 2 for _ in range(4)]
    (tmp_path / "traces").mkdir()
    return World(3, [Clock()] * 3, jitter_ns=0, numbered=True).run(plan, 0).write(tmp_path / "traces")


def test_the_verdict_comes_first_then_where_time_goes_and_who_is_waited_for(folder: Path) -> None:
    result = run(str(folder))
    assert result.exit_code == 0
    lines = [line for line in result.output.splitlines() if line.strip()]
    assert "of rank 0's step waits for rank 1" in lines[0]
    for part in ("where a step goes", "Whom the others wait for", "chronic", "clocks:"):
        assert part in result.output


def test_json_is_all_that_is_printed_and_holds_the_contract(folder: Path) -> None:
    result = run(str(folder), "--json")
    value = json.loads(result.output)
    assert {
        "world_size", "ranks", "steps", "per_rank", "collectives", "stragglers", "contention", "clock", "warnings",
    } <= set(value)  # fmt: skip
    assert set(value["per_rank"][0]) >= {
        "rank", "step", "window_us", "compute_us", "straggler_us", "exposed_comm_us", "exposed_copy_us", "host_us",
        "overlapped_comm_us",
    }  # fmt: skip
    assert set(value["collectives"][0]) >= {
        "group", "op", "ordinal", "bytes", "step", "last_rank", "first_arrival_us", "last_arrival_us", "end_us",
        "wait_us", "transfer_us",
    }  # fmt: skip
    assert set(value["stragglers"]["culprits"][0]) >= {"rank", "times_last", "charged_us", "pattern", "cause"}
    assert value["stragglers"]["culprits"][0]["rank"] == 1
    assert set(value["clock"]) >= {"offset_us", "residual_us"}
    for row in value["per_rank"]:
        five = sum(row[f"{name}_us"] for name in ("compute", "straggler", "exposed_comm", "exposed_copy", "host"))
        assert five == pytest.approx(row["window_us"], abs=1e-6)


def test_filters_choose_steps_ranks_and_group(folder: Path) -> None:
    value = json.loads(run(str(folder), "--json", "--steps", "1,2-3", "--ranks", "0-1", "--group", "dense").output)
    assert value["steps"] == [1, 2, 3]
    assert value["ranks"] == [0, 1]
    assert {one["step"] for one in value["collectives"]} == {1, 2, 3}


def test_a_merged_trace_is_written_where_asked(folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "merged.json.gz"
    result = run(str(folder), "-o", str(target))
    assert result.exit_code == 0
    assert target.exists()
    assert str(target) in result.output.replace("\n", "")


@pytest.mark.parametrize("text", ["x", "3-1", "1,,2", "-1", "1-999999999"])
def test_a_list_of_numbers_that_is_none_is_wrong_usage(folder: Path, text: str) -> None:
    result = run(str(folder), "--steps", text)
    assert result.exit_code == 2
    assert "write for example 0,4-7" in result.output


def test_an_unusable_path_is_one_line(tmp_path: Path) -> None:
    result = run(str(tmp_path / "nothing"))
    assert isinstance(result.exception, AnalyzerError)
    assert "\n" not in str(result.exception)


def test_names_from_traces_are_printed_as_they_are_and_not_as_markup(tmp_path: Path) -> None:
    text = TraceText(world_size=2, deviceProperties=[{"name": "[red]x"}])
    args = {"Collective name": "allreduce", "Process Group Name": "[bold]g[/bold]", "Seq": 1}
    text.kernel("gemm[/]", 10**18, 10**18 + 1000)
    text.kernel("ncclDevKernel_AllReduce", 10**18 + 1000, 10**18 + 5000, args=args)
    result = run(str(text.write(tmp_path / "[green]rank0.json")))
    assert result.exit_code == 0, result.exception
    assert "[green]rank0.json" in result.output.replace("\n", "")
