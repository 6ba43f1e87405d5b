"""Worlds whose truth is known: ranks compute, meet in collectives and wait for each other, on clocks that are wrong.

Everything is simulated in true nanoseconds, then seen through each rank's clock. `World` holds what the analyzer must
give back: who waited how long for whom, and what each class of each step adds up to.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import numpy as np
from hypothesis import strategies as st
from kineto_text import TraceText

from analyzer.lanes import Lane
from analyzer.timeline import UNKNOWN, Group, Steps, Timeline, TimelineBuilder, TraceInfo

EPOCH = 1_700_000_000_000_000_000
LAUNCH_GAP = 3_000
OP_NAMES = {"all_reduce": "AllReduce", "all_to_all": "SendRecv", "all_gather": "AllGather"}


@dataclass(frozen=True)
class Clock:
    """A rank's clock reads EPOCH + offset + (1 + drift) · (true - EPOCH)."""

    offset_ns: int = 0
    drift: float = 0.0

    def reads(self, true_ns: int) -> int:
        since = true_ns - EPOCH
        return true_ns + self.offset_ns + round(since * self.drift)


@dataclass(frozen=True)
class Met:
    """One collective as it truly was. `end_ns` differs between ranks by the world's jitter."""

    group: str
    op: str
    seq: int
    step: int
    arrival_ns: dict[int, int]
    end_ns: dict[int, int]

    @property
    def last_arrival_ns(self) -> int:
        return max(self.arrival_ns.values())

    @property
    def last_rank(self) -> int:
        return max(self.arrival_ns, key=lambda rank: (self.arrival_ns[rank], -rank))

    def wait_ns(self, rank: int) -> int:
        return max(0, min(self.last_arrival_ns, self.end_ns[rank]) - self.arrival_ns[rank])


@dataclass
class World:
    ranks: int
    clocks: list[Clock]
    jitter_ns: int
    numbered: bool  # collectives carry sequence numbers
    missing: set[tuple[int, int]] = field(default_factory=set)  # (index of collective, rank) that the trace lost
    met: list[Met] = field(default_factory=list)
    compute: list[list[tuple[int, int, int]]] = field(default_factory=list)  # by rank: (step, start, end), true
    one_host: bool = False

    def run(self, plan: list[list[tuple[str, str, list[int], int]]], seed: int) -> World:
        """Simulate steps of (op, group, compute before it on each rank, transfer) in turn."""
        rng = np.random.default_rng(seed)
        now = [EPOCH + 10_000_000 + int(x) for x in rng.integers(0, 50_000, self.ranks)]
        self.compute = [[] for _ in range(self.ranks)]
        counts: dict[str, int] = {}
        for step, phases in enumerate(plan):
            for op, group, computing, transfer in phases:
                for rank in range(self.ranks):
                    self.compute[rank].append((step, now[rank], now[rank] + computing[rank]))
                arrival = {rank: now[rank] + computing[rank] for rank in range(self.ranks)}
                over = max(arrival.values()) + transfer
                end = {rank: over + int(rng.integers(0, self.jitter_ns + 1)) for rank in range(self.ranks)}
                seq = counts[group] = counts.get(group, -1) + 1
                self.met.append(Met(group, op, seq, step, arrival, end))
                now = [end[rank] + LAUNCH_GAP for rank in range(self.ranks)]
        for rank in range(self.ranks):  # compute after the last collective closes the last window
            self.compute[rank].append((len(plan) - 1, now[rank], now[rank] + 20_000))
        return self

    def seen(self, index: int) -> list[int]:
        """Ranks whose trace holds collective `index`."""
        return [rank for rank in self.met[index].arrival_ns if (index, rank) not in self.missing]

    def timeline(self, rank: int) -> Timeline:
        """What a reader would make of this rank's trace."""
        reads, builder = self.clocks[rank].reads, TimelineBuilder()
        first_of_step: dict[int, int] = {}
        for step, start, end in self.compute[rank]:
            first_of_step.setdefault(step, reads(start))
            builder.add(
                start_ns=[reads(start)], end_ns=[reads(end)], lane=int(Lane.COMPUTE), name_id=builder.name_id("gemm"),
                stream=7, step=step,
            )  # fmt: skip
        for index, met in enumerate(self.met):
            if rank in self.seen(index):
                builder.add(
                    start_ns=[reads(met.arrival_ns[rank])], end_ns=[reads(met.end_ns[rank])], lane=int(Lane.COMM),
                    name_id=builder.name_id(met.op), stream=20, step=met.step, bytes=1024, op=builder.op_id(met.op),
                    group=builder.group_id(Group(met.group, tuple(range(self.ranks)))),
                    ordinal=met.seq if self.numbered else UNKNOWN,
                )  # fmt: skip
        numbers = sorted(first_of_step)
        opening = [first_of_step[number] for number in numbers]
        closing = [*opening[1:], reads(self.compute[rank][-1][2])]
        steps = Steps(*(np.array(column, np.int64) for column in (numbers, opening, closing)))
        host = "one" if self.one_host else None
        return builder.build(steps, TraceInfo(path=f"rank{rank}", rank=rank, world_size=self.ranks, host=host,
                                              device="cuda"))  # fmt: skip

    def write(self, folder: Path) -> Path:
        """The same as Kineto files."""
        for rank in range(self.ranks):
            reads = self.clocks[rank].reads
            text = TraceText(rank, self.ranks)
            text.metadata["distributedInfo"]["pg_config"] = [
                {"pg_name": str(i), "pg_desc": group, "ranks": list(range(self.ranks))}
                for i, group in enumerate(sorted({met.group for met in self.met}))
            ]
            names = {entry["pg_desc"]: entry["pg_name"] for entry in text.metadata["distributedInfo"]["pg_config"]}
            begins: dict[int, int] = {}
            for step, start, end in self.compute[rank]:
                launched = reads(start) - 2_000
                begins.setdefault(step, launched - 100)
                text.kernel("gemm", reads(start), reads(end), launched=launched)
            for index, met in enumerate(self.met):
                if rank in self.seen(index):
                    args = {
                        "Collective name": met.op, "Process Group Name": names[met.group], "dtype": "Float",
                        "In msg nelems": 256,
                    } | ({"Seq": met.seq} if self.numbered else {})  # fmt: skip
                    launched = max(reads(met.arrival_ns[rank]) - 2_000, begins[met.step])
                    text.kernel(f"ncclDevKernel_{OP_NAMES[met.op]}_RING", reads(met.arrival_ns[rank]),
                                reads(met.end_ns[rank]), 20, launched, args=args)  # fmt: skip
            edges = [*sorted(begins.values()), reads(self.compute[rank][-1][2])]
            for number, (start, end) in enumerate(pairwise(edges)):
                text.step(number, start, end)
            text.write(folder / f"rank-{rank:05d}.json.gz")
        return folder


@st.composite
def worlds(
    draw: st.DrawFn,
    max_ranks: int = 64,
    numbered: bool | None = None,
    max_offset_ns: int = 5_000_000,
    max_drift: float = 20e-6,
    may_miss: bool = False,
    max_jitter_ns: int = 2_000,
) -> World:
    """Worlds of 2 to `max_ranks` ranks; always with some synchronising collectives, which clocks can be set by."""
    ranks = draw(st.integers(2, max_ranks))
    seed = draw(st.integers(0, 2**32 - 1))
    rng = np.random.default_rng(seed)
    clocks = [
        Clock(int(rng.integers(-max_offset_ns, max_offset_ns + 1)), float(rng.uniform(-max_drift, max_drift)))
        for _ in range(ranks)
    ]
    world = World(
        ranks,
        clocks,
        jitter_ns=draw(st.integers(0, max_jitter_ns)),
        numbered=draw(st.booleans()) if numbered is None else numbered,
    )
    steps, phases = draw(st.integers(2, 4)), draw(st.integers(3, 6))
    order = ["all_reduce", *draw(st.lists(st.sampled_from(sorted(OP_NAMES)), min_size=phases - 1, max_size=phases - 1))]
    groups = {"all_reduce": "dense", "all_to_all": "embedding", "all_gather": "embedding"}
    skew = draw(st.sampled_from([20_000, 300_000, 5_000_000]))
    plan = [
        [
            (
                op,
                groups[op],
                [int(x) for x in rng.integers(50_000, 50_000 + skew, ranks)],
                int(rng.integers(10_000, 800_000)),
            )
            for op in order
        ]
        for _ in range(steps)
    ]
    world.run(plan, seed)
    if may_miss:
        count = draw(st.integers(1, max(1, len(world.met) * ranks // 8)))
        world.missing = {(int(rng.integers(0, len(world.met))), int(rng.integers(0, ranks))) for _ in range(count)}
    return world
