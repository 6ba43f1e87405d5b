"""Whatever a file holds, the reader ends with a Timeline or with one line: no traceback, no hang, no giant."""

from __future__ import annotations

import gzip
import json
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kineto_text import TraceText

from analyzer import AnalyzerError, analyze

NOW = 1_700_000_000_000_000_000


def valid_trace() -> bytes:
    text = TraceText(rank=0, world_size=2, baseTimeNanoseconds=1000, deviceProperties=[{"id": 0, "name": "GPU"}])
    text.step(1, NOW, NOW + 90_000)
    text.mark("freescale.comm all_to_all group=bulk seq=1 bytes=64", NOW + 10, NOW + 20)
    args = {"Collective name": "allreduce", "Process Group Name": "0", "Seq": 4, "In msg nelems": 8, "dtype": "Float"}
    text.kernel("ncclDevKernel_AllReduce", NOW + 1000, NOW + 5000, args=args)
    text.kernel("gemm", NOW + 5000, NOW + 9000, args={"grid": [1, 2, 3]})
    return text.text().encode()


VALID = valid_trace()
PACKED = gzip.compress(VALID, 6)


def ends_well(content: bytes, name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / name
        file.write_bytes(content)
        try:
            report = analyze(file)
        except AnalyzerError as error:
            message = str(error)
        else:
            message = ""
    if message:
        assert "\n" not in message
        assert str(file) in message
        return
    tables = report.arm().tables
    five = tables.bubbles[["compute_ns", "straggler_ns", "exposed_comm_ns", "exposed_copy_ns", "host_ns"]]
    assert (five.sum(axis=1) == tables.bubbles["window_ns"]).all()
    json.dumps(report.as_json(), allow_nan=False)


bounded = settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@bounded
@given(st.lists(st.tuples(st.integers(0, len(PACKED) - 1), st.integers(1, 255)), min_size=1, max_size=4))
def test_flipped_bytes_of_a_gz_file(flips: list[tuple[int, int]]) -> None:
    content = bytearray(PACKED)
    for at, mask in flips:
        content[at] ^= mask
    ends_well(bytes(content), "rank0.json.gz")


@bounded
@given(st.integers(0, len(PACKED)))
def test_truncated_gz_files(length: int) -> None:
    ends_well(PACKED[:length], "rank0.json.gz")


@bounded
@given(
    st.lists(
        st.tuples(st.integers(0, len(VALID) - 1), st.binary(max_size=6), st.integers(0, 6)), min_size=1, max_size=4
    )
)
def test_bytes_put_in_place_of_others(edits: list[tuple[int, bytes, int]]) -> None:
    content = VALID
    for at, new, removed in edits:
        content = content[:at] + new + content[at + removed :]
    ends_well(content, "rank0.json")


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(),
    st.text(max_size=10),
    st.sampled_from(
        [
            "X", "M", "kernel", "cpu_op", "user_annotation", "gpu_memcpy", "cuda_runtime", "ProfilerStep#1", "12.5",
            "ncclKernel_SendRecv", "gloo:all_reduce", "c10d::allreduce_", "freescale.wait all_to_all group=a seq=1",
        ]
    ),
)  # fmt: skip
values = st.recursive(scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner))
event_keys = ["ph", "cat", "name", "pid", "tid", "ts", "dur", "args", "id"]
argument_keys = ["stream", "device", "correlation", "bytes", "grid", "Input Dims", "Collective name", "Seq", "dtype",
                 "Process Group Name", "In msg nelems", "name", "Src Rank"]  # fmt: skip
arguments = st.dictionaries(st.sampled_from(argument_keys), values, max_size=6)
plausible_event = st.fixed_dictionaries(
    {
        "ph": st.just("X"),
        "cat": st.sampled_from(["kernel", "gpu_memcpy", "cpu_op", "user_annotation", "cuda_runtime"]),
        "name": scalars,
        "ts": st.integers(0, 10**6),
        "dur": st.integers(0, 10**5),
        "tid": st.integers(0, 2),
    },
    optional={"args": arguments, "pid": scalars},
)
event = st.one_of(plausible_event, st.dictionaries(st.sampled_from(event_keys), values), values)
metadata_keys = ["distributedInfo", "baseTimeNanoseconds", "deviceProperties", "host_name", "freescale", "pg_config"]
document = st.fixed_dictionaries(
    {"traceEvents": st.lists(event, max_size=8)},
    optional={
        **dict.fromkeys(metadata_keys, values),
        "distributedInfo": st.dictionaries(st.sampled_from(["rank", "world_size", "backend", "pg_config"]), values),
        "freescale": st.fixed_dictionaries(
            {"steps": st.lists(st.dictionaries(st.sampled_from(["step", "block", "tokens"]), values))}
        ),
    },
)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(document)
def test_documents_of_any_structure(content: Any) -> None:
    ends_well(json.dumps(content).encode("utf-8", "surrogatepass"), "rank0.json")
