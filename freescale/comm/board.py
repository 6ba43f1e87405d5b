"""A rank's notice board: the little shared segment through which its peers learn where bytes are and when.

For each lane and peer it has three semaphores, on which only the owner sleeps, and two rings of notes, which only the
owner writes. Notes are ordered by the semaphores: written before the post, read after the take.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from freescale.comm import semaphore
from freescale.comm.segment import Segment

SLOTS = 512
"""Notes per lane and peer, so also how many calls of a lane may be on their way at once."""

ARRIVED, ACCEPTED, LANDING = range(3)
"""Semaphores a peer posts: its part of the next call is there; it took my part; its landing place is announced."""

_KINDS = 3
_HEADER = 64  # holds how many calls each lane issued when the owner left, -1 while it is there
_NOTE_BYTES = 64


class Parcel(NamedTuple):
    """What a sender says of its part of a call for one peer: `staged` bytes lie in its outbox, the rest has landed."""

    seq: int
    op_and_dtype: int
    nbytes: int
    staged: int
    key: int
    descriptor: int
    size: int
    offset: int


class Landing(NamedTuple):
    """Where a receiver wants one peer's part of call `seq`; `key` 0 when it has no place in shared memory."""

    seq: int
    nbytes: int
    key: int
    descriptor: int
    size: int
    offset: int


_PARCEL, _LANDING, _LEFT = struct.Struct("8q"), struct.Struct("6q"), struct.Struct("q")


def board_bytes(lanes: int, world_size: int) -> int:
    return lanes * _lane_bytes(world_size)


def _lane_bytes(world_size: int) -> int:
    return _HEADER + world_size * (_KINDS * semaphore.STRIDE + 2 * SLOTS * _NOTE_BYTES)


class Board:
    """One lane's part of a rank's board, seen by its owner or by a peer."""

    def __init__(self, segment: Segment, lane: int, world_size: int) -> None:
        self._memory = segment.memory
        self._base = lane * _lane_bytes(world_size)
        self._address = segment.address
        self._parcels = self._base + _HEADER + world_size * _KINDS * semaphore.STRIDE
        self._landings = self._parcels + world_size * SLOTS * _NOTE_BYTES

    def initialise(self, world_size: int) -> None:
        """By the owner, before anybody else maps the board."""
        for kind in range(_KINDS):
            for peer in range(world_size):
                semaphore.initialise(self.signal(kind, peer))
        self.left_after = -1

    def signal(self, kind: int, peer: int) -> int:
        """Address of the semaphore that `peer` posts on the owner's board."""
        return self._address + self._base + _HEADER + (peer * _KINDS + kind) * semaphore.STRIDE

    def write_parcel(self, peer: int, parcel: Parcel) -> None:
        _PARCEL.pack_into(self._memory, self._parcels + _slot(peer, parcel.seq), *parcel)

    def read_parcel(self, peer: int, seq: int) -> Parcel:
        return Parcel(*_PARCEL.unpack_from(self._memory, self._parcels + _slot(peer, seq)))

    def write_landing(self, peer: int, landing: Landing) -> None:
        _LANDING.pack_into(self._memory, self._landings + _slot(peer, landing.seq), *landing)

    def read_landing(self, peer: int, seq: int) -> Landing:
        return Landing(*_LANDING.unpack_from(self._memory, self._landings + _slot(peer, seq)))

    @property
    def left_after(self) -> int:
        """How many calls the owner had issued on this lane when it left; -1 while it is there."""
        return int(_LEFT.unpack_from(self._memory, self._base)[0])

    @left_after.setter
    def left_after(self, calls: int) -> None:
        _LEFT.pack_into(self._memory, self._base, calls)


def _slot(peer: int, seq: int) -> int:
    return (peer * SLOTS + seq % SLOTS) * _NOTE_BYTES
