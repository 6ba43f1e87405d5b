"""What a simulated program consists of: work on a stream, and collectives on a lane, each the same on every rank.

A program is a list of operations in the order in which the host issues them. Every number is a vector over ranks or
one number for all; all times are integer nanoseconds.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from freescale.errors import FreeScaleError

Ns = NDArray[np.int64]
PPM = 1_000_000
LEAST_RATE_PPM = 50_000
"""Communication never slows compute below a twentieth of its speed."""


@dataclass(frozen=True)
class Work:
    """Something that one stream of each rank does.

    Attributes:
        stream: operations of a stream run one after the other, in program order.
        work_ns: int64[ranks] or one number, how long it takes with the machine to itself.
        after: numbers of operations that must have ended on this rank.
        flop_share, byte_share: in ppm of `work_ns`, how long its arithmetic and its memory traffic would take each if
            the other were free: the larger is 1,000,000 for a kernel at its roofline. Both 0: nothing slows it.
        polls: do it only if these operations have ended (before, not at, the instant it starts) and it was not done by
            an earlier try; otherwise it takes no time.
        tried: the try before, of which this is the next; None for the first.
        waits: the last try: wait for what it polls instead of going on without.
        issue_ns: the last part of `work_ns`, in which it issues a collective; for traces, as are label, kind and step.
        kind: `compute`, `host`, `issue` or `wait`.
        pause_ppm: share of a piece of work in which its thread is between ops; takes no other time, only tells the
            classes apart.
    """

    stream: str
    work_ns: Ns | int
    after: tuple[int, ...] = ()
    flop_share: int = 0
    byte_share: int = 0
    polls: tuple[int, ...] = ()
    tried: int | None = None
    waits: bool = False
    issue_ns: Ns | int = 0
    label: str = ""
    kind: str = "compute"
    step: int = -1
    pause_ppm: int = 0

    @property
    def sensitive(self) -> bool:
        return bool(self.flop_share or self.byte_share)


@dataclass(frozen=True)
class Load:
    """What a collective sends through one port of each rank.

    Attributes:
        port: ports are per rank; collectives on one port share it.
        work_ns: int64[ranks] or one number, how long the port is busy with it, alone.
        chunk_ns: how long a chunk is: more urgent traffic waits for the chunk on the wire, no longer.
    """

    port: str
    work_ns: Ns | int
    chunk_ns: int = 1


@dataclass(frozen=True)
class Collective:
    """An exchange. It begins when the last rank of a group arrives, and all leave together when all have their bytes.

    Attributes:
        lane: collectives of a lane run one after the other, in program order.
        issued_by: operations any of which issues it: the first to have been done counts.
        loads: through which ports, at the same time.
        latency_ns: from the last arrival until bytes flow.
        group: int64[ranks], number of each rank's group; None for one group of all.
        priority: a port serves the highest first, and equals at equal shares.
        sm_share: ppm of a rank's compute units that it holds from that rank's arrival to the end.
        byte_share: ppm of memory bandwidth that it takes while bytes flow.
        label: `op` of the collective; sent_bytes: int64[ranks] or one number.
    """

    lane: str
    issued_by: tuple[int, ...]
    loads: tuple[Load, ...] = ()
    latency_ns: int = 0
    group: Ns | None = None
    priority: int = 0
    sm_share: int = 0
    byte_share: int = 0
    after: tuple[int, ...] = ()
    label: str = ""
    sent_bytes: Ns | int = 0
    step: int = -1


Op = Work | Collective


@dataclass
class Program:
    """Operations in program order, for `ranks` ranks; `add` gives the number by which others refer to one."""

    ranks: int
    ops: list[Op] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.ranks < 1:
            raise FreeScaleError(f"ranks: {self.ranks}, expected at least 1")

    def add(self, op: Op) -> int:
        """Append an operation."""
        self.ops.append(op)
        return len(self.ops) - 1

    def also_issued_by(self, collective: int, tries: tuple[int, ...]) -> None:
        """Name more operations that may issue a collective, such as later tries of the same work."""
        op = self.ops[collective]
        if not isinstance(op, Collective):
            raise TypeError(f"operation {collective} is no collective")
        self.ops[collective] = replace(op, issued_by=op.issued_by + tries)
