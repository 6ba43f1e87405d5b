"""Amounts per rank: the same as the product's own for the same samples."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import torch

from freescale.bench.simulated_workload import shape_of
from freescale.overlap.tables import SlotLayout, TableSpec
from freescale.simulate.batches import RowRates, assign, exact_rows, share_of
from workloads import registry


def test_flops_per_rank_are_the_workloads_own() -> None:
    workload = registry.build(registry.preset("hstu-small"), 3)
    lengths = workload.stream.sample_lengths(0, 64)
    home = np.repeat(np.arange(4), 16)
    shape = shape_of(workload)
    share = share_of(lengths, home, home, 4, shape)
    expected = np.bincount(home, weights=workload.cost(lengths))
    np.testing.assert_allclose(share.projection_flop + share.attention_flop, expected, rtol=1e-12)
    assert share.tokens.sum() == lengths.sum()


def test_the_dense_model_has_as_many_parameters_as_the_simulated_all_reduce_carries() -> None:
    workload = registry.build(registry.preset("hstu-small"), 0)
    parameters = sum(p.numel() for p in workload.dense_model().parameters())
    absent = workload.config.embedding_dim  # the one vector that stands for a candidate's missing action
    assert shape_of(workload).parameters == parameters - absent


def test_balancing_moves_work_and_keeps_all_of_it() -> None:
    workload = registry.build(registry.preset("hstu-small"), 1)
    lengths = workload.stream.sample_lengths(0, 8 * 32)
    home = np.repeat(np.arange(8), 32)
    shape = shape_of(workload)
    target = assign(lengths, home, 8, "rounds", shape, workload.cost)
    before, after = share_of(lengths, home, home, 8, shape), share_of(lengths, target, home, 8, shape)
    for field in ("samples", "history", "candidates", "attention_flop"):
        assert math.isclose(getattr(before, field).sum(), getattr(after, field).sum())
    assert (after.projection_flop + after.attention_flop).std() < (before.projection_flop + before.attention_flop).std()
    assert after.moved_out.sum() == after.moved_in.sum() > 0
    assert before.moved_out.sum() == 0


def test_rows_are_counted_from_the_real_sets() -> None:
    layout = SlotLayout({"item": TableSpec(10, 4)}, 2)  # block sharding: rows 0-4 on rank 0, 5-9 on rank 1

    def ids(*values: int) -> torch.Tensor:
        return layout.slots("item", torch.tensor(values))

    first, second = exact_rows(layout, [[ids(0, 1, 1, 7), ids(7, 8)], [ids(1, 2), ids(1, 8, 9)]])
    assert first.asked.tolist() == [3, 2]
    assert first.served.tolist() == [2, 3]
    assert first.urgent_asked.tolist() == [1, 1]  # rows 1 and 8 are used again
    assert first.urgent_served.tolist() == [1, 1]
    assert second.late_asked.tolist() == [1, 2]
    assert second.late_served.tolist() == [2, 1]
    assert second.collision_rate == 2 / 4
    assert math.isnan(first.collision_rate)


def test_rates_never_ask_for_more_rows_than_ids() -> None:
    rows = RowRates(scale=2.0, power=0.9, late_share=0.5, collision_rate=0.12).rows(np.array([1.0, 1e6]), False, False)
    assert rows.asked[0] == 1
    assert dataclasses.astuple(rows)[2][1] == rows.asked[1] / 2
