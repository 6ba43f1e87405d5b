"""One rank of a calibration: times each piece of the training step, and the transports, on the machine it runs on.

The pieces are the product's own functions, called one by one with a barrier before each batch; all ranks measure at
the same time, so that what they take from each other (memory bandwidth, clock speed) is in the figures.
"""

from __future__ import annotations

import datetime
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from freescale.balance.balancer import Balancer
from freescale.balance.cost_model import CostModel
from freescale.balance.exchange import SampleExchange
from freescale.bench.lanes import NAMES
from freescale.bench.simulated_workload import shape_of
from freescale.comm.process_group import open_lanes
from freescale.comm.shared_memory import open_shared_memory
from freescale.comm.transport import Transport
from freescale.overlap.collision import colliding_rows, tell_requesters
from freescale.overlap.embedding import ShardedEmbedding
from freescale.overlap.lookup import Lookup, distribute
from freescale.overlap.prioritized import marked
from freescale.overlap.row_optimizer import RowOptimizer
from freescale.simulate.batches import share_of
from workloads import registry
from workloads.batch import JaggedBatch
from workloads.losses import bce_sum
from workloads.registry import Workload

_SIZES = (1 << 10, 1 << 14, 1 << 17, 1 << 20, 1 << 22, 1 << 24)
_WARMUP = 2


class Stopwatch:
    """Collects (piece, amounts, ns)."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.on = False

    @contextmanager
    def piece(self, name: str, **amounts: float) -> Iterator[None]:
        start = time.perf_counter_ns()
        yield
        if self.on:
            self.rows.append({"piece": name, "ns": time.perf_counter_ns() - start, "amounts": amounts})


def measure_workload(
    name: str, batches: int, lanes: Mapping[str, Transport], watch: Stopwatch, rank: int, world: int
) -> None:
    """Time every piece of `batches` steps of a preset."""
    workload = registry.build(registry.preset(name), 0)
    embedding = ShardedEmbedding(
        workload.tables(), workload.feature_tables(), rank, world, RowOptimizer("adagrad"), seed=0
    )
    dense = workload.dense_model()
    optimizer = torch.optim.Adam(dense.parameters(), lr=1e-3)
    exchange: SampleExchange[JaggedBatch] = SampleExchange(
        lanes["data"], Balancer(world, CostModel(workload.cost)).assign, workload.max_samples
    )
    before: Lookup | None = None
    for step in range(batches + _WARMUP):
        watch.on = step >= _WARMUP
        batch = workload.batch(step, rank, world)
        dist.barrier()
        batch = _balance(exchange, batch, watch)
        before = _train(workload, embedding, dense, optimizer, lanes, batch, before, watch)


def _balance(exchange: SampleExchange[JaggedBatch], batch: JaggedBatch, watch: Stopwatch) -> JaggedBatch:
    with watch.piece("announce"):
        announced = exchange.announce(batch)
    announced.gathered.wait()
    samples = float(announced.gathered.wait().shape[0] * batch.samples)
    with watch.piece("move", samples_in_all=samples, moved_bytes=0.0, rank_pairs=0.0):
        moving = exchange.move(announced)
    moving.handle.wait()
    if watch.on:
        watch.rows[-1]["amounts"]["moved_bytes"] = float(moving.moved_bytes)
    with watch.piece("receive", moved_bytes=float(moving.moved_bytes), samples=float(batch.samples)):
        moved = exchange.receive(moving)
    with watch.piece("begin"):
        moved = moved.to(torch.device("cpu"))
        moved.ids()
    return moved


def _train(
    workload: Workload,
    embedding: ShardedEmbedding,
    dense: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    lanes: Mapping[str, Transport],
    batch: JaggedBatch,
    before: Lookup | None,
    watch: Stopwatch,
) -> Lookup:
    ids = batch.ids()
    count = float(sum(values.numel() for values in ids.values()))
    row_bytes = float(workload.config.embedding_dim * 4)
    chain = distribute(embedding.layout, embedding.features, lanes["ids"], ids)
    with watch.piece("distribute", ids=count):
        counted = next(chain)
    counted.wait()
    tell: dict[str, float] = {"ids": count, "asked": 0.0}
    with watch.piece("tell", **tell):
        slots = next(chain)
    slots.wait()
    with watch.piece("serve", served=0.0):
        lookup = _result(chain)
    asked, served = float(lookup.unique_rows()), float(sum(rows.numel() for rows in lookup.served))
    if watch.on:
        watch.rows[-1]["amounts"]["served"] = served
        watch.rows[-2]["amounts"]["asked"] = asked
    with watch.piece("read", row_bytes=served * row_bytes):
        rows = embedding.look_up(lanes["bulk"], lookup.served, lookup.serve_counts, lookup.ask_counts)
    rows.wait()
    with watch.piece("embed", ids=count, row_bytes=asked * row_bytes):
        embedded = embedding.embed(lookup, embedding.received(rows, lookup.ask_counts))
    amounts = _model_amounts(workload, batch)
    with watch.piece("forward", **amounts):
        logits = dense(embedded, batch)
        loss = bce_sum(logits, batch.labels, batch.weights) / max(batch.weights.numel(), 1)
    with watch.piece("backward", **amounts):
        loss.backward()
    with watch.piece("give", row_bytes=asked * row_bytes):
        back = embedding.give_back(lanes["bulk"], lookup.gradients(), lookup.ask_counts, lookup.serve_counts)
    back.wait()
    with watch.piece("update", row_bytes=served * row_bytes, rows=served):
        contribution = embedding.contribution(back, lookup.served, lookup.serve_counts)
        embedding.update([contribution], 0.5, embedding.lr)
    with watch.piece("dense_update", parameters=float(sum(p.numel() for p in dense.parameters()))):
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
    if before is not None:
        _split(before, lookup, lanes, asked, served, row_bytes, watch)
    return lookup


def _split(
    before: Lookup,
    lookup: Lookup,
    lanes: Mapping[str, Transport],
    asked: float,
    served: float,
    row_bytes: float,
    watch: Stopwatch,
) -> None:
    both_asked = asked + before.unique_rows()
    both_served = served + sum(rows.numel() for rows in before.served)
    with watch.piece("split", asked=both_asked, served=both_served):
        chain = tell_requesters(lanes["ids"], colliding_rows([before], lookup), [lookup, before])
        told = next(chain)
    told.wait()
    with watch.piece("part", rows=both_asked + both_served, row_bytes=0.0):
        late, urgent = _result(chain)
        marked(lookup.served, late.served, False)
    gradients = before.gradients()
    with watch.piece("part", rows=0.0, row_bytes=float(before.unique_rows()) * row_bytes):
        marked(gradients, urgent.asked)
        marked(gradients, urgent.asked, False)
    parts = [(rows[~mark].detach(), rows[mark].detach()) for rows, mark in zip(lookup.rows, late.asked, strict=True)]
    with watch.piece("merge", rows=asked, row_bytes=asked * row_bytes):
        for mark, (early, waited) in zip(late.asked, parts, strict=True):
            merged = early.new_empty((mark.numel(), early.shape[1]))
            merged[~mark], merged[mark] = early, waited


def _model_amounts(workload: Workload, batch: JaggedBatch) -> dict[str, float]:
    import numpy as np

    nobody = np.zeros(batch.samples, np.int64)
    share = share_of(batch.lengths.numpy(), nobody, nobody, 1, shape_of(workload))
    names = ("projection_flop", "attention_flop", "scores", "blocks", "tokens", "candidates")
    return {name: float(getattr(share, name)[0]) for name in names}


def _result(chain: Iterator[Any]) -> Any:
    try:
        next(chain)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("the chain goes on")


def measure_links(lanes: Mapping[str, Transport], shared: Mapping[str, Transport], watch: Stopwatch, rank: int) -> None:
    """Time exchanges by size, on both transports, and what gloo takes from the compute meanwhile."""
    watch.on = True
    world = dist.get_world_size()
    for nbytes in _SIZES:
        for _ in range(8):
            send = torch.zeros(nbytes * world // max(world - 1, 1) // world * world, dtype=torch.uint8)
            splits = [send.numel() // world] * world
            away = float(send.numel() - splits[0])
            for name, lane in (("gloo", lanes["bulk"]), ("shared", shared["bulk"])):
                dist.barrier()
                with watch.piece(name, nbytes=away):
                    with watch.piece(f"{name}_issue", nbytes=away):
                        handle = lane.all_to_all(send, splits, splits)
                    handle.wait()
            buffer = torch.zeros(nbytes // 4)
            dist.barrier()
            with watch.piece("gloo_reduce", nbytes=float(2 * nbytes * (world - 1) / world)):
                dist.all_reduce(buffer)
            with watch.piece("bucket", nbytes=float(nbytes)):
                buffer.clone().mul_(0.5)
    a = torch.randn(96, 96)
    big = torch.zeros(32 << 20, dtype=torch.uint8)
    splits = [big.numel() // world] * world
    for _ in range(4):
        dist.barrier()
        with watch.piece("alone"):
            _multiply(a, lambda: False)
        dist.barrier()
        handle = lanes["bulk"].all_to_all(big, splits, splits)
        with watch.piece("beside", times=0.0):
            done = _multiply(a, handle.done)
        watch.rows[-1]["amounts"]["times"] = float(done)
        handle.wait()


def _multiply(a: torch.Tensor, stop: Callable[[], bool], most: int = 400) -> int:
    """Multiply until told to stop; returns how often."""
    for number in range(most):
        a @ a
        if number % 8 == 7 and stop():
            return number + 1
    return most


def main() -> None:
    """`python -m freescale.bench.calibration_worker FOLDER PRESETS BATCHES`, as RANK of WORLD_SIZE."""
    folder, presets, batches = Path(sys.argv[1]), sys.argv[2].split(","), int(sys.argv[3])
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    torch.manual_seed(0)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=world,
        timeout=datetime.timedelta(seconds=60),
    )
    lanes, shared = open_lanes(NAMES), open_shared_memory(NAMES)
    watch = Stopwatch()
    for preset in presets:
        measure_workload(preset, batches, lanes, watch, rank, world)
    measure_links(lanes, shared, watch, rank)
    (folder / f"rank-{rank}.json").write_text(json.dumps(watch.rows), encoding="utf-8")
    for lane in shared.values():
        lane.close()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
