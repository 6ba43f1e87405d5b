import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from freescale.errors import FreeScaleError
from workloads.batch import JaggedBatch
from workloads.flops import flops
from workloads.ranker import LocalRanker
from workloads.registry import DEFAULT_PRESET, PRESETS, Workload, WorkloadConfig, build, preset


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_builds_and_describes_itself_in_json(name: str) -> None:
    workload = build(preset(name), seed=0)
    described = json.loads(json.dumps(workload.describe()))
    assert described["preset"] == workload.name == name
    assert described["tables"]["item"] == {"rows": workload.config.item_rows, "dim": workload.config.embedding_dim}
    assert set(workload.feature_tables()) == set(workload.batch(0, 0, 2).ids())
    assert set(workload.feature_tables().values()) == set(workload.tables())
    assert workload.batch(0, 1, 2).samples == workload.max_samples
    assert workload.steps_available(2) is None


def test_the_default_preset_is_the_documented_one() -> None:
    default = preset(DEFAULT_PRESET)
    assert (default.name, default.dim, default.layers, len(default.features)) == ("hstu-small", 64, 2, 4)
    assert (default.samples_per_rank, default.median_history, default.max_history) == (32, 150, 1_024)
    assert default.collision_rate == 0.12


def test_an_unknown_preset_is_refused_with_the_presets_there_are() -> None:
    with pytest.raises(FreeScaleError, match="no workload 'hstu-huge'; there are hstu-small, hstu-tiny, hstu-long"):
        preset("hstu-huge")


def test_columns_without_a_file_are_refused() -> None:
    with pytest.raises(FreeScaleError, match="column: user named, but there is no data file; add --data FILE"):
        build(preset("hstu-tiny"), 0, columns={"user": "uid"})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dim": 0}, "dim: 0, expected 1 to 16384"),
        ({"collision_rate": -0.1}, "collision_rate: -0.1, expected 0 to 1"),
        ({"min_candidates": 9, "max_candidates": 8}, "min_candidates: 9, expected at most max_candidates, which is 8"),
        ({"min_history": 99, "max_history": 48}, "min_history: 99, expected at most max_history, which is 48"),
        ({"lengths": "gauss"}, "lengths: no distribution 'gauss'"),
        ({"features": ("category",)}, "features: category; expected item"),
    ],
)
def test_a_setting_out_of_range_names_field_value_and_range(changes: dict[str, object], message: str) -> None:
    with pytest.raises(FreeScaleError, match=message):
        replace(preset("hstu-tiny"), **changes)  # type: ignore[arg-type]


def test_dense_models_start_alike_on_every_rank_and_leave_the_random_state_alone(tiny: Workload) -> None:
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    first = tiny.dense_model().state_dict()
    assert torch.equal(torch.rand(3), expected)
    torch.manual_seed(2)
    again = build(preset("hstu-tiny"), seed=1).dense_model().state_dict()
    other = build(preset("hstu-tiny"), seed=2).dense_model().state_dict()
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["join.weight"], other["join.weight"])


def test_dense_models_come_in_the_dtype_asked_for(tiny: Workload) -> None:
    assert {parameter.dtype for parameter in tiny.dense_model(torch.float64).parameters()} == {torch.float64}


def test_flops_are_those_that_torch_counts(ranker64: LocalRanker, jagged: JaggedBatch) -> None:
    config = replace(preset("hstu-tiny"), max_history=300)
    with FlopCounterMode(display=False) as counter:
        ranker64(jagged)
    assert flops(jagged.lengths.numpy(), config).sum() == counter.get_total_flops()


def test_flops_by_hand() -> None:
    # 3 events and 2 candidates: 5 tokens, 3*3 + 2*3 scores.
    config = WorkloadConfig(
        "hand", embedding_dim=2, dim=3, layers=1, heads=1, qk_dim=5, value_dim=7, head_dim=11, features=("item",)
    )
    join, uvqk, out, head = 2 * 3, 3 * (5 + 5 + 7 + 7), 7 * 3, 3 * 11 + 11
    expected = 2 * (5 * (join + uvqk + out) + 2 * head + 15 * (5 + 7))
    assert flops(np.array([[3, 2]]), config).tolist() == [expected]


def test_cost_grows_with_the_square_of_long_histories(tiny: Workload) -> None:
    lengths = np.array([[1_000, 4], [2_000, 4], [100_000, 4], [200_000, 4]])
    cost = tiny.cost(lengths)
    assert (np.diff(cost) > 0).all()
    assert cost[3] / cost[2] == pytest.approx(4, rel=0.02)
