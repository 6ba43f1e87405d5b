from dataclasses import replace

import pytest
import torch

from workloads.batch import JaggedBatch
from workloads.ranker import LocalRanker
from workloads.registry import Workload, build, preset


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def tiny() -> Workload:
    return build(preset("hstu-tiny"), seed=1)


@pytest.fixture
def jagged() -> JaggedBatch:
    """Histories longer than a block, of one event, and none; some samples without candidates."""
    lengths = torch.tensor([[150, 3], [0, 2], [7, 0], [1, 4], [0, 0], [260, 2]])
    tokens, candidates = lengths.sum(0).tolist()
    draw = torch.Generator().manual_seed(0)
    rows = {"item": 1_000, "category": 20, "action": 4, "surface": 4}
    return JaggedBatch(
        sample_id=torch.arange(len(lengths)),
        lengths=lengths,
        history={name: torch.randint(count, (tokens,), generator=draw) for name, count in rows.items()},
        history_time=torch.cat([torch.arange(count) * 600 for count in lengths[:, 0].tolist()]),
        candidates={
            name: torch.randint(count, (candidates,), generator=draw)
            for name, count in rows.items()
            if name != "action"
        },
        candidate_time=torch.full((candidates,), 200_000),
        labels=torch.randint(2, (candidates,), generator=draw).float(),
        weights=torch.rand(candidates, generator=draw),
    )


@pytest.fixture
def ranker64() -> LocalRanker:
    """The tiny model in double precision, for histories of up to 300 events."""
    return build(replace(preset("hstu-tiny"), max_history=300), seed=1).local_model(torch.float64)
