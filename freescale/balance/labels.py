"""Which group of samples goes to which rank: the assignment that leaves the most bytes where they are.

A policy makes groups of equal cost; any one-to-one assignment of groups to equal ranks is as balanced as any other, so
the numbering is free, and chosen so that balancing moves little.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment

from freescale.balance.policies import Ranks


def keep_home(groups: Ranks, home: Ranks, sample_bytes: NDArray[np.int64], world_size: int) -> Ranks:
    """Rename groups to ranks so that the bytes of samples already on their rank are the most possible.

    Args:
        groups: int64[N], group of each sample, as a policy gives it for ranks of equal speed.
        home: int64[N], the rank that has the sample now.
        sample_bytes: int64[N], what moving the sample would cost.
        world_size: number of groups and ranks.

    Returns:
        int64[N], the rank of each sample; samples are together exactly when they were.

    A linear assignment of groups to ranks over whole numbers, so every rank that runs the same scipy gets the same one.
    """
    pair = groups * world_size + home
    at_home = np.bincount(pair, weights=sample_bytes, minlength=world_size * world_size)
    _, rank_of_group = linear_sum_assignment(at_home.reshape(world_size, world_size), maximize=True)
    return np.asarray(rank_of_group, dtype=np.int64)[groups]


def moved_bytes(ranks: Ranks, home: Ranks, sample_bytes: NDArray[np.int64]) -> int:
    """Bytes of all samples that leave their rank; the share that stayed is 1 - moved / sample_bytes.sum()."""
    return int(sample_bytes[ranks != home].sum())
