"""The HSTU stack: layers of pointwise attention and gating over packed, jagged sequences.

One layer is one linear map to four parts, the attention, a gate and one linear map back (Zhai et al. 2024, arXiv
2402.17152, equations 1 to 3):

    U, V, Q, K = silu(W1 layer_norm(x) + b1)
    y          = layer_norm(attention(Q, K, V)) * U
    x'         = x + W2 y + b2

The linear maps run once over all packed tokens of a rank, whatever the samples' lengths; only the attention knows
where a sample ends. There is no dropout, so that a run repeats exactly.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import layer_norm, silu

from workloads.hstu_attention import TIME_BUCKETS, JaggedLayout, pointwise_attention


class HSTULayer(nn.Module):
    """[T, dim] -> [T, dim]; see the module for the equations.

    Args:
        dim: width of a token.
        heads, qk_dim, value_dim: attention heads, and the width of each head's queries and keys, and of its values.
        longest: N, the longest history it accepts.
    """

    def __init__(self, dim: int, heads: int, qk_dim: int, value_dim: int, longest: int) -> None:
        super().__init__()
        self.heads, self.qk_dim, self.value_dim = heads, qk_dim, value_dim
        self.norm = nn.LayerNorm(dim)
        self.to_uvqk = nn.Linear(dim, heads * (2 * value_dim + 2 * qk_dim))
        self.to_token = nn.Linear(heads * value_dim, dim)
        self.position_bias = nn.Parameter(torch.empty(longest + 1).normal_(std=0.02))
        self.time_bias = nn.Parameter(torch.empty(TIME_BUCKETS).normal_(std=0.02))

    def forward(self, tokens: Tensor, layout: JaggedLayout) -> Tensor:
        """tokens [T, dim], packed as `layout` says."""
        value_width, qk_width = self.heads * self.value_dim, self.heads * self.qk_dim
        projected = silu(self.to_uvqk(self.norm(tokens)))
        gate, value, query, key = projected.split([value_width, value_width, qk_width, qk_width], dim=1)
        attended = pointwise_attention(
            query.unflatten(1, (self.heads, self.qk_dim)),
            key.unflatten(1, (self.heads, self.qk_dim)),
            value.unflatten(1, (self.heads, self.value_dim)),
            self.position_bias,
            self.time_bias,
            layout,
        )
        gated = layer_norm(attended.flatten(1), [value_width]) * gate
        return tokens + self.to_token(gated)
