import math

import pytest
import torch
from torch import Tensor

from workloads.batch import CANDIDATE_PREFIX, JaggedBatch, select
from workloads.losses import bce_sum, normalized_entropy
from workloads.ranker import LocalRanker
from workloads.registry import Workload


def test_a_samples_logits_do_not_depend_on_its_company(ranker64: LocalRanker, jagged: JaggedBatch) -> None:
    together = ranker64(jagged).split(jagged.lengths[:, 1].tolist())
    for place, logits in enumerate(together):
        torch.testing.assert_close(ranker64(select(jagged, [place])), logits, rtol=0, atol=1e-12)
    shuffled = [3, 5, 1, 0, 4, 2]
    moved = ranker64(select(jagged, shuffled)).split(jagged.lengths[shuffled, 1].tolist())
    for place, logits in zip(shuffled, moved, strict=True):
        torch.testing.assert_close(logits, together[place], rtol=0, atol=1e-12)


def test_gradients_of_parts_add_up_to_those_of_the_whole(ranker64: LocalRanker, jagged: JaggedBatch) -> None:
    def gradients(batch: JaggedBatch) -> list[Tensor]:
        loss = bce_sum(ranker64(batch), batch.labels, batch.weights)
        return list(torch.autograd.grad(loss, list(ranker64.parameters())))

    parts = [gradients(select(jagged, places)) for places in ([0, 2], [1, 3, 4], [], [5])]
    for whole, *pieces in zip(gradients(jagged), *parts, strict=True):
        torch.testing.assert_close(sum(pieces), whole, rtol=1e-10, atol=1e-12)


def test_an_empty_batch_reaches_every_parameter_with_zeros(ranker64: LocalRanker, jagged: JaggedBatch) -> None:
    empty = select(jagged, [])
    loss = bce_sum(ranker64(empty), empty.labels, empty.weights)
    loss.backward()
    assert loss.item() == 0
    for name, parameter in ranker64.named_parameters():
        assert parameter.grad is not None, name
        assert not parameter.grad.any(), name


def test_every_parameter_and_feature_matters(ranker64: LocalRanker, jagged: JaggedBatch) -> None:
    bce_sum(ranker64(jagged), jagged.labels, jagged.weights).backward()
    for name, parameter in ranker64.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.any(), name


def test_bfloat16_stays_close_to_double_precision(ranker64: LocalRanker, jagged: JaggedBatch) -> None:
    exact = ranker64(jagged)
    narrow = ranker64.to(torch.bfloat16)
    logits = narrow(jagged)
    bce_sum(logits, jagged.labels, jagged.weights).backward()
    assert logits.dtype == torch.bfloat16
    assert (logits.double() - exact).abs().max() < 0.02
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in narrow.parameters())


def test_the_local_model_is_the_dense_one_on_rows_of_its_tables(ranker64: LocalRanker, jagged: JaggedBatch) -> None:
    weights = {name: table.weight for name, table in ranker64.embeddings.items()}
    rows = {name: weights[name.removeprefix(CANDIDATE_PREFIX)][ids] for name, ids in jagged.ids().items()}
    assert torch.equal(ranker64.dense(rows, jagged), ranker64(jagged))


def test_training_learns_what_was_planted(tiny: Workload) -> None:
    model = tiny.local_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(25):
        for rank in range(8):
            batch = tiny.batch(step, rank, 8)
            (bce_sum(model(batch), batch.labels, batch.weights) / batch.labels.numel()).backward()
        optimizer.step()
        optimizer.zero_grad()
    later = [tiny.batch(1_000, rank, 64) for rank in range(64)]
    with torch.no_grad():
        loss_sum = sum(bce_sum(model(batch), batch.labels, batch.weights).item() for batch in later)
    labels = torch.cat([batch.labels for batch in later])
    entropy = normalized_entropy(loss_sum, labels.sum().item(), labels.numel())
    assert entropy < 0.85


def test_weighted_cross_entropy_by_hand() -> None:
    logits = torch.tensor([0.0, math.log(3), -math.log(4)], dtype=torch.float64, requires_grad=True)
    labels, weights = torch.tensor([1.0, 0.0, 0.0]), torch.tensor([1.0, 2.0, 0.5])
    # Probabilities 1/2, 3/4, 1/5.
    expected = -math.log(0.5) - 2 * math.log(0.25) - 0.5 * math.log(0.8)
    loss = bce_sum(logits, labels, weights)
    assert loss.item() == pytest.approx(expected, rel=1e-12)
    loss.backward()
    assert logits.grad is not None
    assert logits.grad.tolist() == pytest.approx([-0.5, 1.5, 0.1])


@pytest.mark.parametrize(
    ("dtype", "wide"), [(torch.bfloat16, torch.float32), (torch.float32, torch.float32), (torch.float64, torch.float64)]
)
def test_the_loss_is_summed_in_at_least_single_precision(dtype: torch.dtype, wide: torch.dtype) -> None:
    assert bce_sum(torch.zeros(3, dtype=dtype), torch.ones(3), torch.ones(3)).dtype == wide


def test_normalized_entropy_by_hand() -> None:
    # Always predicting the average, one positive in four, gives exactly 1.
    average = -(math.log(0.25) + 3 * math.log(0.75))
    assert normalized_entropy(average, 1.0, 4.0) == pytest.approx(1.0, rel=1e-12)
    assert normalized_entropy(average / 2, 1.0, 4.0) == pytest.approx(0.5, rel=1e-12)


@pytest.mark.parametrize("positive_weight", [0.0, 4.0])
def test_normalized_entropy_of_one_kind_of_label_is_undefined(positive_weight: float) -> None:
    assert math.isnan(normalized_entropy(1.0, positive_weight, 4.0))
