"""Payloads both sides can make, and the single-process oracle of what each rank must receive."""

from __future__ import annotations

import hashlib
import math
from typing import Any

import numpy as np
import torch

DTYPES = {
    "int64": torch.int64,
    "int32": torch.int32,
    "uint8": torch.uint8,
    "float32": torch.float32,
    "float64": torch.float64,
    "bfloat16": torch.bfloat16,
    "bool": torch.bool,
}


def shape(rank: int, call: dict[str, Any]) -> list[int]:
    """Shape of what `rank` sends in `call`."""
    rows = sum(call["splits"][rank]) if call["op"] == "all_to_all" else call["rows"]
    return [rows, *call["tail"]]


def make(seed: int, rank: int, index: int, call: dict[str, Any]) -> torch.Tensor:
    """What `rank` sends in call number `index`: random bits, so floats include infinities and NaNs."""
    dtype = DTYPES[call["dtype"]]
    dims = shape(rank, call)
    nbytes = math.prod(dims) * dtype.itemsize
    if nbytes == 0:
        return torch.empty(dims, dtype=dtype)
    raw = np.random.default_rng([seed, rank, index]).integers(0, 256, nbytes, dtype=np.uint8)
    if dtype is torch.bool:
        raw &= 1
    return torch.from_numpy(raw).view(dtype).view(dims)


def expected(seed: int, rank: int, index: int, call: dict[str, Any], world_size: int) -> torch.Tensor:
    """What `rank` must receive, put together in one process from everybody's payload."""
    sends = [make(seed, peer, index, call) for peer in range(world_size)]
    if call["op"] == "all_gather":
        return torch.stack(sends)
    parts = []
    for peer, send in enumerate(sends):
        begin = sum(call["splits"][peer][:rank])
        parts.append(send[begin : begin + call["splits"][peer][rank]])
    return torch.cat(parts)


def digest(tensor: torch.Tensor) -> str:
    """Shape, dtype and every bit of a tensor."""
    raw = tensor.contiguous().reshape(-1).view(torch.uint8).numpy() if tensor.numel() else np.empty(0, np.uint8)
    return f"{tuple(tensor.shape)} {tensor.dtype} {hashlib.blake2b(raw.tobytes(), digest_size=16).hexdigest()}"
