"""One rank of a calibration: times each piece of the training step, and the transports, on the machine it runs on.

The pieces are the product's own functions, called one by one with a barrier before each batch; all ranks measure at
the same time, so that what they take from each other (memory bandwidth, clock speed) is in the figures. Exchanges are
timed where they occur between the pieces: gloo's threads take longer to wake up after 100 ms than in a loop.
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from freescale.balance.balancer import Balancer
from freescale.balance.cost_model import CostModel
from freescale.balance.exchange import SampleExchange
from freescale.bench.arms import parse_arm
from freescale.bench.cores import keep_to_own_cores
from freescale.bench.lanes import NAMES, Lanes, open_for
from freescale.bench.simulated_workload import shape_of
from freescale.bench.trainer import Trainer
from freescale.comm.shared_memory import open_shared_memory
from freescale.comm.transport import Handle, Transport
from freescale.overlap.collision import colliding_rows, marked_of, put_together, rest_of, tell_requesters
from freescale.overlap.contribution import Sums
from freescale.overlap.embedding import ShardedEmbedding
from freescale.overlap.lookup import Lookup, distribute
from freescale.overlap.row_optimizer import RowOptimizer
from freescale.simulate.batches import share_of
from workloads import registry
from workloads.batch import JaggedBatch
from workloads.losses import bce_sum
from workloads.registry import Workload

_SIZES = (1 << 10, 1 << 14, 1 << 17, 1 << 20, 1 << 22, 1 << 24)
_WARMUP, _TIMES = 2, 3
SEED = 90_210
"""Of the batches: others than a run's, whose seeds are small numbers, so that no run is compared with itself."""


class Stopwatch:
    """Collects (piece, amounts, wall ns, this thread's CPU ns), and where in the calibration that was."""

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.on = False
        self.place: dict[str, Any] = {}
        self._seen: dict[str, int] = {}

    @contextmanager
    def piece(self, name: str, **amounts: float) -> Iterator[None]:
        start, start_cpu = time.perf_counter_ns(), time.thread_time_ns()
        yield
        cpu_ns, ns = time.thread_time_ns() - start_cpu, time.perf_counter_ns() - start
        self.note(name, start, ns, cpu_ns, amounts)

    def note(self, name: str, start_ns: int, ns: int, cpu_ns: int, amounts: Mapping[str, float]) -> None:
        """Add a row; its ordinal is the same on every rank."""
        if self.on:
            ordinal = self._seen[name] = self._seen.get(name, -1) + 1
            row = {"piece": name, "ordinal": ordinal, "start_ns": start_ns, "ns": ns, "cpu_ns": cpu_ns}
            self.rows.append({**row, "amounts": dict(amounts), **self.place})

    def amend(self, **amounts: float) -> None:
        """Amounts of the last piece that are only known after it."""
        if self.on:
            self.rows[-1]["amounts"] |= amounts

    def wait(self, handle: Handle) -> None:
        """Wait for an exchange, and take its time since it was issued."""
        handle.wait()
        ns, amounts = time.perf_counter_ns() - handle.issued_ns, {"nbytes": float(handle.sent_bytes)}
        self.note(f"{handle.engine} exchange", handle.issued_ns, ns, 0, amounts)


class TimedLane:
    """A lane whose handles say when the issuing call began, not when it returned: gloo may be done by then."""

    def __init__(self, lane: Transport) -> None:
        self._lane = lane
        self.group, self.rank, self.world_size, self.engine = lane.group, lane.rank, lane.world_size, lane.engine

    def all_to_all(self, send: Tensor, send_splits: Sequence[int], recv_splits: Sequence[int]) -> Handle:
        begun_ns = time.perf_counter_ns()
        return _since(begun_ns, self._lane.all_to_all(send, send_splits, recv_splits))

    def all_gather(self, send: Tensor) -> Handle:
        begun_ns = time.perf_counter_ns()
        return _since(begun_ns, self._lane.all_gather(send))

    def close(self) -> None:
        self._lane.close()


def _since(begun_ns: int, handle: Handle) -> Handle:
    handle.issued_ns = begun_ns
    return handle


class Steps:
    """The pieces of training steps of one preset, with state as in `freescale.bench.trainer`."""

    def __init__(self, name: str, watch: Stopwatch, rank: int, world: int) -> None:
        preset = registry.preset(name)
        small = dataclasses.replace(preset, samples_per_rank=max(1, preset.samples_per_rank // 4))
        self.workload, self.small = registry.build(preset, SEED), registry.build(small, SEED)
        self.watch, self.rank, self.world = watch, rank, world
        self.embedding = ShardedEmbedding(
            self.workload.tables(), self.workload.feature_tables(), rank, world, RowOptimizer("adagrad"), seed=SEED
        )
        self.dense = self.workload.dense_model()
        self.optimizer = torch.optim.Adam(self.dense.parameters(), lr=1e-3, foreach=True)
        self.row_bytes = float(self.workload.config.embedding_dim * 4)

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
            for number in range(batches + _WARMUP):
                self.watch.on = number >= _WARMUP
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
        chain = distribute(embedding.layout, embedding.features, lanes["ids"], ids)
        with watch.piece("distribute", ids=count):
            counted = next(chain)
        counted.wait()  # not timed: the piece went on after issuing it
        with watch.piece("tell", ids=count):
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
        amounts = _model_amounts(self.workload, batch)
        with watch.piece("forward", **amounts):
            logits = dense(embedded, batch)
            loss = bce_sum(logits, batch.labels, batch.weights) / max(batch.weights.numel(), 1)
        with watch.piece("backward", **amounts):
            loss.backward()
        with watch.piece("give", row_bytes=asked * self.row_bytes):
            back = embedding.give_back(lanes["bulk"], lookup.gradients(), lookup.ask_counts, lookup.serve_counts)
        watch.wait(back)
        with watch.piece("update", row_bytes=served * self.row_bytes, rows=served):
            contribution = embedding.contribution(back, lookup.served, lookup.serve_counts)
            due = Sums([contribution])
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


def measure_turn(steps: Steps, batches: int, times: int, lanes: Lanes) -> None:
    """Whole steps of the blocking schedule, as a run takes them, on the batches whose pieces were timed first."""
    trainer = Trainer(steps.workload, lanes, torch.device("cpu"), SEED)
    numbers = range(batches + _WARMUP + 1)
    fed = [steps.workload.batch(number, steps.rank, steps.world) for number in numbers]
    steps.watch.on = True
    for _ in range(times):
        rows = trainer.run_turn(parse_arm("baseline"), fed[:-1], then=fed[-1])
        for number, row in list(enumerate(rows))[_WARMUP:]:
            steps.watch.place = {"preset": steps.workload.name, "batch": number, "whole": True}
            cpu_ns, ns = (round(row[name] * 1e6) for name in ("compute_ms", "step_ms"))
            steps.watch.note("step", row["start_unix_ns"], ns, cpu_ns, {})
    steps.watch.on = False


def _model_amounts(workload: Workload, batch: JaggedBatch) -> dict[str, float]:
    nobody = np.zeros(batch.samples, np.int64)
    share = share_of(batch.lengths.numpy(), nobody, nobody, 1, shape_of(workload))
    names = ("projection_flop", "attention_flop", "scores", "blocks", "tokens")
    return {name: float(getattr(share, name)[0]) for name in names}


def _result(chain: Iterator[Any]) -> Any:
    try:
        next(chain)
    except StopIteration as stop:
        return stop.value
    raise AssertionError("the chain goes on")


def measure_links(lanes: Mapping[str, Transport], shared: Mapping[str, Transport], watch: Stopwatch, rank: int) -> None:
    """Time exchanges by size, on both transports, and what gloo takes from the compute meanwhile."""
    watch.on, watch.place = True, {}
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
    a = torch.randn(96, 96)
    big = torch.zeros(32 << 20, dtype=torch.uint8)
    splits = [big.numel() // world] * world
    for _ in range(8):
        dist.barrier()
        with watch.piece("alone"):
            _multiply(a, lambda: False)
        dist.barrier()
        handle = lanes["bulk"].all_to_all(big, splits, splits)
        with watch.piece("beside", times=0.0):
            done = _multiply(a, handle.done)
        watch.amend(times=float(done))
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
    keep_to_own_cores()
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=world,
        timeout=datetime.timedelta(seconds=60),
    )
    whole = open_for([parse_arm("baseline")], torch.device("cpu"))
    lanes: dict[str, Transport] = {name: TimedLane(lane) for name, lane in whole.reference.items()}
    shared: dict[str, Transport] = {name: TimedLane(lane) for name, lane in open_shared_memory(NAMES).items()}
    watch = Stopwatch()
    for preset in presets:
        steps = Steps(preset, watch, rank, world)
        place = {"preset": preset, "lanes": "gloo", "profiled": False}
        steps.measure(batches, _TIMES, lanes, place)
        measure_turn(steps, batches, _TIMES, whole)
        with profile(activities=[ProfilerActivity.CPU]):
            steps.measure(batches, 1, lanes, {**place, "profiled": True})
        steps.measure(batches, 1, shared, {**place, "lanes": "shared"})
    measure_links(lanes, shared, watch, rank)
    (folder / f"rank-{rank}.json").write_text(json.dumps(watch.rows), encoding="utf-8")
    for lane in shared.values():
        lane.close()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
