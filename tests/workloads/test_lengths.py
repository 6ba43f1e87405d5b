import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from freescale.errors import FreeScaleError
from workloads import lengths

SAMPLES = 400_000


@pytest.mark.parametrize(
    ("name", "least", "median", "mean", "most"),
    [("kuairand-1k", 10, 3_379, 5_038, 49_332), ("kuairand-27k", 100, 8_591, 11_796, 228_000)],
)
def test_kuairand_lengths_have_the_published_median_mean_and_range(
    name: str, least: int, median: int, mean: int, most: int
) -> None:
    drawn = lengths.named(name).sample(np.random.default_rng(0), SAMPLES)
    assert np.median(drawn) == pytest.approx(median, rel=0.01)
    assert drawn.mean() == pytest.approx(mean, rel=0.01)
    assert least <= drawn.min()
    assert drawn.max() <= most


def test_a_thousand_users_of_kuairand_1k_reach_about_the_published_maximum() -> None:
    largest = [lengths.named("kuairand-1k").sample(np.random.default_rng(seed), 1_000).max() for seed in range(200)]
    low, high = np.quantile(largest, [0.1, 0.9])
    assert low < 49_332 <= high


def test_zipf_lengths_follow_their_power_law() -> None:
    # P(L > x) = (x^-0.2 - 10000^-0.2) / (1 - 10000^-0.2)
    drawn = lengths.named("zipf-1.2").sample(np.random.default_rng(1), SAMPLES)
    for x in (1.5, 10.5, 100.5, 1000.5):
        expected = (x**-0.2 - 10_000**-0.2) / (1 - 10_000**-0.2)
        assert (drawn > x).mean() == pytest.approx(expected, abs=0.004)


def test_uniform_lengths_are_flat() -> None:
    drawn = lengths.named("uniform").sample(np.random.default_rng(2), SAMPLES)
    counts = np.histogram(drawn, bins=10, range=(1, 1_000))[0]
    assert counts / SAMPLES == pytest.approx(np.full(10, 0.1), abs=0.003)


@pytest.mark.parametrize("name", lengths.NAMES)
def test_rescaled_lengths_have_the_median_and_keep_to_the_limits_asked_for(name: str) -> None:
    distribution = lengths.named(name).limited(median=150, minimum=20, cap=1_024)
    drawn = distribution.sample(np.random.default_rng(3), SAMPLES)
    assert np.median(drawn) == pytest.approx(150, rel=0.02)
    assert drawn.min() >= 20
    assert drawn.max() <= 1_024
    assert distribution.mean() == pytest.approx(drawn.mean(), rel=0.01)


def test_long_histories_are_cut_to_the_cap_rather_than_left_out() -> None:
    published, cut = lengths.named("kuairand-1k"), lengths.named("kuairand-1k").limited(cap=1_000)
    share = np.linspace(0.001, 0.999, 999)
    assert np.array_equal(cut.quantile(share), np.minimum(published.quantile(share), 1_000))


@given(name=st.sampled_from(lengths.NAMES), seed=st.integers(0, 1_000))
def test_the_same_generator_state_gives_the_same_int64_lengths(name: str, seed: int) -> None:
    first, second = (lengths.named(name).sample(np.random.default_rng(seed), 50) for _ in range(2))
    assert first.dtype == np.int64
    assert np.array_equal(first, second)


def test_an_unknown_name_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(FreeScaleError, match=r"no distribution 'gauss'; there are kuairand-1k, kuairand-27k, zipf-1.2"):
        lengths.named("gauss")


def test_limits_that_exclude_every_length_are_refused() -> None:
    with pytest.raises(FreeScaleError, match="minimum 30, cap 20"):
        lengths.named("uniform").limited(minimum=30, cap=20)
    with pytest.raises(FreeScaleError, match="median length: 0"):
        lengths.named("uniform").limited(median=0)
