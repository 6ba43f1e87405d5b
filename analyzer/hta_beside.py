"""Holistic Trace Analysis beside ours, through its public API, and why the two differ where they do.

HTA (imported as `hta`) takes seconds per rank, so it looks only at chosen ranks and only when asked.
"""

from __future__ import annotations

import contextlib
import io
import logging
import warnings
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from typing import Any

import pandas as pd

from analyzer.bubbles import Tables
from analyzer.errors import AnalyzerError
from analyzer.lanes import Lane
from analyzer.timeline import Timeline

_NOTABLE_US = 1.0
_NOTABLE_SHARE = 1e-4


def beside_hta(timelines: Sequence[Timeline], tables: Tables, ranks: Sequence[int]) -> dict[str, Any]:
    """HTA's temporal breakdown, overlap, idle times and critical path of `ranks`, with ours and the differences.

    Args:
        timelines: as `tables` was measured from, of whole files (members of archives are not files).

    Raises:
        AnalyzerError: none of the ranks has device events in a file of its own, or HTA itself fails.
    """
    chosen = {rank: t for rank, t in zip(tables.ranks, timelines, strict=True) if rank in ranks}
    files = {rank: t.info.path for rank, t in chosen.items() if t.on_device and t.info.path.endswith((".json", ".gz"))}
    if not files:
        raise AnalyzerError("HTA looks at device events in plain or gzipped files only; these traces have none")
    with _quiet():
        from hta.trace_analysis import TraceAnalysis

        try:
            analysis = TraceAnalysis(trace_files=files, trace_dir="", include_last_profiler_step=True)
            temporal = analysis.get_temporal_breakdown(visualize=False)
            overlap = analysis.get_comm_comp_overlap(visualize=False)
            idle = analysis.get_idle_time_breakdown(ranks=list(files), visualize=False)[0]
        except Exception as error:  # HTA raises whatever went wrong inside it
            raise AnalyzerError(f"HTA failed: {type(error).__name__}: {str(error).splitlines()[:1]}") from error
        paths = [_critical_path(analysis, rank) for rank in files]
    return {
        "version": version("traceinsight"),
        "ranks": list(files),
        "temporal": [_numbers(row, "rank") for row in temporal.to_dict("records")],
        "overlap": [_numbers(row, "rank") for row in overlap.to_dict("records")],
        "idle": [_numbers(row, "rank", "stream") for row in idle.to_dict("records")],
        "critical_path": paths,
        "differences": [note for rank in files for note in _differences(rank, chosen[rank], tables.bubbles, temporal)],
    }


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """HTA prints and logs what belongs in results."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _critical_path(analysis: Any, rank: int) -> dict[str, Any]:
    """Shares of the critical path of a rank's first step, by what bounds it; `error` where HTA cannot find it."""
    try:
        graph, found = analysis.critical_path_analysis(rank=rank, annotation="ProfilerStep", instance_id=0)
        if not found:
            return {"rank": rank, "error": "HTA found no critical path"}
        parts = graph.get_critical_path_breakdown().groupby("bound_by")["duration"].sum()
    except Exception as error:  # HTA raises whatever went wrong inside it
        return {"rank": rank, "error": f"{type(error).__name__}: {str(error).splitlines()[:1]}"}
    total = float(parts.sum())
    return {"rank": rank, "bound_by": {str(k) or "unknown": float(v) / total for k, v in parts.items() if v > 0}}


def _differences(rank: int, timeline: Timeline, bubbles: pd.DataFrame, temporal: pd.DataFrame) -> list[str]:
    """Each number of HTA's that is not ours, with the reason as far as the trace shows it."""
    ours = bubbles[bubbles["rank"] == rank].sum(numeric_only=True) / 1e3
    row = temporal[temporal["rank"] == rank].iloc[0]
    bubble = ours["straggler_ns"] + ours["exposed_comm_ns"] + ours["exposed_copy_ns"]
    pairs = {
        "idle": (float(row["idle_time(us)"]), float(ours["host_ns"])),
        "compute": (float(row["compute_time(us)"]), float(ours["compute_ns"])),
        "non-compute": (float(row["non_compute_time(us)"]), float(bubble)),
    }
    notes = []
    if ours["straggler_ns"]:
        notes.append(
            f"rank {rank}: HTA's non-compute time holds {ours['straggler_ns'] / 1e3:.2f} ms of waiting for other "
            "ranks, which we show as straggler"
        )
    reasons = "; ".join(_reasons(timeline)) or "for reasons the trace does not show"
    for name, (theirs, mine) in pairs.items():
        if abs(theirs - mine) > max(_NOTABLE_US, _NOTABLE_SHARE * float(ours["window_ns"])):
            notes.append(f"rank {rank}: HTA's {name} time is {theirs:.0f} µs, ours {mine:.0f} µs: {reasons}")
    return notes


def _reasons(timeline: Timeline) -> list[str]:
    reasons = []
    device = timeline.lane != Lane.HOST
    fractions = int((timeline.start_ns[device] % 1000 != 0).sum())
    if fractions:
        reasons.append(f"HTA rounds times to whole µs, here of {fractions} intervals")
    names = {timeline.names[i] for i in timeline.name_id[timeline.lane == Lane.COMM]}
    unknown = sorted(name for name in names if not name.startswith("nccl"))
    if unknown:
        reasons.append(f"HTA does not count {unknown[0][:60]!r} as communication")
    return reasons


def _numbers(row: dict[Any, Any], *integers: str) -> dict[str, Any]:
    """A frame's row as JSON values: NaN becomes None, units go into the names."""
    plain: dict[str, Any] = {}
    for key, value in row.items():
        name = str(key).replace("(us)", "_us")
        if isinstance(value, str):
            plain[name] = value
        elif pd.isna(value):
            plain[name] = None
        else:
            plain[name] = int(value) if key in integers else float(value)
    return plain
