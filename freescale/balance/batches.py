"""Batches of other kinds, made movable: dictionaries of tensors, TorchRec's KeyedJaggedTensor; and what to watch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from freescale.errors import FreeScaleError


@dataclass(frozen=True)
class DictBatch:
    """A batch as named tensors; satisfies `freescale.balance.exchange.MovableBatch`.

    Attributes:
        sample_id: int64[B], place of each sample in the global batch, ascending.
        lengths: int64[B, axes]: rows per sample along each jagged axis; axis 0 is the one that cost depends on most.
        values: name -> (axis, tensor packed along it).
        make: rebuilds what it was made from; see `original`.
    """

    sample_id: Tensor
    lengths: Tensor
    values: dict[str, tuple[int, Tensor]]
    make: Any = field(default=None, repr=False)

    @classmethod
    def of(
        cls, sample_id: Tensor, tensors: Mapping[str, Tensor], jagged: Mapping[str, tuple[Tensor, list[str]]]
    ) -> DictBatch:
        """From a dictionary of tensors.

        Args:
            tensors: name -> tensor; those not named in `jagged` have one row per sample.
            jagged: axis name -> (int64[B] lengths, names of the tensors packed along it), the costliest axis first.

        Raises:
            FreeScaleError: a tensor whose rows do not fit its axis.
        """
        samples = sample_id.numel()
        columns = [lengths for lengths, _ in jagged.values()] + [torch.ones_like(sample_id)]
        axis_of = {name: axis for axis, (_, names) in enumerate(jagged.values()) for name in names}
        unknown = sorted(set(axis_of) - set(tensors))
        if unknown:
            raise FreeScaleError(f"batch: jagged names {', '.join(unknown)}, but there are no such tensors")
        values = {name: (axis_of.get(name, len(jagged)), tensor) for name, tensor in tensors.items()}
        for name, (axis, tensor) in values.items():
            rows = int(columns[axis].sum()) if samples else 0
            if tensor.shape[0] != rows:
                raise FreeScaleError(f"batch: {name} has {tensor.shape[0]} rows, but its lengths add up to {rows}")
        return cls(sample_id, torch.stack(columns, dim=1), values)

    @property
    def tensors(self) -> dict[str, Tensor]:
        """name -> tensor, as `of` took them."""
        return {name: tensor for name, (_, tensor) in self.values.items()}

    def sample_lengths(self) -> Tensor:
        """See `MovableBatch`."""
        return self.lengths

    def jagged_values(self) -> dict[str, tuple[int, Tensor]]:
        """See `MovableBatch`."""
        return self.values

    def with_samples(self, sample_id: Tensor, lengths: Tensor, values: Mapping[str, Tensor]) -> DictBatch:
        """See `MovableBatch`."""
        named = {name: (axis, values[name]) for name, (axis, _) in self.values.items()}
        return replace(self, sample_id=sample_id, lengths=lengths, values=named)

    def original(self) -> tuple[Any, dict[str, Tensor]]:
        """What `from_keyed_jagged` was given: the KeyedJaggedTensor and the tensors with a row per sample."""
        if self.make is None:
            raise FreeScaleError("batch: was not made from a KeyedJaggedTensor; use `tensors`")
        return self.make(self)


def from_keyed_jagged(sample_id: Tensor, features: Any, tensors: Mapping[str, Tensor]) -> DictBatch:
    """A movable batch from a TorchRec `KeyedJaggedTensor` and tensors with a row per sample (labels, dense features).

    Every key is a jagged axis of its own, in the order of the keys: put the history first. `original` turns the batch
    back. TorchRec itself is not needed here; the object brings its class along.
    """
    keys = list(features.keys())
    samples = sample_id.numel()
    lengths = features.lengths().view(len(keys), samples)
    sizes = lengths.sum(1).tolist()
    jagged = {key: (lengths[number].long(), [f"key {key}"]) for number, key in enumerate(keys)}
    named = {f"key {key}": part for key, part in zip(keys, features.values().split(sizes), strict=True)}
    weights = features.weights_or_none()
    if weights is not None:
        for key, part in zip(keys, weights.split(sizes), strict=True):
            jagged[key][1].append(f"weight {key}")
            named[f"weight {key}"] = part
    kind, length_dtype = type(features), features.lengths().dtype

    def make(batch: DictBatch) -> tuple[Any, dict[str, Tensor]]:
        moved = batch.tensors
        rebuilt = kind(
            keys=keys,
            values=torch.cat([moved[f"key {key}"] for key in keys]),
            lengths=batch.lengths[:, : len(keys)].T.reshape(-1).to(length_dtype),
            weights=torch.cat([moved[f"weight {key}"] for key in keys]) if weights is not None else None,
        )
        return rebuilt, {name: moved[name] for name in tensors}

    return replace(DictBatch.of(sample_id, {**named, **tensors}, jagged), make=make)


def modules_that_mix_samples(model: nn.Module) -> list[str]:
    """One warning for each module whose output for a sample depends on which samples share its rank.

    Balancing changes that company, so such modules train differently with it. Batch norm is recognised by type (with
    `SyncBatchNorm` over all ranks nothing changes, and nothing is said); anything else, such as a loss with in-batch
    negatives, by an attribute `mixes_samples = True` on the module.
    """
    batch_norms = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
    warnings = []
    for name, module in model.named_modules():
        kind = type(module).__name__
        if isinstance(module, batch_norms) and (module.training or not module.track_running_stats):
            warnings.append(
                f"{name or 'model'} ({kind}) normalises over the samples of its rank, which balancing changes; "
                "use SyncBatchNorm or LayerNorm"
            )
        elif getattr(module, "mixes_samples", False):
            warnings.append(
                f"{name or 'model'} ({kind}) relates the samples of its rank, which balancing changes; "
                "gather them first"
            )
    return warnings
