"""The one place that reads Kineto JSON: a file in, columns of events out.

The file is decoded in pieces: a piece ends where an event ends, so each is a small JSON array of which only the
fields we need are decoded. A piece cut anywhere else cannot be valid JSON, so the decoder itself proves the cut right.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from analyzer import lanes
from analyzer.decimals import microseconds_to_ns
from analyzer.errors import AnalyzerError
from analyzer.intervals import Int64

_NOTHING = msgspec.Raw(b"")
_LONGEST_EVENT_NS = 24 * 3600 * 10**9  # no step lasts a day; counters that wrapped around do
_HEADER_LIMIT = 256 << 20
_ARRAY = re.compile(rb'"traceEvents"\s*:\s*\[')
_CUT = re.compile(rb'\}\s*,(?=\s*\{\s*"(?:ph|name|cat|pid|tid|ts|dur|args|id|bp|s)")')
_CUT_SEARCH = 1 << 20
_MICROSECONDS_LIMIT = 10**17  # the year 5138 in µs; a larger number counts ns


class _Args(msgspec.Struct, gc=False):
    """Arguments of an event that the analyzer uses, under Kineto's names."""

    name: Any = None
    labels: Any = None
    stream: Any = None
    device: Any = None
    correlation: Any = None
    bytes: Any = None
    grid: Any = None
    block: Any = None
    input_dims: msgspec.Raw = msgspec.field(name="Input Dims", default=_NOTHING)
    collective: Any = msgspec.field(name="Collective name", default=None)
    group: Any = msgspec.field(name="Process Group Name", default=None)
    description: Any = msgspec.field(name="Process Group Description", default=None)
    seq: Any = msgspec.field(name="Seq", default=None)
    in_elements: Any = msgspec.field(name="In msg nelems", default=None)
    out_elements: Any = msgspec.field(name="Out msg nelems", default=None)
    dtype: Any = None
    source: Any = msgspec.field(name="Src Rank", default=None)
    destination: Any = msgspec.field(name="Dst Rank", default=None)


class _Event(msgspec.Struct, gc=False):
    ph: str | None = None
    cat: str | None = None
    name: Any = None
    pid: Any = None
    tid: Any = None
    ts: msgspec.Raw = _NOTHING
    dur: msgspec.Raw = _NOTHING
    args: _Args | None = None


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
    thread_names: dict[tuple[str, str], str]
    process_labels: dict[str, str]
    collectives: list[CollectiveArgs]
    metadata: dict[str, Any]
    warnings: list[str] = field(default_factory=list)

    def of(self, categories: Iterable[str]) -> NDArray[np.bool_]:
        """Mask of the events in any of these categories."""
        ids = [i for i, category in enumerate(self.categories) if category in categories]
        return np.isin(self.category, ids)

    def named(self, wanted: dict[int, Any]) -> NDArray[np.bool_]:
        """Mask of the events whose name_id is a key of `wanted`."""
        return np.isin(self.name_id, list(wanted))


def read_events(chunks: Iterable[bytes], path: str) -> Events:
    """Decode the complete events of a Kineto trace, given as the bytes of its JSON text in chunks.

    Raises:
        AnalyzerError: not JSON, no `traceEvents` in it, or damaged beyond what can be skipped.
    """
    table = _EventTable(path)
    decoder = _PieceDecoder(path)
    for events in decoder.pieces(iter(chunks)):
        table.add(events)
    return table.finish(decoder.metadata, decoder.warnings)


class _PieceDecoder:
    """Turns a stream of bytes into lists of events; keeps what stands before and after them as `metadata`."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.metadata: dict[str, Any] = {}
        self.warnings: list[str] = []
        self._array = msgspec.json.Decoder(list[_Event])

    def pieces(self, chunks: Iterator[bytes]) -> Iterator[list[_Event]]:
        buffer = self._header(chunks)
        for chunk in chunks:
            buffer += chunk
            events, buffer = self._complete_events(buffer)
            if events:
                yield events
        yield self._last(buffer)

    def _header(self, chunks: Iterator[bytes]) -> bytes:
        """Read up to the first event and return what follows the opening bracket of the event array."""
        buffer = b""
        for chunk in chunks:
            buffer += chunk
            if buffer.lstrip()[:1] == b"[":
                return buffer.lstrip()[1:]
            if match := _ARRAY.search(buffer):
                self._remember(buffer[: match.start()].rstrip().rstrip(b",") + b"}")
                return buffer[match.end() :]
            if len(buffer) > _HEADER_LIMIT:
                break
        if not buffer.strip():
            raise AnalyzerError(f"{self.path}: the file is empty; export the trace again")
        raise AnalyzerError(f'{self.path}: no "traceEvents" in it; give a trace exported by the PyTorch profiler')

    def _complete_events(self, buffer: bytes) -> tuple[list[_Event], bytes]:
        """Decode as many whole events as the buffer holds; return them and the rest."""
        window = max(0, len(buffer) - _CUT_SEARCH)
        cuts = [match.end() for match in _CUT.finditer(buffer, window)]
        for cut in reversed(cuts[-4:]):
            events = self._decode(buffer[: cut - 1])
            if events is not None:
                return events, buffer[cut:]
        return [], buffer

    def _decode(self, elements: bytes) -> list[_Event] | None:
        try:
            return self._array.decode(b"[" + elements + b"]")
        except (msgspec.DecodeError, UnicodeDecodeError):
            return None

    def _last(self, buffer: bytes) -> list[_Event]:
        for end in _array_ends(buffer):
            events = self._decode(buffer[:end])
            if events is not None:
                self._remember(b"{" + buffer[end + 1 :].lstrip().lstrip(b","))
                return events
        raise AnalyzerError(f"{self.path}: the trace is damaged or cut short; export it again")

    def _remember(self, text: bytes) -> None:
        try:
            self.metadata.update(msgspec.json.decode(text))
        except (msgspec.DecodeError, UnicodeDecodeError):
            if text.strip(b"{} \n\r\t"):
                self.warnings.append(f"{self.path}: what the trace says about itself is unreadable and left out")


def _array_ends(buffer: bytes) -> Iterator[int]:
    """Positions of brackets that may close the event array, from the back: only plain fields stand after it."""
    end = len(buffer)
    while (end := buffer.rfind(b"]", 0, end)) >= 0:
        before = buffer[max(0, end - 64) : end].rstrip()
        if before.endswith(b"}") or (len(before) == 0 and end <= 64):
            yield end


class _EventTable:
    """Grows columns from pieces of events, interning every text."""

    def __init__(self, path: str) -> None:
        self.path = path
        self._blocks: list[dict[str, np.ndarray]] = []
        self._categories: dict[str, int] = {}
        self._names: dict[str, int] = {}
        self._threads: dict[tuple[str, str], int] = {}
        self._shapes: dict[object, int] = {}
        self._collectives: dict[CollectiveArgs, int] = {}
        self._thread_names: dict[tuple[str, str], str] = {}
        self._process_labels: dict[str, str] = {}
        self._dropped: dict[str, int] = {}

    def add(self, events: list[_Event]) -> None:
        kept = []
        for event in events:
            if event.ph == "X" and event.cat in _KEPT_CATEGORIES:
                kept.append(event)
            elif event.ph == "M" and event.args is not None:
                self._describe(event)
        if not kept:
            return
        start, start_ok = microseconds_to_ns([bytes(event.ts) for event in kept])
        duration, duration_ok = microseconds_to_ns([bytes(event.dur) for event in kept])
        if start_ok.any() and start[start_ok].max() > _MICROSECONDS_LIMIT * 1000:
            start, duration = start // 1000, duration // 1000
        reasons = {
            "without a usable timestamp or duration": ~(start_ok & duration_ok),
            "with a negative duration": duration_ok & (duration < 0),
            "longer than a day": duration_ok & (duration > _LONGEST_EVENT_NS),
        }
        bad = np.zeros(len(kept), bool)
        for reason, mask in reasons.items():
            if mask.any():
                self._dropped[reason] = self._dropped.get(reason, 0) + int(mask.sum())
                bad |= mask
        if bad.any():
            kept = [event for event, is_bad in zip(kept, bad, strict=True) if not is_bad]
            start, duration = start[~bad], duration[~bad]
        self._blocks.append({"start_ns": start, "end_ns": start + duration, **self._columns(kept)})

    def _columns(self, events: list[_Event]) -> dict[str, np.ndarray]:
        arguments = [event.args or _NO_ARGS for event in events]
        categories, names, threads = self._categories, self._names, self._threads
        return {
            "category": np.array([categories.setdefault(_text(e.cat), len(categories)) for e in events], np.int16),
            "name_id": np.array([names.setdefault(_text(e.name), len(names)) for e in events], np.int32),
            "thread": np.array(
                [threads.setdefault((_text(e.pid), _text(e.tid)), len(threads)) for e in events], np.int32
            ),
            "stream": _integers([a.stream for a in arguments]),
            "device": _integers([a.device for a in arguments]),
            "correlation": _integers([a.correlation for a in arguments]),
            "bytes": _integers([a.bytes for a in arguments]),
            "shape": np.array([self._shape(a) for a in arguments], np.int32),
            "collective": np.array([-1 if a.collective is None else self._collective(a) for a in arguments], np.int32),
        }

    def _shape(self, args: _Args) -> int:
        if args.grid is not None:
            key: object = (str(args.grid), str(args.block))
        elif args.input_dims:
            key = bytes(args.input_dims)
        else:
            return -1
        return self._shapes.setdefault(key, len(self._shapes))

    def _collective(self, args: _Args) -> int:
        key = CollectiveArgs(
            _text(args.collective),
            _optional_text(args.group),
            _optional_text(args.description),
            _integer(args.seq),
            _integer(args.in_elements),
            _integer(args.out_elements),
            _optional_text(args.dtype),
            _integer(args.source),
            _integer(args.destination),
        )
        return self._collectives.setdefault(key, len(self._collectives))

    def _describe(self, event: _Event) -> None:
        assert event.args is not None
        pid, tid = _text(event.pid), _text(event.tid)
        if event.name == "thread_name":
            self._thread_names[pid, tid] = _text(event.args.name)
        elif event.name == "process_labels":
            self._process_labels[pid] = _text(event.args.labels)

    def finish(self, metadata: dict[str, Any], warnings: list[str]) -> Events:
        for reason, count in self._dropped.items():
            warnings.append(f"{self.path}: {count} event{'s' * (count > 1)} {reason} left out")
        base = metadata.get("baseTimeNanoseconds")
        origin = base if isinstance(base, int) and not isinstance(base, bool) else 0
        columns = {
            name: np.concatenate([block[name] for block in self._blocks] or [np.empty(0, np.int64)])
            for name in ("start_ns", "end_ns", *_NARROW)
        }
        return Events(
            start_ns=columns["start_ns"] + origin,
            end_ns=columns["end_ns"] + origin,
            **{name: columns[name].astype(dtype, copy=False) for name, dtype in _NARROW.items()},
            categories=list(self._categories),
            names=list(self._names),
            threads=list(self._threads),
            thread_names=self._thread_names,
            process_labels=self._process_labels,
            collectives=list(self._collectives),
            metadata=metadata,
            warnings=warnings,
        )


_NO_ARGS = _Args()
_KEPT_CATEGORIES = lanes.DEVICE_CATEGORIES | lanes.HOST_CATEGORIES
_NARROW: dict[str, Any] = {
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


def _text(value: object) -> str:
    return value if isinstance(value, str) else str(value)


def _optional_text(value: object) -> str | None:
    return None if value is None else _text(value)


def _integer(value: object) -> int | None:
    """An integer written as a number or as text (`"12"`, `"0x0"`), or None."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value if abs(value) < 2**62 else None
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < 2**62 else None
    if isinstance(value, str):
        try:
            return int(value, 0) if len(value) < 20 else None
        except ValueError:
            return None
    return None


def _integers(values: list[Any]) -> Int64:
    """int64[n], -1 where a value is absent or no integer."""
    try:
        return np.array([-1 if value is None else value for value in values], np.int64, ndmin=1)
    except (TypeError, ValueError, OverflowError):
        return np.array([-1 if (n := _integer(value)) is None else n for value in values], np.int64, ndmin=1)
