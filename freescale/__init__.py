"""What a training loop imports: the three layers, and `capture` for taking traces of any PyTorch job.

Names are loaded when first used, so that `freescale-bench analyze` starts without importing torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOME = {
    "BalancedBatchSampler": "freescale.balance.sampler",
    "Balancer": "freescale.balance.balancer",
    "BlockingSchedule": "freescale.overlap.blocking",
    "ComputeHooks": "freescale.overlap.hooks",
    "CostModel": "freescale.balance.cost_model",
    "DictBatch": "freescale.balance.batches",
    "EXCHANGE_LANES": "freescale.overlap.schedule",
    "FreeScaleError": "freescale.errors",
    "Parts": "freescale.overlap.schedule",
    "PrioritizedSchedule": "freescale.overlap.prioritized",
    "RowOptimizer": "freescale.overlap.row_optimizer",
    "SampleExchange": "freescale.balance.exchange",
    "ShardedEmbedding": "freescale.overlap.embedding",
    "TableSpec": "freescale.overlap.tables",
    "capture": "freescale.bench.capture",
    "from_keyed_jagged": "freescale.balance.batches",
    "modules_that_mix_samples": "freescale.balance.batches",
    "open_lanes": "freescale.comm.process_group",
    "shard_embeddings": "freescale.overlap.adopt",
    "steps": "freescale.overlap.adopt",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'freescale' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
