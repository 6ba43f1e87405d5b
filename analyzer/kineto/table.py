"""Columns of events, grown piece by piece; every text is kept once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from analyzer import lanes
from analyzer.decimals import scaled_integers
from analyzer.intervals import Int64
from analyzer.kineto.fields import NO_ARGS, Args, Event, integer, optional_text, text

_LONGEST_EVENT_NS = 24 * 3600 * 10**9  # no step lasts a day; counters that wrapped around do
_FARTHEST_NS = 3600 * 10**9  # from the middle of a trace; no trace lasts two hours
_DIGITS_OF_NS = 18  # today in ns has 19 digits before the point, in µs 16
_TAIL_EVENTS = 16
_LIMIT_NS = 1 << 62
_LAST_EVENT = "Record Window End"  # Kineto writes it after all others


class CollectiveArgs(NamedTuple):
    """What Kineto writes about a collective beside its name; None or UNKNOWN where it does not."""

    name: str
    group: str | None
    description: str | None
    seq: int | None
    in_elements: int | None
    out_elements: int | None
    dtype: str | None
    source: int | None
    destination: int | None


@dataclass
class Events:
    """The complete events of one file, in file order; columns have one length n.

    `thread` indexes `threads` (pairs of pid and tid as text), `category` indexes `categories`, `name_id` indexes
    `names`, `shape` indexes distinct grids or input shapes, `collective` indexes `collectives`; -1 is absent.
    """

    start_ns: Int64
    end_ns: Int64
    category: NDArray[np.int16]
    name_id: NDArray[np.int32]
    thread: NDArray[np.int32]
    stream: Int64
    device: Int64
    correlation: Int64
    bytes: Int64
    shape: NDArray[np.int32]
    collective: NDArray[np.int32]
    categories: list[str]
    names: list[str]
    threads: list[tuple[str, str]]
    collectives: list[CollectiveArgs]
    metadata: dict[str, Any]
    warnings: list[str] = field(default_factory=list)

    def of(self, categories: Iterable[str]) -> NDArray[np.bool_]:
        """Mask of the events in any of these categories."""
        ids = [i for i, category in enumerate(self.categories) if category in categories]
        return np.isin(self.category, ids)


class EventTable:
    """Grows columns from pieces of events, interning every text.

    `seen` counts the events so far, used or not; `complete` turns true with the one that Kineto writes last.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.seen = 0
        self.complete = False
        self._scale_digits: int | None = None
        self._blocks: list[dict[str, np.ndarray]] = []
        self._categories: dict[str, int] = {}
        self._names: dict[str, int] = {}
        self._threads: dict[tuple[str, str], int] = {}
        self._shapes: dict[object, int] = {}
        self._collectives: dict[CollectiveArgs, int] = {}
        self._dropped: dict[str, int] = {}

    def add(self, events: list[Event]) -> None:
        self.seen += len(events)
        self.complete = self.complete or any(event.name == _LAST_EVENT for event in events[-_TAIL_EVENTS:])
        kept = [event for event in events if event.ph == "X" and event.cat in _KEPT_CATEGORIES]
        if not kept:
            return
        starts = [bytes(event.ts) for event in kept]
        if self._scale_digits is None:
            digits = sorted(len(start.strip(b' "').partition(b".")[0]) for start in starts)
            self._scale_digits = 0 if digits[len(digits) // 2] >= _DIGITS_OF_NS else 3
        start, start_ok = scaled_integers(starts, self._scale_digits)
        duration, duration_ok = scaled_integers([bytes(event.dur) for event in kept], self._scale_digits)
        good = self._keep(
            {
                "without a usable timestamp or duration": ~(start_ok & duration_ok),
                "with a negative duration": duration_ok & (duration < 0),
                "longer than a day": duration_ok & (duration > _LONGEST_EVENT_NS),
            }
        )
        if not good.all():
            kept = [event for event, is_good in zip(kept, good, strict=True) if is_good]
            start, duration = start[good], duration[good]
        self._blocks.append({"start_ns": start, "end_ns": start + duration, **self._columns(kept)})

    def _keep(self, reasons: dict[str, NDArray[np.bool_]]) -> NDArray[np.bool_]:
        """Mask of the events that no reason speaks against; the others are counted."""
        bad = np.zeros(len(next(iter(reasons.values()))), bool)
        for reason, mask in reasons.items():
            if mask.any():
                self._dropped[reason] = self._dropped.get(reason, 0) + int((mask & ~bad).sum())
                bad |= mask
        return ~bad

    def _columns(self, events: list[Event]) -> dict[str, np.ndarray]:
        arguments = [event.args or NO_ARGS for event in events]
        categories, names, threads = self._categories, self._names, self._threads
        return {
            "category": np.array([categories.setdefault(text(e.cat), len(categories)) for e in events], np.int16),
            "name_id": np.array([names.setdefault(text(e.name), len(names)) for e in events], np.int32),
            "thread": np.array(
                [threads.setdefault((text(e.pid), text(e.tid)), len(threads)) for e in events], np.int32
            ),
            "stream": _integers([a.stream for a in arguments]),
            "device": _integers([a.device for a in arguments]),
            "correlation": _integers([a.correlation for a in arguments]),
            "bytes": _integers([a.bytes for a in arguments]),
            "shape": np.array([self._shape(a) for a in arguments], np.int32),
            "collective": np.array([-1 if a.collective is None else self._collective(a) for a in arguments], np.int32),
        }

    def _shape(self, args: Args) -> int:
        if args.grid is not None:
            key: object = (str(args.grid), str(args.block))
        elif args.input_dims:
            key = bytes(args.input_dims)
        else:
            return -1
        return self._shapes.setdefault(key, len(self._shapes))

    def _collective(self, args: Args) -> int:
        key = CollectiveArgs(
            text(args.collective),
            optional_text(args.group),
            optional_text(args.description),
            integer(args.seq),
            integer(args.in_elements),
            integer(args.out_elements),
            optional_text(args.dtype),
            integer(args.source),
            integer(args.destination),
        )
        return self._collectives.setdefault(key, len(self._collectives))

    def finish(self, metadata: dict[str, Any], warnings: list[str]) -> Events:
        columns = {
            name: np.concatenate([block.pop(name) for block in self._blocks] or [np.empty(0)]).astype(dtype, copy=False)
            for name, dtype in _DTYPES.items()
        }
        start = columns["start_ns"]
        if len(start):
            far = np.abs(start - np.median(start).astype(np.int64)) > _FARTHEST_NS
            good = self._keep({"more than an hour away from the others": far})
            columns = columns if good.all() else {name: column[good] for name, column in columns.items()}
        for reason, count in self._dropped.items():
            warnings.append(f"{self.path}: {count} event{'s' * (count > 1)} {reason} left out")
        base = metadata.get("baseTimeNanoseconds")
        origin = base if isinstance(base, int) and not isinstance(base, bool) and 0 <= base < _LIMIT_NS else 0
        columns["start_ns"] += origin
        columns["end_ns"] += origin
        return Events(
            **columns,
            categories=list(self._categories),
            names=list(self._names),
            threads=list(self._threads),
            collectives=list(self._collectives),
            metadata=metadata,
            warnings=warnings,
        )


_KEPT_CATEGORIES = lanes.DEVICE_CATEGORIES | lanes.HOST_CATEGORIES
_DTYPES: dict[str, Any] = {
    "start_ns": np.int64,
    "end_ns": np.int64,
    "category": np.int16,
    "name_id": np.int32,
    "thread": np.int32,
    "stream": np.int64,
    "device": np.int64,
    "correlation": np.int64,
    "bytes": np.int64,
    "shape": np.int32,
    "collective": np.int32,
}


def _integers(values: list[Any]) -> Int64:
    """int64[n], -1 where a value is absent or no integer."""
    try:
        return np.array([-1 if value is None else value for value in values], np.int64, ndmin=1)
    except (TypeError, ValueError, OverflowError):
        return np.array([-1 if (n := integer(value)) is None else n for value in values], np.int64, ndmin=1)
