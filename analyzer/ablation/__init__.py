"""Ablation: what each layer is worth, and how sure we are. Pure functions from tables to verdicts (docs/method.md)."""

from analyzer.ablation.ablation import Measured, ablate, block_medians, noise_floor
from analyzer.ablation.cube import layers_of, reference_of

__all__ = ["Measured", "ablate", "block_medians", "layers_of", "noise_floor", "reference_of"]
