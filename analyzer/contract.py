"""One analysis as the JSON that `analyze --json` prints: µs as floats, exact to the nanosecond."""

from __future__ import annotations

from typing import Any

import pandas as pd

from analyzer import headline
from analyzer.bubbles import CLASSES, Tables


def as_json(tables: Tables, world_size: int | None, warnings: list[str]) -> dict[str, Any]:
    """Keys as in the design's contract; `headline` and `clock.method` beside them."""
    return {
        "headline": headline.of_tables(tables),
        "world_size": world_size,
        "ranks": tables.ranks,
        "steps": sorted(int(step) for step in tables.bubbles["step"].unique()),
        "per_rank": _per_rank(tables.bubbles),
        "collectives": _collectives(tables.collectives),
        "stragglers": stragglers(tables),
        "clock": {
            "offset_us": {
                str(rank): int(ns) / 1e3 for rank, ns in zip(tables.ranks, tables.clocks.offset_ns, strict=True)
            },
            "residual_us": tables.clocks.residual_ns / 1e3,
            "method": tables.clocks.method,
            "split": tables.split,
        },
        "warnings": warnings,
    }


def _per_rank(bubbles: pd.DataFrame) -> list[dict[str, Any]]:
    columns = ["window_ns", *CLASSES, "overlapped_comm_ns"]
    return [
        {"rank": int(row["rank"]), "step": int(row["step"])}
        | {f"{name.removesuffix('_ns')}_us": row[name] / 1e3 for name in columns}
        for row in bubbles.to_dict("records")
    ]


def _collectives(table: pd.DataFrame) -> list[dict[str, Any]]:
    keys = ["first_arrival_ns", "group", "op", "ordinal"]
    return [_collective(rows) for _, rows in table.groupby(keys, sort=False)]


def _collective(rows: pd.DataFrame) -> dict[str, Any]:
    first = rows.iloc[0]
    known = rows["bytes"][rows["bytes"] >= 0]
    return {
        "group": first["group"],
        "op": first["op"],
        "ordinal": int(first["ordinal"]),
        "bytes": int(known.max()) if len(known) else None,
        "step": int(first["step"]) if first["step"] >= 0 else None,
        "matched": bool(first["matched"]),
        "last_rank": int(first["last_rank"]) if first["last_rank"] >= 0 else None,
        "first_arrival_us": first["first_arrival_ns"] / 1e3,
        "last_arrival_us": first["last_arrival_ns"] / 1e3,
        "end_us": first["end_ns"] / 1e3,
        "wait_us": {str(rank): ns / 1e3 for rank, ns in zip(rows["rank"], rows["wait_ns"], strict=True)},
        "transfer_us": first["transfer_ns"] / 1e3,
    }


def stragglers(tables: Tables) -> dict[str, Any]:
    """Blame matrix in ms (victim × culprit, in the order of `tables.ranks`) and culprits, the costliest first."""
    shared = tables.collectives[tables.collectives["last_rank"] >= 0]
    times_last = shared[shared["rank"] == shared["last_rank"]].groupby("rank").size()
    charged = tables.blame_ns.sum(axis=0)
    culprits = [
        {"rank": rank, "times_last": int(times_last.get(rank, 0)), "charged_us": float(charged[i]) / 1e3}
        for i, rank in enumerate(tables.ranks)
        if times_last.get(rank, 0)
    ]
    culprits.sort(key=lambda culprit: -culprit["charged_us"])
    return {"blame": (tables.blame_ns / 1e6).tolist(), "culprits": culprits}
