"""Host time split by what the CPU was doing: by hand, and always adding up."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from kineto_text import MAIN, TraceText
from planted import World, worlds

from analyzer import analyze
from analyzer.bubbles import measure
from analyzer.findings import investigate
from analyzer.hostgaps import REASONS

T0 = 1_700_000_000_000_000_000
US = 1_000


def us(*values: float) -> list[int]:
    return [T0 + int(value * US) for value in values]


def split(text: TraceText, folder: Path) -> dict[str, int]:
    report = analyze(text.write(folder / "rank0.json"))
    row = report.arm().findings.host_gaps.iloc[0]
    assert sum(row[name] for name in REASONS) == report.arm().tables.bubbles["host_ns"].iloc[0]
    return {name: int(row[name]) for name in REASONS if row[name]}


def two_kernels(gap_us: float, launched_us: float) -> TraceText:
    """A kernel until 100, another from 100 + gap, which was launched at `launched`."""
    text = TraceText(world_size=1)
    text.step(1, *us(0, 1000))
    text.kernel("a", *us(10, 100), launched=T0 + 5 * US)
    text.kernel("b", *us(100 + gap_us, 500), launched=T0 + int(launched_us * US))
    return text


def test_before_the_launch_the_host_is_late_after_it_the_device(tmp_path: Path) -> None:
    assert split(two_kernels(50, launched_us=140), tmp_path) == {"launch_ns": 40 * US, "other_ns": 10 * US}


def test_a_kernel_launched_long_ago_leaves_no_blame_on_the_host(tmp_path: Path) -> None:
    assert split(two_kernels(50, launched_us=20), tmp_path) == {"other_ns": 50 * US}


def test_getting_the_next_batch_is_data_loading(tmp_path: Path) -> None:
    text = two_kernels(50, launched_us=145)
    text.mark("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", *us(105, 135))
    assert split(text, tmp_path) == {"data_loading_ns": 30 * US, "launch_ns": 15 * US, "other_ns": 5 * US}


@pytest.mark.parametrize("call", ["cudaStreamSynchronize", "hipDeviceSynchronize", "cudaMemcpy"])
def test_after_a_synchronising_call_the_gap_is_that_calls_doing(tmp_path: Path, call: str) -> None:
    text = two_kernels(50, launched_us=140)
    text.event("cuda_runtime", call, *us(30, 102), tid=MAIN, correlation=9_999)
    assert split(text, tmp_path) == {"synchronisation_ns": 40 * US, "other_ns": 10 * US}


def test_an_asynchronous_copy_call_is_no_synchronisation(tmp_path: Path) -> None:
    text = two_kernels(50, launched_us=140)
    text.event("cuda_runtime", "cudaMemcpyAsync", *us(30, 102), tid=MAIN, correlation=9_999)
    assert split(text, tmp_path) == {"launch_ns": 40 * US, "other_ns": 10 * US}


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(worlds(max_ranks=8, may_miss=True))
def test_reasons_add_up_to_the_host_time_of_every_step(world: World) -> None:
    timelines = [world.timeline(rank) for rank in range(world.ranks)]
    tables = measure(timelines)
    gaps = investigate(timelines, tables).host_gaps.set_index(["rank", "step"])[list(REASONS)].sum(axis=1)
    host = tables.bubbles.set_index(["rank", "step"])["host_ns"]
    assert gaps.sort_index().tolist() == host.sort_index().tolist()


@pytest.mark.traces
@pytest.mark.parametrize("folder", ["dlrm-8xv100", "nccl-args-1of2", "sampled-2of128", "ns-resolution", "rocm"])
def test_and_on_real_traces(traces: Path, folder: str) -> None:
    arm = analyze(traces / folder).arm()
    gaps = arm.findings.host_gaps.set_index(["rank", "step"])[list(REASONS)].sum(axis=1)
    host = arm.tables.bubbles.set_index(["rank", "step"])["host_ns"]
    assert gaps.sort_index().tolist() == host.sort_index().tolist()
