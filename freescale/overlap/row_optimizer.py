"""Sparse optimizers: each touched row is updated once per step from its summed gradient, untouched rows not at all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from freescale.errors import FreeScaleError


@dataclass(frozen=True)
class RowOptimizer:
    """`sgd`, `adagrad` (row-wise: one accumulator per row, Gupta et al. 2014) or `adam` (lazy: per-row step count).

    Attributes:
        lr: learning rate to begin with.
        eps: added to the root of the second moment.
        betas: decay of Adam's moments.
    """

    kind: str = "adagrad"
    lr: float = 0.02
    eps: float = 1e-8
    betas: tuple[float, float] = (0.9, 0.999)

    def __post_init__(self) -> None:
        if self.kind not in ("sgd", "adagrad", "adam"):
            raise FreeScaleError(f"optimizer: {self.kind!r} is not one of sgd, adagrad, adam")
        if not self.lr > 0:
            raise FreeScaleError(f"lr: {self.lr}, must be above 0")

    def new_state(self, weight: Tensor) -> dict[str, Tensor]:
        """Zero state for a weight [rows, dim]."""
        rows = weight.shape[0]
        state_dtype = torch.promote_types(weight.dtype, torch.float32)
        if self.kind == "adagrad":
            return {"sum_sq": torch.zeros(rows, dtype=state_dtype, device=weight.device)}
        if self.kind == "adam":
            moments = {
                name: torch.zeros_like(weight, dtype=state_dtype, requires_grad=False)
                for name in ("exp_avg", "exp_avg_sq")
            }
            return {**moments, "row_step": torch.zeros(rows, dtype=torch.int64, device=weight.device)}
        return {}

    @torch.no_grad()
    def update_rows(
        self, weight: Tensor, state: Mapping[str, Tensor], rows: Tensor, gradient: Tensor, lr: float
    ) -> None:
        """Update `weight[rows]` in place.

        Args:
            weight: [n, dim]; state: what `new_state(weight)` gave.
            rows: int64[k], distinct.
            gradient: [k, dim], the whole step's gradient of each row.
            lr: learning rate of the step that the gradient belongs to.
        """
        if rows.numel() == 0:
            return
        gradient = gradient.to(torch.promote_types(weight.dtype, torch.float32))
        if self.kind == "sgd":
            delta = gradient * -lr
        elif self.kind == "adagrad":
            sum_sq = state["sum_sq"][rows] + gradient.square().mean(1)
            state["sum_sq"][rows] = sum_sq
            delta = gradient * (-lr / (sum_sq.sqrt() + self.eps)).unsqueeze(1)
        else:
            delta = self._adam_delta(state, rows, gradient, lr)
        weight[rows] = (weight[rows].to(delta.dtype) + delta).to(weight.dtype)

    def _adam_delta(self, state: Mapping[str, Tensor], rows: Tensor, gradient: Tensor, lr: float) -> Tensor:
        beta1, beta2 = self.betas
        step = state["row_step"][rows] + 1
        exp_avg = state["exp_avg"][rows] * beta1 + gradient * (1 - beta1)
        exp_avg_sq = state["exp_avg_sq"][rows] * beta2 + gradient.square() * (1 - beta2)
        state["row_step"][rows], state["exp_avg"][rows], state["exp_avg_sq"][rows] = step, exp_avg, exp_avg_sq
        correction1 = (1 - torch.tensor(beta1, dtype=torch.float64) ** step).unsqueeze(1).to(gradient.dtype)
        correction2 = (1 - torch.tensor(beta2, dtype=torch.float64) ** step).unsqueeze(1).to(gradient.dtype)
        return -lr * (exp_avg / correction1) / ((exp_avg_sq / correction2).sqrt() + self.eps)
