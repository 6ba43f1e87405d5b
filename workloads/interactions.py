"""Batches from an interaction log: each user's past is a history, what the user did next are the candidates.

A user's events are cut, after the first few, into runs of consecutive events. A run is one sample: its events are the
candidates, everything of the user before it the history (the most recent part, if it is long). Samples are ordered by
the time of their last event, when all their labels are known, so global batches move forward in time.

Labels come from the label column, failing that from the rating (positive from `WorkloadConfig.positive_rating` on).
A log with neither holds positives only: each is then followed by sampled negatives, drawn in proportion to how often
items occur in the whole log. A negative that is among the sample's own positives keeps its place with weight 0.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from freescale.errors import FreeScaleError
from workloads import hashing
from workloads.batch import JaggedBatch
from workloads.config import FEATURES, HISTORY_ONLY, WorkloadConfig
from workloads.interaction_log import InteractionLog
from workloads.ragged import ragged_array
from workloads.synthetic import check_place


def open_stream(log: InteractionLog, config: WorkloadConfig, seed: int) -> tuple[WorkloadConfig, InteractionStream]:
    """The log's batches, and the configuration with the log's features and table sizes.

    Raises:
        FreeScaleError: too few interactions for one batch of one rank, or labels that are all the same.
    """
    features = tuple(name for name in FEATURES if name in log.features)
    rows: dict[str, Any] = {f"{name}_rows": rows for name, rows in log.rows.items()}
    fitted = replace(config, features=features, collision_rate=None, **rows)
    per_event = 1 if log.label is not None or log.rating is not None else 1 + config.negatives
    events = max(1, config.max_candidates // per_event)
    samples = _cut(log, max(1, config.min_history), config.max_history, events)
    if samples.count < config.samples_per_rank:
        raise FreeScaleError(
            f"{log.file}: {log.user.size} interactions of {log.users} user(s) make {samples.count} sample(s), "
            f"expected at least {config.samples_per_rank}, one batch of one rank; give more data"
        )
    return fitted, InteractionStream(log, _labels(log, config), samples, config.samples_per_rank, per_event - 1, seed)


@dataclass(frozen=True)
class Samples:
    """Samples in time order, as runs of `order`, the log's rows sorted by user and then time.

    Attributes:
        order: int64[N], rows of the log.
        first: int64[S], place in `order` where the history starts.
        history, events: int64[S], history events and the events after them that are to be predicted.
    """

    order: NDArray[np.int64]
    first: NDArray[np.int64]
    history: NDArray[np.int64]
    events: NDArray[np.int64]

    @property
    def count(self) -> int:
        return self.first.size


@dataclass(frozen=True)
class InteractionStream:
    """A finite, deterministic stream of global batches.

    Attributes:
        log: the interactions.
        labels: float32[N] of the log's rows, or None for positives with sampled negatives.
        samples: how the log is cut.
        samples_per_rank: B; the global batch of step n on R ranks is samples n*B*R to (n+1)*B*R - 1. The last one
            is as large as what is left, so some ranks may have fewer samples or none.
        negatives: sampled per positive.
        seed: of the negatives.
    """

    log: InteractionLog
    labels: NDArray[np.float32] | None
    samples: Samples
    samples_per_rank: int
    negatives: int
    seed: int

    def steps_available(self, world_size: int) -> int | None:
        """Global batches, the last and perhaps smaller one included."""
        return -(-self.samples.count // (self.samples_per_rank * world_size))

    def batch(self, step: int, rank: int, world_size: int) -> JaggedBatch:
        """Rank `rank`'s samples of the global batch of `step`: the consecutive ones from rank * samples_per_rank on.

        Raises:
            FreeScaleError: the log has no such step, or there is no such rank.
        """
        check_place(step, rank, world_size)
        available = -(-self.samples.count // (self.samples_per_rank * world_size))
        if step >= available:
            raise FreeScaleError(
                f"{self.log.file}: step {step + 1} asked for, but {self.samples.count} samples on {world_size} ranks "
                f"make {available}; ask for fewer steps or blocks, or give more data"
            )
        first = step * self.samples_per_rank * world_size
        start = min(first + rank * self.samples_per_rank, self.samples.count)
        chosen = np.arange(start, min(start + self.samples_per_rank, self.samples.count))
        begin, history, events = (
            column[chosen] for column in (self.samples.first, self.samples.history, self.samples.events)
        )
        past = self.samples.order[ragged_array(begin, history)]
        happened = np.repeat(self.samples.order[ragged_array(begin + history, events)], 1 + self.negatives)
        shown, labels, weights = self._shown(happened, np.repeat(chosen, events * (1 + self.negatives)))
        features = self.log.features
        # An item brings its category along; the surface is the one on which the event took place.
        sources = {"item": shown, "category": shown, "surface": happened}
        return JaggedBatch(
            sample_id=torch.from_numpy(chosen - first),
            lengths=torch.from_numpy(np.stack([history, events * (1 + self.negatives)], axis=1)),
            history={name: torch.from_numpy(ids[past]) for name, ids in features.items()},
            history_time=torch.from_numpy(self.log.time[past]),
            candidates={
                name: torch.from_numpy(ids[sources[name]]) for name, ids in features.items() if name not in HISTORY_ONLY
            },
            candidate_time=torch.from_numpy(self.log.time[happened]),
            labels=torch.from_numpy(labels),
            weights=torch.from_numpy(weights),
        )

    def describe(self) -> dict[str, Any]:
        """The manifest's entry on the data."""
        history, candidates = self.samples.history, self.samples.events * (1 + self.negatives)
        return {
            "data": self.log.file,
            "interactions": int(self.log.user.size),
            "users": self.log.users,
            "samples": self.samples.count,
            "labels": self._labelled_by(),
            "history": {
                "distribution": "data",
                "median": float(np.median(history)),
                "mean": round(float(history.mean()), 1),
                "min": int(history.min()),
                "max": int(history.max()),
            },
            "candidates": {"min": int(candidates.min()), "max": int(candidates.max())},
            "requested_collision_rate": None,
        }

    def _labelled_by(self) -> str:
        if self.log.label is not None:
            return "label column"
        if self.log.rating is not None:
            return "rating column"
        return f"{self.negatives} sampled negatives per positive"

    def _shown(
        self, happened: NDArray[np.int64], sample: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.float32]]:
        """Log rows whose items are shown, labels and weights, per candidate."""
        if self.labels is not None:
            return happened, self.labels[happened], np.ones(happened.size, dtype=np.float32)
        rows = self.log.user.size
        turn = np.arange(happened.size) % (1 + self.negatives)
        place = happened * (1 + self.negatives) + turn
        drawn = (hashing.uniform(hashing.key(self.seed, "negative"), place) * rows).astype(np.int64)
        shown = np.where(turn == 0, happened, drawn)
        labels = (turn == 0).astype(np.float32)
        item = sample * self.log.rows["item"] + self.log.features["item"][shown]
        hit = (turn > 0) & np.isin(item, item[turn == 0])
        return shown, labels, 1.0 - hit.astype(np.float32)


def _cut(log: InteractionLog, min_history: int, max_history: int, events: int) -> Samples:
    """Each user's events after the first `min_history` in runs of `events`, the last run perhaps shorter."""
    order = np.argsort(log.user, kind="stable")
    per_user = np.bincount(log.user, minlength=log.users)
    begin = np.cumsum(per_user) - per_user
    left = np.maximum(per_user - min_history, 0)
    runs = -(-left // events)
    before = ragged_array(np.zeros_like(runs), runs) * events + min_history  # of the user's events
    begin, total = np.repeat(begin, runs), np.repeat(per_user, runs)
    run = np.minimum(events, total - before)
    history = np.minimum(before, max_history)
    known = log.time[order[begin + before + run - 1]]
    in_time = np.argsort(known, kind="stable")
    return Samples(order, (begin + before - history)[in_time], history[in_time], run[in_time])


def _labels(log: InteractionLog, config: WorkloadConfig) -> NDArray[np.float32] | None:
    if log.label is not None:
        labels, column, rule = log.label, "label", "labels"
    elif log.rating is not None:
        labels, column = (log.rating >= config.positive_rating).astype(np.float64), "rating"
        rule = f"ratings on both sides of {config.positive_rating:g}"
    else:
        return None
    if labels.min() == labels.max():
        raise FreeScaleError(f"{log.file}: every {column} means {labels[0]:g}, expected {rule} of both kinds")
    return labels.astype(np.float32)
