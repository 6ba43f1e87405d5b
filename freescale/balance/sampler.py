"""Balanced batches without an exchange, where every rank can read every sample.

Each rank works out the same global batches and the same sample-to-rank map, and reads only what falls to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Sampler

from freescale.balance.policies import Costs, Ranks, rounds
from freescale.errors import FreeScaleError


class BalancedBatchSampler(Sampler[list[int]]):
    """Yields, per step, the dataset indices of this rank's share of the global batch, in order of the epoch.

    For the `batch_sampler` argument of a `DataLoader` over a map-style dataset. Like `DistributedSampler`, an epoch is
    a permutation decided by seed and epoch; unlike it, no sample is repeated to fill up: over all ranks, an epoch has
    each sample once. What is left at the end of an epoch makes a smaller global batch, or joins the one before if it
    cannot give every rank a sample, so every rank has equally many batches and none of them is empty.

    Batch sizes may differ by rank in any step; divide the loss by the global weight.

    Args:
        costs: of each sample of the dataset, for example a `CostModel` called on its lengths.
        batch_size: samples per rank, on average.
        rank, world_size: this rank, and how many there are.
        policy: (costs, world size) -> rank of each sample; see `freescale.balance.policies`.
        shuffle: permute the dataset each epoch; otherwise keep its order.
        seed: of the permutations.
        drop_last: leave out what does not fill a global batch.

    Raises:
        FreeScaleError: fewer samples than one global batch needs, or arguments that make no sense.
    """

    def __init__(
        self,
        costs: Sequence[float] | NDArray[np.float64],
        batch_size: int,
        rank: int,
        world_size: int,
        policy: Callable[[Costs, int], Ranks] = rounds,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        self._costs = np.asarray(costs, dtype=np.float64)
        if batch_size < 1:
            raise FreeScaleError(f"batch_size: {batch_size}, expected at least 1")
        if not 0 <= rank < world_size:
            raise FreeScaleError(f"rank: {rank} of {world_size} ranks, expected 0 to {world_size - 1}")
        least = batch_size * world_size if drop_last else world_size
        if self._costs.size < least:
            raise FreeScaleError(f"costs: {self._costs.size} samples, expected at least {least} for one global batch")
        self._global_batch = batch_size * world_size
        self._rank, self._world_size, self._policy = rank, world_size, policy
        self._shuffle, self._seed, self._drop_last = shuffle, seed, drop_last
        self._epoch, self._first, self._done = 0, 0, 0

    def __len__(self) -> int:
        """Batches of an epoch, the same on every rank."""
        full, left = divmod(self._costs.size, self._global_batch)
        return max(full + (left >= self._world_size and not self._drop_last), 1)

    def __iter__(self) -> Iterator[list[int]]:
        order = self._order()
        steps = len(self)
        first, self._first = self._first, 0
        for step in range(first, steps):
            start = step * self._global_batch
            takes_the_rest = step == steps - 1 and not self._drop_last
            batch = order[start : None if takes_the_rest else start + self._global_batch]
            mine = batch[self._policy(self._costs[batch], self._world_size) == self._rank]
            self._done = step + 1
            yield mine.tolist()

    def set_epoch(self, epoch: int) -> None:
        """Before each epoch, on every rank. Another epoch starts at its first batch."""
        if epoch != self._epoch:
            self._epoch, self._first, self._done = epoch, 0, 0

    def set_costs(self, costs: Sequence[float] | NDArray[np.float64]) -> None:
        """Costs for the batches still to come, such as after a refit; on every rank, before the same batch."""
        fresh = np.asarray(costs, dtype=np.float64)
        if fresh.shape != self._costs.shape:
            raise FreeScaleError(f"costs: {fresh.size} samples, expected {self._costs.size} as before")
        self._costs = fresh

    def state_dict(self, batches_done: int | None = None) -> dict[str, int]:
        """Where the epoch stands.

        Args:
            batches_done: batches of this epoch that were trained on. A `DataLoader` with workers asks for batches
                ahead of their use; without this number, those would be skipped after a restart.
        """
        done = self._done if batches_done is None else batches_done
        return {"epoch": self._epoch, "batches_done": done, "seed": self._seed}

    def load_state_dict(self, state: dict[str, int]) -> None:
        """The next iteration continues where `state_dict` was taken, with the same data, batch size and ranks."""
        if state["seed"] != self._seed:
            raise FreeScaleError(f"seed: {self._seed}, but the saved epoch was shuffled with {state['seed']}; use that")
        self._epoch, self._first, self._done = state["epoch"], state["batches_done"], state["batches_done"]

    def _order(self) -> NDArray[np.int64]:
        if not self._shuffle:
            return np.arange(self._costs.size)
        generator = torch.Generator().manual_seed(self._seed + self._epoch)
        order: NDArray[np.int64] = torch.randperm(self._costs.size, generator=generator).numpy()
        return order
