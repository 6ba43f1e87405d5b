import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from freescale.balance.policies import rounds, variable, zigzag
from freescale.balance.sampler import BalancedBatchSampler
from freescale.errors import FreeScaleError


def epoch_of_all_ranks(size: int, world_size: int, batch_size: int, **options: object) -> list[list[list[int]]]:
    """[rank][step] -> indices."""
    costs = np.random.default_rng(size).exponential(size=size)
    return [
        list(BalancedBatchSampler(costs, batch_size, rank, world_size, **options))  # type: ignore[arg-type]
        for rank in range(world_size)
    ]


@given(
    size=st.integers(1, 200),
    world_size=st.integers(1, 5),
    batch_size=st.integers(1, 9),
    policy=st.sampled_from([zigzag, rounds, variable]),
    shuffle=st.booleans(),
)
def test_an_epoch_has_each_sample_once_in_equally_many_batches_none_empty(
    size: int, world_size: int, batch_size: int, policy: object, shuffle: bool
) -> None:
    if size < world_size:
        with pytest.raises(FreeScaleError, match=f"costs: {size} samples, expected at least {world_size}"):
            epoch_of_all_ranks(size, world_size, batch_size)
        return
    batches = epoch_of_all_ranks(size, world_size, batch_size, policy=policy, shuffle=shuffle)
    sampler = BalancedBatchSampler(np.ones(size), batch_size, 0, world_size)
    assert [len(rank) for rank in batches] == [len(sampler)] * world_size
    assert all(batch for rank in batches for batch in rank)
    assert sorted(index for rank in batches for batch in rank for index in batch) == list(range(size))


@given(size=st.integers(20, 200), world_size=st.integers(1, 5), batch_size=st.integers(1, 4))
def test_drop_last_leaves_out_what_fills_no_global_batch(size: int, world_size: int, batch_size: int) -> None:
    batches = epoch_of_all_ranks(size, world_size, batch_size, drop_last=True)
    full = size // (world_size * batch_size)
    assert [[len(batch) for batch in rank] for rank in batches] == [[batch_size] * full] * world_size


@given(seed=st.integers(0, 100), epoch=st.integers(0, 5))
def test_global_batches_are_those_of_the_epochs_permutation_balanced(seed: int, epoch: int) -> None:
    costs = np.random.default_rng(1).exponential(size=64)
    samplers = [BalancedBatchSampler(costs, 8, rank, 4, seed=seed) for rank in range(4)]
    for sampler in samplers:
        sampler.set_epoch(epoch)
    order = torch.randperm(64, generator=torch.Generator().manual_seed(seed + epoch)).tolist()
    for step, shares in enumerate(zip(*samplers, strict=True)):
        whole = order[step * 32 : (step + 1) * 32]
        assert sorted(index for share in shares for index in share) == sorted(whole)
        for share in shares:
            assert share == [index for index in whole if index in share]  # in order of the epoch
        loads = [costs[share].sum() for share in shares]
        dealt = zigzag(costs[whole], 4)
        assert max(loads) <= max(costs[whole][dealt == rank].sum() for rank in range(4)) * 1.02


@given(done=st.integers(0, 12), ahead=st.integers(0, 3))
def test_a_restart_continues_with_the_batches_not_trained_on(done: int, ahead: int) -> None:
    costs = np.random.default_rng(2).exponential(size=100)
    whole = BalancedBatchSampler(costs, 4, 1, 2)
    whole.set_epoch(3)
    expected = list(whole)
    interrupted = BalancedBatchSampler(costs, 4, 1, 2)
    interrupted.set_epoch(3)
    drawn = iter(interrupted)
    for _ in range(min(done + ahead, len(expected))):
        next(drawn)
    state = interrupted.state_dict(batches_done=done)
    resumed = BalancedBatchSampler(costs, 4, 1, 2)
    resumed.load_state_dict(state)
    resumed.set_epoch(3)
    assert list(resumed) == expected[done:]
    assert list(resumed) == expected  # and the iteration after that is whole again
    resumed.set_epoch(4)
    assert len(list(resumed)) == len(expected)


def test_without_a_prefetching_loader_the_state_counts_by_itself() -> None:
    sampler = BalancedBatchSampler(np.ones(40), 4, 0, 2)
    drawn = iter(sampler)
    next(drawn), next(drawn)
    assert sampler.state_dict() == {"epoch": 0, "batches_done": 2, "seed": 0}


def test_it_feeds_a_dataloader() -> None:
    data = torch.arange(50) * 10
    costs = np.linspace(1, 5, 50)
    seen = [
        value
        for rank in range(2)
        for batch in DataLoader(data, batch_sampler=BalancedBatchSampler(costs, 8, rank, 2))  # type: ignore[arg-type]
        for value in batch.tolist()
    ]
    assert sorted(seen) == data.tolist()


def test_fresh_costs_apply_from_the_next_batch_on() -> None:
    sampler = BalancedBatchSampler(np.ones(8), 2, 0, 2, shuffle=False)
    drawn = iter(sampler)
    assert next(drawn) == [0, 2]  # all alike: dealt by position
    sampler.set_costs([1, 1, 1, 1, 1, 9, 1, 1])
    assert next(drawn) == [5, 7]  # the dear one first, then what is left for the fuller rank
    with pytest.raises(FreeScaleError, match="costs: 3 samples, expected 8 as before"):
        sampler.set_costs([1, 2, 3])


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(FreeScaleError, match="batch_size: 0, expected at least 1"):
        BalancedBatchSampler(np.ones(8), 0, 0, 1)
    with pytest.raises(FreeScaleError, match="rank: 2 of 2 ranks, expected 0 to 1"):
        BalancedBatchSampler(np.ones(8), 1, 2, 2)
    with pytest.raises(FreeScaleError, match="expected at least 10 for one global batch"):
        BalancedBatchSampler(np.ones(8), 5, 0, 2, drop_last=True)
    sampler = BalancedBatchSampler(np.ones(8), 1, 0, 2, seed=1)
    with pytest.raises(FreeScaleError, match="seed: 1, but the saved epoch was shuffled with 7"):
        sampler.load_state_dict({"epoch": 0, "batches_done": 0, "seed": 7})
