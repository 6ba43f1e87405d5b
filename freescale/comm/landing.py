"""Results in shared memory: a peer that has the address writes straight into the tensor the caller will get.

A block goes back to the pool when the last tensor over it dies, so a training loop runs on the same few blocks, whose
pages are mapped already (fresh memory costs four times the copy itself, in page faults).
"""

from __future__ import annotations

import weakref
from collections import deque

import numpy as np
import torch
from torch import Tensor

from freescale.comm import segment as segments
from freescale.comm.segment import Segment


class LandingPool:
    """Blocks for results, at most `limit_bytes` altogether."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._blocks: dict[int, Segment] = {}  # by key
        self._returned: deque[int] = deque()  # filled by finalizers, on any thread
        self._idle: dict[int, Segment] = {}

    def allocate(self, nbytes: int, dtype: torch.dtype) -> tuple[Tensor, Segment] | None:
        """A 1-D tensor of `nbytes`, above 0, and the segment it starts; None when the pool is full of used results."""
        self._take_back()
        fitting = [block for block in self._idle.values() if nbytes <= block.size <= 2 * nbytes]
        if fitting:
            block = min(fitting, key=lambda one: one.size)
            del self._idle[block.key]
        else:
            size = _size_class(nbytes)
            if not self._make_room(size):
                return None
            block = segments.create(size)
            self._blocks[block.key] = block
        array = np.frombuffer(block.memory, dtype=np.uint8, count=nbytes)
        weakref.finalize(array, self._returned.append, block.key).atexit = False
        # In one go: a view of a tensor in another type and shape costs twice 25 µs when a step has cooled the caches.
        return torch.frombuffer(array, dtype=dtype), block

    def discard(self) -> None:
        """Give back what no tensor uses; the rest goes with its last tensor."""
        self._take_back()
        for key, block in self._blocks.items():
            if key in self._idle:
                block.discard()
            else:
                block.release()
        self._idle.clear()
        self._blocks.clear()

    def _take_back(self) -> None:
        while self._returned:
            key = self._returned.popleft()
            if key in self._blocks:
                self._idle[key] = self._blocks[key]

    def _make_room(self, nbytes: int) -> bool:
        held = sum(block.size for block in self._blocks.values())
        for key in list(self._idle):
            if held + nbytes <= self._limit_bytes:
                break
            block = self._idle.pop(key)
            held -= block.size
            del self._blocks[key]
            block.discard()
        return held + nbytes <= self._limit_bytes


def _size_class(nbytes: int) -> int:
    """`nbytes` rounded up to a power of two or one of three steps between, so that sizes that vary share blocks."""
    power = 1 << max(0, nbytes - 1).bit_length()
    return next(size for size in (power * 5 // 8, power * 6 // 8, power * 7 // 8, power) if size >= nbytes)
