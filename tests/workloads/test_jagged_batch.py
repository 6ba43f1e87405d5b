import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from workloads.batch import JaggedBatch, select
from workloads.registry import build, preset


def samples_of(batch: JaggedBatch) -> list[dict[str, list[float]]]:
    """Each sample's values by name, cut out the slow way."""
    cut: list[dict[str, list[float]]] = []
    starts = [0, 0]
    for row, counts in enumerate(batch.lengths.tolist()):
        sample = {"sample_id": [batch.sample_id[row].item()]}
        for name, (axis, values) in batch.jagged_values().items():
            sample[name] = values[starts[axis] : starts[axis] + counts[axis]].tolist()
        cut.append(sample)
        starts = [start + count for start, count in zip(starts, counts, strict=True)]
    return cut


@given(order=st.lists(st.integers(0, 5), max_size=12))
def test_select_takes_whole_samples_in_the_order_asked_for(order: list[int]) -> None:
    batch = select(build(preset("hstu-tiny"), seed=1).batch(0, 0, 2), [0, 1, 2, 3, 3, 0])
    cut = samples_of(batch)
    assert samples_of(select(batch, order)) == [cut[place] for place in order]


def test_ids_name_candidate_features_with_their_prefix(jagged: JaggedBatch) -> None:
    ids = jagged.ids()
    assert set(ids) == {"item", "category", "action", "surface"} | {
        "candidate_item",
        "candidate_category",
        "candidate_surface",
    }
    assert ids["candidate_item"] is jagged.candidates["item"]


def test_tokens_count_history_and_candidates(jagged: JaggedBatch) -> None:
    assert jagged.tokens == 150 + 3 + 2 + 7 + 1 + 4 + 260 + 2
    assert jagged.samples == 6


def test_values_that_do_not_fit_the_lengths_are_refused(jagged: JaggedBatch) -> None:
    values = {name: tensor for name, (_, tensor) in jagged.jagged_values().items()}
    with pytest.raises(ValueError, match=r"labels: 10 rows, but lengths\[:, 1\] add up to 11"):
        jagged.with_samples(jagged.sample_id, jagged.lengths, {**values, "labels": torch.zeros(10)})
    with pytest.raises(ValueError, match=r"lengths: shape \(5, 2\), expected \(6, 2\)"):
        jagged.with_samples(jagged.sample_id, jagged.lengths[:5], values)
