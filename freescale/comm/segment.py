"""Anonymous memory that several processes of one host map: created by one rank, opened by the others through /proc.

A memfd has no name anywhere: the kernel frees it with its last user, so nothing is left behind however a rank ends,
and it does not come out of /dev/shm, whose size containers limit to 64 MB.
"""

from __future__ import annotations

import ctypes
import errno
import itertools
import mmap
import os
from pathlib import Path

from freescale.errors import FreeScaleError

_numbers = itertools.count(1)
_NOEXEC_SEAL = 0x8


class Segment:
    """A mapping of `size` bytes at `address`. `key` tells the segments of one rank apart for ever."""

    def __init__(self, key: int, descriptor: int, size: int) -> None:
        self.key, self.descriptor, self.size = key, descriptor, size  # descriptor: -1 where another rank owns it
        try:
            self.memory = mmap.mmap(descriptor, size)
        except OSError as error:
            raise FreeScaleError(
                f"shared_memory: {size >> 20} MiB could not be mapped ({error.strerror}); raise the limits on open "
                "files (ulimit -n) and memory (ulimit -v)"
            ) from error
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.memory))

    def discard(self) -> None:
        """Give the pages back at once, although others, or tensors here, may still map them. Never touch them again."""
        if self.descriptor >= 0:
            os.ftruncate(self.descriptor, 0)
            self.release()

    def release(self) -> None:
        """Let the pages go with the last mapping."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


def create(size: int) -> Segment:
    """A new segment of at least `size` bytes; its pages take memory once they are written.

    Raises:
        FreeScaleError: no such memory on this system, or more than is free.
    """
    size = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
    free = available_bytes()
    if size > free:
        raise FreeScaleError(
            f"shared_memory needs {size >> 20} MiB more, and {free >> 20} MiB are free; "
            "use fewer ranks or smaller batches on this host, or raise the container's memory limit"
        )
    key = next(_numbers)
    descriptor = _memory_file(_name(os.getpid(), key))
    os.ftruncate(descriptor, size)
    return Segment(key, descriptor, size)


def attach(pid: int, key: int, descriptor: int, size: int) -> Segment:
    """Map the segment that process `pid` of this host has open as `descriptor`.

    Raises:
        FreeScaleError: that process has gone, or may not be looked into.
    """
    path = f"/proc/{pid}/fd/{descriptor}"
    try:
        mine = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        found = os.readlink(f"/proc/self/fd/{mine}")
    except FileNotFoundError as error:
        raise FreeScaleError(f"process {pid} has gone; see its log") from error
    except PermissionError as error:
        raise FreeScaleError(
            f"{path} may not be opened; run all ranks of this host as one user, without hidepid"
        ) from error
    except OSError as error:
        raise FreeScaleError(f"{path}: {error.strerror}; raise the limit on open files (ulimit -n)") from error
    try:
        if _name(pid, key) not in found:
            raise FreeScaleError(f"process {pid} has gone (its number was reused); see its log")
        segment = Segment(key, mine, size)
    finally:
        os.close(mine)
    segment.descriptor = -1  # not ours to shrink
    return segment


def unsupported() -> str:
    """Why such memory cannot exist on this system; empty if it can."""
    if not hasattr(os, "memfd_create"):
        return "shared_memory needs Linux (memfd_create); use the process_group transport"
    if not os.path.isdir("/proc/self/fd"):
        return "shared_memory needs /proc to be mounted; mount it, or use the process_group transport"
    try:
        os.close(_memory_file("freescale-probe"))
    except FreeScaleError as error:
        return str(error)
    return ""


def _memory_file(name: str) -> int:
    if not hasattr(os, "memfd_create"):
        raise FreeScaleError(unsupported())
    try:
        try:
            return os.memfd_create(name, os.MFD_CLOEXEC | _NOEXEC_SEAL)
        except OSError as error:
            if error.errno != errno.EINVAL:  # kernels before 6.3 do not know the flag, some later ones demand it
                raise
            return os.memfd_create(name, os.MFD_CLOEXEC)
    except OSError as error:
        raise FreeScaleError(
            f"shared_memory: the kernel refused a memory file ({error.strerror}); raise the limit on open files "
            "(ulimit -n) or allow memfd_create in the container's seccomp profile"
        ) from error


def available_bytes() -> int:
    """Memory that this host and its container can still give."""
    free = 1 << 62
    for line in _read("/proc/meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            free = int(line.split()[1]) * 1024
    limit, used = _read("/sys/fs/cgroup/memory.max").strip(), _read("/sys/fs/cgroup/memory.stat")
    if limit.isdigit():
        counts = dict(line.split() for line in used.splitlines())
        # Page cache counts as used but gives way, shared memory does not.
        held = int(counts.get("anon", 0)) + int(counts.get("shmem", 0))
        free = min(free, max(0, int(limit) - held))
    return free


def _name(pid: int, key: int) -> str:
    return f"freescale-{pid}-{key}."  # the dot ends the number


def _read(path: str) -> str:
    try:
        return Path(path).read_text()
    except OSError:
        return ""
