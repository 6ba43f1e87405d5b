"""How numbers are written: one place decides digits, units and what stands where a number does not exist."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeGuard

MISSING = "–"
SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
LOSS_PARITY_BOUND = 1e-5


def exists(value: object) -> TypeGuard[float]:
    """True for a real, finite number (None, NaN, infinity and text are not)."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def number(value: Any, unit: str = "", *, signed: bool = False) -> str:
    """Three significant digits (all integer digits kept), thousands separated, with a no-break space and the unit."""
    if not exists(value):
        return MISSING
    value = float(value)
    digits = 0 if value == 0 or abs(value) >= 100 else max(0, 2 - math.floor(math.log10(abs(value))))
    if digits > 4:
        text = f"{value:.1e}"
    else:
        text = f"{value:{'+' if signed else ''},.{digits}f}".replace("-", "−")
    return f"{text}\u00a0{unit}" if unit else text


def ms(value: Any) -> str:
    return number(value, "ms")


def saved_ms(whole_ms: float, unit: str = "ms") -> Callable[[Any], str]:
    """Writes parts of a step of that length, signed, all with the same decimals: +31.2 ms."""
    digits = 1 if whole_ms >= 10 else 3

    def write(value: Any) -> str:
        if not exists(value):
            return MISSING
        text = f"{value:+,.{digits}f}".replace("-", "−")
        return f"{text}\u00a0{unit}" if unit else text

    return write


def percent(value: Any) -> str:
    return MISSING if not exists(value) else f"{value:.1f}\u00a0%".replace("-", "−")


def times(value: Any) -> str:
    """A ratio: 1.18×."""
    return MISSING if not exists(value) else f"{value:.2f}×"


def scientific(value: Any) -> str:
    """A small error: 3.1×10⁻⁸; exact zero stays 0."""
    if not exists(value):
        return MISSING
    if value == 0:
        return "0"
    digits, exponent = f"{value:.1e}".split("e")
    return f"{digits}×10{str(int(exponent)).translate(SUPERSCRIPT)}"


def count(value: Any) -> str:
    return MISSING if not exists(value) else f"{int(value):,}"


def size_bytes(value: Any) -> str:
    """Bytes in the binary unit that leaves at least one integer digit."""
    if not exists(value):
        return MISSING
    amount = float(value)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(amount) < 1024 or unit == "TiB":
            return f"{amount:.0f}\u00a0{unit}" if unit == "B" else f"{amount:.1f}\u00a0{unit}"
        amount /= 1024
    raise AssertionError("unreachable")


def interval(estimate: Any) -> tuple[float, float] | None:
    """The ci95 of a report.json estimate, or None when it could not be estimated."""
    bounds = estimate.get("ci95") if isinstance(estimate, Mapping) else None
    if isinstance(bounds, (list, tuple)) and len(bounds) == 2 and all(exists(bound) for bound in bounds):
        return float(bounds[0]), float(bounds[1])
    return None


def unbroken(sentence: str) -> str:
    """A sentence in which no line ends between a number and its unit or inside 1e-07."""
    sentence = re.sub(r"(?<=\de)-(?=\d)", "\u2011", sentence)
    return re.sub(r"(?<=\d) (?=(?:%|ms|µs|CI|GB|MB)\b|%)", "\u00a0", sentence).replace("% CI", "%\u00a0CI")


def span(estimate: Any, write: Callable[[Any], str] = number) -> str:
    """The interval as "220 – 230 ms", the unit once, "−3 to 5 ms" with signs; "" when it could not be estimated."""
    bounds = interval(estimate)
    if bounds is None:
        return ""
    low, high = write(bounds[0]), write(bounds[1])
    unit = high[len(high.rstrip("\u00a0×%ms")) :]
    between = "to" if {"+", "−"} & {low[0], high[0]} else "–"  # a dash beside a minus would be read as one
    return f"{low.removesuffix(unit)} {between} {high}"


def between(estimate: Any, write: Callable[[Any], str] = number) -> str:
    """The interval in words, or that there is none."""
    text = span(estimate, write)
    return f"95\u00a0% CI {text}" if text else "no interval"
