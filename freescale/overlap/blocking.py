"""The two baselines: every exchange blocks, or all but that of IDs."""

from __future__ import annotations

from freescale.overlap.contribution import Contribution, Sums
from freescale.overlap.lookup import Lookup
from freescale.overlap.schedule import Ids, LossOf, Parts, check_announced, fetch_all, send_back_all
from freescale.overlap.stages import Stages


class BlockingSchedule:
    """IDs, rows and gradients are exchanged in turn, each waited for; see `Schedule`.

    Args:
        prefetch_ids: exchange the next batch's IDs while this one computes, as TorchRec's sparse-dist pipeline does
            (`sdd`).
    """

    def __init__(self, parts: Parts, *, prefetch_ids: bool = False) -> None:
        self.parts, self.prefetch_ids = parts, prefetch_ids
        self._prefetched: tuple[Ids, Stages[Lookup]] | None = None
        self._window: list[Contribution] = []

    def step(self, ids: Ids, next_ids: Ids | None, loss_of: LossOf, *, update: bool = True) -> Lookup:
        """See `Schedule.step`."""
        parts, embedding = self.parts, self.parts.embedding
        lookup = self._take(ids).finish()
        embedded = embedding.embed(lookup, fetch_all(parts, lookup))
        if self.prefetch_ids and next_ids is not None:
            self._prefetched = (next_ids, self._distribute(next_ids))
        parts.compute(loss_of, lookup, embedded, new_window=not self._window, advance=self._advance)
        returned = send_back_all(parts, lookup)
        returned.wait()
        self._window.append(embedding.contribution(returned, lookup.served, lookup.serve_counts))
        if update:
            scale = parts.scale
            usable = parts.usable()
            parts.step_dense()
            if usable:
                due = Sums(self._window)
                embedding.update(due.rows, due.totals(), scale, embedding.lr)
            self._window = []
        return lookup

    def drain(self) -> None:
        """Nothing is ever pending."""

    @property
    def in_flight_bytes(self) -> int:
        """See `Schedule.in_flight_bytes`; rows are fetched when they are needed."""
        return 0

    def stop(self) -> None:
        """See `Schedule.stop`."""
        if self._prefetched:
            self._prefetched[1].finish()
        self._prefetched, self._window = None, []

    def _take(self, ids: Ids) -> Stages[Lookup]:
        prefetched, self._prefetched = self._prefetched, None
        if prefetched is None:
            return self._distribute(ids)
        check_announced(prefetched[0], ids)
        return prefetched[1]

    def _distribute(self, ids: Ids) -> Stages[Lookup]:
        embedding = self.parts.embedding
        chain = embedding.distribute(self.parts.lanes["ids"], embedding.deduplicate(ids))
        return Stages(chain, self.parts.side)

    def _advance(self) -> None:
        if self._prefetched:
            self._prefetched[1].advance()
