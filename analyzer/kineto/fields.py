"""What is decoded of an event: exactly the fields the analyzer uses, under Kineto's names."""

from __future__ import annotations

from typing import Any

import msgspec

NOTHING = msgspec.Raw(b"")


class Args(msgspec.Struct, gc=False):
    """Arguments of an event. Types vary between versions (numbers appear as text), so they are checked later."""

    name: Any = None
    labels: Any = None
    stream: Any = None
    device: Any = None
    correlation: Any = None
    bytes: Any = None
    grid: Any = None
    block: Any = None
    input_dims: msgspec.Raw = msgspec.field(name="Input Dims", default=NOTHING)
    collective: Any = msgspec.field(name="Collective name", default=None)
    group: Any = msgspec.field(name="Process Group Name", default=None)
    description: Any = msgspec.field(name="Process Group Description", default=None)
    seq: Any = msgspec.field(name="Seq", default=None)
    in_elements: Any = msgspec.field(name="In msg nelems", default=None)
    out_elements: Any = msgspec.field(name="Out msg nelems", default=None)
    dtype: Any = None
    source: Any = msgspec.field(name="Src Rank", default=None)
    destination: Any = msgspec.field(name="Dst Rank", default=None)


class Event(msgspec.Struct, gc=False):
    """One element of `traceEvents`. Timestamps stay text, because a float cannot hold them."""

    ph: str | None = None
    cat: str | None = None
    name: Any = None
    pid: Any = None
    tid: Any = None
    ts: msgspec.Raw = NOTHING
    dur: msgspec.Raw = NOTHING
    args: Args | None = None


NO_ARGS = Args()


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
