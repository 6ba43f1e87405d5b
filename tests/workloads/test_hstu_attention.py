"""The jagged, blocked attention against a dense loop that follows the formula word by word."""

import math
import warnings
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from workloads import hstu_attention
from workloads.hstu_attention import TIME_BUCKETS, JaggedLayout, pointwise_attention

LONGEST = 400
Lengths = Sequence[tuple[int, int]]

JAGGED = [(5, 2), (0, 3), (130, 4), (0, 0), (1, 1), (128, 0), (300, 2), (129, 1), (7, 0)]


def inputs(
    lengths: Lengths, seed: int = 0, dtype: torch.dtype = torch.float64, heads: int = 2, dims: tuple[int, int] = (3, 4)
) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(seed)
    tokens = sum(history + candidates for history, candidates in lengths)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()

    times = [torch.empty(0, dtype=torch.int64)]
    for history, candidates in lengths:
        gaps = torch.exp(torch.rand(history, generator=generator, dtype=torch.float64) * 14).long() - 1
        happened = 1_700_000_000 + gaps.cumsum(0)
        last = happened[-1:] if history else torch.tensor([1_700_000_000])
        times += [happened, last + torch.arange(candidates) * 50]
    return (
        draw(tokens, heads, dims[0]),
        draw(tokens, heads, dims[0]),
        draw(tokens, heads, dims[1]),
        draw(LONGEST + 1),
        draw(TIME_BUCKETS),
        torch.cat(times),
    )


def attend(
    query: Tensor, key: Tensor, value: Tensor, position: Tensor, time_table: Tensor, time: Tensor, lengths: Lengths
) -> Tensor:
    layout = JaggedLayout.of(torch.tensor(lengths, dtype=torch.int64).view(-1, 2), time)
    return pointwise_attention(query, key, value, position, time_table, layout)


def bucket(elapsed: int) -> int:
    octave = math.floor(math.log2(elapsed + 1))
    return 2 * octave + (elapsed + 1 >= 1.5 * 2**octave)


def dense(
    query: Tensor, key: Tensor, value: Tensor, position: Tensor, time_table: Tensor, time: Tensor, lengths: Lengths
) -> Tensor:
    """Scores of all pairs of a sample, then a mask: quadratic in everything, and obvious."""
    outs, first = [value[:0]], 0
    for history, candidates in lengths:
        size = history + candidates
        q, k, v = (tensor[first : first + size].transpose(0, 1) for tensor in (query, key, value))
        place = [min(i, history) for i in range(size)]  # every candidate stands where the next event would
        when = time[first : first + size].tolist()
        sees, distance, elapsed = (torch.zeros(size, size, dtype=torch.int64) for _ in range(3))
        for i in range(size):
            for j in range(i + 1):
                if j < history or j == i:
                    sees[i, j], distance[i, j], elapsed[i, j] = 1, place[i] - place[j], bucket(when[i] - when[j])
        bias = position[distance] + time_table[elapsed]
        weights = torch.nn.functional.silu(q @ k.transpose(1, 2) + bias) * sees
        outs.append((weights @ v / LONGEST).transpose(0, 1))
        first += size
    everything = query.sum() + key.sum() + value.sum() + position.sum() + time_table.sum()
    return torch.cat(outs) + 0 * everything  # connected also where there is nothing to attend to


def gradients(attention: object, arguments: tuple[Tensor, ...], lengths: Lengths) -> list[Tensor]:
    out = attention(*arguments, lengths)  # type: ignore[operator]
    weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(9), dtype=torch.float64).to(out.dtype)
    return [out, *torch.autograd.grad((out * weight).sum(), arguments[:5])]


def test_output_and_all_gradients_equal_the_dense_formula() -> None:
    arguments = inputs(JAGGED)
    for ours, reference in zip(gradients(attend, arguments, JAGGED), gradients(dense, arguments, JAGGED), strict=True):
        torch.testing.assert_close(ours, reference, rtol=1e-10, atol=1e-10)


@settings(max_examples=40, deadline=None)
@given(
    lengths=st.lists(st.tuples(st.integers(0, 12), st.integers(0, 4)), max_size=5),
    block=st.integers(1, 6),
    heads=st.integers(1, 3),
    seed=st.integers(0, 2**31),
)
def test_any_jagged_batch_and_block_size_equals_the_dense_formula(
    lengths: Lengths, block: int, heads: int, seed: int
) -> None:
    arguments = inputs(lengths, seed, heads=heads)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(hstu_attention, "BLOCK", block)
        ours = gradients(attend, arguments, lengths)
    for mine, reference in zip(ours, gradients(dense, arguments, lengths), strict=True):
        torch.testing.assert_close(mine, reference, rtol=1e-10, atol=1e-10)


def test_gradcheck() -> None:
    lengths = [(4, 2), (0, 1), (3, 0)]
    query, key, value, position, time_table, time = inputs(lengths)
    assert torch.autograd.gradcheck(
        lambda *tensors: attend(*tensors, time, lengths), (query, key, value, position, time_table)
    )


def test_a_sample_does_not_depend_on_its_company() -> None:
    arguments = inputs(JAGGED)
    together = attend(*arguments, JAGGED)
    first = 0
    for sample in JAGGED:
        rows = slice(first, first + sum(sample))
        alone = attend(*(tensor[rows] for tensor in arguments[:3]), *arguments[3:5], arguments[5][rows], [sample])
        torch.testing.assert_close(alone, together[rows], rtol=0, atol=1e-12)
        first = rows.stop


def test_an_event_does_not_know_what_comes_after_it() -> None:
    lengths = [(200, 3)]
    query, key, value, position, time_table, time = inputs(lengths)
    whole = attend(query, key, value, position, time_table, time, lengths)
    start = attend(query[:90], key[:90], value[:90], position, time_table, time[:90], [(90, 0)])
    torch.testing.assert_close(whole[:90], start, rtol=0, atol=1e-12)


def test_candidates_do_not_see_each_other() -> None:
    lengths = [(50, 3)]
    query, key, value, position, time_table, time = inputs(lengths)
    whole = attend(query, key, value, position, time_table, time, lengths)
    kept = torch.tensor([*range(50), 52])  # the third candidate alone
    alone = attend(query[kept], key[kept], value[kept], position, time_table, time[kept], [(50, 1)])
    torch.testing.assert_close(whole[kept], alone, rtol=0, atol=1e-12)


@pytest.mark.parametrize("lengths", [[], [(0, 0)], [(0, 0), (0, 0)]])
def test_a_batch_without_tokens_gives_gradients_of_zeros(lengths: Lengths) -> None:
    arguments = inputs(lengths)
    out, *grads = gradients(attend, arguments, lengths)
    assert out.shape == (0, 2, 4)
    for grad, argument in zip(grads, arguments, strict=False):
        assert torch.equal(grad, torch.zeros_like(argument))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.05)])
def test_narrow_dtypes_stay_close_to_double_precision(dtype: torch.dtype, tolerance: float) -> None:
    narrow = inputs(JAGGED, dtype=dtype)
    wide = tuple(tensor.detach().double().requires_grad_() for tensor in narrow[:5]) + narrow[5:]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ours = gradients(attend, narrow, JAGGED)
    for mine, exact in zip(ours, gradients(attend, wide, JAGGED), strict=True):
        assert mine.dtype == dtype
        assert (mine.double() - exact).norm() <= tolerance * exact.norm()


def test_time_buckets_are_half_octaves_up_to_68_years() -> None:
    edges = [0, 1, 2, 3, 4, 5, 6, 7, 11, 12, 3600, 86_400, 10**9, 2**31 - 1_000]
    time_table = torch.arange(TIME_BUCKETS, dtype=torch.float64)
    for elapsed in edges:
        # One event and one candidate with a zero query: the score is the bias alone.
        zero, one = torch.zeros(2, 1, 1, dtype=torch.float64), torch.ones(2, 1, 1, dtype=torch.float64)
        value = one.clone()
        value[1] = 0
        out = attend(
            zero, zero, value, torch.zeros(2, dtype=torch.float64), time_table, torch.tensor([0, elapsed]), [(1, 1)]
        )
        assert out[1].item() == pytest.approx(torch.nn.functional.silu(time_table[bucket(elapsed)]).item())
    assert bucket(edges[-1]) < TIME_BUCKETS


def test_elapsed_times_beyond_68_years_count_as_68_years() -> None:
    lengths = [(2, 1)]
    query, key, value, position, time_table, _ = inputs(lengths)
    far, farther = (
        attend(query, key, value, position, time_table, torch.tensor([0, 2**31 - 2, last]), lengths)
        for last in (2**31 - 2, 2**40)
    )
    assert torch.equal(far, farther)
