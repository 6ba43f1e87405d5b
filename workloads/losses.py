"""Sums, not means: what a rank adds to the global loss, so that the result does not depend on who had which sample.

Divide by the global sum of weights for the mean loss. A rank without samples adds zero, and takes part in backward.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits


def bce_sum(logits: Tensor, labels: Tensor, weights: Tensor) -> Tensor:
    """Weighted sum of the candidates' binary cross-entropies, in nats.

    Args:
        logits: [C], any floating dtype; those narrower than fp32 are raised to it first.
        labels: [C] in [0, 1].
        weights: [C], at least 0.

    Returns:
        A scalar, fp64 for fp64 logits and fp32 otherwise, connected to `logits` even when C is 0.
    """
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    labels, weights = labels.to(logits.dtype), weights.to(logits.dtype)
    return binary_cross_entropy_with_logits(logits, labels, weight=weights, reduction="sum")


def normalized_entropy(loss_sum: float, positive_weight: float, weight: float) -> float:
    """Cross-entropy divided by that of always predicting the average: below 1 the model knows something.

    Args:
        loss_sum: weighted sum of cross-entropies, in nats, as `bce_sum` gives it.
        positive_weight: sum of weights times labels.
        weight: sum of weights.

    Returns:
        NaN where it is undefined: no weight at all, or only one kind of label.

    Source: He et al. 2014, Practical Lessons from Predicting Clicks on Ads at Facebook, section 3.
    """
    if not 0 < positive_weight < weight:
        return math.nan
    rate = positive_weight / weight
    return loss_sum / weight / -(rate * math.log(rate) + (1 - rate) * math.log(1 - rate))
