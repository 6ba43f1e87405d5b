"""The pieces of a training step, one by one: the product's own functions, on batches of a seed of their own.

All ranks measure at the same time, with a barrier before each batch, so that what they take from each other (memory
bandwidth, clock speed) is in the figures. Exchanges are timed where they occur between the pieces: gloo's threads take
longer to wake up after 100 ms than in a loop.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from freescale.balance.balancer import Balancer
from freescale.balance.cost_model import CostModel
from freescale.balance.exchange import SampleExchange
from freescale.bench.simulated_workload import shape_of
from freescale.bench.stopwatch import Stopwatch
from freescale.bench.trainer import dense_optimizer
from freescale.comm.transport import Handle, Transport
from freescale.overlap.collision import colliding_rows, marked_of, put_together, rest_of, tell_requesters
from freescale.overlap.contribution import Sums
from freescale.overlap.embedding import ShardedEmbedding
from freescale.overlap.lookup import Lookup
from freescale.overlap.row_optimizer import RowOptimizer
from freescale.simulate.batches import share_of
from workloads import registry
from workloads.batch import JaggedBatch
from workloads.losses import bce_sum
from workloads.registry import Workload

WARMUP = 2
SEED = 90_210
"""Of the first calibration's batches, and one more for each that is added to it: others than a run's, whose seeds are
small numbers, so that no run is compared with itself."""


class Steps:
    """The pieces of training steps of one preset, with state as in `freescale.bench.trainer`."""

    def __init__(self, name: str, watch: Stopwatch, rank: int, world: int, seed: int) -> None:
        preset = registry.preset(name)
        small = dataclasses.replace(preset, samples_per_rank=max(1, preset.samples_per_rank // 4))
        self.workload, self.small = registry.build(preset, seed), registry.build(small, seed)
        self.watch, self.rank, self.world, self.seed = watch, rank, world, seed
        self.embedding = ShardedEmbedding(
            self.workload.tables(), self.workload.feature_tables(), rank, world, RowOptimizer("adagrad"), seed=seed
        )
        self.dense = self.workload.dense_model()
        self.optimizer = dense_optimizer(self.dense)
        self.row_bytes = float(self.workload.config.embedding_dim * 4)

    def batches(self, count: int, whole: bool) -> list[JaggedBatch]:
        """This rank's part of those that count, of the ones before, and of one that is only prepared."""
        workload = self.workload if whole else self.small
        return [workload.batch(number, self.rank, self.world) for number in range(count + WARMUP + 1)]

    def measure(self, batches: int, times: int, lanes: Mapping[str, Transport], place: Mapping[str, Any]) -> None:
        """Time every piece of that many steps over these lanes, after some that do not count; all of it several times,
        since what disturbs one batch is then told from what the batch costs. Once more with a quarter of the samples,
        which tells what a piece costs each time from what it costs per sample."""
        exchange: SampleExchange[JaggedBatch] = SampleExchange(
            lanes["data"], Balancer(self.world, CostModel(self.workload.cost)).assign, self.workload.max_samples
        )
        for repetition in range(times + 1):
            whole = repetition < times
            before: Lookup | None = None
            for number in range(batches + WARMUP):
                self.watch.on = number >= WARMUP
                self.watch.place = {**place, "batch": number, "whole": whole}
                batch = (self.workload if whole else self.small).batch(number, self.rank, self.world)
                dist.barrier()
                self._balance(exchange, batch)
                before = self._train(lanes, batch, before)
        self.watch.on = False

    def _balance(self, exchange: SampleExchange[JaggedBatch], batch: JaggedBatch) -> None:
        watch = self.watch
        with watch.piece("announce"):
            announced = exchange.announce(batch)
        watch.wait(announced.gathered)
        samples = float(announced.gathered.wait().shape[0] * batch.samples)
        with watch.piece("move", samples_in_all=samples, rank_pairs=0.0):
            moving = exchange.move(announced)
        watch.amend(moved_bytes=float(moving.moved_bytes))
        watch.wait(moving.handle)
        with watch.piece("receive", moved_bytes=float(moving.moved_bytes), samples=float(batch.samples)):
            exchange.receive(moving)

    def _train(self, lanes: Mapping[str, Transport], batch: JaggedBatch, before: Lookup | None) -> Lookup:
        watch, embedding, dense = self.watch, self.embedding, self.dense
        with watch.piece("begin"):
            batch = batch.to(torch.device("cpu"))
            ids = batch.ids()
        count = float(sum(values.numel() for values in ids.values()))
        with watch.piece("distribute", ids=count):
            chain = embedding.distribute(lanes["ids"], embedding.deduplicate(ids))
            slots = next(chain)
        watch.wait(slots)
        with watch.piece("serve"):
            lookup = _result(chain)
        asked, served = float(lookup.unique_rows()), float(sum(rows.numel() for rows in lookup.served))
        watch.amend(served=served)
        with watch.piece("read", row_bytes=served * self.row_bytes):
            rows = embedding.look_up(lanes["bulk"], lookup.served, lookup.serve_counts, lookup.ask_counts)
        watch.wait(rows)
        with watch.piece("embed", ids=count, row_bytes=asked * self.row_bytes):
            embedded = embedding.embed(lookup, embedding.received(rows, lookup.ask_counts))
        amounts = model_amounts(self.workload, batch)
        with watch.piece("forward", **amounts):
            logits = dense(embedded, batch)
            loss = bce_sum(logits, batch.labels, batch.weights) / max(batch.weights.numel(), 1)
        with watch.piece("backward", **amounts):
            loss.backward()
        with watch.piece("give", row_bytes=asked * self.row_bytes):
            back = embedding.give_back(lanes["bulk"], lookup.gradients(), lookup.ask_counts, lookup.serve_counts)
        watch.wait(back)
        with watch.piece("aim", rows=served):
            due = Sums([embedding.contribution(back, lookup.served, lookup.serve_counts)])
        with watch.piece("update", row_bytes=served * self.row_bytes, rows=served):
            embedding.update(due.rows, due.totals(), 0.5, embedding.lr)
        with watch.piece("dense_update", parameters=float(sum(p.numel() for p in dense.parameters()))):
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
        if before is not None:
            self._split(before, lookup, lanes, asked, served)
        return lookup

    def _split(
        self, before: Lookup, lookup: Lookup, lanes: Mapping[str, Transport], asked: float, served: float
    ) -> None:
        watch, row_bytes = self.watch, self.row_bytes
        both_asked = asked + before.unique_rows()
        both_served = served + sum(rows.numel() for rows in before.served)
        with watch.piece("split", asked=both_asked, served=both_served):
            chain = tell_requesters(lanes["ids"], colliding_rows([before], lookup), [lookup, before])
            told = next(chain)
        watch.wait(told)
        with watch.piece("part", rows=both_asked + both_served, row_bytes=0.0):
            late, urgent = _result(chain)
            rest_of(lookup.served, late.served)
        gradients = before.gradients()
        with watch.piece("part", rows=0.0, row_bytes=float(before.unique_rows()) * row_bytes):
            marked_of(gradients, urgent.asked)
            rest_of(gradients, urgent.asked)
        rows = [of_group.detach() for of_group in lookup.rows]
        waited, early = marked_of(rows, late.asked), rest_of(rows, late.asked)
        with watch.piece("merge", rows=asked, row_bytes=asked * row_bytes):
            put_together(late.asked, waited, early)


def model_amounts(workload: Workload, batch: JaggedBatch) -> dict[str, float]:
    nobody = np.zeros(batch.samples, np.int64)
    share = share_of(batch.lengths.numpy(), nobody, nobody, 1, shape_of(workload))
    names = ("projection_flop", "attention_flop", "scores", "blocks", "tokens")
    return {name: float(getattr(share, name)[0]) for name in names}


def _result(chain: Iterator[Handle]) -> Any:
    """What the chain comes to; waits for what it still needs."""
    while True:
        try:
            next(chain).wait()
        except StopIteration as stop:
            return stop.value
