"""Copies on a CUDA side stream: between pinned host memory and the device, or between devices, by the copy engines."""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch
from torch import Tensor

from freescale.comm.staging import Mark


class CudaCopies:
    """One side stream of `device`; see `staging.Copies`."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)

    def begin(self, *tensors: Tensor) -> None:
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        for tensor in tensors:
            tensor.record_stream(self._stream)  # else the allocator would reuse the memory by the caller's stream alone

    def copy(self, target: Tensor, source: Tensor) -> None:
        with torch.cuda.stream(self._stream):
            target.copy_(source, non_blocking=True)

    def mark(self) -> Mark:
        event = torch.cuda.Event(blocking=True)  # synchronize() sleeps; spinning would take a core from the data loader
        event.record(self._stream)
        return event

    def join(self, mark: Mark) -> None:
        assert isinstance(mark, torch.cuda.Event)
        torch.cuda.current_stream(self._device).wait_event(mark)

    def here(self) -> AbstractContextManager[object]:
        stream: AbstractContextManager[object] = torch.cuda.stream(self._stream)
        return stream

    def staging(self, nbytes: int) -> Tensor:
        return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)
