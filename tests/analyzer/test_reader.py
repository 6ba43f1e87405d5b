"""Reading a trace: every nanosecond as written, however the file is cut, packed and typed."""

from __future__ import annotations

import gzip
import json
import zipfile
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kineto_text import MAIN, TraceText

from analyzer import AnalyzerError, read_trace
from analyzer.decimals import scaled_integers
from analyzer.kineto import read_events
from analyzer.lanes import Lane

NOW = 1_700_000_000_123_456_789


def small_trace() -> TraceText:
    text = TraceText(rank=3, world_size=4)
    text.step(5, NOW, NOW + 100_000)
    text.kernel("gemm}, {tricky", NOW + 2_001, NOW + 30_002)
    text.kernel('with "quotes" and \\ and ünïcode', NOW + 30_003, NOW + 60_999, args={"list": [{"a": 1}, {"b": 2}]})
    text.op("aten::mm", NOW + 10, NOW + 2_000)
    return text


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.integers(-(10**17), 10**17).map(str),
            st.decimals(0, 10**13, places=3).map(lambda d: f"{d:f}"),
            st.decimals(-(10**13), 10**13, places=6).map(lambda d: f"{d:f}"),
            st.floats(allow_nan=True, allow_infinity=True).map(str),
            st.decimals(0, 10**13, places=3).map(lambda d: f'"{d:f}"'),
            st.sampled_from(["", "null", "true", "[1]", "1.2.3", "-", ".", "1e3", "12.5E-1", '"abc"', "NaN", "1" * 40]),
        ),
        min_size=1,
    )
)
def test_numbers_become_the_nanoseconds_that_their_digits_say(texts: list[str]) -> None:
    values, valid = scaled_integers([text.encode() for text in texts], 3)
    for text, value, is_valid in zip(texts, values, valid, strict=True):
        try:
            exact = Decimal(text.strip('"')) * 1000
            expected = exact if exact.is_finite() and abs(exact) <= 2**62 else None
        except ArithmeticError:
            expected = None
        assert is_valid == (expected is not None), text
        if expected is not None:
            assert abs(value - expected) <= Decimal("0.5"), text


@pytest.mark.parametrize("chunk", [1, 7, 64, 1000, 10**6])
def test_the_cut_of_the_bytes_does_not_matter(chunk: int) -> None:
    content = small_trace().text().encode()
    pieces = [content[i : i + chunk] for i in range(0, len(content), chunk)]
    events = read_events(pieces, "t.json", with_ops=True)
    assert events.names[2] == "gemm}, {tricky"
    assert 'with "quotes" and \\ and ünïcode' in events.names
    assert events.start_ns.tolist() == [NOW, NOW + 1_001, NOW + 2_001, NOW + 29_003, NOW + 30_003, NOW + 10]
    assert events.end_ns.tolist() == [
        NOW + 100_000, NOW + 1_501, NOW + 30_002, NOW + 29_503, NOW + 60_999, NOW + 2_000
    ]  # fmt: skip
    assert events.metadata["traceName"] == "t.json"
    assert not events.warnings


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_pieces_cut_anywhere_give_the_same_events(data: st.DataObject) -> None:
    text = TraceText()
    names = data.draw(st.lists(st.text(max_size=12), min_size=1, max_size=30))
    for i, name in enumerate(names):
        text.kernel(name, NOW + i * 1000, NOW + i * 1000 + 500)
    content = text.text().encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(content)), max_size=8)))
    chunks = [content[a:b] for a, b in zip([0, *cuts], [*cuts, len(content)], strict=True)]
    events = read_events(chunks, "t.json")
    kernels = events.of({"kernel"})
    assert [events.names[i] for i in events.name_id[kernels]] == names
    assert events.start_ns[kernels].tolist() == [NOW + i * 1000 for i in range(len(names))]
    assert not events.warnings


def test_fractions_of_a_microsecond_survive_timestamps_since_1970(tmp_path: Path) -> None:
    timeline = read_trace(small_trace().write(tmp_path / "rank3.json"))
    compute = timeline.in_lane(Lane.COMPUTE)
    assert timeline.start_ns[compute].tolist() == [NOW + 2_001, NOW + 30_003]
    assert timeline.end_ns[compute].tolist() == [NOW + 30_002, NOW + 60_999]


def as_written(value: str) -> str:
    """A trace of one kernel from 1_000_000 to 1_000_500 µs, with times as JSON `value` makes them."""
    kernel = {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "args": {"stream": "7", "device": 0}}
    body = json.dumps({"traceEvents": [kernel]})
    return body.replace('"ph"', value + ', "ph"')


@pytest.mark.parametrize(
    ("times", "start", "end"),
    [
        ('"ts": 1700000000000000, "dur": 500', 1_700_000_000_000_000_000, 500_000),
        ('"ts": 1700000000000000.125, "dur": 0.003', 1_700_000_000_000_000_125, 3),
        ('"ts": "1700000000000000.125", "dur": "0.003"', 1_700_000_000_000_000_125, 3),
        ('"ts": 1.7e15, "dur": 5e2', 1_700_000_000_000_000_000, 500_000),
        ('"ts": 1700000000000000125, "dur": 3', 1_700_000_000_000_000_125, 3),  # nanoseconds
    ],
)
def test_timestamps_of_every_kind_are_read(tmp_path: Path, times: str, start: int, end: int) -> None:
    file = tmp_path / "rank0.json"
    file.write_text(as_written(times))
    timeline = read_trace(file)
    assert timeline.start_ns.tolist() == [start]
    assert (timeline.end_ns - timeline.start_ns).tolist() == [end]


def test_times_are_counted_from_the_base_that_the_trace_names(tmp_path: Path) -> None:
    text = TraceText(baseTimeNanoseconds=NOW)
    text.kernel("k", 1_000_001, 2_000_002)
    timeline = read_trace(text.write(tmp_path / "rank0.json"))
    assert timeline.start_ns[timeline.in_lane(Lane.COMPUTE)].tolist() == [NOW + 1_000_001]


def test_a_child_never_outlasts_its_parent(tmp_path: Path) -> None:
    text = TraceText()
    text.step(1, NOW, NOW + 10**6)
    rng = np.random.default_rng(0)
    edges = np.sort(rng.integers(NOW, NOW + 10**6, 400))
    for start, end in zip(edges[:200], edges[:199:-1], strict=True):
        text.op("aten::nest", int(start), int(end))
    events = read_events([text.text().encode()], "t.json", with_ops=True)
    assert (np.diff(events.start_ns[1:]) >= 0).all()
    assert (np.diff(events.end_ns[1:]) <= 0).all()


@pytest.mark.parametrize("name", ["rank3.json", "rank3.json.gz"])
def test_plain_and_gzipped_files_read_alike(tmp_path: Path, name: str) -> None:
    timeline = read_trace(small_trace().write(tmp_path / name))
    assert timeline.info.rank == 3
    assert timeline.info.world_size == 4
    assert timeline.steps.number.tolist() == [5]


def test_a_zip_of_traces_stands_for_the_traces_in_it(tmp_path: Path) -> None:
    from analyzer import analyze

    archive = tmp_path / "traces.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
        for rank in (0, 1):
            text = TraceText(rank=rank, world_size=2)
            text.step(1, NOW, NOW + 1000)
            text.kernel("k", NOW + 2000, NOW + 3000)
            packed.writestr(f"logs/worker{rank}.pt.trace.json.gz", gzip.compress(text.text().encode()))
        packed.writestr("logs/readme.txt", "not a trace")
    assert analyze(archive).arm().tables.ranks == [0, 1]
    with pytest.raises(AnalyzerError, match="2 traces there; give one of them"):
        read_trace(archive)


def test_a_glob_stands_for_the_files_it_matches(tmp_path: Path) -> None:
    from analyzer import analyze

    for rank in (0, 1, 2):
        text = TraceText(rank=rank, world_size=3)
        text.kernel("k", NOW, NOW + 1000)
        text.write(tmp_path / f"rank{rank}.json.gz")
    assert analyze(tmp_path / "rank[01].json.gz").arm().tables.ranks == [0, 1]


def test_kineto_traces_of_the_chrome_array_format_are_read(tmp_path: Path) -> None:
    file = tmp_path / "rank0.json"
    text = TraceText()
    text.kernel("k", NOW, NOW + 1000, stream=9)
    file.write_text(json.dumps(json.loads(text.text())["traceEvents"]))
    assert len(read_trace(file)) == 2
    assert MAIN


def events_of(text: TraceText, chunk: int) -> list[tuple[str, int, int, int, int]]:
    content = text.text().encode()
    events = read_events([content[i : i + chunk] for i in range(0, len(content), chunk)], "t.json")
    assert not events.warnings
    names = [events.names[i] for i in events.name_id]
    columns = (events.start_ns, events.end_ns, events.correlation, events.shape)
    return list(zip(names, *(column.tolist() for column in columns), strict=True))


@pytest.mark.parametrize("chunk", [500, 10**6])
def test_events_of_any_other_category_or_of_none_change_nothing(chunk: int) -> None:
    plain, mixed = TraceText(), TraceText()
    for i in range(150):
        at = NOW + i * 10_000
        for text in (plain, mixed):
            text.kernel(f"kernel {i % 7}", at, at + 5_000, args={"grid": [i % 3, 1, 1], "block": [64, 1, 1]})
        mixed.event(f"invention {i}", "kernel 0", at, at + 5_000, MAIN, correlation=i)  # too many to be learned
        mixed.events.append({"ph": "M", "name": "thread_name", "pid": 0, "tid": i, "args": {"name": "worker"}})
        mixed.events.append({"ph": "C", "cat": "counter", "name": 5, "ts": "now", "args": [i]})
    expected = [row for row in events_of(plain, chunk) if row[0].startswith("kernel")]
    assert [row for row in events_of(mixed, chunk) if row[0].startswith("kernel")] == expected
    assert len(expected) == 150
    assert len({row[4] for row in expected}) == 3
