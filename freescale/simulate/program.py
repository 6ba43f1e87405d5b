"""Step programs of the arms: the product's schedules, in the same order of exchanges on the same lanes.

Each function here mirrors one of `freescale.overlap` or of the feed that prepares batches; read them side by side.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np

from freescale.errors import FreeScaleError
from freescale.simulate.batches import LABELS_UP_TO, ModelShape, Rows, Share
from freescale.simulate.cluster import Cluster
from freescale.simulate.cost import Amounts, Costs
from freescale.simulate.links import Bytes, Links
from freescale.simulate.ops import Program
from freescale.simulate.writer import Chain, Exchange, Stage, Writer

_BUCKET_BYTES = 25 << 20
_FLOAT, _LONG = 4, 8


class Arm(Protocol):
    """Settings of the layers; `freescale.bench.arms.Arm` is one."""

    @property
    def name(self) -> str: ...
    @property
    def balance(self) -> bool: ...
    @property
    def overlap(self) -> bool: ...
    @property
    def smfree(self) -> bool: ...
    @property
    def prefetch_ids(self) -> bool: ...
    @property
    def batches_ahead(self) -> int: ...


@dataclass(frozen=True)
class StepProgram:
    """A program of several steps.

    Attributes:
        first, last: per step, the first and the last operation of the training thread in it.
        pause_ns: how long a pause between ops lasts, where pieces of work have any.
    """

    program: Program
    first: list[int]
    last: list[int]
    pause_ns: int = 1


def write_steps(
    arm: Arm, cluster: Cluster, shape: ModelShape, shares: Sequence[Share], rows: Sequence[Rows], seed: int
) -> StepProgram:
    """All but the last of the given batches, one step each; the last one is only prepared, as in mid-training.

    Args:
        shares, rows: per step, what each rank has to do; see `freescale.simulate.batches`.
        seed: of the jitter.

    Raises:
        FreeScaleError: fewer than two batches.
    """
    if len(shares) < 2:
        raise FreeScaleError("simulation: one batch; a step needs the batch after it too")
    ranks = shares[0].samples.size
    costs, links = Costs(cluster, shape, ranks), Links(cluster, ranks, arm.smfree, _beside(arm))
    writer = Writer(Program(ranks), costs, links, np.random.default_rng(seed))
    job = _Job(arm, writer, shape, shares, rows)
    feed = _Feed(job)
    schedule = _Prioritized(job, feed) if arm.overlap else _Blocking(job, feed)
    first, last = [], []
    for step in range(len(shares) - 1):
        job.writer.step = step
        begun = len(writer.host_ops)
        feed.take(step)
        schedule.step(step)
        writer.synchronise()
        first.append(writer.host_ops[begun])
        last.append(writer.host_ops[-1])
    writer.step = -1
    schedule.stop()
    return StepProgram(writer.program, first, last, max(round(cluster.values.get("pause_us", 0.0) * 1e3), 1))


def _beside(arm: Arm) -> frozenset[str]:
    """Lanes whose exchanges go on beside compute; urgent ones are waited for nearly at once."""
    ahead = {"ids", "bulk"} if arm.overlap else {"ids"} if arm.prefetch_ids else set()
    return frozenset({"data", *ahead})


@dataclass
class _Job:
    arm: Arm
    writer: Writer
    shape: ModelShape
    shares: Sequence[Share]
    rows: Sequence[Rows]

    @property
    def ranks(self) -> int:
        return self.writer.program.ranks

    @property
    def away(self) -> float:
        """Share of scattered rows that live on other ranks."""
        return (self.ranks - 1) / self.ranks

    def row_bytes(self, count: Bytes) -> Bytes:
        return count * (self.shape.embedding_dim * _FLOAT)

    def work(self, step: int) -> Amounts:
        """Amounts of a step that every piece may be counted in."""
        share, rows = self.shares[step], self.rows[step]
        return {
            "projection_flop": share.projection_flop,
            "attention_flop": share.attention_flop,
            "scores": share.scores,
            "blocks": share.blocks,
            "tokens": share.tokens,
            "samples": share.samples,
            "ids": share.ids(self.shape),
            "asked": rows.asked,
            "served": rows.served,
            "parameters": float(self.shape.parameters),
        }

    def some_rows(self, count: Bytes) -> Amounts:
        """Amounts of a piece that handles that many rows."""
        return {"rows": count, "row_bytes": self.row_bytes(count), "requesters": float(self.ranks)}

    def rows_exchange(self, lane: str, sent: Bytes, received: Bytes) -> Exchange:
        out, back = self.row_bytes(sent) * self.away, self.row_bytes(received) * self.away
        return self.writer.exchange(lane, "all_to_all", self.writer.links.all_to_all(out, back, lane), out)

    def distribute(
        self, step: int, lane: str = "ids", riding: tuple[Bytes, Bytes] = (0.0, 0.0)
    ) -> tuple[tuple[str, Amounts], list[Stage]]:
        """What is done first, and the exchanges; see `overlap.request`: slots beside their counts, or after them in the
        first batch and where padding would be most of it.

        Args:
            riding: rows sent and received along with them.
        """
        rows, links = self.rows[step], self.writer.links
        others, counts = self.ranks - 1, float(4 * _LONG * (self.ranks - 1))
        out, back = (self.row_bytes(count) * self.away for count in riding)
        per_pair = float(rows.asked.max()) / self.ranks
        # The largest of ranks² counts lies that many standard deviations above their mean.
        room = 1.25 * (per_pair + math.sqrt(2 * math.log(self.ranks**2) * per_pair))
        fits = step > 0 and room * self.ranks <= 2 * float(rows.asked.mean())
        first = counts + room * _LONG * others if fits else counts
        phases = links.all_to_all(first + out, first + back, lane)
        stages = [Stage([], lane, "all_to_all", phases, first + out)]
        if not fits:
            asked, served = rows.asked * (_LONG * self.away), rows.served * (_LONG * self.away)
            stages.append(Stage([], lane, "all_to_all", links.all_to_all(asked, served, lane), asked))
        return ("distribute", self.work(step)), stages

    def ids(self, step: int) -> list[Stage]:
        """A batch's IDs told to their owners at once, and what these then know."""
        piece, (first, *more) = self.distribute(step)
        return [replace(first, pieces=[piece]), *more, Stage([("serve", self.work(step))])]

    def compute(self, step: int, advance: Callable[[], None], after_forward: Callable[[], None]) -> None:
        """Forward and backward with `advance` between layers; DDP reduces buckets of dense gradients on the way."""
        writer, work = self.writer, self.work(step)
        parts = self.shape.layers + 1
        for part in range(parts):
            writer.piece("forward", work, parts, part)
            advance()
        after_forward()
        advance()
        dense_bytes = float(self.shape.parameters * _FLOAT)
        buckets = max(1, -int(-dense_bytes // _BUCKET_BYTES))
        reduced: list[Exchange] = []
        for part in range(parts):
            writer.piece("backward", work, parts, part)
            while len(reduced) < buckets * (part + 1) // parts:
                phases = writer.links.all_reduce(dense_bytes / buckets)
                reduced.append(writer.exchange("dense", "all_reduce", phases, dense_bytes / buckets))
            advance()
        for bucket in reduced:
            writer.wait(bucket)
        advance()


@dataclass
class _Feed:
    """See `bench.feed`: lengths gathered and samples moved while earlier batches compute."""

    job: _Job
    weights: dict[int, Exchange] = field(default_factory=dict)
    lengths: dict[int, Exchange] = field(default_factory=dict)
    moving: dict[int, Exchange] = field(default_factory=dict)
    sums: Exchange | None = None
    announced: int = 0

    def __post_init__(self) -> None:
        for _ in range(self.job.arm.batches_ahead):
            self._announce()
        self._move()

    def take(self, step: int) -> None:
        """The batch of this step; announces a later one. Then what the last step left is looked at."""
        writer = self.job.writer
        writer.piece("begin", {})
        if not writer.gpu:
            writer.piece("rest", {})
        self._receive(step)
        self._announce()
        if self.sums is not None:
            writer.block(self.sums)
        if self.job.arm.batches_ahead > 1:
            self._receive(step + 1)

    def after_forward(self) -> None:
        """Gather the loss sums; send the samples of batches that have been announced."""
        writer = self.job.writer
        phases = writer.links.all_gather(8.0 * _LONG, "data")
        self.sums = writer.exchange("data", "all_gather", phases, 8.0 * _LONG * (self.job.ranks - 1))
        self._move()

    def _announce(self) -> None:
        job, step = self.job, self.announced
        if step >= len(job.shares):
            return
        self.announced += 1
        writer = job.writer
        if job.arm.balance:
            table = float(job.shares[step].samples.max() * 3 * _LONG)
            writer.piece("announce", {})
            phases = writer.links.all_gather(table, "data")
            self.lengths[step] = writer.exchange("data", "all_gather", phases, table * (job.ranks - 1))
        phases = writer.links.all_gather(float(_LONG), "data")
        self.weights[step] = writer.exchange("data", "all_gather", phases, float(_LONG * (job.ranks - 1)))

    def _move(self) -> None:
        job, writer = self.job, self.job.writer
        for step in sorted(self.lengths):
            writer.block(self.lengths.pop(step))
            share = job.shares[step]
            amounts: Amounts = {
                "samples_in_all": float(share.samples.sum()),
                "rank_pairs": float(job.ranks**2 if job.ranks <= LABELS_UP_TO else 0),
                "moved_bytes": share.moved_out,
            }
            writer.piece("move", amounts)
            phases = writer.links.all_to_all(share.moved_out, share.moved_in, "data")
            self.moving[step] = writer.exchange("data", "all_to_all", phases, share.moved_out)

    def _receive(self, step: int) -> None:
        job, writer = self.job, self.job.writer
        if step in self.moving:
            share = job.shares[step]
            writer.wait(self.moving.pop(step))
            writer.piece("receive", {"moved_bytes": share.moved_in, "samples": share.samples})
        if step in self.weights:
            writer.block(self.weights.pop(step))


class _Schedule(Protocol):
    def step(self, step: int) -> None: ...
    def stop(self) -> None: ...


class _Blocking:
    """See `overlap.blocking.BlockingSchedule`."""

    def __init__(self, job: _Job, feed: _Feed) -> None:
        self.job, self.feed = job, feed
        self.prefetched: Chain | None = None

    def step(self, step: int) -> None:
        job, writer, rows = self.job, self.job.writer, self.job.rows[step]
        work = job.work(step)
        prefetched, self.prefetched = self.prefetched, None
        (prefetched or Chain(writer, job.ids(step))).finish()
        writer.piece("read", job.some_rows(rows.served))
        fetched = job.rows_exchange("bulk", rows.served, rows.asked)
        writer.wait(fetched)
        writer.piece("embed", {**work, **job.some_rows(rows.asked)})
        if job.arm.prefetch_ids:
            self.prefetched = Chain(writer, job.ids(step + 1))
        job.compute(step, self.prefetched.advance if self.prefetched else _nothing, self.feed.after_forward)
        writer.piece("give", job.some_rows(rows.asked))
        returned = job.rows_exchange("bulk", rows.asked, rows.served)
        writer.wait(returned)
        writer.piece("aim", job.some_rows(rows.served))
        writer.piece("update", job.some_rows(rows.served))
        writer.piece("dense_update", work)

    def stop(self) -> None:
        """IDs of a batch that does not come any more: what was begun for it must end."""
        if self.prefetched is not None:
            self.prefetched.finish()


class _Prioritized:
    """See `overlap.prioritized.PrioritizedSchedule`."""

    def __init__(self, job: _Job, feed: _Feed) -> None:
        self.job, self.feed = job, feed
        self.exclusive: Exchange | None = None
        self.collision: Exchange | None = None

    def step(self, step: int) -> None:
        job, writer, work = self.job, self.job.writer, self.job.work(step)
        now, after = job.rows[step], job.rows[step + 1]
        if step == 0:
            self._fetch_all()
        prepare = Chain(writer, self._prepare(step))
        if step > 0:
            self._wait_for_rows(step)
        writer.piece("embed", {**work, **job.some_rows(now.asked)})
        job.compute(step, prepare.advance, self.feed.after_forward)
        self.exclusive = prepare.finish()

        writer.piece("part", {"rows": 0.0, "row_bytes": job.row_bytes(now.asked)})
        writer.piece("give", job.some_rows(now.urgent_asked))
        first = job.rows_exchange("urgent", now.urgent_asked, now.urgent_served)
        writer.piece("give", job.some_rows(now.asked - now.urgent_asked))  # packed for later
        for received in (now.served - now.urgent_served, now.urgent_served):
            writer.piece("aim", job.some_rows(received))
        writer.wait(first)
        writer.piece("update", job.some_rows(now.urgent_served))
        writer.piece("read", job.some_rows(after.late_served))
        self.collision = job.rows_exchange("urgent", after.late_served, after.late_asked)
        writer.piece("dense_update", work)  # hides the rows' way

    def stop(self) -> None:
        """All exchanges have been issued."""

    def _fetch_all(self) -> None:
        """Rows of the first batch, for which nothing was prepared."""
        job, writer, rows = self.job, self.job.writer, self.job.rows[0]
        Chain(writer, job.ids(0)).finish()
        writer.piece("read", job.some_rows(rows.served))
        writer.wait(job.rows_exchange("bulk", rows.served, rows.asked))

    def _wait_for_rows(self, step: int) -> None:
        writer = self.job.writer
        for fetched in (self.exclusive, self.collision):
            if fetched is not None:
                writer.wait(fetched)
        writer.piece("merge", self.job.some_rows(self.job.rows[step].asked))

    def _prepare(self, step: int) -> list[Stage]:
        """IDs of the next batch and with them what was deferred, its split, and its exclusive rows on their way."""
        job, links = self.job, self.job.writer.links
        now, after = job.rows[step], job.rows[step + 1]
        riding: tuple[Bytes, Bytes] = (0.0, 0.0)
        owner: list[tuple[str, Amounts]] = [("serve", job.work(step + 1))]
        if step > 0:
            before = job.rows[step - 1]
            riding = (before.asked - before.urgent_asked, before.served - before.urgent_served)
            owner.append(("update", job.some_rows(riding[1])))
        piece, stages = job.distribute(step + 1, "bulk", riding)
        both: Amounts = {"asked": now.asked + after.asked, "served": now.served + after.served}
        told = (now.served + after.served) * job.away
        heard = (now.asked + after.asked) * job.away
        marks = Stage(
            [*owner, ("split", both)],
            "ids",
            "all_to_all",
            links.all_to_all(told, heard, "ids"),
            told,
        )
        exclusive_served, exclusive_asked = after.served - after.late_served, after.asked - after.late_asked
        marks_told: Amounts = {"rows": both["asked"] + both["served"], "row_bytes": 0.0}
        sent, received = (job.row_bytes(rows) * job.away for rows in (exclusive_served, exclusive_asked))
        rows = Stage(
            [("part", marks_told), ("read", job.some_rows(exclusive_served))],
            "bulk",
            "all_to_all",
            links.all_to_all(sent, received, "bulk"),
            sent,
        )
        return [Stage([piece]), *stages, marks, rows]


def _nothing() -> None:
    """What `compute` calls between layers when nothing has to be looked after."""
