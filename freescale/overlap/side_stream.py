"""A device stream of its own for the batch ahead, so that its exchanges wait for nothing that computes.

On a GPU, reading the counts of an exchange stops the host until the stream that they are on has come so far. On the
compute stream that would be all of the model's kernels; here it is the exchange alone. Without a GPU nothing happens.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor


class SideStream:
    """See the module. `device`: where the training computes."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def begin(self) -> None:
        """What the current stream has been given by now comes first."""
        if self._stream is not None:
            self._beside = torch.cuda.current_stream(self._stream.device)
            self.catch_up()

    def catch_up(self) -> None:
        """What the stream that was current at `begin` has been given by now comes first, too."""
        if self._stream is not None:
            self._stream.wait_stream(self._beside)

    def entered(self) -> AbstractContextManager[Any]:
        """Inside the block, work goes to this stream."""
        return torch.cuda.stream(self._stream) if self._stream is not None else nullcontext()

    def take(self, given: object) -> None:
        """Work on this stream will use `given`, which was made on another and may be forgotten before it is done.

        Every tensor in it is marked as used here, or its memory could be given away too early.
        """
        if self._stream is not None:
            for tensor in tensors_in(given):
                tensor.record_stream(self._stream)

    def join(self, result: object) -> None:
        """What the current stream is given from now on comes after this stream's work, and may use `result`.

        Every tensor in it is marked as used by the current stream, or its memory could be given away too early.
        """
        if self._stream is not None:
            here = torch.cuda.current_stream(self._stream.device)
            here.wait_stream(self._stream)
            for tensor in tensors_in(result):
                tensor.record_stream(here)


def tensors_in(thing: object) -> Iterator[Tensor]:
    """Tensors in dataclasses, lists, tuples and dictionaries, at any depth."""
    if isinstance(thing, Tensor):
        yield thing
    elif dataclasses.is_dataclass(thing):
        for field in dataclasses.fields(thing):
            yield from tensors_in(getattr(thing, field.name))
    elif isinstance(thing, dict):
        yield from tensors_in(list(thing.values()))
    elif isinstance(thing, (list, tuple)):
        for one in thing:
            yield from tensors_in(one)
