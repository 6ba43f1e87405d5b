"""A sharded embedding trains exactly like ordinary tables on the whole batch."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from thread_ranks import run_threads

from freescale.errors import FreeScaleError
from freescale.overlap.blocking import BlockingSchedule
from freescale.overlap.embedding import ShardedEmbedding
from freescale.overlap.hooks import ComputeHooks
from freescale.overlap.row_optimizer import RowOptimizer
from freescale.overlap.schedule import EXCHANGE_LANES, Parts
from freescale.overlap.tables import SlotLayout, TableSpec, initial_rows

TABLES = {
    "item": TableSpec(101, 8),
    "place": TableSpec(7, 4, "hash"),
    "user": TableSpec(3, 8, "table"),
    "brand": TableSpec(23, 8, "hash"),
    "city": TableSpec(50, 4, "table"),
}
FEATURES = {
    "item": "item",
    "candidate_item": "item",
    "place": "place",
    "user": "user",
    "brand": "brand",
    "city": "city",
}
SIZES = {"item": 40, "candidate_item": 5, "place": 12, "user": 1, "brand": 30, "city": 8}
STEPS = 4


def batch_ids(step: int, rank: int) -> dict[str, torch.Tensor]:
    """Rank 1 of step 2 brings nothing at all; duplicates are frequent."""
    draw = torch.Generator().manual_seed(step * 100 + rank)
    sizes = dict.fromkeys(SIZES, 0) if (step, rank) == (2, 1) else SIZES
    return {f: torch.randint(TABLES[FEATURES[f]].rows, (n,), generator=draw) for f, n in sizes.items()}


def loss_of(embedded: dict[str, torch.Tensor]) -> torch.Tensor:
    """Rows weigh differently, so that a gradient sent to the wrong row shows."""
    return sum(
        ((rows * torch.arange(1, 1 + rows.shape[1], dtype=rows.dtype)).sin() * (1 + i)).sum()
        for i, rows in enumerate(embedded.values())
    )


def train_sharded(open_lane: Any, rank: int, world_size: int, optimizer: RowOptimizer) -> dict[str, torch.Tensor]:
    embedding = ShardedEmbedding(TABLES, FEATURES, rank, world_size, optimizer, seed=5, dtype=torch.float64)
    dense = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    lanes = {name: open_lane(name) for name in EXCHANGE_LANES}
    schedule = BlockingSchedule(Parts(embedding, dense, lanes, ComputeHooks()))
    for step in range(STEPS):
        schedule.step(batch_ids(step, rank), None, lambda e: loss_of(e) * world_size)
    return {table: embedding.table_shard(table).clone() for table in TABLES}


def train_whole(world_size: int, optimizer: RowOptimizer) -> dict[str, torch.Tensor]:
    """The oracle: ordinary tables, the textbook update of every row, the global batch at once."""
    weights = {name: initial(name).requires_grad_() for name in TABLES}
    state = {name: torch.zeros(spec.rows, dtype=torch.float64) for name, spec in TABLES.items()}
    for step in range(STEPS):
        for weight in weights.values():
            weight.grad = None
        for rank in range(world_size):
            loss_of({f: F.embedding(i, weights[FEATURES[f]]) for f, i in batch_ids(step, rank).items()}).backward()
        with torch.no_grad():
            for name, weight in weights.items():
                if optimizer.kind == "sgd":
                    weight -= optimizer.lr * weight.grad
                else:
                    state[name] += weight.grad.square().mean(1)
                    weight -= optimizer.lr * weight.grad / (state[name].sqrt() + optimizer.eps).unsqueeze(1)
    return {name: weight.detach() for name, weight in weights.items()}


def initial(table: str) -> torch.Tensor:
    spec = TABLES[table]
    return initial_rows(5, list(TABLES).index(table), spec, torch.arange(spec.rows), torch.float64)


def gathered(shards: list[dict[str, torch.Tensor]], table: str) -> torch.Tensor:
    layout = SlotLayout(TABLES, len(shards))
    whole = torch.full_like(initial(table), torch.nan)
    for rank, shard in enumerate(shards):
        whole[layout.row_ids(table, rank)] = shard[table]
    return whole


@pytest.mark.parametrize("world_size", [1, 2, 3, 4])
@pytest.mark.parametrize("kind", ["sgd", "adagrad"])
def test_training_equals_ordinary_tables(world_size: int, kind: str) -> None:
    optimizer = RowOptimizer(kind, lr=0.01)
    shards = run_threads(world_size, 0, lambda lane, rank: train_sharded(lane, rank, world_size, optimizer))
    whole = train_whole(world_size, optimizer)
    for table in TABLES:
        torch.testing.assert_close(gathered(shards, table), whole[table], rtol=0, atol=1e-12)
        assert not torch.equal(whole[table], initial(table))


def test_adam_equals_dense_adam_on_rows_touched_every_step() -> None:
    optimizer = RowOptimizer("adam", lr=0.1)
    weight = torch.linspace(-1, 1, 12, dtype=torch.float64).view(4, 3).clone()
    oracle = torch.nn.Parameter(weight[[0, 2]].clone())
    adam = torch.optim.Adam([oracle], lr=0.1, betas=optimizer.betas, eps=optimizer.eps)
    state = optimizer.new_state(weight)
    untouched = weight[[1, 3]].clone()
    for step in range(5):
        gradient = torch.full((2, 3), 0.3, dtype=torch.float64) * (step - 1.5)
        optimizer.update_rows(weight, state, torch.tensor([0, 2]), gradient, 0.1)
        oracle.grad = gradient.clone()
        adam.step()
    torch.testing.assert_close(weight[[0, 2]], oracle.detach(), rtol=0, atol=1e-12)
    assert torch.equal(weight[[1, 3]], untouched)


@pytest.mark.parametrize("world_size", [1, 2, 3, 8])
def test_every_row_has_one_slot_with_its_owner(world_size: int) -> None:
    layout = SlotLayout(TABLES, world_size)
    slots = {name: layout.slots(name, torch.arange(spec.rows)) for name, spec in TABLES.items()}
    assert torch.equal(torch.cat(list(slots.values())).sort().values, torch.arange(184))
    for table in TABLES:
        for owner in range(world_size):
            part = layout.place_in_weight(table, owner)
            start = int(layout.group_start[owner, layout.group_of(table)])
            held = torch.arange(start + part.start, start + part.stop)
            assert torch.equal(slots[table][layout.row_ids(table, owner)], held)


def test_whole_tables_are_spread_by_size() -> None:
    tables = {name: TableSpec(rows, 2, "table") for name, rows in {"a": 10, "b": 90, "c": 50, "d": 45}.items()}
    layout = SlotLayout(tables, 2)
    held = [{t for t in tables if layout.rows_owned(t, rank)} for rank in range(2)]
    assert held == [{"b", "a"}, {"c", "d"}]


@pytest.mark.parametrize("value", [-1, 7, 2**40])
def test_an_id_out_of_range_is_named_and_nobody_waits_for_ever(value: int) -> None:
    def ask(open_lane: Any, rank: int) -> str:
        embedding = ShardedEmbedding(TABLES, FEATURES, rank, 2, RowOptimizer())
        dense = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
        lanes = {name: open_lane(name) for name in EXCHANGE_LANES}
        schedule = BlockingSchedule(Parts(embedding, dense, lanes, ComputeHooks()))
        ids = batch_ids(0, rank)
        if rank == 1:
            ids["place"][3] = value
        with pytest.raises(FreeScaleError) as error:
            schedule.step(ids, None, loss_of)
        return str(error.value)

    innocent, guilty = run_threads(2, 0, ask)
    assert guilty.startswith(f"rank 1: table 'place', feature 'place': ID {value} is outside 0…6;")
    assert innocent == "rank 0: rank 1 asks for IDs that no table has; see its message"


def test_initial_rows_do_not_depend_on_how_they_are_cut() -> None:
    spec = TableSpec(140_000, 2)
    whole = initial_rows(1, 0, spec, torch.arange(spec.rows), torch.float32)
    assert torch.equal(whole[1::3], initial_rows(1, 0, spec, torch.arange(1, spec.rows, 3), torch.float32))
    assert whole.unique(dim=0).shape[0] == spec.rows


def test_a_feature_needs_a_table_that_exists() -> None:
    with pytest.raises(FreeScaleError, match="feature 'x': table 'y' does not exist; tables are item"):
        ShardedEmbedding(TABLES, {"x": "y"}, 0, 1, RowOptimizer())
