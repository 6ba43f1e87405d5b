"""Who the ranks are and whether they still live: hosts, processes, and a way to tell each other one line of text.

Two ranks share memory when they see the same kernel, the same process numbers and the same host name.
"""

from __future__ import annotations

import json
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from freescale.errors import FreeScaleError

_TELL_BYTES = 4096


@dataclass(frozen=True)
class Host:
    """What tells one host (or one container) from another."""

    name: str
    boot: str
    process_numbers: str

    def __str__(self) -> str:
        return self.name


def this_host() -> Host:
    return Host(socket.gethostname(), _line("/proc/sys/kernel/random/boot_id"), _link("/proc/self/ns/pid"))


def tell_all(process_group: dist.ProcessGroup | None, record: dict[str, Any]) -> list[dict[str, Any]]:
    """Every rank's record, in rank order; collective. A record is small (4,000 bytes as JSON)."""
    raw = json.dumps(record).encode()
    if len(raw) > _TELL_BYTES:
        raw = json.dumps({"error": str(record.get("error", "a record is too long"))[:500]}).encode()
    device = "cuda" if str(dist.get_backend(process_group)) == "nccl" else "cpu"
    mine = torch.zeros(_TELL_BYTES, dtype=torch.uint8)
    mine[: len(raw)] = torch.frombuffer(bytearray(raw), dtype=torch.uint8)
    everyone = [torch.empty(_TELL_BYTES, dtype=torch.uint8, device=device) for _ in range(_size(process_group))]
    dist.all_gather(everyone, mine.to(device), group=process_group)
    return [json.loads(bytes(tensor.cpu().numpy()).rstrip(b"\0")) for tensor in everyone]


def agree(process_group: dist.ProcessGroup | None, record: dict[str, Any]) -> list[dict[str, Any]]:
    """`tell_all`, but a rank that tells an `error` makes every rank raise it, so that none waits for the others.

    Raises:
        FreeScaleError: the first error told, with its rank.
    """
    told = tell_all(process_group, record)
    for rank, one in enumerate(told):
        if one.get("error"):
            raise FreeScaleError(f"rank {rank}: {one['error']}")
    return told


def refuse_other_hosts(transport: str, hosts: list[Host]) -> None:
    """Raise FreeScaleError naming two ranks that do not share a host."""
    for rank, host in enumerate(hosts):
        if host == hosts[0]:
            continue
        if host.name != hosts[0].name or host.boot != hosts[0].boot:
            apart = f"rank 0 runs on {hosts[0]} and rank {rank} on {host}"
        else:
            apart = f"ranks 0 and {rank} run in two containers of {host}"
        raise FreeScaleError(
            f"{transport} needs all ranks on one host, but {apart}; use process_group (gloo or NCCL) between hosts"
        )


class Process:
    """A process of this host, told from a later one with the same number by when it started."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self._born = self._state()[1]

    def is_alive(self) -> bool:
        state, born = self._state()
        return state not in "ZX" and born == self._born

    def _state(self) -> tuple[str, str]:
        # The name, in parentheses, may hold anything; state is the first field after it, start time the 20th.
        fields = _line(f"/proc/{self.pid}/stat").rpartition(")")[2].split()
        return (fields[0], fields[19]) if len(fields) > 19 else ("X", "")


def _size(process_group: dist.ProcessGroup | None) -> int:
    return dist.get_world_size(process_group)


def _line(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""
