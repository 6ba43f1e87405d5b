import contextlib
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from freescale.balance.autotune import AutoTune
from freescale.balance.labels import keep_home, moved_bytes
from freescale.balance.policies import rounds, variable, zigzag
from freescale.errors import FreeScaleError
from workloads.flops import flops
from workloads.lengths import named
from workloads.registry import preset

some_costs = st.lists(st.floats(0, 1e12), max_size=60).map(lambda values: np.array(values, dtype=np.float64))
few_costs = st.lists(st.integers(1, 40), min_size=1, max_size=9).map(lambda values: np.array(values, dtype=np.float64))
world_sizes = st.integers(1, 9)


def loads(costs: np.ndarray, ranks: np.ndarray, world_size: int) -> np.ndarray:
    return np.bincount(ranks, weights=costs, minlength=world_size)


def test_zigzag_deals_there_and_back_as_in_the_paper() -> None:
    # Cheaper with every place, so sample i is the i-th dearest: i, 2n-1-i, 2n+i, 4n-1-i.
    ranks = zigzag(np.arange(16, 0, -1, dtype=np.float64), 4)
    for rank in range(4):
        assert np.flatnonzero(ranks == rank).tolist() == [rank, 7 - rank, 8 + rank, 15 - rank]


def test_rounds_by_hand() -> None:
    # Round one 9, 7, 4 to ranks 0, 1, 2; then 4 to the least loaded (2), 3 to 1, 2 to 0; loads 11, 10, 8; then 1 to 2.
    costs = np.array([7, 4, 9, 1, 2, 3, 4], dtype=np.float64)
    assert rounds(costs, 3).tolist() == [1, 2, 0, 2, 0, 1, 2]


@pytest.mark.parametrize("policy", [zigzag, rounds])
@given(costs=some_costs, world_size=world_sizes)
def test_fixed_policies_give_every_rank_the_same_number_of_samples(policy, costs, world_size) -> None:  # type: ignore[no-untyped-def]
    ranks = policy(costs, world_size)
    assert ranks.dtype == np.int64
    assert ranks.shape == costs.shape
    counts = np.bincount(ranks, minlength=world_size)
    assert counts.size == world_size
    assert np.ptp(counts) <= 1


@pytest.mark.parametrize("policy", [zigzag, rounds, variable])
@given(costs=few_costs, world_size=world_sizes)
def test_equal_costs_are_told_apart_by_position_only(policy, costs, world_size) -> None:  # type: ignore[no-untyped-def]
    # Scaling by a power of two is exact, and changes nothing but the numbers.
    assert np.array_equal(policy(costs, world_size), policy(costs * 1024, world_size))
    assert policy(np.full(6, 3.0), 3)[:3].tolist() == [0, 1, 2]


@settings(deadline=None)
@given(costs=few_costs, world_size=st.integers(1, 3))
def test_rounds_is_within_four_thirds_of_the_best_with_equal_counts(costs: np.ndarray, world_size: int) -> None:
    choices = itertools.product(range(world_size), repeat=costs.size)
    best = min(
        loads(costs, ranks, world_size).max()
        for ranks in (np.array(choice) for choice in choices)
        if np.ptp(np.bincount(ranks, minlength=world_size)) <= 1
    )
    assert loads(costs, rounds(costs, world_size), world_size).max() <= 4 / 3 * best + 1e-9


@settings(deadline=None)
@given(costs=few_costs, world_size=st.integers(1, 3))
def test_variable_is_within_four_thirds_of_the_best_of_all(costs: np.ndarray, world_size: int) -> None:
    choices = itertools.product(range(world_size), repeat=costs.size)
    best = min(loads(costs, np.array(choice), world_size).max() for choice in choices)
    assert loads(costs, variable(costs, world_size), world_size).max() <= 4 / 3 * best + 1e-9


@pytest.mark.parametrize("seed", range(5))
def test_rounds_balances_256_ranks_to_a_thousandth_of_what_is_possible(seed: int) -> None:
    history = named("kuairand-1k").limited(cap=8_192).sample(np.random.default_rng(seed), 256 * 32)
    costs = flops(np.column_stack([history, np.full_like(history, 10)]), preset("hstu-long"))
    bound = max(costs.sum() / 256, costs.max())
    assert loads(costs, rounds(costs, 256), 256).max() <= 1.001 * bound
    assert loads(costs, zigzag(costs, 256), 256).max() > 1.001 * bound


def one_by_one(costs: np.ndarray, speed: np.ndarray) -> np.ndarray:
    """Dearest first to the rank that is free first, the first round to every rank, fastest first: the obvious loop."""
    ranks, busy = np.empty(costs.size, dtype=np.int64), np.zeros(speed.size)
    for turn, sample in enumerate(np.argsort(-costs, kind="stable")):
        rank = np.argsort(-speed, kind="stable")[turn] if turn < speed.size else busy.argmin()
        busy[rank] += costs[sample] / speed[rank]
        ranks[sample] = rank
    return ranks


@given(seed=st.integers(0, 2**32), samples=st.integers(0, 300), world_size=st.integers(1, 20), tail=st.floats(0, 2.5))
def test_variable_equals_the_obvious_loop(seed: int, samples: int, world_size: int, tail: float) -> None:
    draw = np.random.default_rng(seed)
    costs, speed = np.exp(tail * draw.normal(size=samples)), np.exp(0.5 * draw.normal(size=world_size))
    assert np.array_equal(variable(costs, world_size, speed=speed), one_by_one(costs, speed))


@given(seed=st.integers(0, 2**32), samples=st.integers(1, 100), world_size=st.integers(1, 20))
def test_variable_leaves_no_rank_empty_while_there_are_samples(seed: int, samples: int, world_size: int) -> None:
    draw = np.random.default_rng(seed)
    costs = draw.choice([0.0, 1.0, 1e9], size=samples)
    counts = np.bincount(variable(costs, world_size, speed=draw.uniform(0.1, 9, world_size)), minlength=world_size)
    assert (counts > 0).sum() == min(samples, world_size)


@given(seed=st.integers(0, 2**32), samples=st.integers(1, 80), world_size=st.integers(1, 8), slack=st.floats(1, 3))
def test_variable_keeps_the_token_cap_or_says_why_not(seed: int, samples: int, world_size: int, slack: float) -> None:
    draw = np.random.default_rng(seed)
    tokens = np.exp(draw.normal(size=samples) * 1.2 + 4).astype(np.int64) + 1
    cap = int(slack * max(tokens.max(), -(-tokens.sum() // world_size)))
    costs = tokens.astype(np.float64) ** 2
    if slack < 2:  # from there on, balancing the tokens alone always fits
        with contextlib.suppress(FreeScaleError):
            assert loads(tokens, variable(costs, world_size, tokens=tokens, token_cap=cap), world_size).max() <= cap
    else:
        assert loads(tokens, variable(costs, world_size, tokens=tokens, token_cap=cap), world_size).max() <= cap


def test_a_cap_moves_the_many_short_samples_to_where_there_is_room() -> None:
    # By cost alone the long sample's rank would be left alone and the other would hold 12 tokens.
    costs, tokens = np.array([100.0] + [8.0] * 12), np.array([2] + [1] * 12)
    free = variable(costs, 2)
    assert loads(tokens, free, 2).tolist() == [2, 12]
    capped = variable(costs, 2, tokens=tokens, token_cap=8)
    assert loads(tokens, capped, 2).tolist() == [6, 8]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tokens": np.array([5, 1]), "token_cap": 4}, "token_cap: 4, but one sample has 5 tokens"),
        ({"tokens": np.array([4, 4]), "token_cap": 4, "world_size": 1}, "on 1 ranks, but the batch has 8 tokens"),
        ({"token_cap": 4}, "tokens: with a token_cap, expected the tokens of each sample"),
        ({"speed": np.array([1.0, 0.0])}, "expected 2 positive numbers"),
        ({"speed": np.array([1.0])}, "expected 2 positive numbers"),
    ],
)
def test_settings_that_cannot_work_are_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(FreeScaleError, match=message):
        variable(np.array([1.0, 2.0]), **{"world_size": 2, **arguments})  # type: ignore[arg-type]


@pytest.mark.parametrize("policy", [zigzag, rounds, variable])
def test_costs_that_are_no_costs_are_refused(policy) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(FreeScaleError, match="costs: sample 1 costs nan"):
        policy(np.array([1.0, np.nan]), 2)
    with pytest.raises(FreeScaleError, match=r"costs: sample 0 costs -1\.0"):
        policy(np.array([-1.0]), 2)
    with pytest.raises(FreeScaleError, match="world_size: 0, expected at least 1"):
        policy(np.array([1.0]), 0)


@settings(deadline=None)
@given(
    groups=st.lists(st.integers(0, 3), min_size=1, max_size=12),
    seed=st.integers(0, 2**32),
)
def test_relabelling_keeps_groups_together_and_moves_the_fewest_bytes(groups: list[int], seed: int) -> None:
    draw = np.random.default_rng(seed)
    group, home = np.array(groups), draw.integers(0, 4, len(groups))
    sample_bytes = draw.integers(0, 1_000, len(groups))
    ranks = keep_home(group, home, sample_bytes, 4)
    together = group[:, None] == group[None, :]
    assert np.array_equal(ranks[:, None] == ranks[None, :], together)
    fewest = min(moved_bytes(np.array(names)[group], home, sample_bytes) for names in itertools.permutations(range(4)))
    assert moved_bytes(ranks, home, sample_bytes) == fewest


@pytest.mark.parametrize("overhead_ms", [0.0, 30.0])
@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_autotune_gives_a_slow_rank_its_share_within_twenty_steps_and_does_not_swing(
    overhead_ms: float, noise: float
) -> None:
    world_size, draw = 4, np.random.default_rng(0)
    true_speed = np.array([1.0, 1.0, 1 / 1.5, 1.0])
    tune = AutoTune(world_size)
    slow_share, step_ms = [], []
    for _ in range(60):
        costs = np.exp(0.9 * draw.normal(size=world_size * 32))
        load = loads(costs, variable(costs, world_size, speed=tune.speed), world_size)
        busy = (overhead_ms + 200 * load / costs.sum() * world_size / true_speed) * np.exp(
            noise * draw.normal(size=world_size)
        )
        slow_share.append(load[2] / load.sum())
        step_ms.append(busy.max())
        tune.observe(load, busy)
    work, others = 200 * world_size, 3
    # All ranks done together: the slow one's load x satisfies overhead + 1.5 x = overhead + (work - x) / 3.
    best_share = 1 / (1 + others * 1.5)
    best_ms = overhead_ms + 1.5 * best_share * work
    assert step_ms[0] > 0.85 * (overhead_ms + 300)
    assert slow_share[20:] == pytest.approx([best_share] * 40, rel=0.03 + noise + (0.1 if overhead_ms else 0))
    assert np.median(step_ms[20:]) <= best_ms * (1.03 + 2 * noise + (0.05 if overhead_ms else 0))
    changes = np.diff(slow_share[:20])
    assert (changes <= 0.01 + noise / 4).all()  # from one side: never back up by more than noise


def test_autotune_takes_small_differences_for_noise() -> None:
    tune = AutoTune(3)
    for _ in range(50):
        tune.observe(np.ones(3), np.array([1.0, 1.02, 0.99]))
    assert tune.speed.tolist() == [1, 1, 1]


def test_autotune_ignores_ranks_without_work_and_survives_a_checkpoint() -> None:
    tune = AutoTune(3)
    for _ in range(50):
        tune.observe(np.array([1.0, 1.0, 0.0]), np.array([1.0, 2.0, 5.0]))
    assert tune.speed[0] / tune.speed[1] == pytest.approx(2, rel=0.01)
    assert tune.speed[2] == pytest.approx(1, rel=0.05)
    copy = AutoTune(3)
    copy.load_state_dict(tune.state_dict())
    assert copy.speed.tolist() == tune.speed.tolist()
    elsewhere = AutoTune(2)
    elsewhere.load_state_dict(tune.state_dict())
    assert elsewhere.speed.tolist() == [1, 1]
