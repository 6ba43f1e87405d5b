"""Names that carry a collective's facts into the trace.

gloo records neither group nor size nor sequence number, and waiting leaves no event at all, so every call is wrapped
in a profiler range whose *name* holds the facts (public API; recorded without `record_shapes`, unlike arguments).
The analyzer parses the same forms:

    freescale.comm all_to_all group=embedding seq=12 bytes=1048576
    freescale.wait all_to_all group=embedding seq=12
    freescale.move all_to_all group=embedding seq=12 bytes=1048576
    freescale.link all_to_all group=embedding seq=12 late_ns=0

The third is written only by transports whose bytes are moved by this process (not by a library's threads): inside the
issuing or the waiting range, around the copies themselves. The fourth is the time that an emulated link adds: it ends
when the link has delivered, or, with `late_ns` above 0, began that long after.

What measures must not be what is measured: where a step's compute has just driven its Python out of the caches,
`record_function` takes 80 to 90 µs, up to five times per exchange; its compiled twin takes 5. But the twin's ranges
count as operators, which a reader of a GPU's trace may leave out, so it serves where there is no GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch.autograd.profiler import record_function

Range = Callable[[str], AbstractContextManager[object]]


def _fastest() -> Range:
    try:
        from torch._C._profiler import _RecordFunctionFast
    except ImportError:  # private to torch
        return record_function
    return record_function if torch.cuda.is_available() else _RecordFunctionFast


_RANGE = _fastest()


def issue_range(op: str, group: str, seq: int, nbytes: int) -> AbstractContextManager[object]:
    """Around the call that issues a collective; `nbytes` is what this rank sends."""
    return _range(f"freescale.comm {op} group={group} seq={seq} bytes={nbytes}")


def wait_range(op: str, group: str, seq: int) -> AbstractContextManager[object]:
    """Around the wait for a collective."""
    return _range(f"freescale.wait {op} group={group} seq={seq}")


def move_range(op: str, group: str, seq: int, nbytes: int) -> AbstractContextManager[object]:
    """Around copies that this process does for a collective; `nbytes` is what these copies move."""
    return _range(f"freescale.move {op} group={group} seq={seq} bytes={nbytes}")


def link_range(op: str, group: str, seq: int, late_ns: int = 0) -> AbstractContextManager[object]:
    """Around the sleep until an emulated link would have delivered; around nothing, `late_ns` after it had."""
    return _range(f"freescale.link {op} group={group} seq={seq} late_ns={late_ns}")


def _range(name: str) -> AbstractContextManager[object]:
    # A range costs time even when nobody records, so ask first.
    return _RANGE(name) if torch.autograd._profiler_enabled() else nullcontext()
