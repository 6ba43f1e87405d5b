"""Whether copy engines moved the bytes, as the profiler saw it: libraries fall back to kernels without a word."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch.profiler import ProfilerActivity, profile

_COPIES = ("Memcpy", "Memset")


def kernels_during(call: Callable[[], object]) -> list[str]:
    """Names of the GPU kernels that ran while `call` did, other than copies."""
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        call()
        torch.cuda.synchronize()
    return kernel_names((str(event.device_type), event.name) for event in profiler.events())


def kernel_names(events: Iterable[tuple[str, str]]) -> list[str]:
    """Of (device type, name) pairs, the kernels: what ran on the GPU and is neither copy nor annotation."""
    return [
        name
        for device, name in events
        if device.endswith("CUDA") and not name.startswith(_COPIES) and not name.startswith("freescale.")
    ]
