"""Writes run directories that keep the contract, for tests that need one: numbers are planted, and the report is
worked out here from the same frames with plain pandas, not by the code under test.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analyzer import rundir

HOSTILE = "<script>alert(1)</script>"
CLASS_COLUMNS = ["compute_ns", "straggler_ns", "exposed_comm_ns", "exposed_copy_ns", "host_ns"]


def write_run(
    root: Path,
    name: str = "20260301T101500-hstu-small-gloox2",
    *,
    arms: tuple[str, ...] = ("baseline", "balance"),
    ranks: int = 2,
    blocks: int = 4,
    steps: int = 10,
    profiled: int = 3,
    seed: int = 0,
    provenance: str = "measured",
    failure: dict[str, Any] | None = None,
    analysed: bool = True,
    traces: bool = False,
    **manifest: Any,
) -> Path:
    """One run directory. With `failure` it is incomplete: the last block lacks its last arm, nothing was profiled."""
    path = root / name
    rng = np.random.default_rng(seed)
    frame = _steps(rng, arms, ranks, blocks, steps)
    complete = failure is None
    if not complete:
        frame = frame[~((frame["block"] == blocks - 1) & (frame["arm"] == arms[-1]))]
    bubbles = _bubbles(rng, arms, ranks, profiled)
    content: dict[str, Any] = {
        "schema": 1,
        "provenance": provenance,
        "complete": complete,
        "created_utc": "2026-03-01T10:15:00Z",
        "command": ["freescale-bench", "run", "hstu-small", "--ranks", str(ranks)],
        "seed": seed,
        "workload": {"preset": "hstu-small", "samples_per_rank": 32},
        "world_size": ranks,
        "backend": "gloo",
        "device": "cpu",
        "arms": list(arms),
        "blocks": blocks,
        "steps_per_turn": steps,
        "warmup_steps": 2,
        "profiled_steps": profiled,
        "machine": {"cpu": "Example CPU", "cores": 2, "memory_bytes": 8 << 30, "host": "bench-01", "gpus": []},
        "versions": {"python": "3.11.7", "torch": "2.13.0", "freescale_bench": "0.1.0"},
        "git_commit": "0123abc",
        "warnings": [],
        **({"failure": failure} if failure else {}),
        **manifest,
    }
    rundir.write_json(path / rundir.MANIFEST, content)
    rundir.write_parquet(path / rundir.STEPS, frame)
    if complete and analysed:
        rundir.write_parquet(path / rundir.BUBBLES, bubbles)
        rundir.write_parquet(path / rundir.COLLECTIVES, _collectives(rng, arms, ranks, profiled))
        rundir.write_json(path / rundir.REPORT, _report(content, frame, bubbles))
        if traces:
            _write_traces(path, bubbles)
    return path


def _speed(arm: str) -> float:
    return 1.0 if arm in ("baseline", "sdd") else 0.82 - 0.02 * (len(arm) % 3)


def _steps(rng: np.random.Generator, arms: tuple[str, ...], ranks: int, blocks: int, steps: int) -> pd.DataFrame:
    pieces = []
    for block in range(blocks):
        for position, arm in enumerate(rng.permutation(np.array(arms, dtype=object))):
            step = np.repeat(np.arange(steps), ranks)
            rank = np.tile(np.arange(ranks), steps)
            load = (
                rng.lognormal(0, 0.25, (steps, ranks)) if _speed(arm) == 1 else rng.lognormal(0, 0.03, (steps, ranks))
            )
            compute = 180 * load + rng.normal(0, 2, (steps, ranks))
            total = compute.max(axis=1, keepdims=True) + 40 + rng.normal(0, 1, (steps, ranks))
            tokens = (load * 4_000).astype(int)
            pieces.append(
                pd.DataFrame(
                    {
                        "block": np.int32(block),
                        "arm": arm,
                        "position": np.int32(position),
                        "step": step.astype("int32"),
                        "rank": rank.astype("int32"),
                        "warmup": step < 2,
                        "step_ms": total.ravel(),
                        "compute_ms": compute.ravel(),
                        "wait_ms": (total - compute).ravel(),
                        "samples": 32,
                        "tokens": tokens.ravel(),
                        "candidates": 320,
                        "predicted_cost": np.nan if _speed(arm) == 1 else (180 * load).ravel(),
                        "moved_bytes": 0 if _speed(arm) == 1 else 1 << 20,
                        "loss": 0.69 - 0.001 * step,
                        "normalized_entropy": 1.0,
                        "collision_rate": 0.12,
                        "start_unix_ns": 1_772_360_100_000_000_000 + step.astype("int64") * 250_000_000,
                    }
                )
            )
    return pd.concat(pieces, ignore_index=True)


def _bubbles(rng: np.random.Generator, arms: tuple[str, ...], ranks: int, profiled: int) -> pd.DataFrame:
    pieces = []
    for arm in arms:
        shape = (profiled, ranks)
        spread = 0.3 if _speed(arm) == 1 else 0.04
        compute = (200e6 * rng.lognormal(0, spread, shape)).astype("int64")
        straggler = compute.max(axis=1, keepdims=True) - compute
        comm = rng.integers(18_000_000, 30_000_000, shape)
        copy = rng.integers(0, 2_000_000, shape)
        host = rng.integers(8_000_000, 14_000_000, shape)
        window = compute + straggler + comm + copy + host
        pieces.append(
            pd.DataFrame(
                {
                    "arm": arm,
                    "step": np.repeat(np.arange(profiled) + 5, ranks).astype("int64"),
                    "rank": np.tile(np.arange(ranks), profiled).astype("int32"),
                    "start_ns": np.repeat(np.arange(profiled) * 400_000_000, ranks).astype("int64"),
                    "window_ns": window.ravel(),
                    "compute_ns": compute.ravel(),
                    "straggler_ns": straggler.ravel(),
                    "exposed_comm_ns": comm.ravel(),
                    "exposed_copy_ns": copy.ravel(),
                    "host_ns": host.ravel(),
                    "overlapped_comm_ns": np.int64(0),
                }
            )
        )
    return pd.concat(pieces, ignore_index=True)


def _collectives(rng: np.random.Generator, arms: tuple[str, ...], ranks: int, profiled: int) -> pd.DataFrame:
    pieces = []
    for arm in arms:
        for step in range(profiled):
            for ordinal, (op, size) in enumerate(
                (("all_to_all", 1 << 20), ("all_to_all", 4 << 20), ("all_reduce", 2 << 20))
            ):
                start = step * 400_000_000 + ordinal * 90_000_000
                arrival = start + (rng.exponential(12e6 if _speed(arm) == 1 else 1e6, ranks)).astype("int64")
                last = int(arrival.argmax())
                transfer = int(rng.integers(4_000_000, 9_000_000))
                end = int(arrival.max()) + transfer
                pieces.append(
                    pd.DataFrame(
                        {
                            "arm": arm,
                            "step": np.int64(step + 5),
                            "group": "0",
                            "op": op,
                            "ordinal": np.int64(ordinal),
                            "matched": True,
                            "rank": np.arange(ranks, dtype="int32"),
                            "bytes": np.int64(size),
                            "arrival_ns": arrival,
                            "rank_end_ns": np.int64(end),
                            "wait_ns": arrival.max() - arrival,
                            "last_rank": np.int32(last),
                            "first_arrival_ns": arrival.min(),
                            "last_arrival_ns": arrival.max(),
                            "end_ns": np.int64(end),
                            "transfer_ns": np.int64(transfer),
                        }
                    )
                )
    return pd.concat(pieces, ignore_index=True)


# Compute planted in every step of every trace: (name, ms after the start of the rank's window, ms)
PLANTED = (("aten::mm", 10.0, 50.0), ("aten::bmm", 70.0, 20.0))
CLOCK_US = 5_000_000.0  # where a rank's own clock starts, times (rank + 1): unlike the common clock of the bubbles


def _write_traces(path: Path, bubbles: pd.DataFrame) -> None:
    """Kineto CPU traces whose step windows are those of `bubbles`, each rank on a clock of its own."""
    for (arm, rank), rows in bubbles.groupby(["arm", "rank"]):
        events: list[dict[str, Any]] = []
        for row in rows.to_dict("records"):
            start = CLOCK_US * (rank + 1) + row["start_ns"] / 1e3
            step = {"ph": "X", "cat": "user_annotation", "name": f"ProfilerStep#{row['step']}", "pid": 1, "tid": 1}
            events.append({**step, "ts": start, "dur": row["window_ns"] / 1e3})
            for name, after, length in PLANTED:
                op = {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1}
                events.append({**op, "ts": start + after * 1e3, "dur": length * 1e3})
        content = {"distributedInfo": {"rank": int(rank), "world_size": 2, "backend": "gloo"}, "traceEvents": events}
        file = path / rundir.TRACES / str(arm) / f"rank-{rank:05d}.json.gz"
        rundir.write_bytes(file, gzip.compress(json.dumps(content).encode(), mtime=0))


def _report(manifest: dict[str, Any], steps: pd.DataFrame, bubbles: pd.DataFrame) -> dict[str, Any]:
    timed = steps[~steps["warmup"]]
    arms: dict[str, Any] = {}
    for arm in manifest["arms"]:
        slowest = timed[timed["arm"] == arm].groupby(["block", "step"])["step_ms"].max()
        rows = bubbles[bubbles["arm"] == arm]
        mean_ms = rows[CLASS_COLUMNS].mean() / 1e6
        straggler_share = (rows["straggler_ns"] / rows["window_ns"]).groupby(rows["rank"]).mean()
        per_rank = rows.groupby("rank")["compute_ns"].mean()
        median = float(slowest.median())
        arms[arm] = {
            "layers": [] if arm in ("baseline", "sdd") else arm.split("+"),
            "step_ms": {
                "median": median,
                "ci95": [median * 0.98, median * 1.025],
                "min": float(slowest.min()),
                "n": len(slowest),
            },
            "samples_per_s": 32 * manifest["world_size"] / median * 1e3,
            "bubble_pct": float((1 - rows["compute_ns"].sum() / rows["window_ns"].sum()) * 100),
            "straggler_pct": float(straggler_share.mean() * 100),
            "compute_ms": mean_ms["compute_ns"],
            "exposed_comm_ms": mean_ms["exposed_comm_ns"],
            "exposed_copy_ms": mean_ms["exposed_copy_ns"],
            "host_ms": mean_ms["host_ns"],
            "exposed_total_ms": mean_ms["straggler_ns"] + mean_ms["exposed_comm_ns"],
            "overlap_efficiency": None,
            "imbalance": float(per_rank.max() / per_rank.mean()),
            "collision_rate": 0.12,
            "moved_bytes": 0,
            "comm_cpu_s": None,
            "loss": [0.69, 0.689],
        }
    reference = manifest["arms"][0]
    compare: dict[str, Any] = {}
    for arm in manifest["arms"][1:]:
        value = arms[reference]["step_ms"]["median"] / arms[arm]["step_ms"]["median"]
        compare[arm] = {
            "versus": reference,
            "speedup": {"value": value, "ci95": [value * 0.97, value * 1.03]},
            "bubble_reduction_pct": {"value": 30.0, "ci95": None},
            "exposed_reduction_pct": {"value": 55.0, "ci95": [50.0, 60.0]},
            "loss_parity": {"max_abs": 2.1e-8, "max_rel": 3.1e-8, "bit_exact": False},
            "verdict": "improvement",
        }
    last = manifest["arms"][-1]
    headline = (
        f"{last} takes {compare[last]['speedup']['value']:.2f}× less time per step than {reference}." if compare else ""
    )
    return {
        "schema": 1,
        "provenance": manifest["provenance"],
        "workload": manifest["workload"]["preset"],
        "world_size": manifest["world_size"],
        "backend": manifest["backend"],
        "blocks": manifest["blocks"],
        "complete": True,
        "steps": int(timed["step"].nunique()),
        "headline": headline,
        "warnings": [],
        "arms": arms,
        "compare": compare,
    }
