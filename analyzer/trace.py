"""A trace file in, a Timeline out: what the file says about itself decides how its events are read."""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from analyzer import cpu, device, lanes
from analyzer.errors import AnalyzerError
from analyzer.files import Chunks, TraceSource, find_traces
from analyzer.kineto import Events, read_events
from analyzer.timeline import Group, StepFacts, Timeline, TraceInfo

_RANK_IN_NAME = re.compile(r"(?:rank|worker)[-_.]?(\d+)", re.IGNORECASE)
_MEANINGLESS_DESCRIPTIONS = ("", "undefined")
_MEANINGLESS_HOSTS = ("", "localhost")


def read_trace(path: Path | str | TraceSource) -> Timeline:
    """Read one rank's Kineto trace (`.json`, `.json.gz`, or the only trace in a `.zip`).

    Raises:
        AnalyzerError: the file is missing, damaged or not a Kineto trace; the message names the file and the cure.
    """
    if isinstance(path, TraceSource):
        source = path
    else:
        sources = find_traces(path)
        if len(sources) != 1:
            raise AnalyzerError(f"{path}: {len(sources)} traces there; give one of them, or analyse them together")
        source = sources[0]
    events = read_events(Chunks(source), source.name)
    if not events.of(lanes.DEVICE_CATEGORIES).any() and not events.of(lanes.OP_CATEGORIES).any():
        events = read_events(Chunks(source), source.name, with_ops=True)  # a job with devices, but none in its trace
    return timeline_of(events, source.name)


def timeline_of(events: Events, path: str) -> Timeline:
    """Timeline of decoded events; `path` names the file in messages and may contain the rank."""
    info, groups = _describe(events, path)
    if events.of(lanes.DEVICE_CATEGORIES).any():
        events, warnings = _one_device(events, path)
        timeline = device.build_timeline(events, info, groups)
    else:
        timeline, notes = cpu.build_timeline(events, info, {group.name: group for group in groups.values()})
        warnings = [f"{path}: {note}" for note in notes]
        if info.backend == "nccl" or events.of(lanes.LAUNCH_CATEGORIES).any():
            warnings.append(
                f"{path}: no GPU events, though {_why_gpu(info)}; what counts as compute here is launching it"
            )
    if len(timeline) and not _has_steps(events):
        warnings.append(f"{path}: no ProfilerStep in it; the whole trace is taken as one step")
    info = dataclasses.replace(timeline.info, warnings=(*events.warnings, *warnings))
    return dataclasses.replace(timeline, info=info)


def _describe(events: Events, path: str) -> tuple[TraceInfo, dict[str, Group]]:
    metadata = events.metadata
    distributed = _object(metadata.get("distributedInfo"))
    properties = metadata.get("deviceProperties")
    first = _object(properties[0]) if isinstance(properties, list) and properties else {}
    device_name = first.get("name") if isinstance(first.get("name"), str) else None
    host = next((metadata[key] for key in ("host_name", "hostname") if isinstance(metadata.get(key), str)), None)
    host = None if host in _MEANINGLESS_HOSTS else host
    info = TraceInfo(
        path=path,
        rank=_rank(distributed.get("rank"), path),
        world_size=_count(distributed.get("world_size")),
        host=host,
        device=_device_kind(events, device_name),
        device_name=device_name,
        backend=distributed.get("backend") if isinstance(distributed.get("backend"), str) else None,
        step_facts=_step_facts(_object(metadata.get("freescale")).get("steps")),
    )
    return info, _groups(distributed.get("pg_config"))


def _step_facts(entries: object) -> dict[int, StepFacts]:
    """Facts by profiler step, from the `freescale` entry that our own harness writes."""
    facts = {}
    for entry in entries if isinstance(entries, list) else []:
        step = _count(_object(entry).get("step"))
        if step is not None:
            facts[step] = StepFacts(*(_count(entry.get(name)) for name in ("block", "tokens", "samples")))
    return facts


def _rank(recorded: object, path: str) -> int | None:
    rank = _count(recorded)
    if rank is None and (match := _RANK_IN_NAME.search(Path(path).name)):
        rank = int(match[1])
    return rank


def _count(value: object) -> int | None:
    try:
        number = int(value) if isinstance(value, (int, str)) and not isinstance(value, bool) else -1
    except ValueError:
        return None
    return number if 0 <= number < 1 << 62 else None


def _device_kind(events: Events, device_name: str | None) -> str:
    if not events.of(lanes.DEVICE_CATEGORIES).any():
        return "cpu"
    if any(category.startswith("mtia") for category in events.categories):
        return "mtia"
    is_hip = any(name.startswith("hip") for name in events.names) or (device_name or "").startswith("AMD")
    return "rocm" if is_hip else "cuda"


def _why_gpu(info: TraceInfo) -> str:
    return "the backend is nccl" if info.backend == "nccl" else "the CPU calls a GPU runtime"


def _groups(config: object) -> dict[str, Group]:
    """Process groups by the name the events use; the readable name is the description where it tells groups apart."""
    entries = [_object(entry) for entry in config] if isinstance(config, list) else []
    entries = [entry for entry in entries if isinstance(entry.get("pg_name"), str)]
    descriptions = Counter(entry.get("pg_desc") for entry in entries if isinstance(entry.get("pg_desc"), str))
    groups = {}
    for entry in entries:
        name, description = entry["pg_name"], entry.get("pg_desc")
        readable = name
        if isinstance(description, str) and description not in _MEANINGLESS_DESCRIPTIONS:
            readable = description if descriptions[description] == 1 else f"{description} {name}"
        groups[name] = Group(readable, _ranks(entry.get("ranks")))
    return groups


def _ranks(value: object) -> tuple[int, ...]:
    ranks = [_count(rank) for rank in value] if isinstance(value, list) else []
    return tuple(sorted(rank for rank in ranks if rank is not None))


def _one_device(events: Events, path: str) -> tuple[Events, list[str]]:
    """Events without those of other devices than the busiest: a rank is one device."""
    on_device = events.of(lanes.DEVICE_CATEGORIES)
    present, counts = np.unique(events.device[on_device], return_counts=True)
    if len(present) <= 1:
        return events, []
    chosen = present[counts.argmax()]
    keep = ~on_device | (events.device == chosen)
    columns = {
        f.name: column[keep]
        for f in dataclasses.fields(events)
        if isinstance(column := getattr(events, f.name), np.ndarray)
    }
    left_out = int((~keep).sum())
    warning = f"{path}: {left_out} intervals of other devices than device {chosen} left out; a rank is one device"
    return dataclasses.replace(events, **columns), [warning]


def _has_steps(events: Events) -> bool:
    return any(lanes.step_number(name) is not None for name in events.names)


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
