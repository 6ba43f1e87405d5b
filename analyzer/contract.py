"""One analysis as the JSON that `analyze --json` prints: µs as floats, exact to the nanosecond."""

from __future__ import annotations

from typing import Any

import pandas as pd

from analyzer import headline
from analyzer.bubbles import CLASSES, Tables
from analyzer.contention import Contention
from analyzer.findings import Findings
from analyzer.hostgaps import REASONS


def as_json(tables: Tables, findings: Findings, world_size: int | None, warnings: list[str]) -> dict[str, Any]:
    """Keys as in the design's contract, with `headline`, `overlap_efficiency` and `host_gaps` beside them."""
    return {
        "headline": headline.of_tables(tables, findings),
        "world_size": world_size,
        "ranks": sorted(int(rank) for rank in tables.bubbles["rank"].unique()),
        "steps": sorted(int(step) for step in tables.bubbles["step"].unique()),
        "per_rank": _per_rank(tables.bubbles, findings.tokens),
        "collectives": _collectives(tables.collectives),
        **findings_json(tables, findings),
        "warnings": warnings,
    }


def _per_rank(bubbles: pd.DataFrame, tokens: dict[tuple[int, int], int]) -> list[dict[str, Any]]:
    columns = ["window_ns", *CLASSES, "overlapped_comm_ns"]
    return [
        {"rank": row["rank"], "step": row["step"], "tokens": tokens.get((row["rank"], row["step"]))}
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


def findings_json(tables: Tables, findings: Findings) -> dict[str, Any]:
    """What the tables mean; `host_gaps` as means over steps, by rank."""
    return {
        "stragglers": _stragglers(tables, findings),
        "contention": {kind: _contention(found) for kind, found in findings.contention.items()},
        "overlap_efficiency": findings.overlap_efficiency,
        "host_gaps": _host_gaps(findings.host_gaps),
        "clock": {
            "offset_us": {
                str(rank): int(ns) / 1e3 for rank, ns in zip(tables.ranks, tables.clocks.offset_ns, strict=True)
            },
            "drift_ppm": {
                str(rank): float(drift) * 1e6 for rank, drift in zip(tables.ranks, tables.clocks.drift, strict=True)
            },
            "residual_us": tables.clocks.residual_ns / 1e3,
            "uncertainty_us": tables.clocks.uncertainty_ns / 1e3,
            "method": tables.clocks.method,
            "split": tables.split,
        },
    }


def _stragglers(tables: Tables, findings: Findings) -> dict[str, Any]:
    """Blame matrix in ms (victim × culprit, in the order of `ranks`) and culprits, the costliest first."""
    return {
        "blame": (tables.blame_ns / 1e6).tolist(),
        "culprits": [
            {
                "rank": culprit.rank,
                "times_last": culprit.times_last,
                "charged_us": culprit.charged_ns / 1e3,
                "pattern": culprit.pattern,
                "cause": culprit.cause,
                "excess_us": {part: ns / 1e3 for part, ns in culprit.excess_ns.items()},
            }
            for culprit in findings.culprits
        ],
        "lateness_compute_r": findings.lateness_compute_r,
        "compute_tokens_r": findings.compute_tokens_r,
    }


def _contention(found: Contention) -> dict[str, Any]:
    interval = None if found.ci95 is None else list(found.ci95)
    return {"slowdown": found.slowdown, "ci95": interval, "pairs": found.pairs}


def _host_gaps(gaps: pd.DataFrame) -> list[dict[str, Any]]:
    means = gaps.groupby("rank", as_index=False)[list(REASONS)].mean()
    return [
        {"rank": row["rank"]} | {f"{name.removesuffix('_ns')}_us": row[name] / 1e3 for name in REASONS}
        for row in means.to_dict("records")
    ]
