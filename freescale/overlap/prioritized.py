"""The prioritized schedule: only what collides waits (FreeScale, arXiv 2604.24073).

While batch N computes, batch N+1's IDs are exchanged, its *exclusive* rows (not used by N) are read and sent. After N's
backward, gradients of *collision* rows (used by both) go first, are applied, and the rows follow behind the dense
optimizer's step. N's other gradients are deferred: they travel behind N+1's compute, together with the IDs of N+2, and
are applied before anything reads their rows. Every row sees the same updates, in the same order and with the same
sums, as on the blocking schedule.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from freescale.comm.transport import Handle
from freescale.overlap.collision import (
    Split,
    colliding_rows,
    marked_of,
    put_together,
    rest,
    rest_of,
    tell_requesters,
)
from freescale.overlap.contribution import Sums
from freescale.overlap.hooks import nothing
from freescale.overlap.lookup import Lookup
from freescale.overlap.packing import Counts
from freescale.overlap.request import Rider
from freescale.overlap.schedule import Ids, LossOf, Parts, check_announced, fetch_all, send_back_all
from freescale.overlap.stages import Chain, Stages, run


@dataclass
class _Ahead:
    """The next batch, as far as it can be prepared before this batch's update.

    Attributes:
        colliding: per group, the rows owned here that both batches use.
        late: the next batch's rows, parted into collision rows (marked) and exclusive ones.
        urgent: this batch's rows likewise: those whose gradients go first.
        exclusive: its exclusive rows, on their way; `collision`: the others, once they have been sent.
    """

    ids: Ids
    lookup: Lookup
    colliding: list[Tensor]
    late: Split
    urgent: Split
    exclusive: Handle
    exclusive_counts: Counts
    collision: Handle | None = None


@dataclass
class _Deferred:
    """Gradients that have not been applied yet, with the learning rate and loss scale of the step they belong to.

    They ride along with the IDs of the batch after next. Where they will go is worked out early, while the urgent ones
    are awaited and there is nothing else to do.
    """

    rider: Rider
    due: Sums
    lr: float
    scale: float
    usable: bool = True


class PrioritizedSchedule:
    """See the module and `Schedule`. One extra batch of rows is in flight, no more."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self._ahead: _Ahead | None = None
        self._deferred: _Deferred | None = None
        self._window: list[Lookup] = []
        self._accumulated: list[tuple[Lookup, Handle]] = []

    def step(self, ids: Ids, next_ids: Ids | None, loss_of: LossOf, *, update: bool = True) -> Lookup:
        """See `Schedule.step`. This is the schedule, from top to bottom."""
        parts, embedding, lanes = self.parts, self.parts.embedding, self.parts.lanes

        lookup, rows_of = self._lookup_for(ids)
        self._window.append(lookup)
        prepare = Stages(self._prepare(next_ids, update), parts.side) if next_ids is not None else None
        embedded = embedding.embed(lookup, rows_of())

        parts.compute(loss_of, lookup, embedded, len(self._window) == 1, prepare.advance if prepare else nothing)

        ahead = prepare.finish() if prepare else None
        if update:
            due = self._send_gradients(lookup, ahead)
            assert self._deferred is not None
            self._deferred.usable = parts.usable()
            if ahead is not None:
                wanted = marked_of(ahead.lookup.served, ahead.late.served)
                gradients = due.totals()
                if self._deferred.usable:
                    embedding.update(due.rows, gradients, self._deferred.scale, self._deferred.lr)
                ahead.collision = embedding.look_up(
                    lanes["urgent"], wanted, ahead.late.serve_counts, ahead.late.ask_counts
                )
            parts.step_dense()  # hides the rows' way on every rank: the exchange before has brought them together
            self._window, self._accumulated = [], []
        else:
            self._accumulated.append((lookup, send_back_all(parts, lookup)))
        self._ahead = ahead
        return lookup

    def drain(self) -> None:
        """See `Schedule.drain`."""
        deferred, self._deferred = self._deferred, None
        if deferred is not None:
            gradients = deferred.due.totals()
            if deferred.usable:
                self.parts.embedding.update(deferred.due.rows, gradients, deferred.scale, deferred.lr)

    @property
    def in_flight_bytes(self) -> int:
        """See `Schedule.in_flight_bytes`."""
        rows = self.parts.embedding.row_bytes(self._ahead.lookup) if self._ahead else 0
        return rows + (self._deferred.rider.flat.nbytes if self._deferred else 0)

    def stop(self) -> None:
        """See `Schedule.stop`."""
        self.drain()
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            ahead.exclusive.wait()
            if ahead.collision is not None:
                ahead.collision.wait()
        for _, handle in self._accumulated:
            handle.wait()
        self._window, self._accumulated = [], []

    def _lookup_for(self, ids: Ids) -> tuple[Lookup, Callable[[], list[Tensor]]]:
        """The batch's lookup and what waits for its rows: prepared during the step before, or begun now."""
        ahead, self._ahead = self._ahead, None
        if ahead is None:
            self.drain()
            embedding = self.parts.embedding
            lookup = run(embedding.distribute(self.parts.lanes["ids"], embedding.deduplicate(ids)), self.parts.side)
            rows = fetch_all(self.parts, lookup)
            return lookup, lambda: rows
        check_announced(ahead.ids, ids)
        return ahead.lookup, lambda: self._merged(ahead)

    def _merged(self, ahead: _Ahead) -> list[Tensor]:
        """Per group, the batch's rows: the exclusive ones and, in their places, the collision rows."""
        exclusive = self.parts.embedding.received(ahead.exclusive, ahead.exclusive_counts)
        if ahead.collision is None:
            return exclusive
        collision = self.parts.embedding.received(ahead.collision, ahead.late.ask_counts)
        return put_together(ahead.late.asked, collision, exclusive)

    def _prepare(self, ids: Ids, update: bool) -> Chain[_Ahead]:
        """IDs of the next batch, its split, and its exclusive rows on their way."""
        embedding, lanes = self.parts.embedding, self.parts.lanes
        wanted = embedding.deduplicate(ids)
        wanted.find_positions()
        yield self.parts.opening
        self.parts.side.catch_up()  # to the urgent rows, which the deferred gradients would slow down
        self.parts.side.take(self._deferred)
        rider = self._deferred.rider if self._deferred is not None else None
        lookup = yield from embedding.distribute(lanes["bulk"], wanted, rider)
        self.drain()  # before anything reads these rows
        # Without an update after this batch nothing collides: the next one reads the same weights.
        colliding = colliding_rows(self._window if update else [], lookup)
        yield self.parts.opening
        late, urgent = yield from tell_requesters(lanes["ids"], colliding, [lookup, self._window[-1]])
        exclusive = rest_of(lookup.served, late.served)
        send, receive = rest(lookup.serve_counts, late.serve_counts), rest(lookup.ask_counts, late.ask_counts)
        yield self.parts.opening
        under_way = embedding.look_up(lanes["bulk"], exclusive, send, receive)
        return _Ahead(ids, lookup, colliding, late, urgent, under_way, receive)

    def _send_gradients(self, lookup: Lookup, ahead: _Ahead | None) -> Sums:
        """Collision rows first, on a lane of their own, the others deferred; returns what the former will add up to.

        Where gradients go is worked out before they come: only the update itself is left to do then.
        """
        parts, embedding, lanes = self.parts, self.parts.embedding, self.parts.lanes
        self.drain()  # the step before, if no next batch made it happen earlier
        earlier = [embedding.contribution(handle, of.served, of.serve_counts) for of, handle in self._accumulated]

        if ahead is None:
            rider = embedding.rider(lanes["bulk"], lookup.gradients(), lookup.ask_counts, lookup.serve_counts)
            everything = [*earlier, embedding.contribution(rider, lookup.served, lookup.serve_counts)]
            self._deferred = _Deferred(rider, Sums(everything), embedding.lr, parts.scale)
            return Sums([])

        split, gradients = ahead.urgent, lookup.gradients()
        first = embedding.give_back(
            lanes["urgent"], marked_of(gradients, split.asked), split.ask_counts, split.serve_counts
        )
        send, receive = rest(lookup.ask_counts, split.ask_counts), rest(lookup.serve_counts, split.serve_counts)
        rider = embedding.rider(lanes["bulk"], rest_of(gradients, split.asked), send, receive)
        exclusive = embedding.contribution(rider, rest_of(lookup.served, split.served), receive)
        deferred = Sums([*(one.where_not(ahead.colliding) for one in earlier), exclusive])
        self._deferred = _Deferred(rider, deferred, embedding.lr, parts.scale)

        urgent = embedding.contribution(first, marked_of(lookup.served, split.served), split.serve_counts)
        return Sums([*(one.where(ahead.colliding) for one in earlier), urgent])
