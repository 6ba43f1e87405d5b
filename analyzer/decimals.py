"""Exact conversion of JSON numbers to scaled integers (µs to ns), many at a time.

A float64 holds a timestamp of today in microseconds only to a quarter of a microsecond. So a float is trusted only
where it must have been exact; every other number is converted from its digits.
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import ROUND_HALF_EVEN, Decimal, InvalidOperation
from typing import TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from analyzer.intervals import Int64

_EXACT_TO_NS = 2.0**43  # below it two floats are less than a thousandth apart, so three decimals survive
_EXACT_INTEGERS = 2.0**53
_MAX_DIGITS = 18  # more could overflow int64; the slow path tells
_LARGEST = 2**62


Buffer: TypeAlias = bytes | msgspec.Raw


class NotExact(Exception):
    """A float cannot hold one of the numbers; read their digits instead."""


def floats_to_ns(microseconds: NDArray[np.float64]) -> tuple[Int64, NDArray[np.bool_]]:
    """Nanoseconds (int64[n]) of µs decoded as floats from at most three decimals, and which are finite (bool[n]).

    Raises:
        NotExact: a number is too large for its decimals, or for all integers, to have survived.
    """
    valid = np.isfinite(microseconds)
    value = microseconds if valid.all() else np.where(valid, microseconds, 0.0)
    whole = np.floor(value)
    fraction = value - whole
    magnitude = np.abs(value)
    if (magnitude >= _EXACT_INTEGERS).any() or ((fraction != 0) & (magnitude >= _EXACT_TO_NS)).any():
        raise NotExact
    return whole.astype(np.int64) * 1000 + np.rint(fraction * 1000).astype(np.int64), valid


def scaled_integers(texts: Sequence[Buffer], scale_digits: int) -> tuple[Int64, NDArray[np.bool_]]:
    """Values of JSON numbers (or numbers in JSON strings) times 10**scale_digits, rounded half to even.

    Args:
        texts: the bytes of each value, such as b'12', b'12.345', b'1.2e3' or b'"12.345"'.
        scale_digits: 3 turns µs into ns.

    Returns:
        (values int64[n], valid bool[n]); a value that is no finite number in range is 0 and not valid.
    """
    if not texts:
        return np.empty(0, np.int64), np.empty(0, bool)
    if (alike := _numbers_alike(texts, scale_digits)) is not None:
        return alike, np.ones(len(texts), bool)
    packed = np.array([bytes(text) for text in texts], dtype=np.bytes_)
    values, plain = _plain_numbers(packed.view(np.uint8).reshape(len(texts), packed.dtype.itemsize), scale_digits)
    valid = plain.copy()
    for i in np.flatnonzero(~plain).tolist():
        exact = _any_number(bytes(texts[i]), scale_digits)
        if exact is not None:
            values[i], valid[i] = exact, True
    return values, valid


def _numbers_alike(texts: Sequence[Buffer], scale_digits: int) -> Int64 | None:
    """Values if all are as long, with the point in the same place and at most `scale_digits` behind it; else None."""
    count, first = len(texts), bytes(texts[0])
    width, point = len(first), first.find(b".")
    digits, fraction_digits = (width, 0) if point < 0 else (width - 1, width - 1 - point)
    joined = b",".join(texts)
    if digits == 0 or fraction_digits > scale_digits or digits + scale_digits - fraction_digits > _MAX_DIGITS + 1:
        return None
    if joined.translate(None, b"0123456789") + b"," != (b"," if point < 0 else b".,") * count:
        return None
    if len(joined) != count * (width + 1) - 1 or joined[width :: width + 1] != b"," * (count - 1):
        return None
    if point >= 0 and joined[point :: width + 1] != b"." * count:
        return None
    value = np.fromstring(joined.translate(None, b"."), np.int64, sep=",")  # too large ones become the largest
    if value.max() > _LARGEST // 10 ** (scale_digits - fraction_digits):
        return None
    return value * 10 ** (scale_digits - fraction_digits)


def _plain_numbers(text: NDArray[np.uint8], scale_digits: int) -> tuple[Int64, NDArray[np.bool_]]:
    """Digits, optionally one dot and at most `scale_digits` more; anything else is left to the slow path."""
    n = len(text)
    value = np.zeros(n, np.int64)
    fraction_digits = np.zeros(n, np.int64)
    digit_count = np.zeros(n, np.int64)
    after_dot = np.zeros(n, bool)
    ended = np.zeros(n, bool)
    plain = np.ones(n, bool)
    for column in text.T:
        is_digit = (column >= ord("0")) & (column <= ord("9"))
        is_dot, is_end = column == ord("."), column == 0
        plain &= is_end | ((is_digit | (is_dot & ~after_dot)) & ~ended)
        value = np.where(is_digit, value * 10 + (column.astype(np.int64) - ord("0")), value)
        digit_count += is_digit
        fraction_digits += is_digit & after_dot
        after_dot |= is_dot
        ended |= is_end
    missing = scale_digits - fraction_digits
    plain &= (digit_count > 0) & (missing >= 0) & (digit_count + missing <= _MAX_DIGITS)
    value = np.where(plain, value, 0) * 10 ** np.clip(missing, 0, scale_digits)
    return value, plain


def _any_number(text: bytes, scale_digits: int) -> int | None:
    try:
        number = Decimal(text.decode("ascii").strip(' "')).scaleb(scale_digits)
    except (InvalidOperation, UnicodeDecodeError):
        return None
    if not number.is_finite() or abs(number) > _LARGEST:
        return None
    return int(number.to_integral_value(ROUND_HALF_EVEN))
