"""Ranks as threads of one process, over a transport that completes calls as late as a seed says.

Quick enough for hypothesis, and harsher than a network: `done` says no at random, and a result holds rubbish until it
was waited for, so a schedule that reads too early is found out.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from freescale.comm.transport import Handle

TIMEOUT_S = 20


class World:
    """What the ranks share: what each of them has sent in which call."""

    def __init__(self, size: int, seed: int) -> None:
        self.size, self.seed = size, seed
        self.arrived = threading.Condition()
        self.sent: dict[tuple[str, int], dict[int, list[Tensor]]] = {}
        self.failed = False


class ThreadTransport:
    """One lane of one thread-rank; see `Transport`."""

    engine = "threads"

    def __init__(self, world: World, group: str, rank: int) -> None:
        self.world, self.group, self.rank, self.world_size = world, group, rank, world.size
        self._random = random.Random(f"{world.seed} {group} {rank}")
        self._seq = 0

    def all_to_all(self, send: Tensor, send_splits: Sequence[int], recv_splits: Sequence[int]) -> Handle:
        parts = [part.clone() for part in send.split(list(send_splits))]
        result = _rubbish(send.new_empty((sum(recv_splits), *send.shape[1:])))
        return self._call("all_to_all", parts, list(result.split(list(recv_splits))), result)

    def all_gather(self, send: Tensor) -> Handle:
        result = _rubbish(send.new_empty((self.world_size, *send.shape)))
        return self._call("all_gather", [send.clone()] * self.world_size, list(result.unbind(0)), result)

    def close(self) -> None:
        pass

    def _call(self, op: str, parts: list[Tensor], places: list[Tensor], result: Tensor) -> Handle:
        key = (self.group, self._seq)
        self._seq += 1
        with self.world.arrived:
            self.world.sent.setdefault(key, {})[self.rank] = parts
            self.world.arrived.notify_all()

        def everybody_has_come() -> bool:
            return len(self.world.sent[key]) == self.world_size or self.world.failed

        def block() -> None:
            with self.world.arrived:
                if not self.world.arrived.wait_for(everybody_has_come, TIMEOUT_S) or self.world.failed:
                    raise TimeoutError(f"rank {self.rank}: {op} {key} is missing ranks")
            for source, place in enumerate(places):
                part = self.world.sent[key][source][self.rank]
                assert part.shape == place.shape, (
                    f"{op} {key}: rank {source} sends {part.shape}, expected {place.shape}"
                )
                place.copy_(part)

        def poll() -> bool:
            return self._random.random() < 0.5 and everybody_has_come()

        return Handle(op, self.group, key[1], 0, self.engine, result, block, poll=poll)


def run_threads(size: int, seed: int, body: Callable[[Callable[[str], ThreadTransport], int], Any]) -> list[Any]:
    """`body(open_lane, rank)` on `size` thread-ranks; returns their results, or raises the first error."""
    world = World(size, seed)
    results: list[Any] = [None] * size
    errors: list[BaseException] = []

    def main(rank: int) -> None:
        try:
            results[rank] = body(lambda group: ThreadTransport(world, group, rank), rank)
        except BaseException as error:
            errors.append(error)
            with world.arrived:
                world.failed = True
                world.arrived.notify_all()

    threads = [threading.Thread(target=main, args=(rank,), daemon=True) for rank in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S * 2)
    if errors:
        raise errors[0]
    assert not any(thread.is_alive() for thread in threads)
    return results


def _rubbish(tensor: Tensor) -> Tensor:
    return tensor.fill_(float("nan")) if tensor.is_floating_point() else tensor.fill_(torch.iinfo(tensor.dtype).max)
