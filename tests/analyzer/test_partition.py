"""The partition against an oracle that looks at every nanosecond."""

from __future__ import annotations

from itertools import combinations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from analyzer.intervals import covered, intersect, merge, subtract, total
from analyzer.partition import LAUNCH_LATENCY_NS, UNMATCHED, Communication, partition, where

HORIZON = 60


def arrays(pairs):
    starts, ends = zip(*pairs, strict=True) if pairs else ((), ())
    return np.array(starts, np.int64), np.array(ends, np.int64)


def interval_lists(most, horizon=HORIZON):
    pair = st.tuples(st.integers(0, horizon), st.integers(0, horizon)).map(lambda p: (min(p), max(p)))
    return st.lists(pair, max_size=most)


windows_strategy = st.lists(st.integers(0, HORIZON), min_size=2, max_size=4, unique=True).map(
    lambda cuts: list(zip(sorted(cuts), sorted(cuts)[1:], strict=False))
)
rows_strategy = st.lists(
    st.tuples(st.integers(0, HORIZON), st.integers(1, HORIZON), st.one_of(st.none(), st.integers(-5, HORIZON + 5))),
    max_size=6,
).map(lambda rows: [(start, start + length, arrival) for start, length, arrival in rows])


def classify_every_nanosecond(windows, compute, rows, copies, latency):
    """Oracle: for each window, classes per instant, straight from the definition."""
    result = []
    for low, high in windows:
        counts = dict.fromkeys(("compute", "straggler", "exposed", "copy", "host", "overlapped"), 0)
        computing = [any(s <= t < e for s, e in compute) for t in range(low, high)]
        for t in range(low, high):
            active = [row for row in rows if row[0] <= t < row[1]]
            if computing[t - low]:
                counts["compute"] += 1
                counts["overlapped"] += bool(active)
            elif active:
                gap_end = next((u for u in range(t, high) if computing[u - low]), high)
                let_go_on = [row for row in active if row[1] <= gap_end + latency]
                _, _, arrival = max(let_go_on or active, key=lambda row: (row[1], -rows.index(row)))
                late = arrival is not None and t < arrival
                counts["straggler" if late else "exposed"] += 1
            elif any(s <= t < e for s, e in copies):
                counts["copy"] += 1
            else:
                counts["host"] += 1
        result.append(counts)
    return result


@settings(max_examples=400, deadline=None)
@given(windows_strategy, interval_lists(4), rows_strategy, interval_lists(3))
def test_every_nanosecond_has_the_class_of_the_definition(windows, compute, rows, copies):
    scale = LAUNCH_LATENCY_NS // 5  # the oracle's instants are this long, so that latency matters
    start, end = arrays([(s, e) for s, e, _ in rows])
    arrival = np.array([UNMATCHED if a is None else a * scale for _, _, a in rows], np.int64)

    parts = partition(
        tuple(x * scale for x in arrays(windows)),
        merge(*(x * scale for x in arrays(compute))),
        Communication(start * scale, end * scale, arrival),
        merge(*(x * scale for x in arrays(copies))),
    )

    expected = classify_every_nanosecond(windows, compute, rows, copies, LAUNCH_LATENCY_NS // scale)
    for i, counts in enumerate(expected):
        assert parts.compute_ns[i] == counts["compute"] * scale
        assert parts.straggler_ns[i] == counts["straggler"] * scale
        assert parts.exposed_comm_ns[i] == counts["exposed"] * scale
        assert parts.exposed_copy_ns[i] == counts["copy"] * scale
        assert parts.host_ns[i] == counts["host"] * scale
        assert parts.overlapped_comm_ns[i] == counts["overlapped"] * scale


def rows_of(rows):
    start, end = arrays([(s, e) for s, e, _ in rows])
    return Communication(start, end, np.array([a for _, _, a in rows], np.int64))


times = st.integers(1_700_000_000 * 10**9, 1_700_000_000 * 10**9 + 10**10)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(times, min_size=2, max_size=5, unique=True),
    st.lists(st.tuples(times, times).map(sorted), max_size=30),
    st.lists(st.tuples(times, times, times).map(lambda t: (*sorted(t[:2]), t[2])), max_size=30),
    st.lists(st.tuples(times, times).map(sorted), max_size=10),
)
def test_the_five_classes_add_up_to_the_window_to_the_nanosecond(cuts, compute, rows, copies):
    cuts = np.array(sorted(cuts), np.int64)
    windows = cuts[:-1], cuts[1:]
    parts = partition(windows, merge(*arrays(compute)), rows_of(rows), merge(*arrays(copies)))
    five = (parts.compute_ns, parts.straggler_ns, parts.exposed_comm_ns, parts.exposed_copy_ns, parts.host_ns)
    assert (sum(five) == cuts[1:] - cuts[:-1]).all()
    assert all((part >= 0).all() for part in five)
    assert parts.row_straggler_ns.sum() == parts.straggler_ns.sum()
    assert parts.row_exposed_ns.sum() == parts.exposed_comm_ns.sum()
    assert (parts.row_straggler_ns >= 0).all()
    assert (parts.row_exposed_ns >= 0).all()
    places = where(windows, merge(*arrays(compute)), rows_of(rows), merge(*arrays(copies)))
    assert total(places["straggler"]) == parts.straggler_ns.sum()
    assert total(places["exposed_comm"]) == parts.exposed_comm_ns.sum()
    assert total(places["exposed_copy"]) == parts.exposed_copy_ns.sum()
    assert total(places["host"]) == parts.host_ns.sum()
    for a, b in combinations(places.values(), 2):
        assert total(intersect(a, b)) == 0


def test_the_collective_that_let_compute_go_on_decides_over_one_that_runs_on():
    # GIVEN compute stops at 100 and goes on at 300; one collective ends at 300, its last rank arrived at 200;
    # another, matched long ago, runs from before the gap until after it
    millisecond = 1_000_000
    rows = Communication(
        np.array([100, 0]) * millisecond, np.array([300, 900]) * millisecond, np.array([200, 10]) * millisecond
    )
    # WHEN
    parts = partition(
        (np.array([0]), np.array([1000 * millisecond])),
        (np.array([0, 300]) * millisecond, np.array([100, 1000]) * millisecond),
        rows,
        merge(*arrays([])),
    )
    # THEN the gap is the first one's: half straggler, half exposed
    assert parts.straggler_ns.tolist() == [100 * millisecond]
    assert parts.exposed_comm_ns.tolist() == [100 * millisecond]
    assert parts.row_straggler_ns.tolist() == [100 * millisecond, 0]
    assert parts.overlapped_comm_ns.tolist() == [700 * millisecond]


def as_set(pairs):
    return {t for s, e in pairs for t in range(s, e)}


@settings(max_examples=200, deadline=None)
@given(interval_lists(6), interval_lists(6), st.integers(0, HORIZON), st.integers(0, HORIZON))
def test_interval_arithmetic_agrees_with_sets_of_integers(a, b, low, high):
    union_a, union_b = merge(*arrays(a)), merge(*arrays(b))
    assert as_set(zip(*union_a, strict=True)) == as_set(a)
    assert as_set(zip(*intersect(union_a, union_b), strict=True)) == as_set(a) & as_set(b)
    assert as_set(zip(*subtract(union_a, union_b), strict=True)) == as_set(a) - as_set(b)
    assert total(union_a) == len(as_set(a))
    assert covered(union_a, np.array([low]), np.array([high]))[0] == len(as_set(a) & as_set([(low, high)]))
