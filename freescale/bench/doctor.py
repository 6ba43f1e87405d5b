"""Say which ways of moving bytes exist on this machine, which would be used, and why.

For ranks that all run here; under `torchrun` on several hosts, `run` asks every rank and says what it chose.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
from typing import Any

import click


@click.command(help=__doc__)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, and nothing else.")
def command(as_json: bool) -> None:
    findings = examine()
    click.echo(json.dumps(findings, indent=2) if as_json else _text(findings))


def examine() -> dict[str, Any]:
    """`facts` (name -> one line) and, per device, the transports in order of preference and the one `run` would use."""
    import torch

    from freescale.comm.select import Topology, paths, report_here, select

    devices: dict[str, Any] = {}
    for device in ("cpu", "cuda"):
        if device == "cuda" and not torch.cuda.is_available():
            devices[device] = {"use": None, "why": "torch sees no CUDA device; check nvidia-smi", "paths": []}
            continue
        topology = Topology((report_here(device),) * 2)
        chosen = select(device, topology)
        devices[device] = {
            "use": chosen.name,
            "why": chosen.why,
            "paths": [
                {
                    "name": path.name,
                    "exists": not path.problem,
                    "why": path.problem or path.why,
                    "unverified": path.unverified,
                }
                for path in paths(device, topology)
            ],
        }
    return {"facts": _facts(), "devices": devices}


def _facts() -> dict[str, str]:
    import psutil
    import torch
    import torch.distributed as dist

    from freescale.comm.segment import available_bytes, unsupported

    nccl = dist.is_nccl_available()
    return {
        "cores": f"{len(os.sched_getaffinity(0))} for this process, {psutil.cpu_count()} in the machine",
        "memory": f"{available_bytes() / 2**30:.1f} GiB free",
        "/dev/shm": _dev_shm(),
        "shared memory": unsupported() or "memory files without a name (memfd); /dev/shm is not used",
        "kernel": platform.release(),
        "torch": f"{torch.__version__}, gloo {'yes' if dist.is_gloo_available() else 'no'}, NCCL "
        + (".".join(map(str, torch.cuda.nccl.version())) if nccl else "no"),
        "driver": _nvidia("--query-gpu=driver_version", "--format=csv,noheader") or "no NVIDIA driver found",
        "GPUs": ", ".join(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())) or "none",
        "NVLink domain": _nvlink_domain(),
    }


def _dev_shm() -> str:
    try:
        usage = shutil.disk_usage("/dev/shm")
    except OSError:
        return "absent; freescale does not need it, data loaders with workers do"
    return f"{usage.total / 2**30:.2f} GiB, {usage.free / 2**30:.2f} free; freescale does not need it, data loaders do"


def _nvlink_domain() -> str:
    matrix = _nvidia("topo", "-p2p", "n")
    rows = [line.split() for line in matrix.splitlines() if line.startswith(("GPU", " GPU")) and "OK" in line]
    if not rows:
        return "none found"
    linked = [row[0] for row in rows]
    return f"{', '.join(linked)} report peer links by NVLink"


def _nvidia(*arguments: str) -> str:
    """What nvidia-smi says; empty if it is not there or fails."""
    try:
        done = subprocess.run(["nvidia-smi", *arguments], capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()


def _text(findings: dict[str, Any]) -> str:
    lines = [f"{name:14} {text}" for name, text in findings["facts"].items()]
    for device, judged in findings["devices"].items():
        lines += ["", f"{device} tensors: {judged['use'] or 'nothing'}, since {judged['why']}"]
        for path in judged["paths"]:
            mark = "yes" if path["exists"] else "no "
            unverified = f" ({path['unverified']})" if path["unverified"] else ""
            lines.append(f"  {mark} {path['name']:14} {path['why']}{unverified}")
    return "\n".join(lines)
