"""Events out of JSON that is not quite JSON, as traces in the wild are.

Control characters and bytes that are no UTF-8 are replaced. What still does not parse is taken apart event by event,
and of a broken event the few fields that matter are looked for one by one; names come out as written, quotes and all.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import msgspec

from analyzer.kineto.fields import AnyEvent

_FROM_CONTROL = bytes(b if b >= 0x20 else 0x20 for b in range(256))
_BETWEEN_EVENTS = re.compile(rb'(?<=\})\s*,\s*(?=\{\s*"(?:ph|name|cat|pid|tid|ts|dur|args|id|bp|s)"\s*:)')
_NEXT_KEY = r'"\s*,\s*"(?:ph|cat|name|pid|tid|ts|dur|args|id|bp|s)"\s*:'
_NAME = re.compile(rf'"name"\s*:\s*"(.*?)(?:{_NEXT_KEY}|"\s*\}})', re.DOTALL)
_ARGUMENTS = ("stream", "device", "correlation", "bytes")
_WORD = {key: re.compile(rf'"{key}"\s*:\s*"([^"]*)"') for key in ("ph", "cat")}
_NUMBER = {key: re.compile(rf'"{key}"\s*:\s*"?(-?[0-9][0-9.eE+-]*)') for key in ("ts", "dur", "tid", *_ARGUMENTS)}
DECODE_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

_decode_all = msgspec.json.Decoder(list[AnyEvent]).decode
_decode_one = msgspec.json.Decoder(AnyEvent).decode


@dataclass
class Damage:
    """How many events were not valid JSON: read all the same, or left out."""

    repaired: int = 0
    lost: int = 0


def clean(text: bytes) -> bytes:
    """The text with control characters and invalid UTF-8 replaced."""
    return text.translate(_FROM_CONTROL).decode("utf-8", "replace").encode()


def salvage(elements: bytes, damage: Damage) -> list[AnyEvent]:
    """Events of a piece that does not parse as it is, as many as can be read; `damage` counts the others."""
    elements = clean(elements)
    try:
        return _decode_all(b"[" + elements + b"]")
    except DECODE_ERRORS:
        pass
    events = []
    for part in _BETWEEN_EVENTS.split(elements):
        if not part.strip():
            continue
        try:
            events.append(_decode_one(part))
        except DECODE_ERRORS:
            event = _pick_fields(part.decode())
            if event is None:
                damage.lost += 1
            else:
                damage.repaired += 1
                events.append(event)
    return events


def _pick_fields(text: str) -> AnyEvent | None:
    """An event from the fields found in a broken one; None without kind, name and times."""
    words = {key: match[1] for key, pattern in _WORD.items() if (match := pattern.search(text))}
    numbers = {key: match[1] for key, pattern in _NUMBER.items() if (match := pattern.search(text))}
    name = _NAME.search(text)
    if words.get("ph") != "X" or name is None or not {"ts", "dur"} <= set(numbers):
        return None
    arguments = ", ".join(f'"{key}": "{numbers[key]}"' for key in _ARGUMENTS if key in numbers)
    return AnyEvent(
        cat=words.get("cat"),
        name=name[1],
        tid=numbers.get("tid"),
        ts=msgspec.Raw(numbers["ts"].encode()),
        dur=msgspec.Raw(numbers["dur"].encode()),
        args=msgspec.Raw(f"{{{arguments}}}".encode()),
    )
