"""Traces as they come: each is analysed with a warning that says what was left out, or refused in one line."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from kineto_text import TraceText

from analyzer import AnalyzerError, analyze

NOW = 1_700_000_000_000_000_000
US = 1000


def job_trace(rank: int | None = 0, world_size: int = 2) -> TraceText:
    """Two steps of 100 µs: 60 µs of compute, then an all-reduce of 30 µs."""
    text = TraceText(rank=rank, world_size=world_size)
    for step in (1, 2):
        begin = NOW + step * 100 * US
        text.step(step, begin - 5 * US, begin + 95 * US)
        text.kernel("gemm", begin, begin + 60 * US, launched=begin - 4 * US)
        text.kernel("ncclDevKernel_AllReduce_Sum_f32", begin + 60 * US, begin + 90 * US, 20, begin - 3 * US)
    return text


def window_ns(report) -> list[int]:
    return report.arm().tables.bubbles["window_ns"].tolist()


def compute_ns(report) -> list[int]:
    return report.arm().tables.bubbles["compute_ns"].tolist()


Change = Callable[[bytes], bytes]


def once(old: bytes, new: bytes) -> Change:
    def change(content: bytes) -> bytes:
        assert old in content
        return content.replace(old, new, 1)

    return change


WHOLE = {  # case: (change to the JSON text, warning or None); all four numbers of the report stay what they were
    "untouched": (lambda content: content, None),
    "byte order mark": (lambda content: b"\xef\xbb\xbf" + content, None),
    "name that is not UTF-8": (once(b'"gemm"', b'"ge\xff\xfemm"'), None),
    "control characters in a name": (once(b'"gemm"', b'"ge\x00\x07\nmm"'), None),
    "unescaped quotes in a name": (
        once(b'"gemm"', b'"gemm<"tile">"'),
        r"1 event not valid JSON; read as far as needed",
    ),
    "NaN where no number is needed": (
        once(b'"args": {', b'"args": {"x": NaN, '),
        r"1 event not valid JSON; read as far as needed",
    ),
    "metadata with a broken tail": (
        once(b'"traceName": "t.json"', b'"traceName": "t".json"'),
        r"what the trace says about itself is unreadable and left out",
    ),
    "elements that are no events": (once(b'"traceEvents": [', b'"traceEvents": [1, null, "x", '), r"1 event not valid"),
    "arguments of another type": (once(b'"args": {}', b'"args": [1, 2]'), None),
    "a process group config of another type": (once(b'"backend": "nccl"', b'"pg_config": 3, "backend": []'), None),
    "absurd rank and world size": (once(b'"rank": 0', b'"rank": 0, "world_sizes": "many"'), None),
    "trailing bytes after the JSON": (lambda content: content + b"\n\n  ", None),
}


@pytest.mark.parametrize("case", WHOLE)
def test_what_can_be_read_is_read(tmp_path: Path, case: str) -> None:
    change, warning = WHOLE[case]
    file = tmp_path / "rank0.json"
    file.write_bytes(change(job_trace(world_size=1).text().encode()))
    report = analyze(file)
    assert window_ns(report) == [100 * US, 90 * US]
    assert compute_ns(report) == [60 * US, 60 * US]
    notes = [note for note in report.arm().warnings if "could not be matched" not in note]
    assert len(notes) == (warning is not None), notes
    if warning:
        assert re.search(warning, notes[0])
        assert str(file) in notes[0]


DROPPED = {  # case: (change that spoils the first gemm, warning)
    "negative duration": (lambda e: e | {"dur": -5}, "1 event with a negative duration left out"),
    "absurd duration": (lambda e: e | {"dur": 10**14}, "1 event longer than a day left out"),
    "duration beyond all numbers": (lambda e: e | {"dur": 10**30}, "1 event without a usable timestamp or duration"),
    "no timestamp": (lambda e: {k: v for k, v in e.items() if k != "ts"}, "1 event without a usable timestamp"),
    "no duration": (lambda e: {k: v for k, v in e.items() if k != "dur"}, "1 event without a usable timestamp"),
    "timestamp that is a word": (lambda e: e | {"ts": "soon"}, "1 event without a usable timestamp or duration"),
    "timestamp null": (lambda e: e | {"ts": None}, "1 event without a usable timestamp or duration left out"),
    "timestamp of another day": (lambda e: e | {"ts": 12}, "1 event more than an hour away from the others left out"),
}


@pytest.mark.parametrize("case", DROPPED)
def test_an_event_with_impossible_times_is_left_out_and_counted(tmp_path: Path, case: str) -> None:
    spoil, warning = DROPPED[case]
    document = json.loads(job_trace(world_size=1).text())
    document["traceEvents"] = [spoil(e) if i == 2 else e for i, e in enumerate(document["traceEvents"])]
    assert document["traceEvents"][2]["name"] == "gemm"
    file = tmp_path / "rank0.json"
    file.write_text(json.dumps(document))
    report = analyze(file)
    assert any(warning in note and str(file) in note for note in report.arm().warnings), report.arm().warnings
    assert compute_ns(report)[-1] == 60 * US


def gz(content: bytes) -> bytes:
    return gzip.compress(content, 6)


REFUSED = {  # case: (file name, bytes from the JSON text, the reason in the message)
    "empty": ("a.json", lambda c: b"", "empty; export the trace again"),
    "only blanks": ("a.json", lambda c: b" \n\t ", "empty; export the trace again"),
    "not JSON": ("a.json", lambda c: b"#!/bin/sh\n", "not JSON; give a trace exported by the PyTorch profiler"),
    "binary": ("a.json", lambda c: bytes(range(256)) * 8, "not JSON"),
    "UTF-16": ("a.json", lambda c: c.decode().encode("utf-16"), "not JSON"),
    "other JSON": ("a.json", lambda c: b'{"schema": 1}', 'no "traceEvents" in it'),
    "no list of events": ("a.json", lambda c: b'{"traceEvents": null}', 'no "traceEvents" in it'),
    "cut in an event": ("a.json", lambda c: c[: len(c) // 2], r"cut short after \d+ events"),
    "cut before the end": ("a.json", lambda c: c[: c.rindex(b"]")], r"cut short after \d+ events"),
    "gz cut": ("a.json.gz", lambda c: gz(c)[:-200], r"cut short after \d+ events"),
    "gz with a flipped byte": ("a.json.gz", lambda c: flip(gz(c), 60), "damaged"),
    "gz with a wrong checksum": ("a.json.gz", lambda c: flip(gz(c), len(gz(c)) - 6), "damaged"),
    "gz of nothing": ("a.json.gz", lambda c: gz(b""), "empty"),
    "gz header only": ("a.json.gz", lambda c: gz(c)[:10], "damaged .the compressed data end early.; copy it again"),
    "no events": ("a.json", lambda c: b'{"traceEvents": []}', "no event in it that could be analysed"),
    "metadata only": (
        "a.json",
        lambda c: b'{"traceEvents": [{"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "args": {"name": "x"}}]}',
        "no event in it that could be analysed",
    ),
    "deep nesting": ("a.json", lambda c: b'{"traceEvents": [' + b"[" * 200_000, "cut short after 0 events"),
    "zip that is none": ("a.zip", lambda c: b"PK\x03\x04garbage", "not JSON"),
}


def flip(content: bytes, at: int) -> bytes:
    return content[:at] + bytes([content[at] ^ 0xFF]) + content[at + 1 :]


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_trusted_is_refused_in_one_line(tmp_path: Path, case: str) -> None:
    name, change, reason = REFUSED[case]
    file = tmp_path / name
    file.write_bytes(change(job_trace().text().encode()))
    with pytest.raises(AnalyzerError) as refused:
        analyze(file)
    message = str(refused.value)
    assert "\n" not in message
    assert message.startswith(str(file))
    assert re.search(reason, message), message


@pytest.mark.parametrize("tail", [slice(None, -4), slice(None, None)], ids=["checksum gone", "padding"])
def test_a_gz_that_is_damaged_only_behind_its_content_is_read_with_a_warning(tmp_path: Path, tail: slice) -> None:
    file = tmp_path / "rank0.json.gz"
    padding = b"" if tail.stop else b"\0" * 512
    file.write_bytes(gz(job_trace(world_size=1).text().encode())[tail] + padding)
    report = analyze(file)
    assert compute_ns(report) == [60 * US, 60 * US]
    assert any(
        "the compressed file is damaged at its end; all events could be read" in n for n in report.arm().warnings
    )


def test_a_file_cut_after_its_last_event_is_read_with_a_warning(tmp_path: Path) -> None:
    text = job_trace(world_size=1)
    text.events.append({"ph": "i", "name": "Record Window End", "pid": "", "tid": "", "ts": 1})
    text.events.append({"ph": "i", "name": "cut here", "pid": "", "tid": "", "ts": 1})
    content = text.text().encode()
    file = tmp_path / "rank0.json"
    file.write_bytes(content[: content.index(b"cut here")])
    report = analyze(file)
    assert compute_ns(report) == [60 * US, 60 * US]
    assert any("the end of the file is missing; all recorded events are there" in n for n in report.arm().warnings)


def test_a_bomb_is_refused_before_it_unpacks(tmp_path: Path) -> None:
    # 10 GiB of blanks inside valid JSON, in 10 MB; written member by member, for gzip streams may follow one another
    block = zlib.compressobj(9, zlib.DEFLATED, 31)
    member = block.compress(b" " * (64 << 20)) + block.flush()
    head, tail = gz(b'{"traceEvents": ['), gz(b"]}")
    file = tmp_path / "bomb.json.gz"
    with file.open("wb") as out:
        out.write(head)
        for _ in range(160):
            out.write(member)
        out.write(tail)
    with pytest.raises(AnalyzerError, match=r"bomb.json.gz: (unpacks to more than 100 times its size|one event is)"):
        analyze(file)


def test_a_missing_rank_is_named_and_its_absence_not_hidden(tmp_path: Path) -> None:
    for rank in (0, 2):
        job_trace(rank, world_size=3).write(tmp_path / f"rank{rank}.json")
    report = analyze(tmp_path)
    assert any("1 of 3 ranks have no trace here" in note for note in report.arm().warnings)
    assert any("lack some of their ranks" in note for note in report.arm().warnings)
    assert (report.arm().tables.collectives["last_rank"] == -1).all()


def test_of_two_traces_of_one_rank_the_first_stays(tmp_path: Path) -> None:
    for name in ("a", "b"):
        job_trace(0, world_size=1).write(tmp_path / f"{name}.json")
    report = analyze(tmp_path)
    assert report.arm().tables.ranks == [0]
    assert any("b.json: rank 0 is also in" in note and "left out" in note for note in report.arm().warnings)


def test_a_rank_that_no_trace_names_comes_from_the_file_name(tmp_path: Path) -> None:
    for rank in (1, 4):
        job_trace(None).write(tmp_path / f"host-7_rank-{rank}.1234.pt.trace.json")
    assert analyze(tmp_path).arm().tables.ranks == [1, 4]


def test_without_any_rank_the_order_of_files_decides_and_says_so(tmp_path: Path) -> None:
    for name in ("a", "b"):
        job_trace(None).write(tmp_path / f"{name}.json")
    report = analyze(tmp_path)
    assert report.arm().tables.ranks == [0, 1]
    assert any("b.json: does not say which rank it is; taken as rank 1" in note for note in report.arm().warnings)


def test_one_bad_file_among_good_ones_is_left_out(tmp_path: Path) -> None:
    for rank in (0, 1):
        job_trace(rank).write(tmp_path / f"rank{rank}.json")
    (tmp_path / "rank2.json").write_bytes(b"")
    report = analyze(tmp_path)
    assert report.arm().tables.ranks == [0, 1]
    assert any("left out" in note and "rank2.json: empty" in note for note in report.arm().warnings)


def test_without_profiler_steps_the_trace_is_one_step(tmp_path: Path) -> None:
    text = job_trace(world_size=1)
    text.events = [event for event in text.events if not event["name"].startswith("ProfilerStep")]
    report = analyze(text.write(tmp_path / "rank0.json"))
    assert window_ns(report) == [190 * US]
    assert any("no ProfilerStep in it; the whole trace is taken as one step" in n for n in report.arm().warnings)


def test_a_gpu_job_without_gpu_events_is_not_passed_off_as_cpu_compute(tmp_path: Path) -> None:
    text = TraceText(rank=0, world_size=1)
    text.step(1, NOW, NOW + 100 * US)
    text.op("aten::mm", NOW, NOW + 10 * US)
    report = analyze(text.write(tmp_path / "rank0.json"))
    assert any("no GPU events, though the backend is nccl" in note for note in report.arm().warnings)


@pytest.mark.parametrize("path", ["nothing.json", "empty-folder", "*.json"])
def test_a_path_without_traces_is_named(tmp_path: Path, path: str) -> None:
    (tmp_path / "empty-folder").mkdir()
    with pytest.raises(AnalyzerError, match=re.escape(path)):
        analyze(tmp_path / path)
