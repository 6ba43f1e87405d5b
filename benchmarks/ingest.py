"""What it costs to take in traces: this analyzer beside HTA's own parser on the same files, then large files and jobs.

    python benchmarks/ingest.py [--part speed|memory|large|job ...] [--rounds N] [--check] [--json]

Every measurement is a process of its own; the two parsers take turns, and each one's best round counts, so that what
else the machine does cancels as far as it can. `speed` and `memory` grow the real traces in FREESCALE_TRACES by
repeating their events (without that folder, a generated trace); `large` and `job` generate theirs. HTA's time is
`parse_trace_dataframe` with its defaults, ours `read_trace`, which makes the Timeline that everything else works on.
Importing is not counted, peak memory is the whole process's.
"""

from __future__ import annotations

import argparse
import datetime
import gzip
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil

MIB = 1 << 20
TRACES = Path(os.environ.get("FREESCALE_TRACES", Path(__file__).parents[2] / "shared" / "traces"))
GROWN = {"dlrm-8xv100": 36, "nccl-args-1of2": 39, "ns-resolution": 46, "sampled-2of128": 36}  # MB of JSON
MEMORY_MB, LARGE_MB = 220, 1024
JOB_RANKS, JOB_STEPS, JOB_EVENTS = 256, 3, 3000
BARS = {"speed": 15.0, "memory": 3.0, "large_mib": 1536, "job_s": 60, "job_mib": 2048}

OURS = """
from analyzer import read_trace
def work(path): return len(read_trace(path))
"""
HTA = """
import logging
logging.disable(logging.CRITICAL)
from hta.common.trace_parser import parse_trace_dataframe
from hta.configs.parser_config import ParserConfig
def work(path): return len(parse_trace_dataframe(path, ParserConfig.get_default_cfg())[1])
"""
ANALYZE = """
from analyzer import analyze
def work(path): return len(analyze(path).arm().tables.bubbles)
"""
MEASURE = """
import json, sys, time
wall, cpu = time.perf_counter(), time.process_time()
rows = work(sys.argv[1])
print(json.dumps({"rows": rows, "wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}))
"""


def measured(code: str, path: Path) -> dict[str, Any]:
    """Run `work(path)` in a process of its own: rows, wall_s, cpu_s and peak_mib of it and its children together."""
    process = subprocess.Popen([sys.executable, "-c", code + MEASURE, str(path)], stdout=subprocess.PIPE, text=True)
    peak = [0.0]
    watcher = threading.Thread(target=_watch, args=(psutil.Process(process.pid), peak))
    watcher.start()
    answer, _ = process.communicate()
    watcher.join()
    if process.returncode:
        sys.exit(f"error: a measured process ended with exit code {process.returncode}")
    return json.loads(answer) | {"peak_mib": peak[0]}


def _watch(process: psutil.Process, peak: list[float]) -> None:
    """Keep the largest sum of proportional set sizes of a process tree, shared pages counted once."""
    while True:
        try:
            if process.status() == psutil.STATUS_ZOMBIE:
                return
            family = [process, *process.children(recursive=True)]
            peak[0] = max(peak[0], sum(member.memory_full_info().pss for member in family) / MIB)
        except psutil.NoSuchProcess:  # it, or a child that has just ended
            if not process.is_running():
                return
        except psutil.AccessDenied:
            return
        time.sleep(0.005)


def grown(source: Path, megabytes: int, folder: Path) -> Path:
    """A plain JSON trace of about that size: the events of `source` again and again."""
    text = gzip.decompress(source.read_bytes())
    start = text.index(b"[", text.index(b'"traceEvents"')) + 1
    end = (
        text.rindex(b"}", 0, text.rindex(b"]", 0, text.rindex(b'"traceName"') if b'"traceName"' in text else None)) + 1
    )
    events, copies = text[start:end], math.ceil(megabytes * 1e6 / (end - start))
    file = folder / f"{source.parent.name}-{megabytes}mb.json"
    with file.open("wb") as out:
        out.write(text[:start])
        for copy in range(copies):
            out.write((b"," if copy else b"") + events)
        out.write(text[end:])
    return file


LAUNCH = """{{"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1000, "tid": 1000,
    "ts": {ts:.3f}, "dur": 2.125,
    "args": {{"External id": {id}, "correlation": {id}}}}}"""
KERNEL = """{{"ph": "X", "cat": "kernel", "name": "{name}", "pid": 0, "tid": {stream},
    "ts": {ts:.3f}, "dur": {dur:.3f},
    "args": {{"External id": {id}, "queued": 0, "device": 0, "context": 1, "stream": {stream}, "correlation": {id},
      "registers per thread": 32, "grid": [{grid}, 1, 1], "block": [128, 1, 1], "occupancy %": 12{facts}}}}}"""
COLLECTIVE = """, "Collective name": "allreduce", "In msg nelems": 65536, "dtype": "Float",
      "Process Group Name": "0", "Seq": {seq}"""
STEP = """{{"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#{step}", "pid": 1000, "tid": 1000,
    "ts": {ts:.3f}, "dur": {dur:.3f}, "args": {{}}}}"""
HEAD = """{{"schemaVersion": 1, "deviceProperties": [{{"id": 0, "name": "generated"}}],
  "distributedInfo": {{"backend": "nccl", "rank": {rank}, "world_size": {world_size}}},
  "baseTimeNanoseconds": 1700000000000000000,
"traceEvents": [
"""


def generated_rank(rank: int, world_size: int, steps: int, events_per_step: int) -> str:
    """One rank's trace as Kineto writes it: launches, kernels, and an all-reduce of all ranks every 300 kernels."""
    late = (rank * 37 % world_size) * 20.0 / world_size
    written: list[str] = []
    number, at = 0, 1_000_000.0
    for step in range(steps):
        begin = at
        for place in range(events_per_step):
            number += 1
            facts = {"id": number, "grid": place % 5 + 1, "facts": "", "stream": 7, "dur": 8.0 + place % 7}
            facts["name"] = f"void at::native::vectorized_elementwise_kernel<4, Functor{place % 40}>(int)"
            if place % 300 == 299:
                at += late
                facts |= {"stream": 20, "dur": 60.0 - late, "facts": COLLECTIVE.format(seq=step * 1000 + place)}
                facts["name"] = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
            written.append(LAUNCH.format(ts=at - 3, id=number))
            written.append(KERNEL.format(ts=at, **facts))
            at += facts["dur"] + 1.0
        written.append(STEP.format(step=step, ts=begin - 4, dur=at - begin))
    return HEAD.format(rank=rank, world_size=world_size) + ",\n".join(written) + '\n], "traceName": "generated"}'


def sources(folder: Path) -> dict[str, Path]:
    found = {name: next(iter(sorted((TRACES / name).glob("*.gz"))), None) for name in GROWN}
    real = {name: file for name, file in found.items() if file is not None}
    if real:
        return real
    file = folder / "generated" / "rank0.json.gz"
    file.parent.mkdir()
    file.write_bytes(gzip.compress(generated_rank(0, 8, 10, 3000).encode(), 1))
    return {"generated": file}


def side_by_side(file: Path, rounds: int) -> dict[str, Any]:
    """Both parsers in turns on one file; the best of each, and the ratios."""
    taken: dict[str, list[dict[str, Any]]] = {"ours": [], "hta": []}
    for _ in range(rounds):
        for name, code in (("hta", HTA), ("ours", OURS)):
            taken[name].append(measured(code, file))
    best = {
        name: {key: min(one[key] for one in all_) for key in ("wall_s", "cpu_s", "peak_mib")}
        for name, all_ in taken.items()
    }
    ratios = {key: best["hta"][key] / best["ours"][key] for key in ("wall_s", "cpu_s", "peak_mib")}
    return {"file": file.stem, "json_mb": file.stat().st_size / 1e6, **best, "hta_over_ours": ratios}


def speed(folder: Path, rounds: int) -> dict[str, Any]:
    found = []
    for name, source in sources(folder).items():
        file = grown(source, GROWN.get(name, 36), folder)
        found.append(side_by_side(file, rounds))
        file.unlink()
    mean = math.exp(sum(math.log(one["hta_over_ours"]["wall_s"]) for one in found) / len(found))
    return {"files": found, "geometric_mean_speedup": mean, "meets_bar": mean >= BARS["speed"]}


def memory(folder: Path, rounds: int) -> dict[str, Any]:
    found_sources = sources(folder)
    source = found_sources.get("nccl-args-1of2") or next(iter(found_sources.values()))
    file = grown(source, MEMORY_MB, folder)
    found = side_by_side(file, 1)
    file.unlink()
    return found | {"meets_bar": found["hta_over_ours"]["peak_mib"] >= BARS["memory"]}


def large(folder: Path, rounds: int) -> dict[str, Any]:
    source = folder / "one" / "rank0.json.gz"
    source.parent.mkdir(exist_ok=True)
    source.write_bytes(gzip.compress(generated_rank(0, 8, 20, 3000).encode(), 1))
    file = grown(source, LARGE_MB, folder)
    found = measured(OURS, file)
    size = file.stat().st_size / 1e6
    file.unlink()
    return {"json_mb": size, **found, "meets_bar": found["peak_mib"] <= BARS["large_mib"]}


def job(folder: Path, rounds: int) -> dict[str, Any]:
    traces = folder / "job"
    traces.mkdir()
    size = 0
    for rank in range(JOB_RANKS):
        text = generated_rank(rank, JOB_RANKS, JOB_STEPS, JOB_EVENTS).encode()
        size += len(text)
        (traces / f"rank-{rank:05d}.json.gz").write_bytes(gzip.compress(text, 1))
    found = measured(ANALYZE, traces)
    good = found["wall_s"] <= BARS["job_s"] and found["peak_mib"] <= BARS["job_mib"]
    return {"ranks": JOB_RANKS, "json_mb": size / 1e6, **found, "meets_bar": good}


PARTS = {"speed": speed, "memory": memory, "large": large, "job": job}


def show(part: str, found: dict[str, Any]) -> None:
    if part in ("speed", "memory"):
        for one in found.get("files", [found]):
            ours, hta, ratio = one["ours"], one["hta"], one["hta_over_ours"]
            print(
                f"{part:6} {one['file']:22} {one['json_mb']:4.0f} MB   "
                f"HTA {hta['wall_s']:5.2f} s {hta['peak_mib']:5.0f} MiB"
                f"   ours {ours['wall_s']:5.2f} s {ours['peak_mib']:4.0f} MiB   {ratio['wall_s']:4.1f}× faster, "
                f"{ratio['cpu_s']:.1f}× less CPU, 1/{ratio['peak_mib']:.1f} of the memory"
            )
        if "geometric_mean_speedup" in found:
            print(f"{part:6} geometric mean: {found['geometric_mean_speedup']:.1f}× faster")
    else:
        print(f"{part:6} {found['json_mb']:.0f} MB of JSON: {found['wall_s']:.1f} s, peak {found['peak_mib']:.0f} MiB")
    print(f"{part:6} {'meets' if found['meets_bar'] else 'MISSES'} its bar", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", action="append", choices=PARTS, help="measure only this; may be repeated")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each parser (default 3)")
    parser.add_argument("--check", action="store_true", help="exit 1 if a bar is missed")
    parser.add_argument("--json", action="store_true", help="print JSON, and nothing else")
    options = parser.parse_args()
    cpu = next((line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
                if line.startswith("model name")), platform.processor())  # fmt: skip
    about = {"cpu": cpu, "cores": psutil.cpu_count(), "python": platform.python_version(),
             "date": f"{datetime.date.today():%Y-%m-%d}", "command": " ".join(sys.argv)}  # fmt: skip
    if not options.json:
        print(
            f"{about['cpu']}, {about['cores']} cores, Python {about['python']}, {about['date']}: {about['command']}\n"
        )
    results: dict[str, Any] = {}
    for part in options.part or PARTS:
        with tempfile.TemporaryDirectory(prefix="freescale-ingest-") as folder:
            results[part] = PARTS[part](Path(folder), options.rounds)
        if not options.json:
            show(part, results[part])
    if options.json:
        print(json.dumps({"machine": about, "bars": BARS, **results}, indent=1))
    if options.check and not all(found["meets_bar"] for found in results.values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
