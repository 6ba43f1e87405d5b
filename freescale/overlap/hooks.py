"""Moments during forward and backward at which something else may be looked after, taken from the model's modules."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from freescale.overlap.stretches import Stretches


def nothing() -> None:
    """What the hooks call when nothing needs looking after."""


class ComputeHooks:
    """Calls a function after every module's forward, and whenever a gradient has reached a module's output.

    The hooks look at tensors and change none. They are found through `named_modules()`, so no model is rewritten and
    no graph is captured.

    Attributes:
        stretches: of compute between these moments.
    """

    def __init__(self, *models: nn.Module) -> None:
        self._call: Callable[[], None] = nothing
        self.stretches = Stretches()
        modules = {id(module): module for model in models for _, module in model.named_modules()}
        self._handles = [module.register_forward_hook(self._after_forward) for module in modules.values()]

    @contextlib.contextmanager
    def calling(self, function: Callable[[], None]) -> Iterator[None]:
        """Call `function` from the hooks inside the block."""
        before, self._call = self._call, function
        self.stretches.begin()
        try:
            yield
        finally:
            self._call = before

    def reached(self) -> None:
        """A moment that no module marks: the end of the forward or the backward pass."""
        self.stretches.arrive()
        self._call()
        self.stretches.leave()

    def remove(self) -> None:
        """Take the hooks off the model."""
        for handle in self._handles:
            handle.remove()

    def _after_forward(self, module: nn.Module, inputs: Any, output: Any) -> None:
        if self._call is nothing:
            return
        self.reached()
        for tensor in output if isinstance(output, (tuple, list)) else (output,):
            if isinstance(tensor, Tensor) and tensor.requires_grad and torch.is_grad_enabled():
                tensor.register_hook(self._after_gradient)

    def _after_gradient(self, gradient: Tensor) -> None:
        self.reached()
