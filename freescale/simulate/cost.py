"""What the pieces of a step cost: on a GPU from FLOPs and bytes through a roofline, on a CPU as calibrated.

A *piece* is one stretch of the training step between two exchanges, named as in `PIECES`. Its cost is a sum over units
of work: on a GPU bytes and FLOPs per unit and kernels to launch, on a CPU measured nanoseconds per unit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from freescale.simulate.batches import ModelShape
from freescale.simulate.cluster import Cluster
from freescale.simulate.ops import PPM, Ns

Amounts = Mapping[str, NDArray[np.float64] | float]

PIECES: dict[str, tuple[str, ...]] = {
    "begin": (),
    "rest": (),
    "forward": ("projection_flop", "attention_flop", "scores", "blocks", "tokens"),
    "backward": ("projection_flop", "attention_flop", "scores", "blocks", "tokens"),
    "distribute": ("ids", "asked"),
    "serve": ("served",),
    "read": ("row_bytes",),
    "embed": ("ids", "row_bytes"),
    "give": ("row_bytes",),
    "aim": ("rows", "requesters"),
    "update": ("row_bytes", "rows", "requesters"),
    "split": ("asked", "served"),
    "part": ("row_bytes", "rows"),
    "merge": ("row_bytes", "rows"),
    "dense_update": ("parameters",),
    "announce": (),
    "move": ("samples_in_all", "rank_pairs", "moved_bytes"),
    "receive": ("moved_bytes", "samples"),
}
"""Piece -> units that its cost is counted in; every piece also has a fixed part, in the unit `each`.

begin: taking the batch · rest: hooks, DDP, metrics and whatever is between the pieces, on a CPU · distribute: slots,
de-duplication, counts, positions of the rows · serve: what the owner is asked for · read: rows for an exchange
· embed: rows to features · give: gradients for an exchange · aim: which row each gradient will be added to · update:
gradients summed, rows updated · split: collision sets and marks · part, merge: rows parted by the marks, and put
together · move, receive: samples, for balance
"""

_KERNELS: dict[str, tuple[int, dict[str, float]]] = {
    "begin": (4, {}),
    # A radix sort of 8-byte keys with positions: eight passes, read and written; then the positions of the rows.
    "distribute": (31, {"ids": 280.0, "asked": 16.0}),
    "serve": (15, {"served": 256.0}),
    "read": (4, {"row_bytes": 2.0}),
    "embed": (8, {"ids": 8.0, "row_bytes": 1.0}),
    "give": (4, {"row_bytes": 2.0}),
    "aim": (11, {"rows": 256.0}),
    "update": (4, {"row_bytes": 6.0}),
    "split": (25, {"asked": 48.0, "served": 96.0}),
    "part": (4, {"rows": 16.0, "row_bytes": 2.0}),
    "merge": (4, {"rows": 16.0, "row_bytes": 2.0}),
    "dense_update": (4, {"parameters": 28.0}),
    "announce": (4, {}),
    "move": (12, {"moved_bytes": 2.0}),
    "receive": (12, {"moved_bytes": 3.0}),
}
"""GPU: kernels launched, and bytes of memory traffic per unit. Counted from the code; one op is taken as one kernel."""

_LAYER_KERNELS = {"forward": 12, "backward": 20}
_BACKWARD_FLOPS = {"projection_flop": 2.0, "attention_flop": 2.5}  # attention computes its scores again
_ACTIVATION_BYTES = 2
_ACTIVATION_PASSES = {"forward": 3, "backward": 6}  # each activation written once and read twice; twice that backwards


@dataclass(frozen=True)
class Cost:
    """Cost of a piece on every rank.

    Attributes:
        host_ns: what the host spends on it.
        device_ns: what the GPU spends; 0 on a CPU, where the host does the work.
        flop_share, byte_share: see `freescale.simulate.ops.Work`; of whichever does the work.
        pause_ppm: see there too.
    """

    host_ns: Ns
    device_ns: Ns
    flop_share: int
    byte_share: int
    pause_ppm: int = 0


@dataclass(frozen=True)
class Costs:
    """Costs of pieces on a cluster for a model."""

    cluster: Cluster
    shape: ModelShape
    ranks: int

    def of(self, piece: str, amounts: Amounts) -> Cost:
        """Cost of a piece with these amounts (unit -> float64[ranks] or one number)."""
        if self.cluster.device == "cpu":
            return self._measured(piece, amounts)
        if piece in _LAYER_KERNELS:
            return self._model(piece, amounts)
        kernels, per_unit = _KERNELS[piece]
        nbytes = self._sum(per_unit, amounts)
        device_ns = nbytes / (self.cluster["memory_gb_per_s"] * self.cluster["memory_efficiency"])
        launches = kernels + (self.cluster["update_launches_per_rank"] * self.ranks if piece == "update" else 0)
        host_ns = np.full(self.ranks, launches * self.cluster["launch_us"] * 1e3)
        if piece == "move":
            host_ns += self.cluster["assign_ns_per_sample"] * amounts["samples_in_all"]
            host_ns += self.cluster["assign_ns_per_rank_pair"] * amounts["rank_pairs"]
        return Cost(_ns(host_ns), _ns(device_ns), 0, PPM)

    def _model(self, piece: str, amounts: Amounts) -> Cost:
        cluster, shape = self.cluster, self.shape
        peak = cluster["tflop_per_s"] * 1e3  # FLOPs per ns
        times = _BACKWARD_FLOPS if piece == "backward" else dict.fromkeys(_BACKWARD_FLOPS, 1.0)
        flop_ns = times["projection_flop"] * amounts["projection_flop"] / (peak * cluster["flop_efficiency"])
        flop_ns = flop_ns + times["attention_flop"] * amounts["attention_flop"] / (
            peak * cluster["attention_efficiency"]
        )
        width = shape.embedded_dim + shape.layers * (
            3 * shape.dim + shape.heads * (2 * shape.qk_dim + 4 * shape.value_dim)
        )
        nbytes = amounts["tokens"] * (width * _ACTIVATION_BYTES * _ACTIVATION_PASSES[piece])
        byte_ns = nbytes / (cluster["memory_gb_per_s"] * cluster["memory_efficiency"])
        flop_ns, byte_ns = np.broadcast_to(flop_ns, self.ranks), np.broadcast_to(byte_ns, self.ranks)
        longest = np.maximum(flop_ns, byte_ns)
        total = max(float(longest.sum()), 1e-9)
        launches = _LAYER_KERNELS[piece] * (shape.layers + 1)
        host_ns = np.full(self.ranks, launches * cluster["launch_us"] * 1e3)
        shares = (round(PPM * float(part.sum()) / total) for part in (flop_ns, byte_ns))
        flop_share, byte_share = (min(share, PPM) for share in shares)
        return Cost(_ns(host_ns), _ns(longest), flop_share, byte_share)

    def _measured(self, piece: str, amounts: Amounts) -> Cost:
        per_unit = self.cluster.pieces.get(piece, {})
        host_ns = self._sum({unit: ns for unit, ns in per_unit.items() if unit != "each"}, amounts)
        host_ns = host_ns + per_unit.get("each", 0.0)
        pause_ppm = round(PPM * self.cluster.pauses.get(piece, 0.0))
        # Gloo's threads take core time while bytes flow, not while a call waits for its peers: as memory traffic does.
        return Cost(_ns(host_ns), np.zeros(self.ranks, np.int64), 0, PPM, pause_ppm)

    def _sum(self, per_unit: Mapping[str, float], amounts: Amounts) -> NDArray[np.float64]:
        total = np.zeros(self.ranks)
        for unit, value in per_unit.items():
            total += value * amounts[unit]
        return total


def _ns(values: NDArray[np.float64]) -> Ns:
    return np.rint(values).astype(np.int64)
