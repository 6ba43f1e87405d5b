"""Transfers that have time start ahead of a long stretch of compute, as the pass before had it."""

from __future__ import annotations

import time

import torch
from torch import nn

from freescale.overlap.hooks import ComputeHooks
from freescale.overlap.stretches import Stretches


class Clock:
    def __init__(self) -> None:
        self.now_ns = 0

    def __call__(self) -> int:
        return self.now_ns


def walk(stretches: Stretches, clock: Clock, lengths_ns: list[int]) -> list[bool]:
    """A pass with stretches of these lengths between its boundaries; what `done` says at each boundary."""
    stretches.begin()
    seen = []
    for length_ns in [*lengths_ns, 0]:
        stretches.arrive()
        seen.append(stretches.done())
        clock.now_ns += 1_000  # what is done at the boundary belongs to no stretch
        stretches.leave()
        clock.now_ns += length_ns
    return seen


def test_every_boundary_will_do_until_a_pass_has_been_seen() -> None:
    clock = Clock()
    assert walk(Stretches(clock), clock, [5, 100, 5]) == [True] * 4


def test_a_boundary_is_right_if_the_stretch_after_it_took_longer_than_the_average() -> None:
    clock = Clock()
    stretches = Stretches(clock)
    walk(stretches, clock, [5, 100, 5, 70])  # 45 on average
    assert walk(stretches, clock, [1, 1, 1, 1]) == [False, True, False, True, True]
    assert walk(stretches, clock, [9, 1, 1, 1]) == [True] * 5  # all alike: none is shorter than the average
    assert walk(stretches, clock, [1, 1, 1, 1])[:2] == [True, False]


def test_a_pass_that_goes_on_where_the_one_before_ended_finds_a_boundary() -> None:
    clock = Clock()
    stretches = Stretches(clock)
    walk(stretches, clock, [5, 100])
    assert walk(stretches, clock, [5, 100, 5, 5])[2:] == [True, True, True]


def test_the_hooks_of_a_model_measure_its_layers() -> None:
    class Slow(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            time.sleep(0.3)
            return x * 2

    model = nn.Sequential(nn.Linear(2, 2), Slow(), nn.Linear(2, 2))
    hooks = ComputeHooks(model)
    places: list[bool] = []
    for _ in range(2):
        places.clear()
        with hooks.calling(lambda: places.append(hooks.stretches.done())):
            model(torch.ones(1, 2))
    # After the first linear layer the slow one lies ahead, then little; what comes after the whole model nobody saw.
    assert places == [True, False, False, True]
