"""The first recorded step is taken out of a trace, and nothing that the others need with it."""

from __future__ import annotations

import json

import msgspec

from freescale.bench.settling import without_settling


def event(name: str, start_us: float, end_us: float, cat: str = "cpu_op") -> dict[str, object]:
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": 1, "ts": start_us, "dur": end_us - start_us}


STEPS = [
    event(f"ProfilerStep#{number}", start, start + 100, "user_annotation") for number, start in ((9, 0), (10, 100))
]
META = {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "python"}}
ISSUED = event("freescale.comm all_to_all group=ids seq=3 bytes=8", 90, 95)
WORKER = event("gloo:all_to_all", 92, 99, "user_annotation")
BEFORE, ACROSS, AFTER = event("aten::mm", 10, 20), event("aten::mm", 95, 105), event("aten::mm", 110, 120)


def settled(*events: dict[str, object]) -> list[dict[str, object]]:
    return json.loads(bytes(without_settling(msgspec.Raw(json.dumps(events).encode()))))


def test_the_first_step_goes_with_its_operations_and_the_others_stay_as_they_were() -> None:
    kept = settled(META, *STEPS, BEFORE, ACROSS, AFTER, ISSUED, WORKER)
    assert kept == [META, STEPS[1], ACROSS, AFTER, ISSUED, WORKER]


def test_steps_are_counted_not_spelled() -> None:
    assert settled(STEPS[1], STEPS[0]) == [STEPS[1]]


def test_a_trace_without_steps_is_left_alone() -> None:
    assert settled(META, BEFORE) == [META, BEFORE]
