"""An interaction log: who did what when, in time order, with users, items and features numbered compactly from 0."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute
from numpy.typing import NDArray

from freescale.errors import FreeScaleError
from workloads.interaction_file import RawColumns, read_columns

_UNITS_PER_SECOND = ((1e11, 1), (1e14, 10**3), (1e17, 10**6), (np.inf, 10**9))
_MAX_RATING_VALUES = 64


@dataclass(frozen=True)
class InteractionLog:
    """N interactions in time order; those of the same second in the file's order.

    Attributes:
        file: where it comes from.
        user: int64[N], 0 to users - 1.
        time: int64[N], seconds.
        features: `item`, and of `category`, `action`, `surface` those there are -> int64[N] IDs, numbered in the
            order in which they first appear in the file.
        rows: feature -> how many different IDs.
        users: how many different users.
        label: float64[N] in [0, 1], or None.
        rating: float64[N], or None.
    """

    file: str
    user: NDArray[np.int64]
    time: NDArray[np.int64]
    features: dict[str, NDArray[np.int64]]
    rows: dict[str, int]
    users: int
    label: NDArray[np.float64] | None
    rating: NDArray[np.float64] | None


def read_interactions(path: str, columns: Mapping[str, str]) -> InteractionLog:
    """Read a log with at least a user, an item and a time per row.

    MovieLens files (`u.data`, `ratings.dat`, `ratings.csv`) and RecBole's `.inter` are understood as they are. Times
    are seconds since 1970, or milli-, micro- or nanoseconds, told apart by their size. Without an action column the
    rating, failing that the label, stands for the action.

    Args:
        path: see `workloads.interaction_file.read_columns`.
        columns: meaning (`workloads.interaction_columns.MEANINGS`) -> column name, for names not recognised.

    Raises:
        FreeScaleError: naming file, row or column and what was expected.
    """
    raw = read_columns(path, columns)
    if not len(raw.values["user"]):
        raise FreeScaleError(f"{path}: no interactions, expected at least one line after the header")
    user, users = _numbered(raw, "user")
    time = _seconds(raw)
    label = _numbers(raw, "label") if "label" in raw.values else None
    rating = _numbers(raw, "rating") if "rating" in raw.values else None
    if label is not None:
        _refuse(raw, "label", ~((label >= 0) & (label <= 1)), "a label from 0 to 1")
    features: dict[str, NDArray[np.int64]] = {}
    rows: dict[str, int] = {}
    for name in ("item", "category", "action", "surface"):
        if name in raw.values:
            features[name], rows[name] = _numbered(raw, name)
        elif name == "action" and (shown := rating if rating is not None else label) is not None:
            features[name], rows[name] = _steps(shown)
    order = np.argsort(time, kind="stable")
    return InteractionLog(
        file=path,
        user=user[order],
        time=time[order],
        features={name: ids[order] for name, ids in features.items()},
        rows=rows,
        users=users,
        label=None if label is None else label[order],
        rating=None if rating is None else rating[order],
    )


def _numbered(raw: RawColumns, meaning: str) -> tuple[NDArray[np.int64], int]:
    """IDs numbered in order of appearance, and how many there are."""
    values = raw.values[meaning]
    if pa.types.is_floating(values.type):
        values = pa.compute.if_else(pa.compute.is_nan(values), None, values)
    _refuse(raw, meaning, values.is_null().to_numpy(), f"the {meaning} of every interaction")
    encoded = values.combine_chunks().dictionary_encode()
    return encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64), len(encoded.dictionary)


def _seconds(raw: RawColumns) -> NDArray[np.int64]:
    values = raw.values["timestamp"]
    expected = "a number of seconds (or ms, µs, ns) since 1970"
    if pa.types.is_timestamp(values.type) or pa.types.is_date(values.type):
        _refuse(raw, "timestamp", values.is_null().to_numpy(), expected)
        return values.cast(pa.timestamp("s"), safe=False).cast(pa.int64()).to_numpy()
    try:  # whole numbers keep all their digits; nanoseconds need them
        ticks = values.cast(pa.int64()).to_numpy()
        ticks = ticks.astype(np.int64) if not values.null_count else None
    except pa.ArrowInvalid:
        ticks = None
    if ticks is None:
        ticks = _numbers(raw, "timestamp", expected)
    _refuse(raw, "timestamp", (ticks < 0) | (ticks > 2**63 - 2**10), expected)
    usual = float(np.median(ticks))
    per_second = next(per_second for limit, per_second in _UNITS_PER_SECOND if usual < limit)
    return np.asarray(ticks // per_second, dtype=np.int64)


def _numbers(raw: RawColumns, meaning: str, expected: str = "a number") -> NDArray[np.float64]:
    values = raw.values[meaning]
    try:
        numbers = values.cast(pa.float64()).to_numpy().astype(np.float64)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        numbers = np.zeros(len(values))
        numbers[_first_unreadable(values)] = np.nan
    _refuse(raw, meaning, ~np.isfinite(numbers), expected)
    return numbers


def _first_unreadable(values: pa.ChunkedArray) -> int:
    """Row of the first value that is not a number, by halving."""
    low, high = 0, len(values)
    while high - low > 1:
        middle = (low + high) // 2
        try:
            values.slice(low, middle - low).cast(pa.float64())
            low = middle
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
            high = middle
    return low


def _steps(values: NDArray[np.float64]) -> tuple[NDArray[np.int64], int]:
    """IDs of the different values, in ascending order; of equal shares of the values where they are too many."""
    different = np.unique(values)
    if different.size > _MAX_RATING_VALUES:
        different = np.unique(np.quantile(values, np.arange(_MAX_RATING_VALUES) / _MAX_RATING_VALUES))
    return (np.searchsorted(different, values, side="right") - 1).astype(np.int64), different.size


def _refuse(raw: RawColumns, meaning: str, bad: NDArray[np.bool_], expected: str) -> None:
    rows = np.flatnonzero(bad)
    if rows.size:
        value = raw.values[meaning][int(rows[0])].as_py()
        shown = "no value" if value is None else repr(value)[:60]
        raise FreeScaleError(
            f"{raw.file}: {raw.place(int(rows[0]))}, column {raw.names[meaning]!r}: {shown}, expected {expected}"
        )
