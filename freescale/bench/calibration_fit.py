"""From the rows that the ranks of a calibration measured to the constants of a cluster.

Pieces are fitted to the thread's CPU time, which what else runs on the machine hardly touches, and made as much longer
as forward takes than its CPU time; under the profiler to what their traces show. An exchange lasts from its last rank's
call until the last rank has its bytes, on the clock that the ranks of one host share.
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
    "begin", "distribute", "serve", "read", "embed", "forward", "backward", "give", "aim", "update", "dense_update",
)  # fmt: skip
"""What a step of the blocking schedule consists of."""
IN_TURNS = ("forward", "backward")
"""Pieces that are timed in turns of the trainer; the others are timed one by one."""
_ISSUING = {"distribute", "read", "give", "split", "announce", "move"}
_WAITED_FOR, _BESIDE = ("ids", "bulk"), ("ids", "bulk", "data")
_MATRICES = 400


@dataclass(frozen=True)
class Calibration:
    """What was measured.

    Attributes:
        constants: by name, as `freescale.simulate.cluster.CPU_RANGES` has them, less `ranks_per_node`.
        pieces, profiled: piece -> unit of work -> ns, without and under the profiler.
        pauses: piece -> share of its time under the profiler between ops.
        errors_pct: piece -> median error of its fit.
        wall_pct: how much longer than its CPU time forward took, median; what else ran on the machine.
    """

    constants: dict[str, float]
    pieces: dict[str, Units]
    profiled: dict[str, Units]
    pauses: dict[str, float]
    errors_pct: dict[str, float]
    wall_pct: float


def fit(rows: Sequence[Row]) -> Calibration:
    """Constants from rows of all ranks: piece, amounts, start_ns, ns, cpu_ns, ordinal, rank.

    Those of pieces and steps also say preset, batch, and whether they were whole and profiled; those timed one by one
    on which lanes, the others in which arm's turn; under the profiler also busy_ns and pause_ns. Rows `recorded` are
    those of `calibration_traces.exchanges`, with the arm.

    Raises:
        FreeScaleError: a piece was not measured.
    """
    of = defaultdict(list)
    for row in _usual(rows):
        of[row["piece"]].append(row)
    calls = _calls(rows)
    pieces, profiled, pauses, errors = {}, {}, {}, {}
    for piece in PIECES:
        if piece == "rest":
            continue
        mine = [row for row in of[piece] if _over_gloo(row)]
        pieces[piece], errors[piece] = _piece(piece, [row for row in mine if not row["profiled"]], calls.within(piece))
        profiled[piece], _ = _piece(piece, [row for row in mine if row["profiled"]], 0.0)
        pauses[piece] = _share([(row["pause_ns"], row["busy_ns"]) for row in mine if row["profiled"]])
    steps = [row for piece in (*STEP_PIECES, "step") for row in of[piece] if row["whole"] and _over_gloo(row)]
    more = _beside_pieces([row for row in steps if not row["profiled"]], "cpu_ns")
    rest = [ns - calls.beside for ns, _ in more]
    pieces["rest"] = {"each": max(float(np.median(rest)), 0.0)}
    off_ns = float(np.median(np.abs(np.array(rest) - np.median(rest))))
    errors["rest"] = off_ns / float(np.median([ns for _, ns in more])) * 100
    under = [row for row in steps if row["profiled"]]
    busy, paused = (_beside_pieces(under, name) for name in ("busy_ns", "pause_ns"))
    usual_busy, usual_paused = (max(float(np.median([ns for ns, _ in of_steps])), 0.0) for of_steps in (busy, paused))
    profiled["rest"] = {"each": usual_busy}
    pauses["rest"] = _share([(usual_paused, usual_busy)])
    constants = _exchange_constants(of, calls)
    constants["gloo_core_share"] = _core_share(of["alone"], of["beside"])
    constants["pause_us"] = float(np.mean([row["ns"] for row in of["pause"]])) / 1e3
    constants["jitter"] = _noise([row for row in rows if not row.get("profiled")], pieces)
    constants["profiled_jitter"] = _noise([row for row in rows if row.get("profiled")], profiled)
    forward = [row for row in of["forward"] if row.get("turn") and not row["profiled"]]
    longer = float(np.median([row["ns"] / row["cpu_ns"] for row in forward]))
    pieces = {piece: {unit: ns * longer for unit, ns in units.items()} for piece, units in pieces.items()}
    return Calibration(constants, pieces, profiled, pauses, errors, (longer - 1) * 100)


def _usual(rows: Sequence[Row]) -> list[Row]:
    """Rows of a piece that the same rank took several times for the same batch become one, with the median times."""
    same: dict[Any, list[Row]] = defaultdict(list)
    for number, row in enumerate(rows):
        timed_again = row["piece"] in PIECES or row["piece"] == "step"
        units = tuple(row["amounts"].items())  # a batch has two of some pieces, for other work
        batch = tuple(row.get(key) for key in ("preset", "batch", "whole", "lanes", "profiled", "turn"))
        where = (batch, units) if timed_again else number
        same[row["piece"], row["rank"], where].append(row)
    return [{**group[0], **_median_times(group)} if len(group) > 1 else group[0] for group in same.values()]


def _median_times(group: Sequence[Row]) -> dict[str, float]:
    times = [name for name in ("ns", "cpu_ns", "busy_ns", "pause_ns") if name in group[0]]
    return {name: float(np.median([row[name] for row in group])) for name in times}


@dataclass(frozen=True)
class _Calls:
    """CPU ns that it takes to issue an exchange: between pieces that are timed one by one; in a step, where it is
    waited for and where it goes on beside compute."""

    alone: float
    waited_for: float
    beside: float

    def within(self, piece: str) -> float:
        """Of the calls that are inside a piece as it was timed."""
        if piece in IN_TURNS:  # the loss sums, the dense gradients
            return self.beside
        return self.alone if piece in _ISSUING else 0.0


def _calls(rows: Sequence[Row]) -> _Calls:
    called = [
        (row["piece"].removeprefix("gloo call "), bool(row.get("turn")), row["cpu_ns"])
        for row in rows
        if row["piece"].startswith("gloo call ") and not row.get("profiled")
    ]
    alone = [ns for _, turn, ns in called if not turn]
    waited_for = [ns for lane, turn, ns in called if turn and lane in _WAITED_FOR]
    beside = [ns for lane, turn, ns in called if turn and lane == "data"]
    if not (alone and waited_for and beside):
        raise FreeScaleError("calibrate: nothing was measured of the calls that issue exchanges")
    return _Calls(float(np.median(alone)), float(np.median(waited_for)), float(np.median(beside)))


def _exchange_constants(of: Mapping[str, Sequence[Row]], calls: _Calls) -> dict[str, float]:
    """Without the profiler from exchanges between the pieces and by size; under it, and beside compute, from traces.

    There means count, not medians: classes of time are means over steps, and some exchanges take ten times as long.
    """
    gloo_ns, gloo_byte = _line([*_exchanges(of["gloo exchange"]), *_exchanges(of["gloo"])])
    _, profiled_byte = _line(_exchanges(of["gloo exchange"], profiled=True))
    _, reduce_byte = _line(_exchanges(of["gloo_reduce"]))
    shared_issue_ns, shared_byte = _line([(row["amounts"]["nbytes"], row["cpu_ns"]) for row in of["shared_issue"]])
    shared_ns, fetch_byte = _line([*_exchanges(of["shared_memory exchange"]), *_exchanges(of["shared"])])
    seen = _Recorded(of["recorded"])
    waited_for = seen.where("baseline", _WAITED_FOR)
    beside = [*seen.where("baseline", ("data",)), *seen.where("overlap", _BESIDE)]
    reduced = [row for arm in ("baseline", "overlap", "smfree") for row in seen.where(arm, ("dense",))]
    shared = seen.where("smfree", _BESIDE)
    _, profiled_shared_byte = _line([(row["nbytes"], row["issue_ns"]) for row in shared])
    issue_ns, issue_beside_ns = _mean(waited_for, "issue_ns"), _mean([*beside, *reduced], "issue_ns")
    ranks = len({row["rank"] for row in reduced})
    ring = _mean(reduced, "nbytes") * 2 * (ranks - 1) / ranks
    constants_ns = {
        "gloo_latency_us": gloo_ns - calls.alone,
        "profiled_gloo_latency_us": _mean(waited_for, "exposed_ns", profiled_byte) - issue_ns,
        "gloo_beside_latency_us": _mean(beside, "transfer_ns", gloo_byte) - issue_beside_ns,
        "gloo_reduce_latency_us": _mean(reduced, "exposed_ns") - issue_beside_ns - ring * reduce_byte,
        "issue_us": calls.waited_for,
        "issue_beside_us": calls.beside,
        "profiled_issue_us": issue_ns,
        "profiled_issue_beside_us": issue_beside_ns,
        "shared_issue_us": shared_issue_ns,
        "profiled_shared_issue_us": _mean(shared, "issue_ns", profiled_shared_byte),
        "shared_latency_us": shared_ns - shared_issue_ns,
        "profiled_shared_latency_us": _mean(seen.where("smfree", _WAITED_FOR), "exposed_ns")
        - _mean(seen.where("smfree", _WAITED_FOR), "issue_ns"),
    }
    return {name: max(ns, 0.0) / 1e3 for name, ns in constants_ns.items()} | {
        "gloo_ns_per_byte": gloo_byte,
        "profiled_gloo_ns_per_byte": profiled_byte,
        "gloo_reduce_ns_per_byte": reduce_byte,
        "shared_ns_per_byte": shared_byte,
        "profiled_shared_ns_per_byte": profiled_shared_byte,
        "shared_fetch_ns_per_byte": max(fetch_byte - shared_byte, 0.0),
    }


@dataclass(frozen=True)
class _Recorded:
    rows: Sequence[Row]

    def where(self, arm: str, groups: Sequence[str]) -> list[Row]:
        """Rows of an arm's exchanges in these groups.

        Raises:
            FreeScaleError: there are none.
        """
        found = [row for row in self.rows if row["arm"] == arm and row["group"] in groups]
        if not found:
            raise FreeScaleError(f"calibrate: no exchange of {', '.join(groups)} was recorded in {arm}")
        return found


def _mean(rows: Sequence[Row], name: str, ns_per_byte: float = 0.0) -> float:
    """Mean of a time, less what its bytes take."""
    return float(np.mean([row[name] - ns_per_byte * row["nbytes"] for row in rows]))


def _share(parts: Sequence[tuple[float, float]]) -> float:
    part, whole = np.sum(parts, axis=0) if parts else (0.0, 0.0)
    return float(np.clip(part / whole, 0, 1)) if whole > 0 else 0.0


def _piece(piece: str, rows: Sequence[Row], less_ns: float) -> tuple[Units, float]:
    """(ns per unit of work, median error in percent) of a piece, the issuing of its exchange taken off."""
    if not rows:
        raise FreeScaleError(f"calibrate: nothing was measured of {piece}")
    measured = np.array([row.get("busy_ns", row["cpu_ns"]) for row in rows], np.float64)
    ns = np.maximum(np.maximum(measured - less_ns, measured / 10), 1.0)
    units = sorted({unit for row in rows for unit in row["amounts"]})
    work = np.array([[row["amounts"].get(unit, 0.0) for unit in units] + [1.0] for row in rows])
    solution, relative = _fit(work, ns)
    return dict(zip([*units, "each"], solution.tolist(), strict=True)), float(np.median(np.abs(relative)) * 100)


def _over_gloo(row: Row) -> bool:
    """Is this a piece, or a step, as it was timed of the blocking schedule over gloo?"""
    if row["piece"] in (*IN_TURNS, "step"):
        return bool(row.get("turn") == "baseline")
    return bool(row["lanes"] == "gloo")


def _beside_pieces(rows: Sequence[Row], name: str) -> list[tuple[float, float]]:
    """(ns of a step that are in none of its pieces, ns of the step), by the time of that name, for each batch and rank:
    metrics, the schedule, Python in between. One more call, for the weight sums, is among them where calls count."""
    in_pieces: dict[Any, float] = defaultdict(float)
    steps: dict[Any, float] = {}
    for row in rows:
        key = row["preset"], row["batch"], row["rank"]
        if row["piece"] == "step":
            steps[key] = row[name]
        else:
            in_pieces[key] += row[name]
    if not steps:
        raise FreeScaleError("calibrate: nothing was measured of rest")
    return [(step - in_pieces[key], step) for key, step in steps.items()]


def _noise(rows: Sequence[Row], pieces: Mapping[str, Units]) -> float:
    """Spread of the logarithm of forward and backward of a step on one rank, apart from what all ranks had.

    From mean deviations, not squares: a straggler is as long as its rank deviates.
    """
    took: dict[Any, float] = defaultdict(float)
    fitted: dict[Any, float] = defaultdict(float)
    for row in rows:
        if row["piece"] in IN_TURNS and row["whole"]:
            step = row["preset"], row["batch"], row["ordinal"]
            took[step, row["rank"]] += row.get("busy_ns", row["cpu_ns"])
            units = pieces[row["piece"]]
            fitted[step, row["rank"]] += units["each"] + sum(
                ns * row["amounts"].get(unit, 0.0) for unit, ns in units.items() if unit != "each"
            )
    by_step: dict[Any, list[float]] = defaultdict(list)
    for (step, rank), ns in took.items():
        by_step[step].append(float(np.log(ns / fitted[step, rank])))
    logs = np.array(list(by_step.values()))
    ranks = logs.shape[1]
    own = (logs - logs.mean(axis=1, keepdims=True)) * np.sqrt(ranks / (ranks - 1))
    return float(min(np.mean(np.abs(own)) * np.sqrt(np.pi / 2), 2.0))


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
