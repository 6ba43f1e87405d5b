"""Cutting a stream of JSON text into pieces of whole events.

A piece ends where an event ends. Cut anywhere else it could not be valid JSON: a bracket or a string would stay open.
So the decoder itself proves each cut right, and nothing has to scan the text character by character.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from analyzer import lanes
from analyzer.decimals import NotExact
from analyzer.errors import AnalyzerError
from analyzer.files import Chunks
from analyzer.kineto.decode import EventDecoder
from analyzer.kineto.salvage import DECODE_ERRORS, Damage, clean, salvage
from analyzer.kineto.table import Events, EventTable

_MAX_HEADER_BYTES = 256 << 20
_MAX_EVENT_BYTES = 64 << 20
_PATIENCE_BYTES = 16 << 20  # before text that cannot be cut is taken for damaged
_ARRAY = re.compile(rb'"traceEvents"\s*:\s*\[')
_ARRAY_BYTES = 256  # more than the text that _ARRAY matches
_LIKELY_CUT = re.compile(rb'\}\s*,(?=\s*\{\s*"(?:ph|name|cat|pid|tid|ts|dur|args|id|bp|s)"\s*:)')
_POSSIBLE_CUT = re.compile(rb"\}\s*,(?=\s*\{)")
_NEAR_BYTES = 1 << 12  # of the end; a cut is usually there
_CUTS_TRIED = 4
_TAIL_BYTES = 64

_NOT_FOR_FLOATS = re.compile(rb'"ts"\s*:\s*(?:"|[89]\d{12}\.|\d{14,}\.|\d{17})')
_SNIFF_BYTES = 1 << 14

_LAST_EVENT = b'"Record Window End"'  # Kineto writes it after all others,
_LAST_BYTES = 1 << 12  # but for a few that it does not measure

_Piece = tuple[bytes | memoryview, Sequence[Any]]


def read_events(chunks: Chunks | Iterable[bytes], path: str, with_ops: bool | None = None) -> Events:
    """Decode the complete events of a Kineto trace, given the bytes of its JSON text in chunks.

    Args:
        path: names the file in messages.
        with_ops: keep dispatcher ops (`cpu_op`) and their input shapes. They are half of a trace, and where a device
            computes they only launch; so by default they are kept unless the trace says that its job uses a device.

    Raises:
        AnalyzerError: not JSON, no `traceEvents` in it, or cut short, so that an unknown part of its events is gone.
    """
    reader = _Reader(path)
    try:
        rest = reader.read_header(iter_chunks := iter(chunks))
        used = lanes.DEVICE_CATEGORIES | lanes.HOST_CATEGORIES
        if not with_ops and (with_ops is not None or _has_device(reader.metadata)):
            used -= lanes.OP_CATEGORIES
        table = EventTable(path, used)
        decoder = EventDecoder(used)
        for array, events in reader.pieces(rest, iter_chunks, decoder):
            try:
                table.add(events)
            except NotExact:
                decoder.keep_digits()
                table.add(decoder.decode_any(array) or [])
            del array, events  # so that the next piece gets the same memory, which is in the cache
    except _NoEvents as nothing:
        damage = getattr(chunks, "damage", None)
        why = f"damaged ({damage}); copy it again" if damage else str(nothing)
        raise AnalyzerError(f"{path}: {why}") from nothing
    damage = getattr(chunks, "damage", None)
    if not reader.whole and not reader.saw_last_event:
        reason = damage or "the list of events does not end"
        raise AnalyzerError(f"{path}: cut short after {table.seen} events ({reason}); copy or export it again")
    warnings = list(reader.warnings)
    if not reader.whole:
        warnings.append(f"{path}: the end of the file is missing; all recorded events are there")
    elif damage:
        warnings.append(f"{path}: the compressed file is damaged at its end; all events could be read")
    if reader.damage.repaired:
        warnings.append(f"{path}: {_events(reader.damage.repaired)} not valid JSON; read as far as needed")
    if reader.damage.lost:
        warnings.append(f"{path}: {_events(reader.damage.lost)} unreadable and left out")
    return table.finish(reader.metadata, warnings)


class _NoEvents(Exception):
    """The text ends before the list of events begins."""


def _has_device(metadata: dict[str, Any]) -> bool:
    """Whether a trace that begins like this is of a job with devices, whose ops only launch."""
    distributed = metadata.get("distributedInfo")
    backend = distributed.get("backend") if isinstance(distributed, dict) else None
    return bool(metadata.get("deviceProperties")) or backend == "nccl"


def _events(count: int) -> str:
    return f"{count} event{'s' * (count != 1)}"


class _Reader:
    """Turns text into lists of events; what stands before and after the events becomes `metadata`."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.metadata: dict[str, Any] = {}
        self.warnings: list[str] = []
        self.damage = Damage()
        self.whole = False  # the end of the event array was seen
        self._tail = b""  # of the text that was there

    @property
    def saw_last_event(self) -> bool:
        return _LAST_EVENT in self._tail

    def read_header(self, chunks: Iterator[bytes]) -> bytes:
        """Read up to the first event; return what follows the opening bracket of the event array."""
        buffer = bytearray()
        for chunk in chunks:
            search_from = max(0, len(buffer) - _ARRAY_BYTES)
            buffer += chunk
            start = bytes(buffer[:_ARRAY_BYTES]).removeprefix(b"\xef\xbb\xbf").lstrip()
            if start[:1] == b"[":
                return bytes(buffer[buffer.index(b"[") + 1 :])
            if start and start[:1] != b"{":
                raise AnalyzerError(f"{self.path}: not JSON; give a trace exported by the PyTorch profiler")
            if match := _ARRAY.search(buffer, search_from):
                before = bytes(buffer[: match.start()]).removeprefix(b"\xef\xbb\xbf")
                self._remember(before.rstrip().rstrip(b",") + b"}")
                return bytes(buffer[match.end() :])
            if len(buffer) > _MAX_HEADER_BYTES:
                break
        if not buffer.strip():
            raise _NoEvents("empty; export the trace again")
        raise _NoEvents('no "traceEvents" in it; give a trace exported by the PyTorch profiler')

    def pieces(self, rest: bytes, chunks: Iterator[bytes], decoder: EventDecoder) -> Iterator[_Piece]:
        """Pieces of whole events: `rest` of the header's text first, then the chunks."""
        if _NOT_FOR_FLOATS.search(rest, 0, _SNIFF_BYTES):
            decoder.keep_digits()
        text, self._tail = _Text(rest), rest[-_LAST_BYTES:]
        for chunk in chunks:
            text.append(chunk)
            self._tail = (self._tail + chunk[-_LAST_BYTES:])[-_LAST_BYTES:]
            piece = self._next_piece(text, decoder)
            if piece is not None:
                yield piece
                del piece
            if len(text) > _MAX_EVENT_BYTES:
                raise AnalyzerError(f"{self.path}: one event is longer than {_MAX_EVENT_BYTES >> 20} MiB; not a trace")
        yield self._last_piece(text.take(len(text)), decoder)

    def _next_piece(self, text: _Text, decoder: EventDecoder) -> _Piece | None:
        """As many whole events as the text holds; they are taken from it."""
        cuts = _cuts(text.view())
        for cut in cuts:
            array = text.array_up_to(cut)
            events = decoder.decode(array)
            if events is not None:
                text.drop(cut)
                return array, events
            text.restore(cut)
        if not cuts or len(text) < _PATIENCE_BYTES:
            return None
        return b"", salvage(text.take(cuts[0])[:-1], self.damage)

    def _last_piece(self, text: bytes, decoder: EventDecoder) -> _Piece:
        for end in _array_ends(text):
            array = b"[" + text[: end + 1]
            events = decoder.decode(array)
            if events is not None:
                self._ended(text[end + 1 :])
                return array, events
        for end in _array_ends(text):  # damaged events, or none: the first bracket with plain fields behind it
            if _is_tail(text[end + 1 :]):
                self._ended(text[end + 1 :])
                return b"", salvage(text[:end], self.damage)
        cuts = _cuts(text)
        return b"", salvage(text[: cuts[0] - 1], self.damage) if cuts else []

    def _ended(self, tail: bytes) -> None:
        self.whole = True
        self._remember(b"{" + tail.lstrip().lstrip(b","))

    def _remember(self, text: bytes) -> None:
        if text.strip(b"{} \n\r\t,") == b"":
            return
        try:
            self.metadata.update(msgspec.json.decode(clean(text), type=dict[str, Any]))
        except DECODE_ERRORS:
            self.warnings.append(f"{self.path}: what the trace says about itself is unreadable and left out")


class _Text:
    """Text not yet decoded, in one buffer that is used again and again; a byte before it is kept free for a bracket."""

    def __init__(self, text: bytes) -> None:
        self._buffer = bytearray(b"[" + text)
        self._start, self._end = 1, 1 + len(text)  # of the text in the buffer

    def __len__(self) -> int:
        return self._end - self._start

    def append(self, more: bytes) -> None:
        rest = self._buffer[self._start : self._end]
        self._start, self._end = 1, 1 + len(rest) + len(more)
        if self._end > len(self._buffer):
            self._buffer = bytearray(2 * self._end)
        self._buffer[1 : 1 + len(rest)] = rest
        self._buffer[1 + len(rest) : self._end] = more

    def view(self) -> memoryview:
        return memoryview(self._buffer)[self._start : self._end]

    def array_up_to(self, cut: int) -> memoryview:
        """The text before the comma that ends at `cut`, between brackets; valid until the next `append`."""
        self._buffer[self._start - 1] = ord("[")
        self._buffer[self._start + cut - 1] = ord("]")
        return memoryview(self._buffer)[self._start - 1 : self._start + cut]

    def restore(self, cut: int) -> None:
        """Undo `array_up_to`."""
        self._buffer[self._start + cut - 1] = ord(",")

    def drop(self, cut: int) -> None:
        self._start += cut

    def take(self, cut: int) -> bytes:
        taken = bytes(self.view()[:cut])
        self.drop(cut)
        return taken


def _cuts(text: bytes | memoryview) -> list[int]:
    """Ends of the commas between two events, a few, the last first; unlikely ones only if there are no others."""
    near = max(0, len(text) - _NEAR_BYTES)
    for pattern, start in ((_LIKELY_CUT, near), (_LIKELY_CUT, 0), (_POSSIBLE_CUT, near)):
        cuts = [match.end() for match in pattern.finditer(text, start)]
        if cuts:
            return cuts[: -_CUTS_TRIED - 1 : -1]
    return []


def _array_ends(text: bytes) -> Iterator[int]:
    """Positions of brackets that may close the event array, from the back."""
    end = len(text)
    while (end := text.rfind(b"]", 0, end)) >= 0:
        before = text[max(0, end - _TAIL_BYTES) : end].rstrip()
        if before.endswith((b"}", b",")) or (not before and end <= _TAIL_BYTES):
            yield end


def _is_tail(text: bytes) -> bool:
    """Whether plain fields and the end of the document are all that is there."""
    text = clean(text).strip()
    if text in (b"", b"}"):
        return True
    try:
        return bool(msgspec.json.decode(b"{" + text.lstrip(b","), type=dict[str, msgspec.Raw]))
    except DECODE_ERRORS:
        return False
