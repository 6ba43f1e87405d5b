"""Why a rank was late, on jobs whose reason for lateness is planted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kineto_text import TraceText
from planted import Clock, World

from analyzer import AnalyzerError, analyze
from analyzer.bubbles import measure
from analyzer.findings import Findings, investigate

T0 = 1_700_000_000_000_000_000
US = 1_000
STEP_US = 1_000
GRID: dict[str, Any] = {"grid": [64, 1, 1], "block": [128, 1, 1]}


class Job:
    """Three ranks that each compute 300 µs and meet in an all-reduce every step; rank 2 is late by `extra` µs."""

    def __init__(self, steps: int = 4, tokens: bool = False) -> None:
        self.texts = [TraceText(rank, 3, host_name="box") for rank in range(3)]
        self.steps, self.tokens = steps, tokens

    def write(self, folder: Path, reason: str, extra: int = 200, late_rank_of_step: list[int] | None = None) -> Path:
        for rank, text in enumerate(self.texts):
            for step in range(self.steps):
                late = (late_rank_of_step or [2] * self.steps)[step] == rank
                self._step(text, step, T0 + step * STEP_US * US, reason if late else "", extra)
                if self.tokens:
                    count = 300 + extra if late and reason == "tokens" else 300
                    text.metadata.setdefault("freescale", {"steps": []})["steps"].append(
                        {"step": step, "block": 0, "tokens": count, "samples": 1}
                    )
            text.write(folder / f"rank{rank}.json.gz")
        return folder

    def _step(self, text: TraceText, step: int, begin: int, reason: str, extra: int) -> None:
        text.step(step, begin - 5 * US, begin + (STEP_US - 5) * US)
        shape = {} if self.tokens else GRID
        at = begin
        for piece in range(3):
            length = 100 * US
            if reason in ("slower kernels", "tokens"):
                length += extra * US // 3
            text.kernel(f"gemm{piece}", at, at + length, args=dict(shape), launched=begin - 3 * US)
            at += length
        if reason == "more work":
            text.kernel("gemm0", at, at + extra * US, args={**GRID, "grid": [1024, 1, 1]}, launched=begin - 2 * US)
        if reason == "copy":
            text.kernel("Memcpy HtoD", at, at + extra * US, 9, begin - 2 * US, cat="gpu_memcpy")
        if reason == "own communication":
            text.kernel("ncclDevKernel_AllGather", at, at + extra * US, 30, begin - 2 * US,
                        args={"Collective name": "allgather", "Process Group Name": "own", "Seq": step})  # fmt: skip
        if reason and reason not in ("slower kernels", "tokens"):
            at += extra * US
        end = begin + (300 + extra + 50) * US  # somebody is late in every step
        text.kernel("ncclDevKernel_AllReduce", at, end, 20, begin - 2 * US,
                    args={"Collective name": "allreduce", "Process Group Name": "0", "Seq": step})  # fmt: skip


@pytest.mark.parametrize("reason", ["more work", "slower kernels", "host", "copy", "own communication"])
def test_the_reason_for_lateness_is_named(tmp_path: Path, reason: str) -> None:
    report = analyze(Job().write(tmp_path, reason))
    culprit = report.arm().findings.culprits[0]
    assert (culprit.rank, culprit.times_last, culprit.cause) == (2, 4, reason)
    assert culprit.charged_ns == pytest.approx(4 * 2 * 200 * US, rel=0.01)
    part = {"more work": "compute", "slower kernels": "compute"}.get(reason, reason.replace(" ", "_"))
    assert culprit.excess_ns[part] == pytest.approx(4 * 200 * US, rel=0.01)


def test_without_shapes_tokens_tell_more_work_from_slower_kernels(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    more = analyze(Job(tokens=True).write(tmp_path / "a", "tokens"))
    assert more.arm().findings.culprits[0].cause == "more work"
    slower = analyze(Job(tokens=True).write(tmp_path / "b", "slower kernels"))
    assert slower.arm().findings.culprits[0].cause == "slower kernels"


def test_without_shapes_and_tokens_longer_compute_is_only_called_that(tmp_path: Path) -> None:
    job = Job(tokens=True)
    job.write(tmp_path, "slower kernels")
    for rank, text in enumerate(job.texts):
        del text.metadata["freescale"]
        text.write(tmp_path / f"rank{rank}.json.gz")
    assert analyze(tmp_path).arm().findings.culprits[0].cause == "compute"


@pytest.mark.parametrize(
    ("late", "pattern"),
    [([2, 2, 2, 2, 0, 2], "chronic"), ([0, 1, 2, 0, 1, 2], "rotating"), ([0, 1, 0, 1, 2, 0], "one-off")],
)
def test_patterns_over_steps(tmp_path: Path, late: list[int], pattern: str) -> None:
    report = analyze(Job(steps=6).write(tmp_path, "host", late_rank_of_step=late))
    by_rank = {culprit.rank: culprit.pattern for culprit in report.arm().findings.culprits}
    assert by_rank[2] == pattern


def test_of_fewer_than_three_steps_no_pattern_is_claimed(tmp_path: Path) -> None:
    report = analyze(Job(steps=2).write(tmp_path, "host"))
    assert [culprit.pattern for culprit in report.arm().findings.culprits] == [None]


def test_the_headline_says_victim_culprit_lateness_and_reason(tmp_path: Path) -> None:
    text = analyze(Job().write(tmp_path, "host")).headline
    assert (
        "step waits for rank 2, which starts its all-reduce up to 0.2 ms late because of host gaps before it." in text
    )


def world() -> World:
    plan = [[("all_reduce", "dense", [100_000, 400_000, 200_000], 50_000)] * 2 for _ in range(3)]
    return World(3, [Clock()] * 3, jitter_ns=0, numbered=True, one_host=True).run(plan, 0)


def found(job: World) -> Findings:
    timelines = [job.timeline(rank) for rank in range(job.ranks)]
    return investigate(timelines, measure(timelines))


def test_lateness_that_follows_compute_correlates_with_it() -> None:
    r = found(world()).lateness_compute_r
    assert r is not None
    assert r > 0.95


def test_scope_limits_what_is_shown_but_not_whom_a_rank_waits_for(tmp_path: Path) -> None:
    folder = Job(steps=4).write(tmp_path, "own communication")
    whole = analyze(folder).arm().tables
    part = analyze(folder, steps=[1, 2], ranks=[0], group="0").arm().tables
    assert sorted(set(part.bubbles["step"])) == [1, 2]
    assert set(part.bubbles["rank"]) == {0}
    assert set(part.collectives["group"]) == {"0"}
    wanted = whole.bubbles[(whole.bubbles["rank"] == 0) & whole.bubbles["step"].isin([1, 2])].reset_index(drop=True)
    assert part.bubbles.equals(wanted)
    assert part.blame_ns[0].sum() == wanted["straggler_ns"].sum()
    assert part.blame_ns[1:].sum() == 0
    assert analyze(folder, ranks=[0]).headline == analyze(folder).headline


@pytest.mark.parametrize(
    ("scope", "message"),
    [
        ({"steps": [99]}, "step 99: not in these traces; there are 0, 1, 2, 3"),
        ({"ranks": [7]}, "rank 7: not in these traces; there are 0, 1, 2"),
        ({"group": "nope"}, "group 'nope': no collective of it in these traces; there are 0"),
    ],
)
def test_asking_for_what_is_not_there_names_what_is(tmp_path: Path, scope: dict[str, Any], message: str) -> None:
    with pytest.raises(AnalyzerError, match=message):
        analyze(Job().write(tmp_path, "host"), **scope)
