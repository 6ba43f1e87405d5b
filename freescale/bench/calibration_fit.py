"""From the rows that the ranks of a calibration measured to the constants of a cluster.

Pieces are fitted to the thread's CPU time, which what else runs on the machine hardly touches. An exchange lasts from
its last rank's call until the last rank has its bytes, on the clock that the ranks of one host share.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.optimize import nnls

from freescale.errors import FreeScaleError
from freescale.simulate.cost import PIECES

Row = Mapping[str, Any]
Units = dict[str, float]
STEP_PIECES = (
    "begin", "distribute", "tell", "serve", "read", "embed", "forward", "backward", "give", "update", "dense_update",
)  # fmt: skip
"""What a step of the blocking schedule consists of."""
_ISSUING = {"distribute", "tell", "read", "give", "split", "announce", "move"}
_MATRICES = 400


@dataclass(frozen=True)
class Calibration:
    """What was measured.

    Attributes:
        constants: by name, as `freescale.simulate.cluster.CPU_RANGES` has them, less `ranks_per_node`.
        pieces, profiled: piece -> unit of work -> ns, without and under the profiler.
        errors_pct: piece -> median error of its fit.
        wall_pct: how much longer than its CPU time a step's compute took, median; what else ran on the machine.
    """

    constants: dict[str, float]
    pieces: dict[str, Units]
    profiled: dict[str, Units]
    errors_pct: dict[str, float]
    wall_pct: float


def fit(rows: Sequence[Row]) -> Calibration:
    """Constants from rows of all ranks: piece, amounts, start_ns, ns, cpu_ns, ordinal, rank; those of pieces and
    steps also say preset, batch and whether it was whole, those of pieces also the lanes and whether it was profiled.

    Raises:
        FreeScaleError: a piece was not measured.
    """
    of = defaultdict(list)
    for row in _usual(rows):
        of[row["piece"]].append(row)
    issue_ns = _issue_ns(of["gloo_issue"])
    pieces, profiled, errors = {}, {}, {}
    for piece in PIECES:
        if piece == "rest":
            continue
        on_gloo = [row for row in of[piece] if row["lanes"] == "gloo"]
        less_ns = issue_ns if piece in _ISSUING else 0.0
        pieces[piece], errors[piece] = _piece(piece, [row for row in on_gloo if not row["profiled"]], less_ns)
        profiled[piece], _ = _piece(piece, [row for row in on_gloo if row["profiled"]], less_ns)
    rest, errors["rest"] = _rest([row for piece in (*STEP_PIECES, "step") for row in of[piece]], issue_ns)
    pieces["rest"], profiled["rest"] = {"each": rest}, {"each": rest}
    noise, wall_pct = _noise(rows, pieces, issue_ns)
    gloo_ns, gloo_byte = _line([*_exchanges(of["gloo exchange"]), *_exchanges(of["gloo"])])
    profiled_ns, profiled_byte = _line(_exchanges(of["gloo exchange"], profiled=True))
    reduce_ns, reduce_byte = _line(_exchanges(of["gloo_reduce"]))
    shared_issue_ns, shared_byte = _line([(row["amounts"]["nbytes"], row["cpu_ns"]) for row in of["shared_issue"]])
    shared_ns, fetch_byte = _line([*_exchanges(of["shared_memory exchange"]), *_exchanges(of["shared"])])
    constants = {
        "gloo_latency_us": max(gloo_ns - issue_ns, 0.0) / 1e3,
        "gloo_ns_per_byte": gloo_byte,
        "profiled_gloo_latency_us": max(profiled_ns - issue_ns, 0.0) / 1e3,
        "profiled_gloo_ns_per_byte": profiled_byte,
        "gloo_reduce_latency_us": max(reduce_ns - issue_ns, 0.0) / 1e3,
        "gloo_reduce_ns_per_byte": reduce_byte,
        "gloo_core_share": _core_share(of["alone"], of["beside"]),
        "shared_latency_us": max(shared_ns - shared_issue_ns, 0.0) / 1e3,
        "shared_ns_per_byte": shared_byte,
        "shared_fetch_ns_per_byte": max(fetch_byte - shared_byte, 0.0),
        "shared_issue_us": shared_issue_ns / 1e3,
        "issue_us": issue_ns / 1e3,
        "jitter": min(noise, 2.0),
    }
    return Calibration(constants, pieces, profiled, errors, wall_pct)


def _usual(rows: Sequence[Row]) -> list[Row]:
    """Rows of a piece that the same rank took several times for the same batch become one, with the median times."""
    same: dict[Any, list[Row]] = defaultdict(list)
    for number, row in enumerate(rows):
        timed_again = row["piece"] in PIECES or row["piece"] == "step"
        units = tuple(row["amounts"].items())  # a batch has two of some pieces, for other work
        batch = tuple(row.get(key) for key in ("preset", "batch", "whole", "lanes", "profiled"))
        where = (batch, units) if timed_again else number
        same[row["piece"], row["rank"], where].append(row)
    return [
        {**group[0], "cpu_ns": float(np.median([row["cpu_ns"] for row in group]))} if len(group) > 1 else group[0]
        for group in same.values()
    ]


def _issue_ns(rows: Sequence[Row]) -> float:
    return float(np.median([row["cpu_ns"] for row in rows if row["amounts"]["nbytes"] <= 1 << 20]))


def _piece(piece: str, rows: Sequence[Row], less_ns: float) -> tuple[Units, float]:
    """(ns per unit of work, median error in percent) of a piece, the issuing of its exchange taken off."""
    if not rows:
        raise FreeScaleError(f"calibrate: nothing was measured of {piece}")
    measured = np.array([row["cpu_ns"] for row in rows], np.float64)
    ns = np.maximum(measured - less_ns, measured / 10)
    units = sorted({unit for row in rows for unit in row["amounts"]})
    work = np.array([[row["amounts"].get(unit, 0.0) for unit in units] + [1.0] for row in rows])
    solution, relative = _fit(work, ns)
    return dict(zip([*units, "each"], solution.tolist(), strict=True)), float(np.median(np.abs(relative)) * 100)


def _plain(row: Row) -> bool:
    """Is this a piece of a whole step of the blocking schedule over gloo, without the profiler?"""
    return bool(row["piece"] in STEP_PIECES and row["whole"] and row["lanes"] == "gloo" and not row["profiled"])


def _rest(rows: Sequence[Row], issue_ns: float) -> tuple[float, float]:
    """(ns of a step that are in none of its pieces, spread in percent of a step): DDP, hooks, metrics, Python between.

    Whole steps against the pieces of the same batch on the same rank, both in CPU time.
    """
    in_pieces: dict[Any, float] = defaultdict(float)
    steps: dict[Any, float] = {}
    for row in rows:
        if _plain(row):
            in_pieces[row["preset"], row["batch"], row["rank"]] += row["cpu_ns"]
        if row["piece"] == "step":
            steps[row["preset"], row["batch"], row["rank"]] = row["cpu_ns"]
    if not steps:
        raise FreeScaleError("calibrate: nothing was measured of rest")
    # Four exchanges of a step (IDs twice, rows, gradients) are in the pieces; its other three are counted apart.
    more = np.array([step - in_pieces[key] - 3 * issue_ns for key, step in steps.items()])
    rest = max(float(np.median(more)), 0.0)
    return rest, float(np.median(np.abs(more - rest)) / np.median(list(steps.values())) * 100)


def _noise(rows: Sequence[Row], pieces: Mapping[str, Units], issue_ns: float) -> tuple[float, float]:
    """(spread of the logarithm of a step's compute on one rank, apart from what all ranks had; wall over CPU in %)."""
    wall: dict[Any, float] = defaultdict(float)
    cpu: dict[Any, float] = defaultdict(float)
    fitted: dict[Any, float] = defaultdict(float)
    for row in rows:
        if _plain(row):
            key = (row["preset"], row["batch"], row["ordinal"]), row["rank"]
            wall[key] += row["ns"]
            cpu[key] += row["cpu_ns"]
            units = pieces[row["piece"]]
            fitted[key] += sum(ns * row["amounts"].get(unit, 0.0) for unit, ns in units.items() if unit != "each")
            fitted[key] += units["each"] + (issue_ns if row["piece"] in _ISSUING else 0.0)
    by_batch: dict[Any, list[float]] = defaultdict(list)
    for (batch, rank), ns in wall.items():
        by_batch[batch].append(float(np.log(ns / fitted[batch, rank])))
    logs = np.array(list(by_batch.values()))
    ranks = logs.shape[1]
    own = (logs - logs.mean(axis=1, keepdims=True)) * np.sqrt(ranks / (ranks - 1))
    longer = np.median([wall[key] / cpu[key] for key in wall]) - 1
    return float(1.4826 * np.median(np.abs(own))), float(longer * 100)


def _exchanges(rows: Sequence[Row], profiled: bool = False) -> list[tuple[float, float]]:
    """(bytes, ns from the last call to the last end) of each exchange, without or under the profiler."""
    of = defaultdict(list)
    for row in rows:
        if row.get("profiled", False) == profiled:
            of[row["ordinal"]].append(row)
    return [
        (
            max(row["amounts"]["nbytes"] for row in together),
            max(row["start_ns"] + row["ns"] for row in together) - max(row["start_ns"] for row in together),
        )
        for together in of.values()
    ]


def _line(points: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """(ns at 0 bytes, ns per byte)."""
    nbytes, ns = np.array(points, np.float64).T
    solution, _ = _fit(np.column_stack([np.ones(len(nbytes)), nbytes]), np.maximum(ns, 1.0))
    return float(solution[0]), float(solution[1])


def _fit(work: np.ndarray, ns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(non-negative ns per column, relative errors); errors count relative to the time, outliers once only."""
    chosen = np.ones(len(ns), bool)
    for _ in range(3):
        scaled = work[chosen] / ns[chosen, None]
        size = np.linalg.norm(scaled, axis=0)
        size[size == 0] = 1.0
        solution = nnls(scaled / size, np.ones(int(chosen.sum())))[0] / size
        relative = work @ solution / ns - 1
        chosen = np.abs(relative) <= 3 * max(1.4826 * float(np.median(np.abs(relative))), 0.01)
    return solution, relative


def _core_share(alone: Sequence[Row], beside: Sequence[Row]) -> float:
    """How much of a core's speed is gone while gloo moves bytes."""
    each = float(np.median([row["ns"] for row in alone])) / _MATRICES
    slowed = [row["ns"] / row["amounts"]["times"] for row in beside if row["amounts"]["times"]]
    return float(np.clip(1 - each / float(np.median(slowed)), 0, 0.95)) if slowed else 0.0
