"""Turning JSON arrays of events into objects, the quickest way that holds what is in them.

Nearly all events are decoded by their category, which skips what nobody uses. Categories are learned as they come.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from analyzer.kineto.fields import AnyEvent, EpochEvent, Event, decoder_by_category
from analyzer.kineto.salvage import DECODE_ERRORS

_MOST_CATEGORIES = 100  # Kineto has thirty

Decode = Callable[[bytes | memoryview], Sequence[Any]]


class EventDecoder:
    """Decodes pieces of one trace; of events outside the categories `used` only their number is right."""

    def __init__(self, used: frozenset[str]) -> None:
        self._used = used
        self._categories: frozenset[str] = used
        self._epoch = False
        self._by_category = decoder_by_category(self._categories, used, epoch=False)
        self._plain: Decode = msgspec.json.Decoder(list[Event]).decode
        self._any: Decode = msgspec.json.Decoder(list[AnyEvent]).decode

    def keep_digits(self) -> None:
        """From here on leave timestamps as they are written: floats do not hold them."""
        if not self._epoch:
            self._epoch = True
            self._plain = msgspec.json.Decoder(list[EpochEvent]).decode
            self._by_category = decoder_by_category(self._categories, self._used, epoch=True)

    def decode(self, array: bytes | memoryview) -> Sequence[Any] | None:
        """The events of an array, all with times of the same types; None if it is not valid JSON."""
        try:
            return self._by_category(array)
        except msgspec.ValidationError:
            pass  # valid JSON so far, but a category is new or absent, or some field is of another type
        except DECODE_ERRORS:
            return None
        try:
            events = self._plain(array)
            self._learn(events)
            return events
        except msgspec.ValidationError:
            pass
        except DECODE_ERRORS:
            return None
        return self.decode_any(array)

    def decode_any(self, array: bytes | memoryview) -> Sequence[AnyEvent] | None:
        """The same with both times as they are written."""
        try:
            return self._any(array)
        except DECODE_ERRORS:
            return None

    def _learn(self, events: Sequence[Event | EpochEvent]) -> None:
        """Have their categories decoded quickly from here on."""
        found = self._categories.union([event.cat for event in events])
        if len(self._categories) < len(found) <= _MOST_CATEGORIES:
            self._categories = found
            self._by_category = decoder_by_category(found, self._used, self._epoch)
