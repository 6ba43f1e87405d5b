"""An ordinary model becomes a sharded one without being rewritten, and trains to the same weights."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from thread_ranks import run_threads
from torch import nn

from freescale.errors import FreeScaleError
from freescale.overlap import adopt, checkpoint
from freescale.overlap.blocking import BlockingSchedule
from freescale.overlap.embedding import ShardedEmbedding
from freescale.overlap.hooks import ComputeHooks
from freescale.overlap.prioritized import PrioritizedSchedule
from freescale.overlap.row_optimizer import RowOptimizer
from freescale.overlap.schedule import EXCHANGE_LANES, Parts
from freescale.overlap.tables import TableSpec

ROOT = Path(__file__).resolve().parents[2]


class Recommender(nn.Module):
    """An ordinary one: a sequence, a candidate from the same table, a bag of tags, padding."""

    def __init__(self, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.item = nn.Embedding(30, 6, padding_idx=0)
        self.towers = nn.ModuleDict({"tags": nn.EmbeddingBag(12, 4, mode="mean", padding_idx=2)})
        self.out = nn.Linear(16, 1)
        draw = torch.Generator().manual_seed(0)
        for parameter in self.parameters():
            parameter.data = torch.empty_like(parameter, dtype=dtype).uniform_(-0.5, 0.5, generator=draw)

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        history = self.item(batch["history"]).mean(1)
        tags = self.towers["tags"](batch["tags"], batch["offsets"])
        return self.out(torch.cat([history, self.item(batch["candidate"]), tags], dim=1)).squeeze(1)


def make_batch(step: int) -> dict[str, torch.Tensor]:
    draw = torch.Generator().manual_seed(step)
    return {
        "history": torch.randint(0, 30, (5, 7), generator=draw),
        "candidate": torch.randint(0, 30, (5,), generator=draw),
        "tags": torch.randint(0, 12, (9,), generator=draw),
        "offsets": torch.tensor([0, 3, 3, 5, 8]),
        "label": torch.randint(0, 2, (5,), generator=draw).double(),
    }


def ids_of(batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {"item": torch.cat([batch["history"].flatten(), batch["candidate"]]), "towers.tags": batch["tags"]}


def loss_with(model: nn.Module) -> Any:
    return lambda batch: nn.functional.binary_cross_entropy_with_logits(model(batch), batch["label"])


def dense_parameters(model: nn.Module) -> list[nn.Parameter]:
    return [parameter for name, parameter in model.named_parameters() if name.startswith("out.")]


@pytest.mark.parametrize("schedule", [BlockingSchedule, PrioritizedSchedule])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_the_adopted_model_trains_like_the_original(schedule: Any, accumulate: int) -> None:
    batches = [make_batch(step) for step in range(8)]
    original = Recommender()
    plain = torch.optim.SGD(original.parameters(), lr=0.3)
    for number, batch in enumerate(batches, 1):
        loss_with(original)(batch).backward()
        if number % accumulate == 0 or number == len(batches):
            plain.step()
            plain.zero_grad()

    def adopted(open_lane: Any, rank: int) -> tuple[Recommender, ShardedEmbedding, list[float]]:
        model = Recommender()
        embedding = adopt.shard_embeddings(model, RowOptimizer("sgd", lr=0.3))
        dense = torch.optim.SGD(model.parameters(), lr=0.3)
        lanes = {name: open_lane(name) for name in EXCHANGE_LANES}
        made = schedule(Parts(embedding, dense, lanes, ComputeHooks(model)))
        losses = [float(loss) for _, loss in adopt.steps(made, batches, ids_of, loss_with(model), accumulate)]
        return model, embedding, losses

    ((model, embedding, losses),) = run_threads(1, 0, adopted)
    assert len(losses) == 8
    torch.testing.assert_close(embedding.table_shard("item"), original.item.weight, rtol=0, atol=1e-12)
    torch.testing.assert_close(embedding.table_shard("towers.tags"), original.towers["tags"].weight, rtol=0, atol=1e-12)
    for ours, theirs in zip(dense_parameters(model), dense_parameters(original), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-12)
    assert not torch.equal(Recommender().item.weight[0], torch.zeros(6))  # else the padding row would test nothing
    assert torch.equal(embedding.table_shard("item")[0], Recommender().item.weight[0])


def test_leaving_early_applies_what_was_deferred() -> None:
    """A break in the middle, then the same steps again from there: as if nothing had happened."""
    batches = [make_batch(step) for step in range(6)]

    def train(open_lane: Any, rank: int, stop_after: int) -> torch.Tensor:
        model = Recommender()
        embedding = adopt.shard_embeddings(model, RowOptimizer("adagrad", lr=0.3))
        parts = Parts(
            embedding,
            torch.optim.SGD(model.parameters(), lr=0.3),
            {name: open_lane(name) for name in EXCHANGE_LANES},
            ComputeHooks(model),
        )
        for number, _ in enumerate(adopt.steps(PrioritizedSchedule(parts), batches, ids_of, loss_with(model)), 1):
            if number == stop_after:
                break
        rest = batches[stop_after:]
        for _ in adopt.steps(PrioritizedSchedule(parts), rest, ids_of, loss_with(model)):
            pass
        return torch.cat([embedding.table_shard("item"), embedding.weights[0].new_zeros(1, 6)])

    (through,) = run_threads(1, 0, lambda lane, rank: train(lane, rank, 6))
    (broken,) = run_threads(1, 0, lambda lane, rank: train(lane, rank, 2))
    assert torch.equal(through, broken)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (nn.Linear(2, 2), "model: has no nn.Embedding or nn.EmbeddingBag"),
        (nn.Sequential(nn.Embedding(3, 2, max_norm=1.0)), "model: 0 has max_norm"),
        (nn.Sequential(nn.Embedding(3, 2, scale_grad_by_freq=True)), "model: 0 has scale_grad_by_freq"),
        (nn.Sequential(nn.EmbeddingBag(3, 2, mode="max")), "model: 0 has mode 'max'"),
    ],
)
def test_what_cannot_be_sharded_exactly_is_refused_by_name(model: nn.Module, message: str) -> None:
    with pytest.raises(FreeScaleError) as error:
        adopt.shard_embeddings(model, RowOptimizer())
    assert str(error.value).startswith(message)


def test_an_id_that_was_not_announced_is_named() -> None:
    def train(open_lane: Any, rank: int) -> str:
        model = Recommender()
        embedding = adopt.shard_embeddings(model, RowOptimizer("sgd"))
        lanes = {name: open_lane(name) for name in EXCHANGE_LANES}
        dense = torch.optim.SGD(model.parameters(), lr=0.1)
        schedule = BlockingSchedule(Parts(embedding, dense, lanes, ComputeHooks(model)))
        batch = make_batch(0)
        ids = {**ids_of(batch), "towers.tags": torch.tensor([11])}
        batch["tags"] = torch.full((9,), 3)
        with pytest.raises(FreeScaleError) as error:
            schedule.step(ids, None, lambda _: loss_with(model)(batch))
        return str(error.value)

    assert run_threads(1, 0, train) == ["table 'towers.tags': ID 3 was not announced; add it to the step's ids"]


TABLES = {"a": TableSpec(23, 4), "b": TableSpec(9, 4, "hash"), "c": TableSpec(5, 2, "table")}


@pytest.mark.parametrize(("saved_on", "loaded_on"), [(1, 3), (4, 2), (2, 2)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_checkpoints_load_on_any_number_of_ranks(
    tmp_path: Path, saved_on: int, loaded_on: int, dtype: torch.dtype
) -> None:
    def make(rank: int, world_size: int, seed: int) -> ShardedEmbedding:
        return ShardedEmbedding(TABLES, {"a": "a"}, rank, world_size, RowOptimizer("adam"), seed=seed, dtype=dtype)

    whole: dict[str, torch.Tensor] = {}
    for rank in range(saved_on):
        embedding = make(rank, saved_on, seed=1)
        for group, state in enumerate(embedding.states):
            rows = torch.arange(len(embedding.weights[group]))
            gradient = torch.randn(len(rows), embedding.layout.dims[group])
            embedding.optimizer.update_rows(embedding.weights[group], state, rows, gradient, 0.1)
        checkpoint.save(embedding, tmp_path)
        for table, spec in TABLES.items():
            ids = embedding.layout.row_ids(table, rank)
            whole.setdefault(table, torch.zeros(spec.rows, spec.dim, dtype=dtype))[ids] = embedding.table_shard(table)
    for rank in range(loaded_on):
        embedding = make(rank, loaded_on, seed=2)
        checkpoint.load(embedding, tmp_path)
        for table in TABLES:
            assert torch.equal(embedding.table_shard(table), whole[table][embedding.layout.row_ids(table, rank)])
        assert all((state["row_step"] == 1).all() for state in embedding.states)


def test_a_checkpoint_that_does_not_fit_says_why(tmp_path: Path) -> None:
    embedding = ShardedEmbedding(TABLES, {"a": "a"}, 0, 1, RowOptimizer("sgd"))
    with pytest.raises(FreeScaleError, match="no checkpoint of sharded tables"):
        checkpoint.load(embedding, tmp_path)
    checkpoint.save(embedding, tmp_path)
    other = ShardedEmbedding({**TABLES, "a": TableSpec(24, 4)}, {"a": "a"}, 0, 1, RowOptimizer("sgd"))
    with pytest.raises(FreeScaleError, match="tables a differ from the model's"):
        checkpoint.load(other, tmp_path)
    with pytest.raises(FreeScaleError, match="saved with optimizer sgd, not adam"):
        checkpoint.load(ShardedEmbedding(TABLES, {"a": "a"}, 0, 1, RowOptimizer("adam")), tmp_path)
    (tmp_path / "rank-00000.npz").write_bytes(b"PK broken")
    with pytest.raises(FreeScaleError, match=r"rank-00000\.npz: not a readable part of a checkpoint"):
        checkpoint.load(embedding, tmp_path)


def examples() -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "adopting.md").read_text(encoding="utf-8"), re.S)


def test_the_example_in_the_docs_is_short_and_runs(run_ranks: Any) -> None:
    (example,) = [text for text in examples() if "shard_embeddings" in text]
    assert len([line for line in example.splitlines() if line.strip()]) <= 20
    first, second = run_ranks(run_example, 2, example)
    assert first["losses"] != second["losses"]
    assert first["losses"][-1] < first["losses"][0]


def run_example(rank: int, world_size: int, example: str) -> dict[str, Any]:
    torch.manual_seed(rank)
    names: dict[str, Any] = {}
    exec(compile(example, "docs/adopting.md", "exec"), names)
    return {"losses": names["losses"]}
