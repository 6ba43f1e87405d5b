import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freescale.errors import FreeScaleError
from workloads.ids import ZipfRows, measured_collision_rate, zipf_rank

USUAL = 15_000


def batches(rows: ZipfRows, steps: range) -> list[np.ndarray]:
    """Whole global batches, of varying length as real ones are."""
    totals = [USUAL + int(3_000 * np.sin(step)) for step in steps]
    return [rows.ids(step, np.arange(total), total, USUAL) for step, total in zip(steps, totals, strict=True)]


@pytest.mark.parametrize("rate", [0, 0.12, 0.5, 1])
@pytest.mark.parametrize("table_rows", [20_000, 1_000_000, 4_000])
def test_consecutive_batches_share_the_requested_part_of_their_rows(rate: float, table_rows: int) -> None:
    made = batches(ZipfRows(table_rows, 1.05, seed=3, collision_rate=rate), range(40, 60))
    measured = [measured_collision_rate(before, now) for before, now in itertools.pairwise(made)]
    assert measured == pytest.approx([rate] * 19, abs=0.001)


@settings(max_examples=50, deadline=None)
@given(
    rate=st.floats(0, 1),
    table_rows=st.integers(2_000, 2**40),
    share=st.floats(0.2, 0.7),
    step=st.integers(0, 10**9),
    seed=st.integers(0, 2**64 - 1),
)
def test_any_rate_is_met_at_any_step_in_any_table(
    rate: float, table_rows: int, share: float, step: int, seed: int
) -> None:
    rows = ZipfRows(table_rows, 1.0, seed, rate, share)
    before, now = (rows.ids(step + i, np.arange(total), total, 3_000) for i, total in enumerate((3_300, 2_800)))
    assert now.min() >= 0
    assert now.max() < table_rows
    assert measured_collision_rate(before, now) == pytest.approx(rate, abs=0.02)


@pytest.mark.parametrize("exponent", [0.0, 1.05])
def test_natural_collisions_are_those_of_independent_draws_from_the_popularity_law(exponent: float) -> None:
    before, now = batches(ZipfRows(100_000, exponent, seed=3), range(2))
    edge = np.arange(1.0, 100_002.0)
    mass = np.diff(edge ** (1 - exponent)) / (edge[-1] ** (1 - exponent) - 1)
    in_before, in_now = (1 - (1 - mass) ** batch.size for batch in (before, now))
    assert np.unique(now).size == pytest.approx(in_now.sum(), rel=0.02)
    assert measured_collision_rate(before, now) == pytest.approx((in_before * in_now).sum() / in_now.sum(), abs=0.01)


@given(
    cut=st.lists(st.integers(0, 2_000), min_size=0, max_size=5),
    rate=st.sampled_from([None, 0.0, 0.12, 1.0]),
    step=st.integers(0, 10**6),
)
def test_any_part_of_a_batch_can_be_made_without_the_rest(cut: list[int], rate: float | None, step: int) -> None:
    rows = ZipfRows(10_000, 1.05, seed=5, collision_rate=rate)
    whole = rows.ids(step, np.arange(2_000), 2_000, 2_000)
    edges = [0, *sorted(cut), 2_000]
    parts = [rows.ids(step, np.arange(a, b), 2_000, 2_000) for a, b in itertools.pairwise(edges)]
    assert np.array_equal(np.concatenate(parts), whole)


@pytest.mark.parametrize("rate", [0, 0.12, 1])
def test_a_batch_uses_the_requested_number_of_rows_and_repeats_popular_ones(rate: float) -> None:
    ids = batches(ZipfRows(1_000_000, 1.05, 3, rate, unique_share=0.4), range(7, 8))[0]
    counts = np.sort(np.bincount(ids)[np.unique(ids)])[::-1]
    assert counts.size == 0.4 * USUAL
    # Of the tokens beyond one per row, the tenth of rows that are most popular take most, as a power law would.
    assert (counts[: counts.size // 10] - 1).sum() > 0.6 * (counts - 1).sum()
    assert counts[0] > 20 * np.median(counts)


def test_the_rows_that_come_back_are_the_popular_ones() -> None:
    before, now = batches(ZipfRows(100_000, 1.05, 3, 0.12), range(2))
    unique, counts = np.unique(now, return_counts=True)
    back = np.isin(unique, before)
    assert counts[back].mean() > 5 * counts[~back].mean()


def test_a_table_too_small_for_the_rows_asked_for_keeps_the_rate_and_uses_fewer() -> None:
    made = batches(ZipfRows(100, 1.05, 3, 0.5, unique_share=0.9), range(3))
    assert np.unique(made[1]).size == 66  # 100 / (2 - 0.5)
    assert measured_collision_rate(made[0], made[1]) == pytest.approx(0.5, abs=0.001)


def test_rank_frequencies_follow_the_power_law() -> None:
    share = (np.arange(1_000_000) + 0.5) / 1_000_000
    for exponent in (0.5, 1.0, 1.05, 2.0):
        ranks = zipf_rank(share, 1_000, exponent)
        assert ranks.min() == 0
        assert ranks.max() == 999 or exponent == 2.0
        counts = np.bincount(ranks, minlength=1_000)
        # Between ranks 10 and 99 of a power law the count falls by (11.5 / 100.5)^exponent or so.
        assert counts[99] / counts[10] == pytest.approx((11.5 / 100.5) ** exponent, rel=0.05)


def test_measured_rate_is_the_share_of_now_that_before_had() -> None:
    assert measured_collision_rate(np.array([1, 1, 2, 3]), np.array([3, 3, 4, 5, 1])) == 0.5
    assert measured_collision_rate(np.array([], dtype=np.int64), np.array([7])) == 0.0
    assert np.isnan(measured_collision_rate(np.array([7]), np.array([], dtype=np.int64)))


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("rows", 0, "rows: 0, expected at least 1"),
        ("exponent", 9.0, "zipf_exponent: 9.0, expected 0 to 4"),
        ("collision_rate", 1.5, "collision_rate: 1.5, expected 0 to 1"),
        ("unique_share", 0.0, "unique_share: 0.0, expected more than 0"),
    ],
)
def test_impossible_settings_are_refused(field: str, value: float, message: str) -> None:
    settings = {"rows": 10, "exponent": 1.0, "seed": 0, "collision_rate": 0.5, field: value}
    with pytest.raises(FreeScaleError, match=message):
        ZipfRows(**settings)  # type: ignore[arg-type]


def test_rows_by_popularity_are_the_same_rows_and_the_head_is_in_every_usual_batch() -> None:
    table, tokens = ZipfRows(rows=50_000, exponent=1.05, seed=3, collision_rate=0.2, unique_share=0.4), np.arange(4_000)
    steps = [
        (table.ids(step, tokens, tokens.size, tokens.size), table.popularity(step, tokens, tokens.size, tokens.size))
        for step in range(3)
    ]
    id_of = dict(zip(np.concatenate([p for _, p in steps]), np.concatenate([i for i, _ in steps]), strict=True))
    for ids, popularity in steps:
        assert ids.tolist() == [id_of[place] for place in popularity]
        assert set(range(table.head(tokens.size))) <= set(popularity)
    assert len(set(id_of.values())) == len(id_of)
    assert table.head(tokens.size) == round(0.2 * 0.4 * tokens.size)
