"""Batches of other kinds survive being packed, moved and rebuilt; modules that notice the move are named."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from thread_ranks import run_threads
from torch import nn

from freescale.balance.batches import DictBatch, from_keyed_jagged, modules_that_mix_samples
from freescale.balance.exchange import SampleExchange
from freescale.errors import FreeScaleError


@dataclass
class Keyed:
    """What a KeyedJaggedTensor offers, as far as it is used: constructor and accessors of TorchRec's."""

    def __init__(self, keys: list[str], values: torch.Tensor, weights: Any = None, lengths: Any = None) -> None:
        self._keys, self._values, self._weights, self._lengths = keys, values, weights, lengths

    def keys(self) -> list[str]:
        return self._keys

    def values(self) -> torch.Tensor:
        return self._values

    def lengths(self) -> torch.Tensor:
        return self._lengths

    def weights_or_none(self) -> torch.Tensor | None:
        return self._weights


def swap(lengths: np.ndarray, home: np.ndarray, sample_bytes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Every sample leaves its rank."""
    return 1 - home, lengths[:, 0].astype(float)


def exchanged(open_lane: Any, rank: int, batch: DictBatch) -> DictBatch:
    exchange = SampleExchange(open_lane("data"), swap, max_samples=4)
    return exchange.receive(exchange.move(exchange.announce(batch)))


def make_dict(rank: int) -> DictBatch:
    lengths = torch.tensor([[2, 0, 1], [3]][rank])
    first = 3 * rank
    events = torch.arange(int(lengths.sum())) + 100 * rank
    tensors = {"events": events, "label": torch.full((len(lengths),), float(rank)), "text": torch.ones(len(events), 2)}
    sample_id = torch.arange(first, first + len(lengths))
    return DictBatch.of(sample_id, tensors, {"history": (lengths, ["events", "text"])})


def test_dictionaries_of_tensors_move() -> None:
    one, other = run_threads(2, 0, lambda lane, rank: exchanged(lane, rank, make_dict(rank)))
    for moved, rank in ((one, 1), (other, 0)):
        expected = make_dict(rank)
        assert moved.sample_id.tolist() == expected.sample_id.tolist()
        for name, tensor in expected.tensors.items():
            assert torch.equal(moved.tensors[name], tensor)


def make_keyed(rank: int, weighted: bool) -> tuple[Keyed, dict[str, torch.Tensor]]:
    lengths = torch.tensor([[1, 2, 0, 1], [0, 3]][rank], dtype=torch.int32)  # two keys × (2 | 1) samples
    values = torch.arange(int(lengths.sum())) + 10 * rank
    weights = values.float() / 2 if weighted else None
    return Keyed(["history", "user"], values, weights, lengths), {"label": torch.rand(len(lengths) // 2)}


@pytest.mark.parametrize("weighted", [False, True])
def test_keyed_jagged_tensors_move_and_come_back_as_what_they_were(weighted: bool) -> None:
    made = [make_keyed(rank, weighted) for rank in range(2)]
    ids = [torch.tensor([0, 1]), torch.tensor([2])]
    results = run_threads(2, 0, lambda lane, rank: exchanged(lane, rank, from_keyed_jagged(ids[rank], *made[rank])))
    for rank, batch in enumerate(results):
        keyed, tensors = batch.original()
        expected, labels = made[1 - rank]
        assert type(keyed) is Keyed
        assert keyed.keys() == expected.keys()
        assert torch.equal(keyed.values(), expected.values())
        assert torch.equal(keyed.lengths(), expected.lengths())
        assert keyed.lengths().dtype == torch.int32
        assert torch.equal(tensors["label"], labels["label"])
        if weighted:
            assert torch.equal(keyed.weights_or_none(), expected.weights_or_none())
        else:
            assert keyed.weights_or_none() is None


def test_torchrec_itself_is_supported_where_installed() -> None:
    torchrec = pytest.importorskip("torchrec", reason="TorchRec is optional and not installed")
    keyed = torchrec.KeyedJaggedTensor(keys=["h"], values=torch.arange(3), lengths=torch.tensor([1, 2]))
    again, _ = from_keyed_jagged(torch.arange(2), keyed, {}).original()
    assert torch.equal(again.values(), keyed.values())


def test_rows_that_do_not_fit_are_named() -> None:
    with pytest.raises(FreeScaleError, match="batch: x has 3 rows, but its lengths add up to 2"):
        DictBatch.of(torch.arange(2), {"x": torch.ones(3)}, {})
    with pytest.raises(FreeScaleError, match="batch: jagged names y, but there are no such tensors"):
        DictBatch.of(torch.arange(2), {"x": torch.ones(2)}, {"h": (torch.ones(2), ["y"])})


def test_modules_that_notice_who_shares_their_rank_are_named() -> None:
    class InBatch(nn.Module):
        mixes_samples = True

    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.LayerNorm(2), nn.SyncBatchNorm(2), InBatch())
    first, second = modules_that_mix_samples(model)
    assert first.startswith("1 (BatchNorm1d) normalises over the samples of its rank")
    assert second.startswith("4 (InBatch) relates the samples of its rank")
    assert len(modules_that_mix_samples(model.eval())) == 1  # in evaluation batch norm uses what it has learned
