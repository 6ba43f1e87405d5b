"""Calls and worker spans of a simulated gloo: pairs are those that the simulator made, or none."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from analyzer.pairing import NEVER, UNNAMED, UNNAMED_IN_BACKWARD, Call, Span, pair_calls

GROUPS = ("embedding", "bulk", "dense")
OPS = ("all_to_all", "all_reduce")


@dataclass
class Gloo:
    """Process groups with two workers each; work starts in order of issue as soon as a worker is free."""

    calls: list[Call]
    spans: list[Span]
    span_of: list[int]


@st.composite
def gloos(draw: st.DrawFn) -> Gloo:
    now, issued = 1_000_000, []
    free = {(group, worker): 0 for group in GROUPS for worker in (0, 1)}
    last_start = dict.fromkeys(GROUPS, 0)
    outstanding: list[int] = []
    for _ in range(draw(st.integers(1, 25))):
        now += draw(st.integers(1_000, 400_000))
        if outstanding and draw(st.booleans()):  # wait for one of those that run
            which = outstanding.pop(draw(st.integers(0, len(outstanding) - 1)))
            now = max(now, issued[which]["end"]) + 20_000
            issued[which]["done_by"] = now
            continue
        group, op = draw(st.sampled_from(GROUPS)), draw(st.sampled_from(OPS))
        worker = min((0, 1), key=lambda w: free[group, w])
        start = max(now + draw(st.integers(5_000, 90_000)), free[group, worker], last_start[group] + 1)
        end = start + draw(st.integers(1_000, 900_000))
        free[group, worker], last_start[group] = end, start
        issued.append({"op": op, "group": group, "worker": worker, "call": now, "start": start, "end": end})
        outstanding.append(len(issued) - 1)
    never_waited = draw(st.booleans())
    if not never_waited:
        for which in outstanding:
            now = max(now, issued[which]["end"]) + 20_000
            issued[which]["done_by"] = now
    unnamed = draw(st.booleans())  # the dense group's calls come from DDP, without ranges
    calls = [
        Call(
            one["op"],
            UNNAMED_IN_BACKWARD if unnamed and one["group"] == "dense" else one["group"],
            one["call"],
            NEVER if unnamed and one["group"] == "dense" else one.get("done_by", NEVER),
        )
        for one in issued
    ]
    order = sorted(range(len(issued)), key=lambda i: issued[i]["start"])
    spans = [
        Span(
            issued[i]["op"],
            10 * GROUPS.index(issued[i]["group"]) + issued[i]["worker"],
            issued[i]["start"],
            issued[i]["end"],
        )
        for i in order
    ]
    return Gloo(calls, spans, [order.index(i) for i in range(len(issued))])


many = settings(max_examples=500, deadline=None)


@many
@given(gloos())
def test_no_call_is_paired_with_the_span_of_another(gloo: Gloo) -> None:
    for i, found in enumerate(pair_calls(gloo.calls, gloo.spans)):
        assert found in (-1, gloo.span_of[i])


@many
@given(gloos(), st.data())
def test_nor_when_some_spans_were_not_recorded(gloo: Gloo, data: st.DataObject) -> None:
    lost = data.draw(st.sets(st.integers(0, len(gloo.spans)), max_size=3))
    # A call whose wait was recorded had its span recorded too: the profiler ran all the time in between.
    lost = {s for s in lost if s in gloo.span_of and gloo.calls[gloo.span_of.index(s)].done_by_ns == NEVER}
    kept = [s for s in range(len(gloo.spans)) if s not in lost]
    found = pair_calls(gloo.calls, [gloo.spans[s] for s in kept])
    for i, place in enumerate(found):
        assert place == -1 or kept[place] == gloo.span_of[i]


def test_blocking_calls_one_after_another_are_all_paired() -> None:
    calls = [Call("all_to_all", "embedding", 1000 * k, 1000 * k + 900) for k in range(5)]
    spans = [Span("all_to_all", k % 2, 1000 * k + 100, 1000 * k + 800) for k in range(5)]
    assert pair_calls(calls, spans) == [0, 1, 2, 3, 4]


def test_two_groups_in_flight_are_told_apart_once_their_threads_are_known() -> None:
    # GIVEN two calls of different groups in flight at once, and later one of each alone
    calls = [
        Call("all_to_all", "embedding", 0, 1_000_000),
        Call("all_to_all", "bulk", 10, 1_000_100),
        Call("all_to_all", "embedding", 2_000_000, 3_000_000),
    ]
    spans = [
        Span("all_to_all", 7, 500, 900_000),  # bulk's worker was quicker
        Span("all_to_all", 3, 600, 900_000),
        Span("all_to_all", 3, 2_000_500, 2_900_000),
    ]
    # THEN the lone one gives its thread away, and with it the others
    assert pair_calls(calls, spans) == [1, 0, 2]


def test_calls_that_nothing_tells_apart_stay_unpaired() -> None:
    calls = [Call("all_reduce", UNNAMED, 0), Call("all_reduce", UNNAMED, 10)]
    spans = [Span("all_reduce", 1, 500, 600), Span("all_reduce", 2, 510, 700)]
    assert pair_calls(calls, spans) == [-1, -1]


def test_buckets_of_one_backward_pass_are_paired_in_order() -> None:
    calls = [Call("all_reduce", UNNAMED_IN_BACKWARD, 10 * k) for k in range(3)]
    spans = [Span("all_reduce", k % 2, 500 + k, 600 + 10 * k) for k in range(3)]
    assert pair_calls(calls, spans) == [0, 1, 2]


def test_a_span_whose_call_came_before_the_recording_is_nobodys() -> None:
    spans = [Span("all_reduce", 1, 100, 5_000), Span("all_reduce", 1, 6_000, 7_000)]
    assert pair_calls([Call("all_reduce", UNNAMED_IN_BACKWARD, 5_500)], spans) == [1]
