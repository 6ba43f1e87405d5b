"""The exchange moves every sample whole, to the rank the policy named, and keeps time order."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from freescale.balance.exchange import SampleExchange
from freescale.balance.policies import zigzag
from freescale.comm.process_group import open_lanes
from freescale.errors import FreeScaleError


@dataclass(frozen=True)
class TwoAxes:
    """A batch of a kind the project does not know: two jagged axes, dtypes of 1 to 8 bytes, rows of several shapes."""

    sample_id: Tensor
    lengths: Tensor
    values: dict[str, tuple[int, Tensor]]

    def sample_lengths(self) -> Tensor:
        return self.lengths

    def jagged_values(self) -> dict[str, tuple[int, Tensor]]:
        return self.values

    def with_samples(self, sample_id: Tensor, lengths: Tensor, values: Any) -> TwoAxes:
        named = {name: (axis, values[name]) for name, (axis, _) in self.values.items()}
        return replace(self, sample_id=sample_id, lengths=lengths, values=named)


def make_batch(rank: int, samples: int, first_id: int) -> TwoAxes:
    """Every value says which sample and which row of it it is, so a wrong move cannot go unseen."""
    draw = torch.Generator().manual_seed(rank + 10 * samples)
    lengths = torch.stack(
        [torch.randint(0, 50, (samples,), generator=draw), torch.randint(0, 4, (samples,), generator=draw)], 1
    )
    sample_id = first_id + torch.arange(samples)

    def mark(axis: int) -> Tensor:
        row = torch.cat([torch.arange(n) for n in lengths[:, axis].tolist()] or [torch.arange(0)])
        return row + 1000 * sample_id.repeat_interleave(lengths[:, axis])

    values = {
        "event": (0, mark(0)),
        "flag": (0, (mark(0) % 2).to(torch.bool)),
        "vector": (1, mark(1).double().unsqueeze(1).repeat(1, 3)),
        "small": (1, (mark(1) % 100).to(torch.uint8)),
    }
    return TwoAxes(sample_id, lengths, values)


COUNTS = {1: [5], 2: [7, 0], 4: [3, 8, 0, 6]}


def cost_of(lengths: np.ndarray) -> np.ndarray:
    return (lengths[:, 0] ** 2 + lengths[:, 1]).astype(float)


def assign(
    lengths: np.ndarray, home: np.ndarray, sample_bytes: np.ndarray, world_size: int
) -> tuple[np.ndarray, np.ndarray]:
    assert sample_bytes.tolist() == (lengths @ [8 + 1, 24 + 1]).tolist()
    return zigzag(cost_of(lengths), world_size), cost_of(lengths)


def exchange_once(rank: int, world_size: int) -> tuple[TwoAxes, int, np.ndarray]:
    lane = open_lanes(["data"])["data"]
    counts = COUNTS[world_size]
    batch = make_batch(rank, counts[rank], sum(counts[:rank]))
    exchange = SampleExchange(lane, partial(assign, world_size=world_size), max_samples=8)
    moving = exchange.move(exchange.announce(batch))
    return exchange.receive(moving), moving.moved_bytes, moving.cost


@pytest.mark.multiprocess
@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_samples_arrive_whole_in_time_order_where_the_policy_sends_them(run_ranks: Any, world_size: int) -> None:
    counts = COUNTS[world_size]
    before = [make_batch(rank, n, sum(counts[:rank])) for rank, n in enumerate(counts)]
    lengths = torch.cat([batch.lengths for batch in before])
    home = np.repeat(np.arange(world_size), counts)
    target = zigzag(cost_of(lengths.numpy()), world_size)

    for rank, (batch, moved_bytes, cost) in enumerate(run_ranks(exchange_once, world_size)):
        expected = np.flatnonzero(target == rank)
        assert batch.sample_id.tolist() == expected.tolist()
        assert torch.equal(batch.lengths, lengths[expected])
        assert cost.tolist() == cost_of(lengths[expected].numpy()).tolist()
        for name, (axis, values) in batch.values.items():
            rows = [torch.arange(int(lengths[s, axis])) + 1000 * int(s) for s in expected]
            mark = torch.cat(rows)
            want = {"event": mark, "flag": (mark % 2).bool(), "small": (mark % 100).to(torch.uint8),
                    "vector": mark.double().unsqueeze(1).repeat(1, 3)}[name]  # fmt: skip
            assert values.dtype == want.dtype
            assert torch.equal(values, want)
        leaving = lengths[(home == rank) & (target != rank)]
        assert moved_bytes == int(leaving[:, 0].sum()) * (8 + 1) + int(leaving[:, 1].sum()) * (24 + 1)


def too_many(rank: int, world_size: int) -> str:
    exchange = SampleExchange(open_lanes(["data"])["data"], partial(assign, world_size=1), max_samples=4)
    with pytest.raises(FreeScaleError) as error:
        exchange.announce(make_batch(rank, 5, 0))
    return str(error.value)


@pytest.mark.multiprocess
def test_more_samples_than_announced_are_refused_by_name(run_ranks: Any) -> None:
    assert run_ranks(too_many, 1) == ["rank 0: a batch of 5 samples, but max_samples is 4"]
