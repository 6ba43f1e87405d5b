"""What the machine did during a turn: counters read right before and right after it, off the clock.

Differences of counters miss nothing and disturb nothing while a turn runs, and belong to exactly one turn.
"""

from __future__ import annotations

import os
import resource
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

_UNKNOWN = float("nan")


@dataclass(frozen=True)
class Counters:
    """Of this process and of its host, at one moment; seconds are core-seconds, NaN or -1 is unknown."""

    unix_ns: int
    monotonic_ns: int
    cpu_s: float
    busy_s: float
    steal_s: float
    throttled_s: float
    voluntary_switches: int
    involuntary_switches: int
    migrations: int
    major_faults: int


def read() -> Counters:
    """The counters now."""
    host, own = psutil.cpu_times(), resource.getrusage(resource.RUSAGE_SELF)
    working = ("user", "nice", "system", "irq", "softirq")
    return Counters(
        unix_ns=time.time_ns(),
        monotonic_ns=time.monotonic_ns(),
        cpu_s=time.process_time(),
        busy_s=sum(getattr(host, name, 0.0) for name in working),
        steal_s=getattr(host, "steal", 0.0),
        throttled_s=_throttled_s(),
        voluntary_switches=own.ru_nvcsw,
        involuntary_switches=own.ru_nivcsw,
        migrations=_migrations(),
        major_faults=own.ru_majflt,
    )


def between(before: Counters, after: Counters) -> dict[str, Any]:
    """A turn's columns of samples.parquet: differences, and what can only be read as it is now."""
    row: dict[str, Any] = {
        "host": socket.gethostname(),
        "cores": os.cpu_count() or 1,
        "start_unix_ns": before.unix_ns,
        "wall_s": (after.monotonic_ns - before.monotonic_ns) / 1e9,
    }
    for name in ("cpu_s", "busy_s", "steal_s", "throttled_s", "voluntary_switches", "involuntary_switches"):
        row[name] = getattr(after, name) - getattr(before, name)
    row["migrations"] = after.migrations - before.migrations if after.migrations >= 0 else -1
    row["major_faults"] = after.major_faults - before.major_faults
    frequency = psutil.cpu_freq() if hasattr(psutil, "cpu_freq") else None
    row["load_1min"] = psutil.getloadavg()[0]
    row["cpu_mhz"] = frequency.current if frequency and frequency.current else _UNKNOWN
    row["available_bytes"] = psutil.virtual_memory().available
    return row


def _migrations() -> int:
    """How often the kernel has moved this process's main thread to another core."""
    try:
        for line in Path("/proc/self/sched").read_text(encoding="utf-8").splitlines():
            if line.startswith("se.nr_migrations"):
                return int(line.rpartition(":")[2])
    except (OSError, ValueError):
        pass
    return -1


def _throttled_s() -> float:
    """How long the CPU quota of this container has stopped it."""
    for file, key, unit in (
        ("/sys/fs/cgroup/cpu.stat", "throttled_usec", 1e6),
        ("/sys/fs/cgroup/cpu/cpu.stat", "throttled_time", 1e9),
    ):
        try:
            for line in Path(file).read_text(encoding="utf-8").splitlines():
                name, _, value = line.partition(" ")
                if name == key:
                    return int(value) / unit
        except (OSError, ValueError):
            continue
    return _UNKNOWN
