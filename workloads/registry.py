"""Workloads by name: batches, tables and model in one object, the same on every rank for the same seed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from freescale.errors import FreeScaleError
from freescale.overlap.tables import TableSpec
from workloads import hashing
from workloads.batch import CANDIDATE_PREFIX, JaggedBatch
from workloads.config import DEFAULT_PRESET, HISTORY_ONLY, PRESETS, WorkloadConfig, preset
from workloads.flops import flops
from workloads.ids import ZipfRows
from workloads.interaction_log import read_interactions
from workloads.interactions import open_stream
from workloads.ranker import LocalRanker, SequenceRanker
from workloads.synthetic import SyntheticStream

__all__ = ["DEFAULT_PRESET", "PRESETS", "TableSpec", "Workload", "WorkloadConfig", "build", "preset"]


class BatchStream(Protocol):
    """Where a workload's batches come from."""

    def batch(self, step: int, rank: int, world_size: int) -> JaggedBatch:
        """Rank `rank`'s part of the global batch of `step`; raises FreeScaleError where there is none."""
        ...

    def steps_available(self, world_size: int) -> int | None:
        """Global batches there are, None for no end."""
        ...

    def describe(self) -> dict[str, Any]:
        """What the manifest says about the data, JSON-ready."""
        ...


@dataclass(frozen=True)
class Workload:
    """Data and model of one run.

    Attributes:
        config: what was asked for; an interaction log has put its own features and table sizes in.
        stream: the batches.
        seed: of the data and of the dense model's initial weights.
    """

    config: WorkloadConfig
    stream: BatchStream
    seed: int

    @property
    def name(self) -> str:
        """The preset's name."""
        return self.config.name

    @property
    def max_samples(self) -> int:
        """The most samples that `batch` gives a rank."""
        return self.config.samples_per_rank

    def tables(self) -> dict[str, TableSpec]:
        """Table name -> rows and width."""
        return {name: TableSpec(rows, self.config.embedding_dim) for name, rows in self.config.table_rows().items()}

    def feature_tables(self) -> dict[str, str]:
        """Feature, named as in `JaggedBatch.ids()` -> the table it is looked up in."""
        features = self.config.features
        shown = {CANDIDATE_PREFIX + name: name for name in features if name not in HISTORY_ONLY}
        return {**{name: name for name in features}, **shown}

    def batch(self, step: int, rank: int, world_size: int) -> JaggedBatch:
        """Rank `rank`'s part of the global batch of `step`: consecutive samples in time order, on the CPU.

        Raises:
            FreeScaleError: no such rank, or an interaction log that has no such step.
        """
        return self.stream.batch(step, rank, world_size)

    def steps_available(self, world_size: int) -> int | None:
        """Global batches there are for that many ranks, None for no end."""
        return self.stream.steps_available(world_size)

    def dense_model(self, dtype: torch.dtype = torch.float32) -> SequenceRanker:
        """The dense network with its initial weights, on the CPU. Leaves torch's random state as it was."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(hashing.key(self.seed, "dense"))
            return SequenceRanker(self.config.ranker_shape()).to(dtype)

    def local_model(self, dtype: torch.dtype = torch.float32) -> LocalRanker:
        """The whole model with its tables as ordinary `nn.Embedding`s, for one process; seeded like `dense_model`."""
        tables = {name: (spec.rows, spec.dim) for name, spec in self.tables().items()}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(hashing.key(self.seed, "tables"))
            return LocalRanker(tables, self.feature_tables(), self.dense_model()).to(dtype)

    def cost(self, lengths: NDArray[np.int64]) -> NDArray[np.float64]:
        """float64[B], forward FLOPs of samples with int64[B, 2] lengths: their relative cost before any measurement."""
        return flops(lengths, self.config)

    def describe(self) -> dict[str, Any]:
        """The manifest's entry, JSON-ready."""
        shape = self.config.ranker_shape()
        return {
            "preset": self.name,
            "samples_per_rank": self.config.samples_per_rank,
            "tables": {name: {"rows": spec.rows, "dim": spec.dim} for name, spec in self.tables().items()},
            "model": {
                name: getattr(shape, name) for name in ("dim", "layers", "heads", "qk_dim", "value_dim", "head_dim")
            },
            "max_history": self.config.max_history,
            **self.stream.describe(),
        }


def build(
    config: WorkloadConfig, seed: int, data: str | None = None, columns: Mapping[str, str] | None = None
) -> Workload:
    """The workload of `config`: on generated batches, or on the interaction log in the file `data`.

    Args:
        config: usually ``preset(name)``.
        seed: decides the batches, the sampled negatives and the dense model's initial weights.
        data: CSV, TSV, `::`-separated or Parquet file, see `workloads.interaction_file`.
        columns: meaning -> column name in `data`, for columns that are not recognised by name.

    Raises:
        FreeScaleError: the file cannot be used (names file, row or column, and what was expected), or columns were
            named without a file.
    """
    if data is not None:
        log = read_interactions(data, columns or {})
        config, stream = open_stream(log, config, seed)
        return Workload(config, stream, seed)
    if columns:
        raise FreeScaleError(f"column: {', '.join(columns)} named, but there is no data file; add --data FILE")
    items = ZipfRows(
        rows=config.item_rows,
        exponent=config.zipf_exponent,
        seed=hashing.key(seed, "items"),
        collision_rate=config.collision_rate,
        unique_share=config.unique_share,
    )
    generated = SyntheticStream(
        lengths=config.length_distribution(),
        items=items,
        category_rows=config.category_rows,
        action_rows=config.action_rows,
        surface_rows=config.surface_rows,
        samples_per_rank=config.samples_per_rank,
        min_candidates=config.min_candidates,
        max_candidates=config.max_candidates,
        seed=seed,
    )
    return Workload(config, generated, seed)
