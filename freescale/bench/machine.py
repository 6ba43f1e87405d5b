"""What a run ran on: machine, versions, commit. A figure without these is hearsay."""

from __future__ import annotations

import platform
import socket
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil


def machine() -> dict[str, Any]:
    """Host, CPU, cores, memory and GPUs of this machine."""
    import torch

    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    return {
        "host": socket.gethostname(),
        "cpu": _cpu_name(),
        "cores": psutil.cpu_count(logical=True),
        "memory_bytes": psutil.virtual_memory().total,
        "gpus": gpus,
        "load_1min": psutil.getloadavg()[0],
    }


def versions() -> dict[str, str]:
    """Versions that can change a measurement."""
    import torch

    return {
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": metadata.version("numpy"),
        "freescale_bench": metadata.version("freescale-bench"),
    }


def git_commit() -> str | None:
    """Commit of the checkout this package runs from, with `+` when the tree was changed; None outside a checkout."""
    here = Path(__file__).resolve().parent
    try:
        commit = _git(here, "rev-parse", "HEAD")
        return commit + ("+" if _git(here, "status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.SubprocessError):
        return None


def _git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, timeout=10, check=True)
    return done.stdout.strip()


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
