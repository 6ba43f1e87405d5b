"""Every transport delivers what a single process would have put together, whatever the calls and their order."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))
import conformance_payload as payload

LANES = ("urgent", "bulk", "data")
EXAMPLES = {
    "process_group": 10,
    "shared_memory": 25,
    "shared_memory:fine": 25,
    "host_staged": 8,
    "fake_device:host_staged": 15,
    "fake_device:copy_engine": 15,
    "fake_device:zero_cta": 15,
    "emulated_link:process_group": 8,
    "emulated_link:shared_memory": 15,
}
"""Scripts for each transport and world size: most where the logic is ours."""

WORLDS = (1, 2, 3, 4)

pytestmark = [pytest.mark.multiprocess, pytest.mark.timeout(300)]


@st.composite
def calls(draw: st.DrawFn, world_size: int) -> dict[str, Any]:
    """One call: sizes from nothing to a few hundred kilobytes a peer, so that every path inside a transport is met."""
    rows = st.one_of(st.just(0), st.integers(0, 5), st.integers(0, 3000))
    call: dict[str, Any] = {
        "op": draw(st.sampled_from(["all_to_all", "all_to_all", "all_gather"])),
        "lane": draw(st.sampled_from(LANES)),
        "dtype": draw(st.sampled_from(sorted(payload.DTYPES))),
        "tail": draw(st.sampled_from([[], [1], [3], [64]])),
        "keep": draw(st.booleans()),
    }
    if call["op"] == "all_to_all":
        call["splits"] = [[draw(rows) for _ in range(world_size)] for _ in range(world_size)]
    else:
        call["rows"] = draw(rows)
    return call


@st.composite
def scripts(draw: st.DrawFn, world_size: int) -> dict[str, Any]:
    """Calls on several lanes, issued in one order everywhere, waited for in an order of each rank's own."""
    chosen = draw(st.lists(calls(world_size), min_size=1, max_size=8))
    steps = []
    for _ in range(world_size):
        mine: list[dict[str, Any]] = []
        open_calls: list[int] = []
        for index in range(len(chosen)):
            if draw(st.integers(0, 9)) == 0:
                mine.append({"do": "pause", "ms": draw(st.integers(1, 5))})
            mine.append({"do": "issue", "call": index})
            open_calls.append(index)
            if draw(st.booleans()):
                mine.append({"do": "wait", "call": open_calls.pop(draw(st.integers(0, len(open_calls) - 1)))})
        for index in draw(st.permutations(open_calls)):
            mine.append({"do": "wait", "call": index})
        steps.append(mine)
    return {"seed": draw(st.integers(0, 2**31)), "calls": chosen, "steps": steps}


def check(pool: Any, script: dict[str, Any]) -> None:
    world_size = pool.world_size
    received = pool.run(script)
    for index, call in enumerate(script["calls"]):
        for rank in range(world_size):
            want = payload.digest(payload.expected(script["seed"], rank, index, call, world_size))
            assert received[rank][index] == want, f"rank {rank}, call {index}: {call}"


@pytest.mark.parametrize("transport", EXAMPLES)
@pytest.mark.parametrize("world_size", WORLDS)
def test_any_script_of_calls_delivers_what_one_process_would_have(
    world_size: int, transport: str, rank_pool: Callable[[int], Any]
) -> None:
    pool = rank_pool(world_size)

    @settings(
        max_examples=EXAMPLES[transport],
        deadline=None,
        database=None,
        phases=[Phase.generate],  # a failure restarts the ranks, too slow to shrink by
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(scripts(world_size))
    def run(script: dict[str, Any]) -> None:
        check(pool, {"transport": transport, **script})

    run()


@pytest.mark.parametrize(
    ("world_size", "transport"),
    [*((2, name) for name in EXAMPLES), (4, "shared_memory"), (4, "fake_device:copy_engine")],
)
def test_64_mb_to_a_peer_and_bulk_beside_urgent(
    world_size: int, transport: str, rank_pool: Callable[[int], Any]
) -> None:
    """One pair exchanges 64 MB while small urgent calls pass; the last rank comes late, so its parts must be kept."""
    big = [[0] * world_size for _ in range(world_size)]
    big[0][world_size - 1] = (64 << 20) // 256
    big[world_size - 1][0] = (5 << 20) // 256 + 1
    small = [[1 + (r + c) % 3 for c in range(world_size)] for r in range(world_size)]
    script_calls = [
        {"op": "all_to_all", "lane": "bulk", "dtype": "float32", "tail": [64], "keep": True, "splits": big},
        {"op": "all_to_all", "lane": "urgent", "dtype": "int64", "tail": [], "keep": False, "splits": small},
        {"op": "all_gather", "lane": "bulk", "dtype": "bfloat16", "tail": [1024], "keep": False, "rows": 1500},
        {"op": "all_to_all", "lane": "bulk", "dtype": "float32", "tail": [64], "keep": False, "splits": big},
    ]
    order = [{"do": "issue", "call": index} for index in range(4)]
    waits = [{"do": "wait", "call": index} for index in (1, 3, 0, 2)]
    steps = [
        ([{"do": "pause", "ms": 150}] if rank == world_size - 1 else []) + order + waits for rank in range(world_size)
    ]
    check(rank_pool(world_size), {"transport": transport, "seed": 7, "calls": script_calls, "steps": steps})
