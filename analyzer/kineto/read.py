"""Cutting a stream of JSON text into pieces of whole events.

A piece ends where an event ends. Cut anywhere else it could not be valid JSON: a bracket or a string would stay open.
So the decoder itself proves each cut right, and nothing has to scan the text character by character.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec

from analyzer.errors import AnalyzerError
from analyzer.files import Chunks
from analyzer.kineto.fields import Event
from analyzer.kineto.salvage import DECODE_ERRORS, Damage, clean, salvage
from analyzer.kineto.table import Events, EventTable

_MAX_HEADER_BYTES = 256 << 20
_MAX_EVENT_BYTES = 64 << 20
_ARRAY = re.compile(rb'"traceEvents"\s*:\s*\[')
_ARRAY_BYTES = 256  # more than the text that _ARRAY matches
_LIKELY_CUT = re.compile(rb'\}\s*,(?=\s*\{\s*"(?:ph|name|cat|pid|tid|ts|dur|args|id|bp|s)"\s*:)')
_POSSIBLE_CUT = re.compile(rb"\}\s*,(?=\s*\{)")
_CUT_SEARCH_BYTES = 1 << 20
_CUTS_TRIED = 4
_TAIL_BYTES = 64


def read_events(chunks: Chunks | Iterable[bytes], path: str) -> Events:
    """Decode the complete events of a Kineto trace, given the bytes of its JSON text in chunks.

    Args:
        path: names the file in messages.

    Raises:
        AnalyzerError: not JSON, no `traceEvents` in it, or cut short, so that an unknown part of its events is gone.
    """
    reader = _Reader(path)
    table = EventTable(path)
    for events in reader.pieces(iter(chunks)):
        table.add(events)
    if not reader.whole and not table.complete:
        reason = getattr(chunks, "damage", None) or "the list of events does not end"
        raise AnalyzerError(f"{path}: cut short after {table.seen} events ({reason}); copy or export it again")
    warnings = list(reader.warnings)
    if not reader.whole:
        warnings.append(f"{path}: the end of the file is missing; all recorded events are there")
    elif getattr(chunks, "damage", None):
        warnings.append(f"{path}: the compressed file is damaged at its end; all events could be read")
    if reader.damage.repaired:
        warnings.append(f"{path}: {_events(reader.damage.repaired)} not valid JSON; read as far as needed")
    if reader.damage.lost:
        warnings.append(f"{path}: {_events(reader.damage.lost)} unreadable and left out")
    return table.finish(reader.metadata, warnings)


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
        self._decode_array = msgspec.json.Decoder(list[Event]).decode

    def pieces(self, chunks: Iterator[bytes]) -> Iterator[list[Event]]:
        buffer = self._after_header(chunks)
        for chunk in chunks:
            buffer += chunk
            events, buffer = self._whole_events(buffer)
            if events:
                yield events
            if len(buffer) > _MAX_EVENT_BYTES:
                raise AnalyzerError(f"{self.path}: one event is longer than {_MAX_EVENT_BYTES >> 20} MiB; not a trace")
        yield self._last_events(buffer)

    def _after_header(self, chunks: Iterator[bytes]) -> bytes:
        """Read up to the first event; return what follows the opening bracket of the event array."""
        buffer = b""
        for chunk in chunks:
            search_from = max(0, len(buffer) - _ARRAY_BYTES)
            buffer = (buffer + chunk).removeprefix(b"\xef\xbb\xbf")
            start = buffer[:_ARRAY_BYTES].lstrip()
            if start[:1] == b"[":
                return buffer.lstrip()[1:]
            if start and start[:1] != b"{":
                raise AnalyzerError(f"{self.path}: not JSON; give a trace exported by the PyTorch profiler")
            if match := _ARRAY.search(buffer, search_from):
                self._remember(buffer[: match.start()].rstrip().rstrip(b",") + b"}")
                return buffer[match.end() :]
            if len(buffer) > _MAX_HEADER_BYTES:
                break
        if not buffer.strip():
            raise AnalyzerError(f"{self.path}: empty; export the trace again")
        raise AnalyzerError(f'{self.path}: no "traceEvents" in it; give a trace exported by the PyTorch profiler')

    def _whole_events(self, buffer: bytes) -> tuple[list[Event], bytes]:
        """Decode as many whole events as the buffer holds; return them and the rest."""
        cuts = self._cuts(buffer)
        for cut in cuts:
            events = self._decode(buffer[: cut - 1])
            if events is not None:
                return events, buffer[cut:]
        if not cuts:
            return [], buffer
        return salvage(buffer[: cuts[0] - 1], self.damage), buffer[cuts[0] :]

    @staticmethod
    def _cuts(buffer: bytes) -> list[int]:
        """Ends of the text between two events, the last first, likely ones only if there are any."""
        window = max(0, len(buffer) - _CUT_SEARCH_BYTES)
        for pattern, start in ((_LIKELY_CUT, window), (_LIKELY_CUT, 0), (_POSSIBLE_CUT, window)):
            cuts = [match.end() for match in pattern.finditer(buffer, start)]
            if cuts:
                return cuts[: -_CUTS_TRIED - 1 : -1]
        return []

    def _decode(self, elements: bytes) -> list[Event] | None:
        try:
            return self._decode_array(b"[" + elements + b"]")
        except DECODE_ERRORS:
            return None

    def _last_events(self, buffer: bytes) -> list[Event]:
        for end in _array_ends(buffer):
            events = self._decode(buffer[:end])
            if events is not None:
                return self._ended(events, buffer[end + 1 :])
        for end in _array_ends(buffer):  # damaged events, or none: the first bracket with plain fields behind it
            if self._is_tail(buffer[end + 1 :]):
                return self._ended(salvage(buffer[:end], self.damage), buffer[end + 1 :])
        cuts = self._cuts(buffer)
        return salvage(buffer[: cuts[0] - 1], self.damage) if cuts else []

    def _ended(self, events: list[Event], tail: bytes) -> list[Event]:
        self.whole = True
        self._remember(b"{" + tail.lstrip().lstrip(b","))
        return events

    @staticmethod
    def _is_tail(text: bytes) -> bool:
        text = clean(text).strip()
        if text in (b"", b"}"):
            return True
        try:
            return bool(msgspec.json.decode(b"{" + text.lstrip(b","), type=dict[str, msgspec.Raw]))
        except DECODE_ERRORS:
            return False

    def _remember(self, text: bytes) -> None:
        if text.strip(b"{} \n\r\t,") == b"":
            return
        try:
            self.metadata.update(msgspec.json.decode(clean(text), type=dict[str, Any]))
        except DECODE_ERRORS:
            self.warnings.append(f"{self.path}: what the trace says about itself is unreadable and left out")


def _array_ends(buffer: bytes) -> Iterator[int]:
    """Positions of brackets that may close the event array, from the back."""
    end = len(buffer)
    while (end := buffer.rfind(b"]", 0, end)) >= 0:
        before = buffer[max(0, end - _TAIL_BYTES) : end].rstrip()
        if before.endswith((b"}", b",")) or (not before and end <= _TAIL_BYTES):
            yield end
