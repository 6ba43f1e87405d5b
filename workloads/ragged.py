"""Row numbers of ragged groups, as arrays and as tensors: how packed rows are found without a loop over samples."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def ragged_array(starts: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """int64[sum of counts]: starts[i], starts[i] + 1, ... counts[i] of them, for each group i in turn."""
    shifted = starts - (np.cumsum(counts) - counts)
    return np.repeat(shifted, counts) + np.arange(int(counts.sum()))


def ragged_tensor(starts: Tensor, counts: Tensor) -> Tensor:
    """The same for int64 tensors, on their device."""
    repeated = (starts - (counts.cumsum(0) - counts)).repeat_interleave(counts)
    return repeated + torch.arange(repeated.numel(), device=starts.device)
