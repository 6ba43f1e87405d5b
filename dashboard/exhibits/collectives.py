"""Exhibits of the Collectives page: what each kind of collective costs, and which single ones cost the most."""

from __future__ import annotations

from dashboard import formats, waits
from dashboard.data import Run
from dashboard.exhibit import Column, Exhibit, Table, arm_options, fixed, source
from dashboard.figures import collectives as figures
from dashboard.theme import BY_KEY, Class

WAITING = Class(
    "straggler", "Waiting for the last rank", BY_KEY["straggler"].colour, "from arrival to the last arrival"
)
TRANSFER = Class("exposed_comm", "Transfer", BY_KEY["exposed_comm"].colour, "from the last arrival to the end")


def by_kind(run: Run, arm: str | None = None) -> Exhibit | None:
    chosen = _arm(run, arm)
    if chosen is None:
        return None
    kinds = waits.kinds(run.collectives, chosen)
    columns = [
        Column("op", "Operation"),
        Column("group", "Group"),
        Column("per_step", "Per step", fixed(1)),
        Column("bytes", "Bytes per step", formats.size_bytes),
        Column("wait_ms", "Waiting, mean over ranks (ms)", fixed(2)),
        Column("transfer_ms", "Transfer (ms)", fixed(2)),
        Column("matched", "Matched", lambda share: formats.percent(share * 100)),
    ]
    return Exhibit(
        "collective-kinds",
        "What collectives cost",
        "Per step and kind, whether or not compute hid it. Waiting is not the network's fault: it ends when the last "
        "rank arrives. Transfer is what a faster link would shorten.",
        source(run, f"profiled steps, arm {chosen}"),
        figures.by_kind(kinds),
        Table(columns, [{str(key): value for key, value in row.items()} for row in kinds.to_dict("records")]),
        legend=(WAITING, TRANSFER),
        options=arm_options(waits.arms_with_collectives(run.collectives)),
        choices={"arm": chosen},
    )


def size_against_transfer(run: Run, arm: str | None = None) -> Exhibit | None:
    chosen = _arm(run, arm)
    if chosen is None:
        return None
    each = waits.each(run.collectives, chosen)
    each = each[each["matched"].astype(bool) & (each["bytes"] > 0) & (each["transfer_ms"] > 0)]
    if each.empty:
        return None
    each = each.assign(gb_per_s=each["bytes"] / each["transfer_ms"] / 1e6)
    columns = [
        Column("step", "Step", formats.count),
        Column("op", "Operation"),
        Column("group", "Group"),
        Column("ordinal", "Number", formats.count),
        Column("bytes", "Bytes of the largest rank", formats.size_bytes),
        Column("skew_ms", "First to last arrival (ms)", fixed(3)),
        Column("transfer_ms", "Transfer (ms)", fixed(3)),
        Column("gb_per_s", "Bytes / transfer (GB/s)", fixed(2)),
        Column("last_rank", "Last rank", formats.count),
    ]
    each = each.sort_values("transfer_ms", ascending=False, kind="stable")
    return Exhibit(
        "collective-sizes",
        "Size against transfer time",
        "Where the dots lie flat, latency decides; where they rise with the size, bandwidth does. A dot far above "
        "others of its size met something in its way.",
        source(run, f"profiled steps, arm {chosen}, collectives whose size the trace recorded"),
        figures.size_against_transfer(each),
        Table(columns, [{str(key): value for key, value in row.items()} for row in each.to_dict("records")]),
        options=arm_options(waits.arms_with_collectives(run.collectives)),
        choices={"arm": chosen},
    )


def _arm(run: Run, wanted: str | None) -> str | None:
    known = waits.arms_with_collectives(run.collectives)
    if wanted in known:
        return wanted
    focus = run.focus()
    return focus if focus in known else (known[0] if known else None)
