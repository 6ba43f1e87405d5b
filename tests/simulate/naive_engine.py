"""The oracle: an engine that goes from event to event, rank by rank, in plain Python.

It shares nothing with the vectorised engine but the description of a program, and is written for being obviously
right: at each instant everything that can happen without time passing happens, then time goes on to the next event.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from freescale.simulate.ops import LEAST_RATE_PPM, Collective, Program, Work


def of_rank(value, rank):
    return int(value if np.isscalar(value) else value[rank])


@dataclass
class Transfer:
    """One collective at one port of one rank."""

    op: int
    rank: int
    port: str
    left: int  # units
    chunk: int
    priority: int
    state: str = "idle"  # idle, chunk, serving, done
    begin: int = -1
    served_before: bool = False
    waits_for: list[tuple[Transfer, int]] = field(default_factory=list)


class Naive:
    def __init__(self, program: Program) -> None:
        self.p, self.n = program, program.ranks
        self.now = 0
        ranks, count = range(self.n), len(program.ops)
        self.start = [[None] * self.n for _ in range(count)]
        self.end = [[None] * self.n for _ in range(count)]
        self.did = [[False] * self.n for _ in range(count)]
        self.done = [[False] * self.n for _ in range(count)]
        self.joined = [[None] * self.n for _ in range(count)]
        self.left = {}  # (op, rank) of running work -> units
        self.queues = []
        for _ in ranks:
            queues = {}
            for number, op in enumerate(program.ops):
                key = ("s", op.stream) if isinstance(op, Work) else ("l", op.lane)
                queues.setdefault(key, []).append(number)
            self.queues.append(queues)
        self.transfers = {}
        for number, op in enumerate(program.ops):
            if isinstance(op, Collective):
                for rank in ranks:
                    self.transfers[number, rank] = [
                        Transfer(number, rank, load.port, of_rank(load.work_ns, rank) * 840, load.chunk_ns, op.priority)
                        for load in op.loads
                    ]

    def members(self, number, rank):
        group = self.p.ops[number].group
        return [r for r in range(self.n) if group is None or group[r] == group[rank]]

    def over(self, number, rank):
        return self.end[number][rank] is not None

    def run(self):
        while True:
            while self._anything_now():
                pass
            step = self._until_next()
            if step is None:
                break
            self._pass(step)
        return self

    def _anything_now(self):
        return any(self._rank_now(rank) for rank in range(self.n)) or self._finish_collectives()

    def _rank_now(self, rank):
        something = False
        for queue in self.queues[rank].values():
            if not queue:
                continue
            number = queue[0]
            op = self.p.ops[number]
            if not all(self.over(other, rank) for other in op.after):
                continue
            if isinstance(op, Collective):
                if self.start[number][rank] is None and any(
                    self.did[o][rank] and self.over(o, rank) for o in op.issued_by
                ):
                    self.start[number][rank] = self.now
                    something = True
                    mine = self.members(number, rank)
                    if all(self.start[number][r] is not None for r in mine):
                        for r in mine:
                            self.joined[number][r] = self.now
                if self.over(number, rank):
                    queue.pop(0)
                    something = True
            elif self.over(number, rank):
                queue.pop(0)
                something = True
            elif self.start[number][rank] is None and self._start_work(number, rank, op):
                something = True
        for number, transfers in [(k[0], v) for k, v in self.transfers.items() if k[1] == rank]:
            joined = self.joined[number][rank]
            if joined is None or self.now < joined + self.p.ops[number].latency_ns:
                continue
            for transfer in transfers:
                something |= self._port(transfer)
        return something

    def _start_work(self, number, rank, op):
        do = True
        if op.polls:
            tried = op.tried is not None and self.done[op.tried][rank]
            ended = [self.end[o][rank] if self.done[o][rank] else None for o in op.polls]
            if op.waits:
                do = not tried
                if do and not all(e is not None for e in ended):
                    return False
            else:
                do = not tried and all(e is not None and e < self.now for e in ended)
            self.done[number][rank] = do or tried
        else:
            self.done[number][rank] = True
        self.did[number][rank] = do
        self.start[number][rank] = self.now
        work = of_rank(op.work_ns, rank) if do else 0
        if work == 0:
            self.end[number][rank] = self.now
        else:
            self.left[number, rank] = work * 1_000_000
        return True

    def _serving(self, rank, port):
        found = [t for (_, r), ts in self.transfers.items() if r == rank for t in ts if t.port == port]
        return [t for t in found if t.state == "serving"]

    def _port(self, transfer):
        if transfer.state == "idle":
            if transfer.left == 0:
                transfer.state = "done"
                return True
            transfer.waits_for = [
                (other, self.now + (other.begin - self.now) % other.chunk)
                for other in self._serving(transfer.rank, transfer.port)
                if other.priority < transfer.priority and other.served_before and other.left > 0
            ]
            transfer.state = "chunk"
        clear = all(other.state == "done" or self.now >= boundary for other, boundary in transfer.waits_for)
        if transfer.state == "chunk" and clear:
            transfer.state, transfer.begin = "serving", self.now
            return True
        return False

    def _finish_collectives(self):
        something = False
        for number, op in enumerate(self.p.ops):
            if not isinstance(op, Collective):
                continue
            for rank in range(self.n):
                joined = self.joined[number][rank]
                if self.over(number, rank) or joined is None or self.now < joined + op.latency_ns:
                    continue
                mine = self.members(number, rank)
                if all(t.state == "done" for r in mine for t in self.transfers[number, r]):
                    for r in mine:
                        self.end[number][r] = self.now
                        self.did[number][r] = self.done[number][r] = True
                    something = True
        return something

    def _rate_of_work(self, number, rank):
        op = self.p.ops[number]
        held = drawn = 0
        for other, by in enumerate(self.p.ops):
            if isinstance(by, Collective) and self.start[other][rank] is not None and not self.over(other, rank):
                held += by.sm_share
                joined = self.joined[other][rank]
                if joined is not None and self.now >= joined + by.latency_ns:
                    drawn += by.byte_share
        rate = 1_000_000
        if op.flop_share:
            rate = min(rate, max(1_000_000 - held, 0) * 1_000_000 // op.flop_share)
        if op.byte_share:
            rate = min(rate, max(1_000_000 - drawn, 0) * 1_000_000 // op.byte_share)
        return max(rate, LEAST_RATE_PPM)

    def _rate_of_transfer(self, transfer):
        serving = self._serving(transfer.rank, transfer.port)
        if any(t.priority > transfer.priority for t in serving):
            return 0
        return 840 // sum(t.priority == transfer.priority for t in serving)

    def _until_next(self):
        waits = [math.ceil(left / self._rate_of_work(*key)) for key, left in self.left.items()]
        for (number, rank), transfers in self.transfers.items():
            joined = self.joined[number][rank]
            if joined is not None and self.now < joined + self.p.ops[number].latency_ns:
                waits.append(joined + self.p.ops[number].latency_ns - self.now)
            for transfer in transfers:
                if transfer.state == "serving" and self._rate_of_transfer(transfer):
                    waits.append(-(-transfer.left // self._rate_of_transfer(transfer)))
                if transfer.state == "chunk":
                    waits += [b - self.now for _, b in transfer.waits_for if b > self.now]
        if any(not self.over(n, r) for n in range(len(self.p.ops)) for r in range(self.n)):
            return min(waits) if waits else None
        return None

    def _pass(self, step):
        work_rates = {key: self._rate_of_work(*key) for key in self.left}
        serving = [t for ts in self.transfers.values() for t in ts if t.state == "serving"]
        port_rates = [self._rate_of_transfer(t) for t in serving]
        self.now += step
        for key, rate in work_rates.items():
            self.left[key] -= rate * step
            if self.left[key] <= 0:
                del self.left[key]
                self.end[key[0]][key[1]] = self.now
        for transfer, rate in zip(serving, port_rates, strict=True):
            transfer.left -= rate * step
            transfer.served_before = rate > 0
            if transfer.left <= 0:
                transfer.state = "done"
