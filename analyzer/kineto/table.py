"""Columns of events, grown piece by piece; every text is kept once."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import compress
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar
from zlib import crc32

import msgspec
import numpy as np
from numpy.typing import NDArray

from analyzer import lanes
from analyzer.decimals import floats_to_ns, scaled_integers
from analyzer.intervals import Int64
from analyzer.kineto.fields import (
    CategoryEvent,
    DeviceArgs,
    LaunchArgs,
    OpArgs,
    integer,
    optional_text,
    text,
)

_LONGEST_EVENT_NS = 24 * 3600 * 10**9  # no step lasts a day; counters that wrapped around do
_FARTHEST_NS = 3600 * 10**9  # from the middle of a trace; no trace lasts two hours
_DIGITS_OF_NS = 18  # today in ns has 19 digits before the point, in µs 16
_SAMPLE = 100
_LIMIT_NS = 1 << 62

_Struct = TypeVar("_Struct", bound=msgspec.Struct)
Mask = NDArray[np.bool_]


class CollectiveArgs(NamedTuple):
    """What Kineto writes about a collective beside its name; None where it does not."""

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
    """The complete events of one file that the analyzer uses, in file order; columns have one length n.

    `category`, `name_id` and `thread` index `categories`, `names` and `threads`. -1 stands for absent in the others:
    `stream`, `device`, `bytes` and `collective` (which indexes `collectives`) are of device intervals, `correlation`
    also of launching calls; `shape` tells apart grids of kernels and input shapes of ops, alike in all files.
    """

    start_ns: Int64
    end_ns: Int64
    category: NDArray[np.int16]
    name_id: NDArray[np.int32]
    thread: NDArray[np.int32]
    stream: NDArray[np.int32]
    device: NDArray[np.int16]
    correlation: Int64
    bytes: Int64
    shape: NDArray[np.int32]
    collective: NDArray[np.int32]
    categories: list[str]
    names: list[str]
    threads: list[str]
    collectives: list[CollectiveArgs]
    metadata: dict[str, Any]
    warnings: list[str] = field(default_factory=list)

    def of(self, categories: Iterable[str]) -> Mask:
        """Mask of the events in any of these categories."""
        return _table(self.categories, set(categories))[self.category]


_DTYPES: dict[str, Any] = {
    "start_ns": np.int64,
    "end_ns": np.int64,
    "category": np.int16,
    "name_id": np.int32,
    "thread": np.int32,
    "stream": np.int32,
    "device": np.int16,
    "correlation": np.int64,
    "bytes": np.int64,
    "shape": np.int32,
    "collective": np.int32,
}


class _Interned(dict[Any, int]):
    """Gives each new key the next number."""

    def __missing__(self, key: Any) -> int:
        self[key] = number = len(self)
        return number

    def numbers(self, keys: Iterable[Any], count: int) -> NDArray[np.int32]:
        return np.fromiter(map(self.__getitem__, keys), np.int32, count)


class _Fingerprints(dict[bytes, int]):
    """Gives each text a number that is the same in every file, so that ranks can be compared."""

    def __missing__(self, key: bytes) -> int:
        self[key] = number = crc32(key) & 0x7FFFFFFF
        return number


class _UsedTypes(dict[type[CategoryEvent], bool]):
    """Whether the events of a type are of a category that is used; by type, because there are so many of each."""

    def __init__(self, used: frozenset[str]) -> None:
        super().__init__()
        self._used = used

    def __missing__(self, key: Any) -> bool:
        self[key] = key.cat in self._used
        return self[key]


class EventTable:
    """Grows columns from pieces of events, of the categories `used`. `seen` counts the events so far, used or not."""

    def __init__(self, path: str, used: frozenset[str]) -> None:
        self.path = path
        self.seen = 0
        self._used = used
        self._is_used = _UsedTypes(used)
        self._scale_digits: int | None = None
        self._blocks: list[dict[str, np.ndarray]] = []
        self._categories, self._names, self._threads = _Interned(), _Interned(), _Interned()
        self._shapes, self._collectives = _Fingerprints(), _Interned()
        self._dropped: dict[str, int] = {}

    def add(self, events: Sequence[Any]) -> None:
        """Add the events of a piece.

        Raises:
            NotExact: a time does not fit a float; nothing was added. Decode the piece as AnyEvent.
        """
        kept = self._chosen(events)
        if kept:
            category = self._categories.numbers(map(attrgetter("cat"), kept), len(kept))
            start, duration, valid = self._times(kept)
            good = self._keep(
                {
                    "without a usable timestamp or duration": ~valid,
                    "with a negative duration": valid & (duration < 0),
                    "longer than a day": valid & (duration > _LONGEST_EVENT_NS),
                }
            )
            if not good.all():
                kept = list(compress(kept, good.tolist()))
                category, start, duration = category[good], start[good], duration[good]
            self._blocks.append(
                {
                    "start_ns": start,
                    "end_ns": start + duration,
                    "category": category.astype(np.int16),
                    "name_id": self._interned(self._names, "name", kept),
                    "thread": self._interned(self._threads, "tid", kept),
                    **self._arguments(kept, category),
                }
            )
        self.seen += len(events)

    def _chosen(self, events: Sequence[Any]) -> list[Any]:
        """The events of a category that is used."""
        if events and isinstance(events[0], CategoryEvent):
            return list(compress(events, map(self._is_used.__getitem__, map(type, events))))
        return [event for event in events if event.cat in self._used]

    def _times(self, events: list[Any]) -> tuple[Int64, Int64, Mask]:
        if isinstance(events[0].ts, float):
            start, start_valid = floats_to_ns(np.fromiter(map(attrgetter("ts"), events), np.float64, len(events)))
        else:
            starts = list(map(attrgetter("ts"), events))
            if self._scale_digits is None:
                digits = sorted(len(bytes(start).strip(b' "').partition(b".")[0]) for start in starts[:_SAMPLE])
                self._scale_digits = 0 if digits[len(digits) // 2] >= _DIGITS_OF_NS else 3
            start, start_valid = scaled_integers(starts, self._scale_digits)
        if not isinstance(events[0].dur, float):
            durations = list(map(attrgetter("dur"), events))
            duration, valid = scaled_integers(durations, 3 if self._scale_digits is None else self._scale_digits)
        else:
            duration, valid = floats_to_ns(np.fromiter(map(attrgetter("dur"), events), np.float64, len(events)))
            if self._scale_digits == 0:
                duration //= 1000
        return start, duration, start_valid & valid

    @staticmethod
    def _interned(table: _Interned, attribute: str, events: list[Any]) -> NDArray[np.int32]:
        try:
            return table.numbers(map(attrgetter(attribute), events), len(events))
        except TypeError:  # a list or an object where a name should be
            return table.numbers([text(getattr(event, attribute)) for event in events], len(events))

    def _arguments(self, events: list[Any], category: NDArray[np.int32]) -> dict[str, np.ndarray]:
        """Columns from arguments, each decoded only for the categories in which it is used."""
        columns = {name: np.full(len(events), -1, _DTYPES[name]) for name in _ARGUMENT_COLUMNS}
        on_device = _table(self._categories, lanes.DEVICE_CATEGORIES)[category]
        if on_device.any():
            arguments = _decode(_device_args, compress(events, on_device.tolist()))
            found = {  # written out, because so each is looked up once
                "stream": _integers([a.stream for a in arguments], np.int32),
                "device": _integers([a.device for a in arguments], np.int16),
                "correlation": _integers([a.correlation for a in arguments], np.int64),
                "bytes": _integers([a.bytes for a in arguments], np.int64),
                "shape": [self._shapes[grid] if (grid := b"".join((a.grid, a.block))) else -1 for a in arguments],
                "collective": [-1 if a.collective is None else self._collectives[_collective(a)] for a in arguments],
            }
            for name, values in found.items():
                columns[name][on_device] = values
        launching = _table(self._categories, lanes.LAUNCH_CATEGORIES)[category]
        if launching.any():
            calls = _decode(_launch_args, compress(events, launching.tolist()))
            columns["correlation"][launching] = _integers([call.correlation for call in calls], np.int64)
        is_op = _table(self._categories, lanes.OP_CATEGORIES)[category]
        if is_op.any():
            ops = _decode(_op_args, compress(events, is_op.tolist()))
            columns["shape"][is_op] = [self._shapes[bytes(op.input_dims)] if op.input_dims else -1 for op in ops]
        return columns

    def _keep(self, reasons: dict[str, Mask]) -> Mask:
        """Mask of the events that no reason speaks against; the others are counted."""
        bad = np.zeros(len(next(iter(reasons.values()))), bool)
        for reason, mask in reasons.items():
            if mask.any():
                self._dropped[reason] = self._dropped.get(reason, 0) + int((mask & ~bad).sum())
                bad |= mask
        return ~bad

    def finish(self, metadata: dict[str, Any], warnings: list[str]) -> Events:
        columns = {
            name: np.concatenate([block.pop(name) for block in self._blocks] or [np.empty(0)]).astype(dtype, copy=False)
            for name, dtype in _DTYPES.items()
        }
        start = columns["start_ns"]
        if len(start) and np.ptp(start) > _FARTHEST_NS:
            far = np.abs(start - np.median(start).astype(np.int64)) > _FARTHEST_NS
            good = self._keep({"more than an hour away from the others": far})
            columns = columns if good.all() else {name: column[good] for name, column in columns.items()}
        for reason, count in self._dropped.items():
            warnings.append(f"{self.path}: {count} event{'s' * (count > 1)} {reason} left out")
        base = metadata.get("baseTimeNanoseconds")
        origin = base if isinstance(base, int) and not isinstance(base, bool) and 0 <= base < _LIMIT_NS else 0
        columns["start_ns"] += origin
        columns["end_ns"] += origin
        names = [text(name) for name in self._names]
        marks = np.fromiter(map(lanes.is_mark, names), bool, len(names))
        if marks.any():
            columns["category"][marks[columns["name_id"]]] = self._categories[lanes.ANNOTATION]
        return Events(
            **columns,
            categories=[text(category) for category in self._categories],
            names=names,
            threads=[text(thread) for thread in self._threads],
            collectives=list(self._collectives),
            metadata=metadata,
            warnings=warnings,
        )


_ARGUMENT_COLUMNS = ("stream", "device", "correlation", "bytes", "shape", "collective")
_device_args = msgspec.json.Decoder(list[DeviceArgs])
_launch_args = msgspec.json.Decoder(list[LaunchArgs])
_op_args = msgspec.json.Decoder(list[OpArgs])


def _decode(decoder: msgspec.json.Decoder[list[_Struct]], events: Iterable[Any]) -> list[_Struct]:
    """The arguments of each event, decoded now unless they are already; of one whose arguments are no object, none."""
    raw = list(map(attrgetter("args"), events))
    if not isinstance(raw[0], msgspec.Raw):
        return raw
    try:
        return decoder.decode(b"[" + b",".join(raw) + b"]")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return [_decode_one(decoder, item) for item in raw]


def _decode_one(decoder: msgspec.json.Decoder[list[_Struct]], raw: bytes) -> _Struct:
    try:
        return decoder.decode(b"[" + raw + b"]")[0]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return decoder.decode(b"[{}]")[0]


def _collective(args: DeviceArgs) -> CollectiveArgs:
    return CollectiveArgs(
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


def _table(keys: Iterable[Any], wanted: set[str] | frozenset[str]) -> Mask:
    """bool[number of keys]: which are wanted."""
    return np.array([key in wanted for key in keys] or [False], bool)


def _integers(values: list[Any], dtype: Any) -> np.ndarray:
    """Integers, -1 where a value is absent, no integer, or too large."""
    with contextlib.suppress(TypeError, ValueError, OverflowError):
        plain = np.array([-1 if value is None else value for value in values] if None in values else values, dtype)
        if plain.ndim == 1:
            return plain
    limit = np.iinfo(dtype).max
    numbers = (integer(value) for value in values)
    return np.array([-1 if n is None or not -limit <= n <= limit else n for n in numbers], dtype)
