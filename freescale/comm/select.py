"""Which path the bytes should take: the best one that leaves the compute alone and exists here, and why.

`survey` asks every rank what it has; `paths` judges each transport for that, best first; `select` takes the first that
exists, or says what the one asked for lacks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.distributed as dist

from freescale.comm import copy_engine, host_staged, segment, zero_cta
from freescale.comm.peers import Host, tell_all, this_host
from freescale.comm.process_group import open_lanes
from freescale.comm.shared_memory import open_shared_memory
from freescale.comm.transport import Transport
from freescale.errors import FreeScaleError

TRANSPORTS = ("shared_memory", "copy_engine", "host_staged", "zero_cta", "process_group")

ON_A_GPU = {"copy_engine": "", "host_staged": "", "zero_cta": ""}
"""GPU and date on which a path's tests in tests/gpu passed; empty where that has not happened yet."""

_ORDER = {"cpu": ("shared_memory", "process_group", "host_staged"), "cuda": TRANSPORTS[1:]}


@dataclass(frozen=True)
class RankReport:
    """Where a rank runs, and what it lacks for each transport (empty: nothing)."""

    host: Host
    lacks: Mapping[str, str]


@dataclass(frozen=True)
class Topology:
    """What all ranks reported, in rank order."""

    ranks: tuple[RankReport, ...]

    @property
    def hosts(self) -> list[str]:
        """Distinct host names, in rank order."""
        return list(dict.fromkeys(str(rank.host) for rank in self.ranks))

    @property
    def one_host(self) -> bool:
        return all(rank.host == self.ranks[0].host for rank in self.ranks)


@dataclass(frozen=True)
class Path:
    """One transport, judged for a device and a topology.

    Attributes:
        problem: what is missing, with the cure; empty if the path can be used.
        why: what speaks for it, in one line.
        unverified: what has not been tried yet; empty if nothing.
    """

    name: str
    device: torch.device
    problem: str
    why: str
    unverified: str

    @property
    def line(self) -> str:
        """The one line that says it all."""
        if self.problem:
            return f"{self.name}: no, {self.problem}"
        return f"{self.name}: {self.why}" + (f" ({self.unverified})" if self.unverified else "")

    def open(self, names: Sequence[str]) -> dict[str, Transport]:
        """One lane for each name over all ranks; collective. FreeScaleError when it turns out not to work."""
        openers: dict[str, Callable[[], Mapping[str, Transport]]] = {
            "shared_memory": lambda: open_shared_memory(names),
            "copy_engine": lambda: copy_engine.open_copy_engine(names, self.device),
            "host_staged": lambda: host_staged.open_host_staged(names, self.device),
            "zero_cta": lambda: zero_cta.open_zero_cta(names, self.device),
            "process_group": lambda: open_lanes(names),
        }
        return dict(openers[self.name]())


def survey(device: torch.device | str) -> Topology:
    """What the ranks of the default process group have for tensors of `device`; collective."""
    mine = report_here(device)
    told = tell_all(None, {"host": [mine.host.name, mine.host.boot, mine.host.process_numbers], "lacks": mine.lacks})
    return Topology(tuple(RankReport(Host(*one["host"]), one["lacks"]) for one in told))


def report_here(device: torch.device | str) -> RankReport:
    """What this process has for tensors of `device`."""
    device = torch.device(device)
    lacks = {
        "shared_memory": segment.unsupported() or _not_for(device, "cpu"),
        "copy_engine": copy_engine.unsupported(device),
        "host_staged": host_staged.unsupported(device),
        "zero_cta": zero_cta.unsupported(device),
        "process_group": _process_group_lacks(device),
    }
    return RankReport(this_host(), {name: reason[:150] for name, reason in lacks.items()})


def paths(device: torch.device | str, topology: Topology) -> list[Path]:
    """All transports, those for `device` first and in order of preference."""
    device = torch.device(device)
    order = _ORDER.get(device.type, ("process_group",))
    names = [*order, *(name for name in TRANSPORTS if name not in order)]
    return [_judge(name, device, topology) for name in names]


def select(device: torch.device | str, topology: Topology, name: str | None = None) -> Path:
    """The best path for tensors of `device`, or the one called `name`.

    Raises:
        FreeScaleError: no such transport, or what the one asked for lacks, on which rank, and the cure.
    """
    if name is not None and name not in TRANSPORTS:
        raise FreeScaleError(f"transport: {name!r} is none of {', '.join(TRANSPORTS)}")
    judged = [path for path in paths(device, topology) if name in (None, path.name)]
    for path in judged:
        if not path.problem:
            return path
    raise FreeScaleError(judged[0].problem)


def _judge(name: str, device: torch.device, topology: Topology) -> Path:
    problem = ""
    for rank, report in enumerate(topology.ranks):
        if report.lacks[name]:
            everywhere = all(one.lacks[name] == report.lacks[name] for one in topology.ranks)
            problem = report.lacks[name] if everywhere else f"rank {rank}: {report.lacks[name]}"
            break
    if not problem and name in ("shared_memory", "copy_engine") and not topology.one_host:
        if len(topology.hosts) > 1:
            problem = f"{name} needs all ranks on one host, these are on {len(topology.hosts)}; use process_group"
        else:
            problem = f"{name} needs all ranks in one container, these are in several of {topology.hosts[0]}"
    unverified = ""
    if name in ON_A_GPU and device.type == "cuda" and not ON_A_GPU[name]:
        unverified = "unverified: has not run on a GPU yet"
    return Path(name, device, problem, _why(name, device, topology), unverified)


def _why(name: str, device: torch.device, topology: Topology) -> str:
    on = "gloo" if device.type == "cpu" else "NCCL"
    leg = "shared memory" if topology.one_host else "gloo between hosts"
    return {
        "shared_memory": "one copy through memory that all ranks map; no thread works beside the compute",
        "copy_engine": "GPUs pull from each other's windows with their copy engines; no SM taken, uneven splits free",
        "host_staged": f"device to host, {leg}, host to device, chunk by chunk; no SM taken"
        if device.type == "cuda"
        else f"on CPU tensors only its host leg ({leg})",
        "zero_cta": "NCCL's collectives without SMs; every split padded to the largest",
        "process_group": f"{on}, always there, but it takes from the compute "
        + ("(core time of its threads)" if device.type == "cpu" else "(SMs for its kernels)"),
    }[name]


def _not_for(device: torch.device, wanted: str) -> str:
    return "" if device.type == wanted else f"shared_memory moves CPU tensors, not {device.type}; use host_staged"


def _process_group_lacks(device: torch.device) -> str:
    if device.type == "cuda" and not (dist.is_nccl_available() and torch.cuda.is_available()):
        return "process_group on CUDA needs NCCL and a CUDA device, and torch sees none; use the CPU"
    return "" if dist.is_available() else "process_group needs a torch built with distributed support"
