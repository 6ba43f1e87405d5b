"""Writes programs: pieces of work, exchanges and waits, in the terms in which the product's schedules are written.

On a CPU one thread of each rank computes, issues and waits. On a GPU the host launches ahead of the device, waits of
exchanges block the compute stream, and a chain of exchanges that runs beside the compute has a side stream, so that
what it has to read on the host does not wait for the compute.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from freescale.simulate.cost import Amounts, Cost, Costs
from freescale.simulate.links import Bytes, Links, Phase
from freescale.simulate.ops import Collective, Ns, Program, Work

Jitter = np.random.Generator


@dataclass
class Exchange:
    """An exchange under way: the engine's collectives, of which the last is waited for."""

    phases: list[int]

    @property
    def last(self) -> int:
        return self.phases[-1]


@dataclass(frozen=True)
class Stage:
    """One link of a chain: do `pieces`, and issue `phases` on `lane` (none: nothing)."""

    pieces: Sequence[tuple[str, Amounts]]
    lane: str = ""
    op: str = ""
    phases: Sequence[Phase] = ()
    sent: Bytes = 0.0


@dataclass
class Writer:
    """Appends to `program`. `step` is written on every operation."""

    program: Program
    costs: Costs
    links: Links
    jitter: Jitter
    step: int = -1
    on_device: int = -1
    host_ops: list[int] = field(default_factory=list)
    noise_of_step: dict[int, NDArray[np.float64]] = field(default_factory=dict)

    @property
    def gpu(self) -> bool:
        return self.costs.cluster.device == "cuda"

    def piece(self, name: str, amounts: Amounts, parts: int = 1, part: int = 0) -> None:
        """A piece of the step, or the part-th of `parts` equal parts of it, where the training thread stands."""
        cost = self.costs.of(name, amounts)
        host_ns, device_ns = (self._noisy(_part(ns, parts, part)) for ns in (cost.host_ns, cost.device_ns))
        if not self.gpu:
            self._host(host_ns, cost, name)
            return
        launch = self._host(host_ns, None, f"launch {name}", kind="host")
        self.on_device = self.program.add(
            Work("compute", device_ns, (launch,), cost.flop_share, cost.byte_share, label=name, step=self.step)
        )

    def exchange(self, lane: str, op: str, phases: Sequence[Phase], sent: Bytes) -> Exchange:
        """Issue an exchange now."""
        issue = self._add_host(
            Work(
                "host",
                _whole(phases[0].host_ns),
                issue_ns=phases[0].host_ns,
                label=f"issue {op}",
                kind="issue",
                step=self.step,
            )
        )
        after = (self.on_device,) if self.gpu and self.on_device >= 0 else ()
        return self._collective(lane, op, phases, sent, issue, after)

    def wait(self, exchange: Exchange) -> None:
        """The training thread (CPU) or the compute stream (GPU) goes on when it is over."""
        if self.gpu:
            self.on_device = self.program.add(
                Work("compute", 0, (exchange.last,), label="wait", kind="wait", step=self.step)
            )
        else:
            self._host(0, None, "wait", kind="wait", after=(exchange.last,))

    def block(self, exchange: Exchange) -> None:
        """The training thread waits, on a GPU too: it needs numbers out of the result."""
        self._host(0, None, "wait", kind="wait", after=(exchange.last,))

    def synchronise(self) -> None:
        """The training thread waits for the device."""
        if self.gpu and self.on_device >= 0:
            self._host(0, None, "synchronise", kind="wait", after=(self.on_device,))

    def attempt(self, stage: Stage, needs: tuple[int, ...], tried: int | None, waits: bool) -> int:
        """Try a stage of a chain; returns the try. It takes the thread's time only where it succeeds."""
        costs = [self.costs.of(name, amounts) for name, amounts in stage.pieces]
        work = sum((cost.host_ns + cost.device_ns for cost in costs), np.zeros(self.program.ranks, np.int64))
        issue_ns = stage.phases[0].host_ns if stage.phases else 0
        work = self._noisy(work) + issue_ns
        byte_share = 0 if self.gpu else max((cost.byte_share for cost in costs), default=0)
        label = stage.pieces[0][0] if stage.pieces else "advance"
        kind = "host" if self.gpu else "compute"
        pause_ppm = _mean_pause(costs)
        return self._add_host(
            Work("host", work, (), 0, byte_share, needs, tried, waits, issue_ns, label, kind, self.step, pause_ppm)
        )

    def issue_by(self, attempt: int, stage: Stage, catches_up: bool) -> Exchange:
        """The exchange that the tries of a stage issue; more tries join it with `also_issued_by`.

        Args:
            catches_up: on a GPU, it comes after what the device has been given by now.
        """
        after = (self.on_device,) if catches_up and self.gpu and self.on_device >= 0 else ()
        return self._collective(stage.lane, stage.op, stage.phases, stage.sent, attempt, after)

    def also_issued_by(self, exchange: Exchange, attempt: int) -> None:
        for phase in exchange.phases:
            self.program.also_issued_by(phase, (attempt,))

    def host_ns(self, work_ns: Ns | int, label: str) -> None:
        """Time that the training thread spends on something else."""
        self._host(self._noisy(_whole(work_ns)), None, label, kind="host")

    def _collective(
        self, lane: str, op: str, phases: Sequence[Phase], sent: Bytes, issuer: int, after: tuple[int, ...]
    ) -> Exchange:
        numbers = []
        for phase in phases:
            numbers.append(
                self.program.add(
                    Collective(
                        lane,
                        (issuer,),
                        phase.loads,
                        phase.latency_ns,
                        phase.group,
                        phase.priority,
                        phase.sm_share,
                        phase.byte_share,
                        after,
                        op,
                        np.rint(np.broadcast_to(sent, self.program.ranks)).astype(np.int64),
                        self.step,
                    )
                )
            )
        return Exchange(numbers)

    def _host(
        self, work_ns: Ns | int, cost: Cost | None, label: str, kind: str = "compute", after: tuple[int, ...] = ()
    ) -> int:
        shares = (cost.flop_share, cost.byte_share) if cost else (0, 0)
        pause_ppm = cost.pause_ppm if cost else 0
        return self._add_host(
            Work("host", work_ns, after, *shares, label=label, kind=kind, step=self.step, pause_ppm=pause_ppm)
        )

    def _add_host(self, work: Work) -> int:
        number = self.program.add(work)
        self.host_ops.append(number)
        return number

    def _noisy(self, work_ns: Ns) -> Ns:
        """With noise of mean 1, which makes nothing slower by itself. Of each kernel on a GPU; on a CPU, whose noise
        is other work on the rank's core, one for all that a rank does in a step."""
        spread = self.costs.cluster["jitter"]
        if spread == 0 or not np.any(work_ns):
            return work_ns
        if self.gpu or self.step not in self.noise_of_step:
            self.noise_of_step[self.step] = self.jitter.standard_normal(self.program.ranks)
        noise = self.noise_of_step[self.step]
        factor = np.exp(spread * noise - spread**2 / 2)
        return np.rint(work_ns * factor).astype(np.int64)


class Chain:
    """Stages one after the other, which go on between layers whenever the exchange of the one before is over; see
    `overlap.stages`.

    The first stage is done at once. One after a stage that exchanges nothing is done at the next opportunity, and on a
    GPU after what has been computed by then.
    """

    def __init__(self, writer: Writer, stages: Sequence[Stage]) -> None:
        self._writer, self._stages = writer, list(stages)
        self._tries: list[int | None] = [None] * len(stages)
        self._exchanges: list[Exchange | None] = [None] * len(stages)
        self._try(0, waits=True)

    def advance(self) -> None:
        """Go as far as possible without waiting."""
        for number in range(1, len(self._stages)):
            self._try(number, waits=False)

    def finish(self) -> Exchange | None:
        """Go to the end, waiting where necessary; the exchange that the last stage has issued, if it issues one."""
        for number in range(1, len(self._stages)):
            self._try(number, waits=True)
        return self._exchanges[-1]

    def _try(self, number: int, waits: bool) -> None:
        stage, before = self._stages[number], self._exchanges[number - 1] if number else None
        needs = (before.last,) if before else ()
        if not needs and self._tries[number] is not None:
            return  # the first try did it
        attempt = self._writer.attempt(stage, needs, self._tries[number], waits)
        self._tries[number] = attempt
        exchange = self._exchanges[number]
        if exchange is not None:
            self._writer.also_issued_by(exchange, attempt)
        elif stage.phases:
            self._exchanges[number] = self._writer.issue_by(attempt, stage, catches_up=not needs and number > 0)


def _mean_pause(costs: Sequence[Cost]) -> int:
    """Pauses of several pieces done in one go, in ppm."""
    total = sum(int(cost.host_ns.sum()) for cost in costs)
    return sum(int(cost.host_ns.sum()) * cost.pause_ppm for cost in costs) // total if total else 0


def _whole(values: Ns | int) -> Ns:
    return np.asarray(values, np.int64)


def _part(total: Ns, parts: int, part: int) -> Ns:
    return total * (part + 1) // parts - total * part // parts
