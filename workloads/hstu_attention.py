"""HSTU's pointwise attention over jagged histories and their candidates: no padding, and no score kept for backward.

Samples are walked one by one, and a history in blocks of rows; a block meets only the keys up to its own end. The cost
of a sample is therefore a*L^2 + b*L of its own length L, and memory is one block of scores; backward computes them
again. A sample's arithmetic does not involve any other sample, so its result does not depend on the batch around it.

Per query i and key j (Zhai et al. 2024, arXiv 2402.17152, equation 2):

    out_i = 1/N * sum_j silu(q_i . k_j + position_bias[i - j] + time_bias[bucket(t_i - t_j)]) v_j

N is a constant (the longest history), not the sample's length: the length would tell an early event how many follow.
A history event attends to itself and what came before it; a candidate to the whole history and itself, as if it were
the next event, never to the other candidates.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.functional import pad, silu

from workloads.ragged import ragged_tensor

TIME_BUCKETS = 64
"""Half-octaves: s elapsed seconds are in bucket 2k from s + 1 = 2^k on, and in 2k + 1 from 1.5 * 2^k on (as fp32)."""

BLOCK = 128
"""History rows whose scores are computed at once; the candidates go with the last of them."""

_FIRST_BUCKET = 2 * 127  # exponent and first mantissa bit of 1.0 as an fp32 number
_MASKED = -3e4  # silu and its derivative are exactly 0 there, and even fp16 holds it: masking is one more bias


@dataclass(frozen=True)
class JaggedLayout:
    """Where samples lie among T packed tokens, each its history followed by its candidates; the same in every layer.

    Attributes:
        lengths: (history, candidates) of each sample.
        elapsed: int32[T], seconds since the sample's first token, everything after 68 years as one.
        candidate_rows: int64[C], the packed rows of the candidates.
    """

    lengths: tuple[tuple[int, int], ...]
    elapsed: Tensor
    candidate_rows: Tensor

    @classmethod
    def of(cls, lengths: Tensor, time: Tensor) -> JaggedLayout:
        """From int64[B, 2] lengths and int64[T] seconds, ascending within a history and no later than its candidates.

        Waits for the device, once: the samples are walked on the host.
        """
        rows = lengths.sum(1)
        ends = rows.cumsum(0)
        candidates = lengths[:, 1]
        first = time.index_select(0, (ends - rows).repeat_interleave(rows))
        elapsed = (time - first).clamp_max(2**31 - 2).to(torch.int32)
        pairs = tuple((history, shown) for history, shown in lengths.tolist())
        return cls(pairs, elapsed, ragged_tensor(ends - candidates, candidates))


def pointwise_attention(
    query: Tensor, key: Tensor, value: Tensor, position_bias: Tensor, time_bias: Tensor, layout: JaggedLayout
) -> Tensor:
    """Attention output of every packed token.

    Args:
        query, key: [T, heads, qk_dim].
        value: [T, heads, value_dim].
        position_bias: [N + 1], for distances 0 to N, shared by the heads; N, the longest history, also divides the sum.
        time_bias: [TIME_BUCKETS], shared by the heads.
        layout: no history longer than N.

    Returns:
        [T, heads, value_dim]. Differentiable once, in query, key, value and both biases; a batch without samples gives
        gradients of zeros.
    """
    query, key, value = (tensor.transpose(0, 1).contiguous() for tensor in (query, key, value))
    over_history = cast(Tensor, _HistoryAttention.apply(query, key, value, position_bias, time_bias, layout))
    rows = layout.candidate_rows
    own_score = (query.index_select(1, rows) * key.index_select(1, rows)).sum(-1, keepdim=True)
    own = silu(own_score + (position_bias[0] + time_bias[0])) * value.index_select(1, rows)
    return (over_history.index_add(1, rows, own) / (position_bias.numel() - 1)).transpose(0, 1)


class _HistoryAttention(torch.autograd.Function):
    """Unscaled sum over the history's keys, [heads, T, value_dim], for history and candidate rows alike."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        position_bias: Tensor,
        time_bias: Tensor,
        layout: JaggedLayout,
    ) -> Tensor:
        ctx.save_for_backward(query, key, value, position_bias, time_bias)
        ctx.layout = layout
        bias = _Bias(position_bias, time_bias, layout.elapsed)
        out = torch.zeros_like(value)
        for block in _blocks(layout.lengths):
            keys = key[:, block.keys]
            score = _scores(query[:, block.rows], keys, bias.of(block))
            out[:, block.rows] = torch.bmm(silu(score, inplace=True), value[:, block.keys])
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, position_bias, time_bias = ctx.saved_tensors
        bias = _Bias(position_bias, time_bias, ctx.layout.elapsed)
        grad = grad.contiguous()
        query_grad, key_grad, value_grad = (torch.zeros_like(tensor) for tensor in (query, key, value))
        for block in _blocks(ctx.layout.lengths):
            queries, keys, values, out_grad = (
                query[:, block.rows],
                key[:, block.keys],
                value[:, block.keys],
                grad[:, block.rows],
            )
            score = _scores(queries, keys, bias.of(block))
            weight_grad = torch.bmm(out_grad, values.transpose(1, 2))
            score_grad = torch.ops.aten.silu_backward(weight_grad, score)
            value_grad[:, block.keys].baddbmm_(silu(score, inplace=True).transpose(1, 2), out_grad)
            key_grad[:, block.keys].baddbmm_(score_grad.transpose(1, 2), queries)
            query_grad[:, block.rows] = torch.bmm(score_grad, keys)
            bias.add_gradient(block, score_grad.sum(0))
        return query_grad, key_grad, value_grad, *bias.gradients(), None


class _Block:
    """Some rows of a sample and the keys they may meet.

    Attributes:
        rows, keys: packed rows; the keys are the history up to the block's last event.
        events, candidates: how many of the rows are history events, and how many candidates after them.
        before: history events before the block.
    """

    __slots__ = ("before", "candidates", "events", "keys", "rows")

    def __init__(self, first: int, before: int, events: int, candidates: int) -> None:
        self.rows = slice(first + before, first + before + events + candidates)
        self.keys = slice(first, first + before + events)
        self.before, self.events, self.candidates = before, events, candidates


def _blocks(lengths: Sequence[tuple[int, int]]) -> Iterator[_Block]:
    first = 0
    for history, candidates in lengths:
        for before in range(0, history, BLOCK):
            last = before + BLOCK >= history
            yield _Block(first, before, min(BLOCK, history - before), candidates if last else 0)
        first += history + candidates


def _scores(query: Tensor, key: Tensor, bias: Tensor) -> Tensor:
    """[heads, rows, keys]."""
    return torch.baddbmm(bias.expand(query.shape[0], -1, -1), query, key.transpose(1, 2))


class _Bias:
    """Position and time bias of a block of scores, [rows, keys], and the sums of its gradient back into the two tables.

    A distance is constant along a diagonal: a block's position bias is the table read backwards, one entry further on
    with every row, and its gradient the sums of diagonals. Gradients add up in at least fp32.
    """

    def __init__(self, position: Tensor, time_table: Tensor, elapsed: Tensor) -> None:
        self._longest = position.numel() - 1
        # [N - d] is the bias of distance d; what lies behind the end stands for the future, and is masked.
        self._descending = pad(position.flip(0), (0, BLOCK))
        self._time_table = pad(time_table, (_FIRST_BUCKET, 0))
        self._elapsed = elapsed
        self._future = torch.full((BLOCK, BLOCK), _MASKED, dtype=position.dtype, device=position.device).triu_(1)
        wide = torch.promote_types(position.dtype, torch.float32)
        self._position_grad = torch.zeros_like(position, dtype=wide)
        self._time_grad = torch.zeros_like(self._time_table, dtype=wide)

    def of(self, block: _Block) -> Tensor:
        """[rows, keys]: position and time bias, and the mask."""
        before, events, width = block.before, block.events, block.before + block.events
        bias = self._time_table.index_select(0, self._buckets(block)).view(-1, width)
        nearest = self._longest - before  # where the first row's first key stands in the descending table
        rising = self._descending[nearest - events + 1 : nearest + width].unfold(0, width, 1)
        bias[:events] += rising.flip(0)
        bias[:events, before:] += self._future[:events, :events]
        if block.candidates:  # where the next event would stand: width from the first key, 1 from the last
            bias[events:] += self._descending[self._longest - width : self._longest]
        return bias

    def add_gradient(self, block: _Block, score_grad: Tensor) -> None:
        """Adds what the bias of one block, [rows, keys], contributes."""
        events, width = block.events, block.before + block.events
        score_grad = score_grad.to(self._position_grad.dtype)
        self._time_grad += torch.bincount(
            self._buckets(block), weights=score_grad.view(-1), minlength=self._time_grad.numel()
        )
        # Shift each row one further to the left than the row before; a diagonal then is a column.
        shifted = score_grad.new_zeros(events, width + events - 1)
        shifted.as_strided((events, width), (max(width + events - 2, 1), 1), events - 1).copy_(score_grad[:events])
        self._position_grad[:width] += shifted.sum(0)[:width].flip(0)
        if block.candidates:
            self._position_grad[1 : width + 1] += score_grad[events:].sum(0).flip(0)

    def gradients(self) -> tuple[Tensor, Tensor]:
        """Of the position and the time table."""
        dtype = self._time_table.dtype
        return self._position_grad.to(dtype), self._time_grad[_FIRST_BUCKET:].to(dtype)

    def _buckets(self, block: _Block) -> Tensor:
        """int32[rows * keys], places in the padded time table.

        An fp32 number read as an integer, less its last 22 bits, is its exponent and first mantissa bit: integer
        arithmetic, so a boundary is in the same place on every device. The future counts as now.
        """
        apart = (self._elapsed[block.rows] + 1)[:, None] - self._elapsed[block.keys]
        return apart.clamp_min_(1).to(torch.float32).view(torch.int32).bitwise_right_shift_(22).view(-1)
