import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from freescale.errors import FreeScaleError
from workloads.batch import JaggedBatch
from workloads.config import WorkloadConfig
from workloads.ids import measured_collision_rate
from workloads.registry import Workload, build

CONFIG = WorkloadConfig("test", samples_per_rank=8, median_history=30, max_history=200, item_rows=20_000)


def workload(samples_per_rank: int = 8, seed: int = 3, **changes: object) -> Workload:
    return build(WorkloadConfig(**{**vars(CONFIG), "samples_per_rank": samples_per_rank, **changes}), seed)  # type: ignore[arg-type]


def contents(*batches: JaggedBatch) -> dict[str, list[float]]:
    merged: dict[str, list[float]] = {}
    for batch in batches:
        columns = {"sample_id": batch.sample_id, "lengths": batch.lengths.flatten()}
        columns |= {name: values for name, (_, values) in batch.jagged_values().items()}
        for name, values in columns.items():
            merged.setdefault(name, []).extend(values.tolist())
    return merged


@settings(max_examples=20, deadline=None)
@given(step=st.integers(0, 10**6), seed=st.integers(0, 2**32), ranks=st.sampled_from([2, 3, 4]))
def test_the_global_batch_does_not_depend_on_how_many_ranks_share_it(step: int, seed: int, ranks: int) -> None:
    whole = workload(12, seed).batch(step, 0, 1)
    parts = [workload(12 // ranks, seed).batch(step, rank, ranks) for rank in range(ranks)]
    assert contents(*parts) == contents(whole)


def test_the_same_seed_and_step_give_the_same_batch_in_any_order() -> None:
    one, other = workload(), workload()
    forward = [contents(one.batch(step, 1, 2)) for step in range(4)]
    backward = [contents(other.batch(step, 1, 2)) for step in reversed(range(4))]
    assert forward == backward[::-1]
    assert len({json.dumps(batch) for batch in forward}) == 4


def test_another_seed_gives_other_batches() -> None:
    assert contents(workload(seed=3).batch(0, 0, 1)) != contents(workload(seed=4).batch(0, 0, 1))


def test_samples_are_consecutive_and_ids_within_their_tables() -> None:
    made = workload()
    rows = {name: spec.rows for name, spec in made.tables().items()}
    for rank in range(3):
        batch = made.batch(5, rank, 3)
        assert batch.sample_id.tolist() == list(range(rank * 8, (rank + 1) * 8))
        for name, ids in batch.ids().items():
            assert ids.min() >= 0
            assert ids.max() < rows[made.feature_tables()[name]]
            assert ids.dtype == torch.int64
        assert set(batch.labels.tolist()) <= {0.0, 1.0}
        assert batch.labels.dtype == batch.weights.dtype == torch.float32


def test_time_runs_forward_within_samples_and_over_batches() -> None:
    made, arrivals = workload(), []
    for step in range(3):
        batch = made.batch(step, 0, 1)
        starts = np.cumsum(batch.lengths.numpy(), axis=0) - batch.lengths.numpy()
        for (history, candidates), (event, shown) in zip(batch.lengths.tolist(), starts, strict=True):
            happened = batch.history_time[event : event + history]
            arrived = batch.candidate_time[shown : shown + candidates]
            assert (happened.diff() >= 0).all()
            assert (arrived == arrived[0]).all()
            assert history == 0 or happened[-1] <= arrived[0]
            arrivals.append(int(arrived[0]))
    assert arrivals == sorted(arrivals)
    assert len(set(arrivals)) == len(arrivals)


def test_gaps_are_those_of_sessions_seconds_within_and_hours_between() -> None:
    batch = workload(256, median_history=100, max_history=400).batch(0, 0, 1)
    first = torch.zeros(batch.history_time.numel(), dtype=torch.bool)
    first[(batch.lengths[:, 0].cumsum(0) - batch.lengths[:, 0])] = True
    gaps = batch.history_time.diff()[~first[1:]]
    within = gaps < 600
    assert within.float().mean().item() == pytest.approx(11 / 12, abs=0.01)
    assert gaps[within].double().mean().item() == pytest.approx(45.5, rel=0.05)
    assert gaps[~within].double().median().item() == pytest.approx(8 * 3600, rel=0.1)


def test_category_is_a_function_of_the_item() -> None:
    made = workload(64)
    category: dict[int, int] = {}
    for step in range(3):
        batch = made.batch(step, 0, 1)
        for part in (batch.history, batch.candidates):
            for item, its in zip(part["item"].tolist(), part["category"].tolist(), strict=True):
                assert category.setdefault(item, its) == its
    assert len(set(category.values())) > 100


def test_lengths_and_candidates_have_the_distributions_configured() -> None:
    lengths = torch.cat([workload(64).batch(step, 0, 1).lengths for step in range(60)])
    assert lengths[:, 0].median().item() == pytest.approx(30, rel=0.06)
    assert lengths[:, 0].max() <= 200
    assert lengths[:, 1].unique().tolist() == list(range(4, 17))
    assert lengths[:, 1].double().mean().item() == pytest.approx(10, rel=0.03)


@pytest.mark.parametrize("rate", [0.0, 0.12, 0.5, 1.0])
def test_global_batches_have_the_collision_rate_configured(rate: float) -> None:
    made = workload(32, collision_rate=rate)

    def items(step: int) -> np.ndarray:
        batches = [made.batch(step, rank, 2) for rank in range(2)]
        return torch.cat([part["item"] for batch in batches for part in (batch.history, batch.candidates)]).numpy()

    measured = [measured_collision_rate(items(step), items(step + 1)) for step in range(6)]
    assert measured == pytest.approx([rate] * 6, abs=0.02)


def test_labels_follow_the_planted_taste_that_actions_show() -> None:
    batch = workload(512).batch(0, 0, 1)
    action, category = batch.history["action"].double(), batch.history["category"]
    appeal = torch.zeros(200, dtype=torch.float64).index_add(0, category, action) / torch.bincount(
        category, minlength=200
    ).clamp_min(1)
    shown = appeal[batch.candidates["category"]]
    liked = batch.labels > 0
    assert shown[liked].mean() > shown[~liked].mean() + 0.5


def test_a_place_outside_the_stream_is_refused() -> None:
    with pytest.raises(FreeScaleError, match="rank: 2 of 2 ranks, expected 0 to 1"):
        workload().batch(0, 2, 2)
    with pytest.raises(FreeScaleError, match="step: -1, expected at least 0"):
        workload().batch(-1, 0, 2)
