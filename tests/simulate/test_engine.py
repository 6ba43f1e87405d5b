"""The engine: exact against an event-by-event one, and against hand computation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from naive_engine import Naive

from freescale.errors import FreeScaleError
from freescale.simulate.engine import run
from freescale.simulate.ops import Collective, Load, Program, Work


def ns(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def test_everybody_leaves_when_the_last_rank_has_come_and_the_longest_transfer_is_over() -> None:
    program = Program(2)
    compute = program.add(Work("compute", ns(100, 300)))
    program.add(Collective("bulk", (compute,), (Load("nic", ns(50, 20)),), latency_ns=7))
    times = run(program)
    assert times.start[1].tolist() == [100, 300]
    assert times.joined[1].tolist() == [300, 300]
    assert times.end[1].tolist() == [357, 357]


def test_groups_do_not_wait_for_each_other() -> None:
    program = Program(4)
    compute = program.add(Work("compute", ns(10, 40, 20, 30)))
    program.add(Collective("dense", (compute,), (Load("nvlink", 5),), group=ns(1, 0, 1, 0)))
    assert run(program).end[1].tolist() == [25, 45, 25, 45]


def test_urgent_traffic_waits_for_the_chunk_on_the_wire_and_no_longer() -> None:
    program = Program(2)
    now = program.add(Work("host", 0))
    later = program.add(Work("host", 25))
    bulk = program.add(Collective("bulk", (now,), (Load("nic", 100, chunk_ns=10),)))
    urgent = program.add(Collective("urgent", (later,), (Load("nic", 40, chunk_ns=10),), priority=1))
    times = run(program)
    assert times.end[urgent].tolist() == [70, 70]  # 25 -> chunk ends at 30, then 40 of its own
    assert times.end[bulk].tolist() == [140, 140]  # 100 of its own, 40 for the urgent one


def test_equals_share_a_port_and_have_it_alone_afterwards() -> None:
    program = Program(2)
    now = program.add(Work("host", 0))
    a = program.add(Collective("a", (now,), (Load("nic", 100),)))
    b = program.add(Collective("b", (now,), (Load("nic", 30),)))
    times = run(program)
    assert times.end[b].tolist() == [60, 60]
    assert times.end[a].tolist() == [130, 130]


def test_compute_stretches_while_sms_are_held_and_not_when_memory_alone_is_drawn_from_a_flop_bound_kernel() -> None:
    program = Program(2)
    now = program.add(Work("host", 0))
    program.add(Collective("bulk", (now,), (Load("nic", 80),), sm_share=200_000, byte_share=500_000))
    flops = program.add(Work("one", 100, flop_share=1_000_000, byte_share=400_000))
    memory = program.add(Work("two", 100, flop_share=100_000, byte_share=1_000_000))
    times = run(program)
    assert times.end[flops].tolist() == [116, 116]  # 80 at 0.8 make 64, then 36
    assert times.end[memory].tolist() == [140, 140]  # 80 at 0.5 make 40, then 60


def test_a_rank_that_waits_in_a_collective_holds_sms_but_draws_no_bandwidth() -> None:
    program = Program(2)
    arrive = program.add(Work("host", ns(0, 50)))
    program.add(Collective("bulk", (arrive,), (Load("nic", 10),), sm_share=500_000, byte_share=900_000))
    kernel = program.add(Work("compute", 100, flop_share=1_000_000))
    times = run(program)
    assert times.end[kernel].tolist() == [130, 105]  # held from 0 to 60, and from 50 to 60


def test_bandwidth_is_drawn_while_bytes_flow_and_not_during_the_latency_before() -> None:
    program = Program(2)
    now = program.add(Work("host", 0))
    program.add(Collective("bulk", (now,), (Load("link", 40),), latency_ns=30, byte_share=500_000))
    work = program.add(Work("host", 100, byte_share=1_000_000))
    assert run(program).end[work].tolist() == [120, 120]  # 30, then 40 at half speed make 20, then 50


def test_a_try_does_its_work_at_the_first_chance_after_what_it_polls() -> None:
    program = Program(2)
    issue = program.add(Work("host", ns(0, 30)))
    ids = program.add(Collective("ids", (issue,), latency_ns=10))  # over at 40 everywhere
    program.add(Work("host", 25))
    first = program.add(Work("host", 7, polls=(ids,)))
    program.add(Work("host", 25))
    second = program.add(Work("host", 7, polls=(ids,), tried=first))
    last = program.add(Work("host", 7, polls=(ids,), tried=second, waits=True))
    rows = program.add(Collective("bulk", (first, second, last)))
    times = run(program)
    assert times.start[first].tolist() == [25, 55]  # rank 0 is too early, rank 1 is not
    assert times.end[last].tolist() == [57, 87]
    assert times.issued[rows].tolist() == [57, 62]


def test_a_program_that_cannot_end_is_refused_by_name() -> None:
    program = Program(2)
    never = program.add(Collective("ids", (), label="orphan"))
    program.add(Work("host", 1, after=(never,)))
    with pytest.raises(FreeScaleError, match="orphan never ends on rank 0"):
        run(program)


@st.composite
def programs(draw: st.DrawFn) -> Program:
    """Programs over few ports and short times, so that things meet, and meet at the same instant."""
    ranks = draw(st.sampled_from([1, 2, 3, 5, 16]))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    program = Program(ranks)
    longest = int(rng.choice([3, 12, 60]))
    groups = [None, None, rng.integers(0, 3, ranks), np.arange(ranks) // 2]
    work, collectives = [program.add(Work("host", 0))], []
    shares = [0, 100_000, 300_000, 600_000]

    def vector() -> np.ndarray:
        return rng.integers(0, longest, ranks) * int(rng.random() < 0.85)

    def some(of: list[int], most: int) -> tuple[int, ...]:
        return tuple(rng.choice(of, min(len(of), int(rng.integers(0, most + 1))), replace=False).tolist()) if of else ()

    for _ in range(draw(st.integers(1, 22))):
        kind = rng.random()
        if kind < 0.4:
            share = [(0, 0), (1_000_000, 300_000), (250_000, 1_000_000)][int(rng.integers(3))]
            stream = str(rng.choice(["host", "compute"]))
            after = some(work + collectives, 2)
            work.append(program.add(Work(stream, vector(), after, *share)))
        elif kind < 0.8 or not collectives:
            ports = rng.choice(["nic", "pcie"], int(rng.integers(0, 3)), replace=False)
            loads = tuple(Load(str(port), vector(), int(rng.integers(1, 9))) for port in ports)
            collectives.append(
                program.add(
                    Collective(
                        str(rng.choice(["ids", "bulk", "urgent"])),
                        (int(rng.choice(work)),),
                        loads,
                        int(rng.integers(0, 6)),
                        groups[int(rng.integers(4))],
                        int(rng.integers(0, 3)),
                        int(rng.choice(shares)),
                        int(rng.choice(shares)),
                        some(work, 1),
                    )
                )
            )
        else:  # two tries and a last one, with work between them, whose work issues a collective that a try polls
            polled, tries = (int(rng.choice(collectives)),), []
            for number in range(3):
                tried = tries[-1] if tries else None
                tries.append(program.add(Work("host", 4, polls=polled, tried=tried, waits=number == 2)))
                if number == 0:
                    issued = program.add(Collective("bulk", (tries[0],), (Load("nic", vector()),)))
                if number < 2:
                    program.add(Work("host", vector()))
                    program.add(Work("host", 2, polls=(issued,)))
            program.also_issued_by(issued, tuple(tries[1:]))
            collectives.append(issued)
            work.append(tries[-1])
    return program


@settings(max_examples=400, deadline=None)
@given(programs())
def test_it_agrees_to_the_nanosecond_with_an_engine_that_goes_from_event_to_event(program: Program) -> None:
    expected = Naive(program).run()
    if any(end is None for ends in expected.end for end in ends):
        with pytest.raises(FreeScaleError, match="never ends"):
            run(program)
        return
    times = run(program)
    for number, op in enumerate(program.ops):
        assert times.end[number].tolist() == expected.end[number], (number, op)
        assert times.start[number].tolist() == expected.start[number], (number, op)
        if isinstance(op, Collective):
            assert times.joined[number].tolist() == expected.joined[number], (number, op)
