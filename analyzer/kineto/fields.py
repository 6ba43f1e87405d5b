"""What is decoded of an event: exactly the fields the analyzer uses, under Kineto's names.

An event's arguments are skipped at first (`Raw`) and decoded, many at once, only for events whose arguments matter.
"""

from __future__ import annotations

from math import nan
from typing import Any

import msgspec

NO_ARGS = msgspec.Raw(b"{}")
_ABSENT = msgspec.Raw(b"")


class Event(msgspec.Struct, gc=False):
    """An element of `traceEvents`, as nearly all are: times are numbers that a float holds exactly."""

    cat: str = ""
    name: str = ""
    tid: Any = None
    ts: float = nan
    dur: float = nan
    args: msgspec.Raw = NO_ARGS


class EpochEvent(msgspec.Struct, gc=False):
    """The same with the timestamp as it is written, for timestamps since 1970 with fractions, which no float holds."""

    cat: str = ""
    name: str = ""
    tid: Any = None
    ts: msgspec.Raw = _ABSENT
    dur: float = nan
    args: msgspec.Raw = NO_ARGS


class AnyEvent(msgspec.Struct, gc=False):
    """An element whose fields may be of any type."""

    cat: str | None = None
    name: Any = None
    tid: Any = None
    ts: msgspec.Raw = _ABSENT
    dur: msgspec.Raw = _ABSENT
    args: msgspec.Raw = NO_ARGS


class DeviceArgs(msgspec.Struct, gc=False):
    """Arguments of a device interval; types vary between versions (numbers appear as text) and are checked later."""

    stream: Any = None
    device: Any = None
    correlation: Any = None
    bytes: Any = None
    grid: msgspec.Raw = _ABSENT
    block: msgspec.Raw = _ABSENT
    collective: Any = msgspec.field(name="Collective name", default=None)
    group: Any = msgspec.field(name="Process Group Name", default=None)
    description: Any = msgspec.field(name="Process Group Description", default=None)
    seq: Any = msgspec.field(name="Seq", default=None)
    in_elements: Any = msgspec.field(name="In msg nelems", default=None)
    out_elements: Any = msgspec.field(name="Out msg nelems", default=None)
    dtype: Any = None
    source: Any = msgspec.field(name="Src Rank", default=None)
    destination: Any = msgspec.field(name="Dst Rank", default=None)


class LaunchArgs(msgspec.Struct, gc=False):
    """Arguments of a call into a device runtime."""

    correlation: Any = None


class OpArgs(msgspec.Struct, gc=False):
    """Arguments of a dispatcher op."""

    input_dims: msgspec.Raw = msgspec.field(name="Input Dims", default=_ABSENT)


def text(value: object) -> str:
    return value if isinstance(value, str) else str(value)


def optional_text(value: object) -> str | None:
    return None if value is None else text(value)


def integer(value: object) -> int | None:
    """An integer written as a number or as text (`"12"`, `"0x0"`), or None."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value if abs(value) < 2**62 else None
    if isinstance(value, float):
        return int(value) if value.is_integer() and abs(value) < 2**62 else None
    if isinstance(value, str) and len(value) < 20:
        try:
            return int(value, 0)
        except ValueError:
            return None
    return None
