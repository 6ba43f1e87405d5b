"""What a workload is made of: one frozen, checked configuration, and the presets by name."""

from __future__ import annotations

from dataclasses import dataclass, replace

from freescale.errors import FreeScaleError
from workloads.lengths import LengthDistribution, named
from workloads.ranker import RankerShape

FEATURES = ("item", "category", "action", "surface")
HISTORY_ONLY = ("action",)
"""A candidate has no action yet: predicting it is the task."""

_RANGES = {
    "samples_per_rank": (1, 65_536),
    "min_history": (0, 1_000_000),
    "max_history": (1, 1_000_000),
    "median_history": (1, 1_000_000),
    "min_candidates": (1, 4_096),
    "max_candidates": (1, 4_096),
    "item_rows": (1, 2**40),
    "category_rows": (1, 2**31),
    "action_rows": (1, 2**31),
    "surface_rows": (1, 2**31),
    "embedding_dim": (1, 8_192),
    "dim": (1, 16_384),
    "layers": (1, 128),
    "heads": (1, 128),
    "qk_dim": (1, 1_024),
    "value_dim": (1, 1_024),
    "head_dim": (1, 16_384),
    "collision_rate": (0, 1),
    "unique_share": (1e-6, 1),
    "zipf_exponent": (0, 4),
    "negatives": (1, 1_024),
}


@dataclass(frozen=True)
class WorkloadConfig:
    """Data and model of a workload.

    Attributes:
        name: the preset it comes from.
        samples_per_rank: samples of one rank and step before balancing.
        lengths: name of the history-length distribution, see `workloads.lengths`.
        median_history: median to which the distribution is scaled, in events; None leaves it as published.
        min_history, max_history: shortest and longest history, in events. In an interaction log a user's first
            min_history events (at least one) serve as history only.
        min_candidates, max_candidates: candidates per sample. An interaction log gives at most max_candidates.
        item_rows, category_rows, action_rows, surface_rows: rows of the tables; an interaction log brings its own.
        embedding_dim: width of every table.
        zipf_exponent: popularity of items.
        collision_rate: share of a global batch's unique item rows that the batch before also used; None for what
            the popularity law gives.
        unique_share: unique item rows per token of a global batch (with a collision rate).
        features: the features there are, in the order of `FEATURES`.
        dim, layers, heads, qk_dim, value_dim, head_dim: of the model, see `workloads.ranker.RankerShape`.
        positive_rating: interaction logs: a rating from here on counts as a positive label.
        negatives: interaction logs without labels or ratings: negatives drawn per positive.
    """

    name: str
    samples_per_rank: int = 32
    lengths: str = "kuairand-1k"
    median_history: float | None = 150
    min_history: int = 1
    max_history: int = 1_024
    min_candidates: int = 4
    max_candidates: int = 16
    item_rows: int = 100_000
    category_rows: int = 200
    action_rows: int = 8
    surface_rows: int = 16
    embedding_dim: int = 64
    zipf_exponent: float = 1.05
    collision_rate: float | None = 0.12
    unique_share: float = 0.4
    features: tuple[str, ...] = FEATURES
    dim: int = 64
    layers: int = 2
    heads: int = 2
    qk_dim: int = 32
    value_dim: int = 32
    head_dim: int = 128
    positive_rating: float = 4.0
    negatives: int = 3

    def __post_init__(self) -> None:
        for field, (low, high) in _RANGES.items():
            value = getattr(self, field)
            if value is not None and not low <= value <= high:
                raise FreeScaleError(f"{field}: {value}, expected {low} to {high}")
        for low_field, high_field in (("min_history", "max_history"), ("min_candidates", "max_candidates")):
            low, high = getattr(self, low_field), getattr(self, high_field)
            if low > high:
                raise FreeScaleError(f"{low_field}: {low}, expected at most {high_field}, which is {high}")
        if tuple(name for name in FEATURES if name in self.features) != self.features or "item" not in self.features:
            raise FreeScaleError(
                f"features: {', '.join(self.features)}; expected item, and any of {FEATURES[1:]} after"
            )
        named(self.lengths)

    def length_distribution(self) -> LengthDistribution:
        """The named distribution with this configuration's median and limits."""
        return named(self.lengths).limited(median=self.median_history, minimum=self.min_history, cap=self.max_history)

    def table_rows(self) -> dict[str, int]:
        """Table name -> rows; every feature has its own table."""
        return {feature: getattr(self, f"{feature}_rows") for feature in self.features}

    def ranker_shape(self) -> RankerShape:
        """Sizes of the dense model."""
        return RankerShape(
            features=tuple((name, self.embedding_dim) for name in self.features),
            history_only=tuple(name for name in HISTORY_ONLY if name in self.features),
            dim=self.dim,
            layers=self.layers,
            heads=self.heads,
            qk_dim=self.qk_dim,
            value_dim=self.value_dim,
            head_dim=self.head_dim,
            longest=self.max_history,
        )


_SMALL = WorkloadConfig("hstu-small")

PRESETS = {
    preset.name: preset
    for preset in (
        _SMALL,
        replace(
            _SMALL,
            name="hstu-tiny",
            samples_per_rank=4,
            median_history=12,
            max_history=48,
            min_candidates=2,
            max_candidates=4,
            item_rows=1_000,
            category_rows=20,
            action_rows=4,
            surface_rows=4,
            embedding_dim=16,
            dim=16,
            heads=2,
            qk_dim=8,
            value_dim=8,
            head_dim=16,
        ),
        replace(
            _SMALL,
            name="hstu-long",
            samples_per_rank=4,
            median_history=None,
            min_history=10,
            max_history=8_192,
            item_rows=1_000_000,
            category_rows=1_000,
        ),
    )
}

DEFAULT_PRESET = _SMALL.name


def preset(name: str) -> WorkloadConfig:
    """The preset of that name.

    Raises:
        FreeScaleError: there is none.
    """
    if name not in PRESETS:
        raise FreeScaleError(f"preset: no workload {name!r}; there are {', '.join(PRESETS)}")
    return PRESETS[name]
