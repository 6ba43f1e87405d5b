"""The one sentence that is shown first, from what was measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from analyzer.ablation.cube import aa_arm
from analyzer.ablation.sentence import of_ablation
from analyzer.bubbles import Tables
from analyzer.findings import Findings

_WORTH_NAMING = 0.02  # share of a step below which no single cause is named
_BECAUSE = {
    "more work": " because it has more work",
    "slower kernels": " because the same kernels run slower on it",
    "compute": " because it computes longer",
    "host": " because of host gaps before it",
    "copy": " because of copies before it",
    "own communication": " because of its own communication before it",
}

Found = Mapping[str, tuple[Tables, Findings]]  #: by arm, for those with traces


def of_tables(tables: Tables, findings: Findings) -> str:
    """Verdict on one set of traces: the rank that loses most to waiting, whom it waits for, and why that is late."""
    bubbles = tables.bubbles
    window = float(bubbles["window_ns"].sum())
    if not window:
        return "No step in these traces could be analysed."
    by_rank = bubbles.groupby("rank")[["window_ns", "straggler_ns"]].sum()
    share = (by_rank["straggler_ns"] / by_rank["window_ns"]).fillna(0.0)
    victim = int(share.index.to_numpy()[share.to_numpy().argmax()])
    row = tables.blame_ns[tables.ranks.index(victim)]
    if share[victim] < _WORTH_NAMING or not row.any():
        return _where_time_goes(bubbles)
    culprit = tables.ranks[int(row.argmax())]
    waits = f"{_percent(share[victim])} of rank {victim}'s step waits for rank {culprit}"
    if row.max() < 0.95 * row.sum():
        of_rank = by_rank["window_ns"][victim]
        waits = (
            f"{_percent(share[victim])} of rank {victim}'s step waits for other ranks, "
            f"most of it ({_percent(row.max() / of_rank)} of the step) for rank {culprit}"
        )
    late = _latest(tables.collectives, culprit)
    cause = next((_BECAUSE.get(c.cause or "", "") for c in findings.culprits if c.rank == culprit), "")
    return f"{waits}, {late}{cause}." if late else f"{waits}."


def _latest(collectives: pd.DataFrame, culprit: int) -> str:
    mine = collectives[collectives["last_rank"] == culprit]  # rows of any rank: the culprit's may not be asked about
    if mine.empty:
        return ""
    lateness = mine["last_arrival_ns"] - mine["first_arrival_ns"]
    worst = mine.iloc[int(lateness.argmax())]
    return f"which starts its {worst['op'].replace('_', '-')} up to {lateness.max() / 1e6:.1f} ms late"


def _where_time_goes(bubbles: pd.DataFrame) -> str:
    window = bubbles["window_ns"].sum()
    shares = {
        "waiting for other ranks": bubbles["straggler_ns"].sum() / window,
        "communication that nothing hides": bubbles["exposed_comm_ns"].sum() / window,
        "copies": bubbles["exposed_copy_ns"].sum() / window,
        "the host": bubbles["host_ns"].sum() / window,
    }
    largest = max(shares, key=lambda name: shares[name])
    bubble = 1 - bubbles["compute_ns"].sum() / window
    return f"{_percent(bubble)} of a step is bubble; most of it is {largest} ({_percent(shares[largest])} of the step)."


def of_run(report: dict[str, Any], failure: dict[str, Any] | None, found: Found) -> str:
    """Verdict on a run, from its report: the best arm that computes the right thing, or the one that does not."""
    if failure or not report["complete"]:
        reason = (failure or {}).get("reason") or "it did not finish"
        return f"Incomplete run: {reason}. What was measured until then is below."
    arms, compared = report["arms"], report["compare"]
    wrong = [name for name, entry in compared.items() if entry["verdict"] == "wrong"]
    if wrong:
        gap = compared[wrong[0]]["loss_parity"]["max_rel"]
        by = "is not finite" if gap is None else f"is off by {gap:.1e} relative"
        return f"{wrong[0]} is wrong: its loss {by} on the same batches as {compared[wrong[0]]['versus']}."
    again = aa_arm(list(arms))
    measured = {
        name: entry for name, entry in compared.items() if entry["speedup"]["value"] is not None and name != again
    }
    if not measured:
        return _of_one_arm(arms, found)
    full = (report.get("ablation") or {}).get("full")  # where nothing gains, all layers together are the question

    def worth(name: str) -> tuple[bool, bool, float]:
        gains = measured[name]["verdict"] == "improvement"
        return gains, not gains and name == full, measured[name]["speedup"]["value"]

    best = max(measured, key=worth)
    said = _of_comparison(best, measured[best], arms, report["blocks"])
    return f"{said} {of_ablation(report)}".rstrip()


def _of_one_arm(arms: dict[str, Any], found: Found) -> str:
    if not arms:
        return "Nothing was measured."
    name, arm = next(iter(arms.items()))
    if name in found and not found[name][0].bubbles.empty:
        return of_tables(*found[name])
    if arm["step_ms"]["median"] is None:
        return f"{name}: no timed step and no trace."
    return f"{name}: {arm['step_ms']['median']:.1f} ms per step; there is no trace to say where it went."


def _of_comparison(name: str, entry: dict[str, Any], arms: dict[str, Any], blocks: int) -> str:
    ratio, base = entry["speedup"], arms[entry["versus"]]
    interval = ratio["ci95"]
    within = (
        f"95 % CI {interval[0]:.2f}–{interval[1]:.2f}, {blocks} blocks" if interval else f"{blocks} blocks, no interval"
    )
    said = {
        "improvement": f"{name} is {ratio['value']:.2f}× as fast as {entry['versus']} ({within})",
        "regression": f"{name} is slower than {entry['versus']}: {ratio['value']:.2f}× its speed ({within})",
        "neutral": f"{name} is as fast as {entry['versus']}: {ratio['value']:.2f}× ({within})",
        "inconclusive": f"{name} against {entry['versus']} is inconclusive: {ratio['value']:.2f}× ({within})",
    }[entry["verdict"]]
    before, after = base["bubble_pct"], arms[name]["bubble_pct"]
    if before is not None and after is not None:
        said += f"; bubbles {'fall' if after < before else 'go'} from {before:.0f} % to {after:.0f} % of a step"
    parity = entry["loss_parity"]
    if parity["bit_exact"]:
        said += "; losses are bit-identical"
    elif parity["max_rel"] is not None:
        said += f"; losses agree to {parity['max_rel']:.0e} relative"
    return f"{said}."


def _percent(share: float) -> str:
    return f"{100 * float(np.clip(share, 0, 1)):.0f} %"
