"""A sharded embedding trains exactly like ordinary tables on the whole batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from freescale.comm.process_group import open_lanes
from freescale.comm.transport import Transport
from freescale.errors import FreeScaleError
from freescale.overlap.blocking import blocking_step
from freescale.overlap.embedding import ShardedEmbedding
from freescale.overlap.row_optimizer import RowOptimizer
from freescale.overlap.tables import SlotLayout, TableSpec, initial_rows

TABLES = {"item": TableSpec(101, 8), "place": TableSpec(7, 4), "user": TableSpec(3, 8)}
FEATURES = {"item": "item", "candidate_item": "item", "place": "place", "user": "user"}
WIDTH = {"item": 8, "candidate_item": 8, "place": 4, "user": 8}
STEPS = 4


def batch_ids(step: int, rank: int) -> dict[str, torch.Tensor]:
    """Rank 1 of step 2 brings nothing at all; duplicates are frequent."""
    draw = torch.Generator().manual_seed(step * 100 + rank)
    sizes = {"item": 40, "candidate_item": 5, "place": 12, "user": 1}
    if (step, rank) == (2, 1):
        sizes = dict.fromkeys(sizes, 0)
    return {f: torch.randint(TABLES[FEATURES[f]].rows, (n,), generator=draw) for f, n in sizes.items()}


def loss_of(embedded: dict[str, torch.Tensor]) -> torch.Tensor:
    """Rows weigh differently, so that a gradient sent to the wrong row shows."""
    return sum(
        ((rows * torch.arange(1, 1 + rows.shape[1], dtype=rows.dtype)).sin() * (1 + i)).sum()
        for i, rows in enumerate(embedded.values())
    )


def train_sharded(rank: int, world_size: int, optimizers: list[RowOptimizer]) -> list[dict[str, torch.Tensor]]:
    lane = open_lanes(["embedding"])["embedding"]
    return [train_with(lane, rank, world_size, optimizer) for optimizer in optimizers]


def train_with(lane: Transport, rank: int, world_size: int, optimizer: RowOptimizer) -> dict[str, torch.Tensor]:
    embedding = ShardedEmbedding(TABLES, FEATURES, lane, optimizer, seed=5, dtype=torch.float64)
    dense = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    for step in range(STEPS):
        blocking_step(embedding, dense, batch_ids(step, rank), lambda e: loss_of(e) * world_size)
    return {table: embedding.table_shard(table).clone() for table in TABLES}


def train_whole(world_size: int, optimizer: RowOptimizer) -> dict[str, torch.Tensor]:
    """The oracle: ordinary tables, the textbook update of every row, the global batch at once."""
    weights = {
        name: initial_rows(5, i, spec, 0, spec.rows, torch.float64).requires_grad_()
        for i, (name, spec) in enumerate(TABLES.items())
    }
    state = {name: torch.zeros(spec.rows, dtype=torch.float64) for name, spec in TABLES.items()}
    for step in range(STEPS):
        for weight in weights.values():
            weight.grad = None
        for rank in range(world_size):
            embedded = {f: F.embedding(i, weights[FEATURES[f]]) for f, i in batch_ids(step, rank).items()}
            loss_of(embedded).backward()
        with torch.no_grad():
            for name, weight in weights.items():
                if optimizer.kind == "sgd":
                    weight -= optimizer.lr * weight.grad
                else:
                    state[name] += weight.grad.square().mean(1)
                    weight -= optimizer.lr * weight.grad / (state[name].sqrt() + optimizer.eps).unsqueeze(1)
    return {name: weight.detach() for name, weight in weights.items()}


@pytest.mark.multiprocess
@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_training_equals_ordinary_tables(run_ranks: Any, world_size: int) -> None:
    optimizers = [RowOptimizer(kind, lr=0.1) for kind in ("sgd", "adagrad")]
    ranks = run_ranks(train_sharded, world_size, optimizers)
    for index, optimizer in enumerate(optimizers):
        whole = train_whole(world_size, optimizer)
        for number, (table, spec) in enumerate(TABLES.items()):
            sharded = torch.cat([shards[index][table] for shards in ranks])
            torch.testing.assert_close(sharded, whole[table], rtol=0, atol=1e-12)
            assert not torch.equal(whole[table], initial_rows(5, number, spec, 0, spec.rows, torch.float64))


def test_adam_equals_dense_adam_on_rows_touched_every_step() -> None:
    # SparseAdam counts steps globally, lazy Adam per row; for rows touched in every step the two must agree.
    optimizer = RowOptimizer("adam", lr=0.1)
    weight = torch.linspace(-1, 1, 12, dtype=torch.float64).view(4, 3).clone()
    oracle = torch.nn.Parameter(weight[[0, 2]].clone())
    adam = torch.optim.Adam([oracle], lr=0.1, betas=optimizer.betas, eps=optimizer.eps)
    state = optimizer.new_state(weight)
    untouched = weight[[1, 3]].clone()
    for step in range(5):
        gradient = torch.full((2, 3), 0.3, dtype=torch.float64) * (step - 1.5)
        optimizer.update_rows(weight, state, torch.tensor([0, 2]), gradient)
        oracle.grad = gradient.clone()
        adam.step()
    torch.testing.assert_close(weight[[0, 2]], oracle.detach(), rtol=0, atol=1e-12)
    assert torch.equal(weight[[1, 3]], untouched)


@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
def test_every_row_has_one_slot_and_one_owner(world_size: int) -> None:
    layout = SlotLayout(TABLES, world_size)
    slots = torch.cat([layout.slots(t, t, torch.arange(s.rows)) for t, s in TABLES.items()])
    assert torch.equal(slots.sort().values, torch.arange(sum(s.rows for s in TABLES.values())))
    assert int(layout.owner_start[-1]) == slots.numel()


@pytest.mark.parametrize("value", [-1, 7, 2**40])
def test_an_id_out_of_range_is_named(value: int) -> None:
    layout = SlotLayout(TABLES, 2)
    with pytest.raises(FreeScaleError, match=rf"table 'place', feature 'spot': ID {value} is outside 0…6"):
        layout.slots("place", "spot", torch.tensor([3, value]))


def test_initial_rows_do_not_depend_on_how_they_are_cut() -> None:
    spec = TableSpec(140_000, 2)
    whole = initial_rows(1, 0, spec, 0, spec.rows, torch.float32)
    parts = [initial_rows(1, 0, spec, first, 70_000, torch.float32) for first in (0, 70_000)]
    assert torch.equal(whole, torch.cat(parts))
