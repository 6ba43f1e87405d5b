"""Numbers as a reader sees them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboard import formats

NB = "\u00a0"


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.12345, "0.123"), (1.2345, "1.23"), (12.345, "12.3"), (123.45, "123"), (12345.6, "12,346")],
)
def test_three_digits_are_kept_and_all_before_the_point(value: float, text: str) -> None:
    assert formats.number(value) == text


@pytest.mark.parametrize("missing", [None, math.nan, math.inf, "12", True])
def test_what_is_no_number_is_a_dash(missing: object) -> None:
    for write in (formats.number, formats.ms, formats.percent, formats.times, formats.scientific, formats.count):
        assert write(missing) == formats.MISSING


def test_small_errors_are_written_as_powers() -> None:
    assert formats.scientific(3.14e-8) == "3.1×10⁻⁸"
    assert formats.scientific(0) == "0"


def test_the_unit_of_an_interval_stands_once() -> None:
    assert formats.span({"ci95": [220.2, 230.4]}, formats.ms) == f"220 – 230{NB}ms"
    assert formats.span({"ci95": [1.1, 1.25]}, formats.times) == "1.10 – 1.25×"
    assert formats.between({"ci95": [1.1, 1.25]}, formats.times) == f"95{NB}% CI 1.10 – 1.25×"


@pytest.mark.parametrize("estimate", [None, {}, {"ci95": None}, {"ci95": [1.0]}, {"ci95": [1.0, None]}])
def test_an_interval_that_does_not_exist_is_said_to_be_missing(estimate: object) -> None:
    assert formats.between(estimate) == "no interval"


def test_bytes_take_the_unit_that_fits() -> None:
    assert formats.size_bytes(512) == f"512{NB}B"
    assert formats.size_bytes(8 << 30) == f"8.0{NB}GiB"


def test_a_line_never_ends_between_a_number_and_its_unit() -> None:
    sentence = "1.04× (95 % CI 0.44–2.49, 3 blocks); bubbles fall from 34 % to 28 % of 570 ms"
    kept = formats.unbroken(sentence)
    assert kept == f"1.04× (95{NB}%{NB}CI 0.44–2.49, 3 blocks); bubbles fall from 34{NB}% to 28{NB}% of 570{NB}ms"


@given(st.floats(min_value=1e-3, max_value=1e9))
def test_no_number_is_off_by_more_than_half_a_per_cent(value: float) -> None:
    written = formats.number(value).replace(",", "")
    assert float(written) == pytest.approx(value, rel=5e-3)
