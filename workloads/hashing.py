"""Random numbers that are a pure function of (key, index), so that any rank makes any part of any batch on its own.

A generator with state would have to be run through all earlier batches (restart), or through the other ranks' samples
(sharding). Here a number is the hash of its place instead: no order, no state, nothing to save.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

_WORD = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_ROUNDS = 4


def key(*parts: int | str) -> int:
    """A 64-bit key for the stream of numbers named by `parts`, for example ``key(seed, "label", step)``."""
    mixed = 0
    for part in parts:
        words = [part & _WORD] if isinstance(part, int) else list(part.encode())
        for word in words:
            mixed = int(_mix(np.array([(mixed * _GOLDEN + word + 1) & _WORD], dtype=np.uint64))[0])
    return mixed


def bits(key: int, index: NDArray[np.int64]) -> NDArray[np.uint64]:
    """uint64 per index: the splitmix64 sequence started at `key` (Steele, Lea and Flood 2014), at place `index`."""
    return _mix((index.astype(np.uint64) + np.uint64(1)) * np.uint64(_GOLDEN) + np.uint64(key))


def uniform(key: int, index: NDArray[np.int64]) -> NDArray[np.float64]:
    """float64 per index, uniform in the open interval (0, 1)."""
    return ((bits(key, index) >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53


def normal(key: int, index: NDArray[np.int64]) -> NDArray[np.float64]:
    """float64 per index, standard normal."""
    return np.asarray(ndtri(uniform(key, index)), dtype=np.float64)


def permute(key: int, index: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    """Where a pseudo-random permutation of range(size) sends each index, without building the permutation.

    A Feistel network over pairs (a, b) of a grid just larger than `size`; what lands outside goes round again, which
    keeps it a bijection.
    """
    width = math.isqrt(max(size - 1, 0)) + 1
    height = -(-size // width)
    placed = index.astype(np.int64, copy=True)
    astray = np.arange(index.size)
    while astray.size:
        high, low = np.divmod(placed[astray], width)
        for turn in range(_ROUNDS):
            high = (high + _below(key + 2 * turn, low, height)) % height
            low = (low + _below(key + 2 * turn + 1, high, width)) % width
        placed[astray] = high * width + low
        astray = astray[placed[astray] >= size]
    return placed


def _below(key: int, index: NDArray[np.int64], bound: int) -> NDArray[np.int64]:
    return (bits(key & _WORD, index) % np.uint64(bound)).astype(np.int64)


def _mix(word: NDArray[np.uint64]) -> NDArray[np.uint64]:
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))
