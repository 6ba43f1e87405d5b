"""Matrix-multiplication FLOPs of the model, sample by sample: the cost of a sample before anything was measured."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from workloads.batch import CANDIDATES, HISTORY
from workloads.config import WorkloadConfig
from workloads.hstu_attention import BLOCK


def flops(lengths: NDArray[np.int64], config: WorkloadConfig) -> NDArray[np.float64]:
    """float64[B], FLOPs of the dense model's forward pass for each sample; backward does about twice (projections)
    to two and a half times (attention, which computes its scores again) as much.

    Args:
        lengths: int64[B, 2], history events and candidates of each sample.
        config: of the workload (for an interaction log the built workload's, which has the log's features).

    Exactly the multiplications and additions of the matrix products as implemented, blocks that reach over the
    diagonal included: a multiply-add counts as two. Element-wise work (biases, SiLU, norms) is not in it.
    """
    shape = config.ranker_shape()
    history = lengths[:, HISTORY].astype(np.float64)
    candidates = lengths[:, CANDIDATES].astype(np.float64)
    per_token = shape.embedded_dim * shape.dim + shape.layers * shape.dim * shape.heads * (
        2 * shape.qk_dim + 3 * shape.value_dim
    )
    per_candidate = shape.head_dim * (shape.dim + 1)
    per_score = shape.layers * shape.heads * (shape.qk_dim + shape.value_dim)
    scores = _history_scores(history) + candidates * history
    return 2.0 * ((history + candidates) * per_token + candidates * per_candidate + scores * per_score)


def _history_scores(history: NDArray[np.float64]) -> NDArray[np.float64]:
    """Scores computed among a history's events: block i of full size has BLOCK rows and (i + 1) * BLOCK keys."""
    full, rest = np.divmod(history, BLOCK)
    return BLOCK * BLOCK * full * (full + 1) / 2 + rest * history
