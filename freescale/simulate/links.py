"""What an exchange costs: loads on the ports of each rank, latency, and what it takes from the compute.

A transport turns bytes per rank into the phases of a collective. Inside a node bytes go over NVLink, between nodes
through each GPU's own NIC; reducing and gathering over several nodes goes in phases, so that each byte passes a NIC
as rarely as it can.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from freescale.simulate.cluster import Cluster
from freescale.simulate.ops import PPM, Load, Ns

URGENT, NORMAL = 1, 0
BY_HAND = "memory"
"""Port of exchanges whose bytes the training thread moves itself: nothing is under way but its calls and waits."""
Bytes = NDArray[np.float64] | float


@dataclass(frozen=True)
class Phase:
    """One engine collective of an exchange; several phases follow one another on the lane.

    Attributes:
        host_ns: int64[ranks], what this rank's own thread spends on issuing it, copies included.
        group: int64[ranks], None for all ranks; other attributes as in `freescale.simulate.ops.Collective`.
    """

    loads: tuple[Load, ...]
    latency_ns: int
    host_ns: Ns | int = 0
    group: Ns | None = None
    priority: int = NORMAL
    sm_share: int = 0
    byte_share: int = 0


@dataclass(frozen=True)
class Links:
    """Exchanges on a cluster between `ranks` ranks.

    Attributes:
        sm_free: whether all-to-all and all-gather go over the SM-free transport; reductions never do.
        beside: lanes whose exchanges go on while the training thread computes, instead of being waited for at once;
            that makes a difference on a CPU, where gloo's threads must get a core.
    """

    cluster: Cluster
    ranks: int
    sm_free: bool
    beside: frozenset[str] = frozenset()

    def all_to_all(self, sent: Bytes, received: Bytes, lane: str) -> list[Phase]:
        """Bytes that each rank sends to, and receives from, all others."""
        if self.cluster.device == "cpu":
            return [self._on_cpu(np.maximum(sent, received), sent, lane)]
        busiest = np.maximum(sent, received)
        outside = (self.ranks - self._node) / max(self.ranks - 1, 1)
        if self.sm_free:
            return [self._staged(busiest, outside, self.ranks - 1, lane)]
        efficiency = self.cluster["nccl_efficiency"]
        loads = (
            self._load("nvlink", busiest * (1 - outside), efficiency),
            self._load("nic", busiest * outside, efficiency),
        )
        return [self._nccl(loads, (self.ranks - 1) * self.cluster["nccl_peer_us"])]

    def all_gather(self, contributed: Bytes, lane: str) -> list[Phase]:
        """Every rank contributes that many bytes."""
        total = np.broadcast_to(np.asarray(contributed, np.float64), self.ranks).sum()
        away = float(total) * (self.ranks - 1) / self.ranks
        if self.cluster.device == "cpu":
            return [self._on_cpu(away, away, lane)]
        if self.sm_free:
            outside = (self.ranks - self._node) / max(self.ranks - 1, 1)
            return [self._staged(away, outside, self.ranks - 1, lane)]
        efficiency, node = self.cluster["nccl_efficiency"], self._node
        if self._nodes == 1:
            return [self._nccl((self._load("nvlink", away, efficiency),))]
        between = self._load("nic", float(total) / node * (self._nodes - 1) / self._nodes, efficiency)
        inside = self._load("nvlink", float(total) * (node - 1) / node, efficiency)
        return [self._nccl((between,), group=self._peers()), self._nccl((inside,), group=self._nodes_of())]

    def all_reduce(self, nbytes: float) -> list[Phase]:
        """A buffer of that size on every rank."""
        ring = 2 * nbytes * (self.ranks - 1) / self.ranks
        if self.cluster.device == "cpu":
            cluster = self.cluster
            load = Load("link", _ns(ring * cluster["gloo_reduce_ns_per_byte"]))
            share, issue = round(cluster["gloo_core_share"] * PPM), _us(cluster["issue_beside_us"])
            return [Phase((load,), _us(cluster["gloo_reduce_latency_us"]), issue, byte_share=share)]
        efficiency, node = self.cluster["nccl_efficiency"], self._node
        if self._nodes == 1:
            return [self._nccl((self._load("nvlink", ring, efficiency),))]
        inside = self._load("nvlink", nbytes * (node - 1) / node, efficiency)
        between = self._load("nic", 2 * nbytes / node * (self._nodes - 1) / self._nodes, efficiency)
        return [
            self._nccl((inside,), group=self._nodes_of()),
            self._nccl((between,), group=self._peers()),
            self._nccl((inside,), group=self._nodes_of()),
        ]

    @property
    def _node(self) -> int:
        return min(int(self.cluster["ranks_per_node"]), self.ranks)

    @property
    def _nodes(self) -> int:
        return math.ceil(self.ranks / self._node)

    def _nodes_of(self) -> Ns:
        return _groups(self.ranks, self._node)[0]

    def _peers(self) -> Ns:
        return _groups(self.ranks, self._node)[1]

    def _load(self, port: str, nbytes: Bytes, efficiency: float, chunk_ns: int = 1) -> Load:
        gb_per_s = self.cluster[f"{port}_gb_per_s"] * efficiency
        return Load(port, _ns(np.asarray(nbytes) / gb_per_s), chunk_ns)

    def _nccl(self, loads: tuple[Load, ...], more_us: float = 0.0, group: Ns | None = None) -> Phase:
        cluster = self.cluster
        hops = math.log2(self._nodes) if self._nodes > 1 else 0.0
        latency_us = cluster["nccl_latency_us"] + hops * cluster["nccl_hop_us"] + more_us
        return Phase(
            loads,
            _us(latency_us),
            _us(cluster["launch_us"]),
            group,
            sm_share=round(cluster["nccl_sm_share"] * PPM),
            byte_share=round(cluster["nccl_memory_share"] * PPM),
        )

    def _staged(self, busiest: Bytes, outside: float, peers: int, lane: str) -> Phase:
        """Device to host, host to host, host to device, chunk by chunk: the slowest leg, and one chunk of each."""
        cluster = self.cluster
        efficiency, chunk = cluster["staged_efficiency"], cluster["staged_chunk_kib"] * 1024
        legs_ns = [chunk / (cluster[f"{port}_gb_per_s"] * efficiency) for port in ("pcie", "nic")]
        priority = URGENT if lane in ("urgent", "ids") else NORMAL
        if self._nodes == 1:  # peers pull from each other's windows with their copy engines, nothing is staged
            pull = self._load("nvlink", busiest, efficiency, round(chunk / cluster["nvlink_gb_per_s"]))
            latency_ns = _us(cluster["nccl_latency_us"] + peers * cluster["launch_us"])
            return Phase((pull,), latency_ns, _us(cluster["launch_us"]), priority=priority)
        loads = (
            self._load("pcie", busiest, efficiency, round(legs_ns[0])),
            self._load("nic", np.asarray(busiest) * outside, efficiency, round(legs_ns[1])),
        )
        first_chunk = np.minimum(np.max(busiest), chunk) / chunk * (2 * legs_ns[0] + legs_ns[1])
        latency_ns = _us(cluster["staged_latency_us"] + peers * cluster["staged_peer_us"]) + round(float(first_chunk))
        share = round(cluster["staged_memory_share"] * PPM)
        return Phase(loads, latency_ns, _us(cluster["launch_us"]), priority=priority, byte_share=share)

    def _on_cpu(self, busiest: Bytes, sent: Bytes, lane: str) -> Phase:
        cluster = self.cluster
        if self.sm_free:  # the rank's own thread copies into the others' memory as it issues the call
            host_ns = _ns(_us(cluster["shared_issue_us"]) + np.asarray(sent) * cluster["shared_ns_per_byte"])
            fetch = Load(BY_HAND, _ns(np.asarray(busiest) * cluster["shared_fetch_ns_per_byte"]))
            return Phase((fetch,), _us(cluster["shared_latency_us"]), host_ns)
        load = Load("link", _ns(np.asarray(busiest) * cluster["gloo_ns_per_byte"]))
        share = round(cluster["gloo_core_share"] * PPM)
        beside = "beside_" if lane in self.beside else ""
        latency_ns, issue_ns = _us(cluster[f"gloo_{beside}latency_us"]), _us(cluster[f"issue_{beside}us"])
        return Phase((load,), latency_ns, issue_ns, byte_share=share)


@lru_cache(maxsize=8)
def _groups(ranks: int, node: int) -> tuple[Ns, Ns]:
    """int64[ranks] each: number of the node, and place within it, which those of one group of peers share."""
    return np.arange(ranks) // node, np.arange(ranks) % node


def _ns(values: Bytes) -> Ns:
    return np.asarray(np.rint(values)).astype(np.int64)


def _us(value: float) -> int:
    return round(value * 1e3)
