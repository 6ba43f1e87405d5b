"""POSIX semaphores in shared memory: how one rank tells another that bytes are in place.

A flag written by numpy or torch would do on x86, where stores are seen in order, but not on ARM, where the flag may be
seen before the data, and Python has no memory barrier. POSIX promises for `sem_post` and `sem_wait` what is needed, on
every machine: whatever was written before the post is seen after the wait (XBD 4.12). They sleep in the kernel,
count (so the n-th post stands for the n-th call), and live in plain memory (nothing to unlink).
"""

from __future__ import annotations

import ctypes
import os
import time

from freescale.errors import FreeScaleError

STRIDE = 64
"""Bytes to leave for each semaphore: a cache line, so that two ranks' semaphores never share one (sem_t takes 32)."""

_ONE_SECOND_NS = 1_000_000_000


class _Timespec(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


# The calls that never block keep the interpreter lock: releasing it would cost more than they do.
_quick = ctypes.PyDLL(None, use_errno=True)
_blocking = ctypes.CDLL(None, use_errno=True)


def _has_posix_semaphores() -> bool:
    return all(hasattr(_quick, name) for name in ("sem_init", "sem_post", "sem_trywait", "sem_timedwait"))


if _has_posix_semaphores():
    _quick.sem_init.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_uint]
    _quick.sem_post.argtypes = [ctypes.c_void_p]
    _quick.sem_trywait.argtypes = [ctypes.c_void_p]
    _quick.sem_getvalue.argtypes = [ctypes.c_void_p, ctypes.POINTER(ctypes.c_int)]
    _blocking.sem_timedwait.argtypes = [ctypes.c_void_p, ctypes.POINTER(_Timespec)]
    _monotonic = hasattr(_blocking, "sem_clockwait")  # glibc 2.30
    if _monotonic:
        _blocking.sem_clockwait.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.POINTER(_Timespec)]


def initialise(address: int) -> None:
    """Make the `STRIDE` bytes at `address` a semaphore with count 0, usable by every process that maps them."""
    if not _has_posix_semaphores():
        raise FreeScaleError("shared_memory needs POSIX semaphores, which this system's C library lacks; use gloo")
    if _quick.sem_init(address, 1, 0) != 0:
        raise FreeScaleError(f"sem_init failed: {os.strerror(ctypes.get_errno())}; use the process_group transport")


def post(address: int) -> None:
    """Add one; wakes a sleeper."""
    _quick.sem_post(address)


def take(address: int) -> bool:
    """Subtract one if there is one."""
    return bool(_quick.sem_trywait(address) == 0)


def is_posted(address: int) -> bool:
    """Whether there is one to take; orders nothing, so `take` before touching the data."""
    value = ctypes.c_int()
    _quick.sem_getvalue(address, ctypes.byref(value))
    return value.value > 0


def sleep_until_posted(address: int, timeout_s: float) -> bool:
    """Sleep until there is one to take, and leave it there; False after `timeout_s`, or when a signal came."""
    now_ns = time.monotonic_ns() if _monotonic else time.time_ns()
    seconds, nanoseconds = divmod(now_ns + int(timeout_s * 1e9), _ONE_SECOND_NS)
    until = _Timespec(seconds, nanoseconds)
    if _monotonic:
        failed = _blocking.sem_clockwait(address, time.CLOCK_MONOTONIC, ctypes.byref(until))
    else:
        failed = _blocking.sem_timedwait(address, ctypes.byref(until))
    if failed:
        return False
    _quick.sem_post(address)
    return True
