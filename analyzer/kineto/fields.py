"""What is decoded of an event: exactly the fields the analyzer uses, under Kineto's names.

Which they are depends on the event's category, so there is a type for each, and events of a category that is not used
are skipped whole. What these types cannot hold (an event without a category, a field of another type) is decoded as
the plain types below, whose arguments stay `Raw` until it is known that they matter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, reduce
from math import nan
from operator import or_
from types import GenericAlias
from typing import Any

import msgspec

from analyzer import lanes

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


class CategoryEvent(msgspec.Struct, gc=False):
    """An element of `traceEvents` with the fields of `Event` that its category uses, `args` decoded."""


_ARGUMENTS = (
    (lanes.DEVICE_CATEGORIES, DeviceArgs),
    (lanes.LAUNCH_CATEGORIES, LaunchArgs),
    (lanes.OP_CATEGORIES, OpArgs),
)


def decoder_by_category(
    categories: Iterable[str], used: frozenset[str], epoch: bool
) -> Callable[[bytes | memoryview], Sequence[Any]]:
    """Decoder of a JSON array of events of these categories; each has the fields of `Event` that its category uses.

    Args:
        used: of events of other categories nothing is kept but their number.
        epoch: timestamps stay as they are written, as in `EpochEvent`.
    """
    types = [_type_of(category, category in used, epoch) for category in categories]
    return msgspec.json.Decoder(GenericAlias(list, (reduce(or_, types),))).decode


@lru_cache(maxsize=1 << 10)  # each time a category is learned, the others are there already
def _type_of(category: str, used: bool, epoch: bool) -> type[msgspec.Struct]:
    fields: list[tuple[str, Any, Any]] = []
    if used:
        at = ("ts", msgspec.Raw, _ABSENT) if epoch else ("ts", float, nan)
        fields = [("name", str, ""), ("tid", Any, None), at, ("dur", float, nan)]
        fields += [("args", args, msgspec.field(default_factory=args)) for of, args in _ARGUMENTS if category in of]
    return msgspec.defstruct(
        category, fields, bases=(CategoryEvent,), tag_field="cat", tag=category, gc=False, namespace={"cat": category}
    )


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
