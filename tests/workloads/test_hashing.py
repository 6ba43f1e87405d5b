import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workloads import hashing


@given(size=st.integers(1, 3_000), key=st.integers(0, 2**64 - 1))
def test_permute_is_a_permutation_of_every_size(size: int, key: int) -> None:
    placed = hashing.permute(key, np.arange(size), size)
    assert np.array_equal(np.sort(placed), np.arange(size))


@given(indices=st.lists(st.integers(0, 2**62), min_size=1, max_size=20), key=st.integers(0, 2**64 - 1))
def test_a_number_depends_on_its_place_only_and_not_on_its_company(indices: list[int], key: int) -> None:
    together = hashing.uniform(key, np.array(indices))
    alone = [hashing.uniform(key, np.array([index]))[0] for index in indices]
    assert together.tolist() == alone


def test_bits_are_those_of_splitmix64() -> None:
    # First outputs of the published generator for seed 1234567 (Vigna's reference implementation).
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423]
    assert hashing.bits(1234567, np.arange(3)).tolist() == expected


@pytest.mark.parametrize("parts", [(0,), (0, "a", 3), (2**63, "name")])
def test_keys_of_different_names_give_unrelated_uniform_numbers(parts: tuple[int | str, ...]) -> None:
    place = np.arange(100_000)
    first = hashing.uniform(hashing.key(*parts), place)
    second = hashing.uniform(hashing.key(*parts, "else"), place)
    for numbers in (first, second):
        assert numbers.min() > 0
        assert numbers.max() < 1
        counts = np.bincount((numbers * 10).astype(int), minlength=10)
        assert np.abs(counts - 10_000).max() < 500  # five standard deviations
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.016


def test_keys_tell_numbers_and_names_apart() -> None:
    keys = [hashing.key(1, 2), hashing.key(2, 1), hashing.key(12), hashing.key("12"), hashing.key(1), hashing.key()]
    assert len(set(keys)) == len(keys)
