"""What a training loop imports: the three layers, and `capture` for taking traces of any PyTorch job.

Names are loaded when first used, so that `freescale-bench analyze` starts without importing torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

_HOME = {
    "FreeScaleError": "freescale.errors",
}

__all__ = sorted(_HOME)


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'freescale' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
