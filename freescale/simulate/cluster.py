"""A cluster: the constants that a simulation rests on, read from a TOML file in which each says where it comes from."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

from freescale.errors import FreeScaleError

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover
    import tomli as tomllib

RANGES: dict[str, tuple[float, float]] = {
    "ranks_per_node": (1, 1_000_000),
    "tflop_per_s": (1e-4, 1e5),
    "flop_efficiency": (0.001, 1),
    "attention_efficiency": (0.001, 1),
    "memory_gb_per_s": (0.1, 1e5),
    "memory_efficiency": (0.01, 1),
    "launch_us": (0, 1e3),
    "nvlink_gb_per_s": (0.01, 1e5),
    "nic_gb_per_s": (0.001, 1e4),
    "pcie_gb_per_s": (0.01, 1e4),
    "nccl_efficiency": (0.01, 1),
    "nccl_latency_us": (0, 1e5),
    "nccl_hop_us": (0, 1e4),
    "nccl_peer_us": (0, 1e3),
    "nccl_sm_share": (0, 0.95),
    "nccl_memory_share": (0, 0.95),
    "staged_efficiency": (0.01, 1),
    "staged_latency_us": (0, 1e5),
    "staged_peer_us": (0, 1e3),
    "staged_chunk_kib": (1, 1e6),
    "staged_memory_share": (0, 0.95),
    "update_launches_per_rank": (0, 10),
    "assign_ns_per_sample": (0, 1e6),
    "assign_ns_per_rank_pair": (0, 1e6),
    "jitter": (0, 2),
}
"""Constants of a GPU cluster, and what they may be; see docs/simulation.md for what each means."""

CPU_RANGES: dict[str, tuple[float, float]] = {
    "ranks_per_node": (1, 1_000_000),
    "gloo_latency_us": (0, 1e6),
    "profiled_gloo_latency_us": (0, 1e6),
    "profiled_gloo_ns_per_byte": (0, 1e4),
    "gloo_beside_latency_us": (0, 1e6),
    "gloo_reduce_latency_us": (0, 1e6),
    "gloo_ns_per_byte": (0, 1e4),
    "gloo_reduce_ns_per_byte": (0, 1e4),
    "gloo_core_share": (0, 0.95),
    "shared_latency_us": (0, 1e6),
    "shared_ns_per_byte": (0, 1e4),
    "shared_fetch_ns_per_byte": (0, 1e4),
    "shared_issue_us": (0, 1e5),
    "profiled_shared_latency_us": (0, 1e6),
    "profiled_shared_ns_per_byte": (0, 1e4),
    "profiled_shared_issue_us": (0, 1e5),
    "issue_us": (0, 1e5),
    "issue_beside_us": (0, 1e5),
    "profiled_issue_us": (0, 1e5),
    "profiled_issue_beside_us": (0, 1e5),
    "pause_us": (0, 1e5),
    "jitter": (0, 2),
    "profiled_jitter": (0, 2),
}
"""Constants of a machine whose ranks compute on the CPU, as `freescale-bench calibrate` measures them."""

PACKAGED = ("h100-ib", "h200-nvl", "a100-ib")
THIS_MACHINE = "this-machine"


@dataclass(frozen=True)
class Cluster:
    """Constants by name, their sources, and for a CPU what each piece of a step costs.

    Attributes:
        device: `cuda` (constants of `RANGES`) or `cpu` (those of `CPU_RANGES`).
        values: constant -> number, in the unit that its name ends in.
        sources: constant -> where it comes from; `assumed` where nothing better was to be had.
        pieces: piece of a step -> unit of work -> ns per unit; measured, CPU only.
        profiled: the same under the profiler, in whose pass a run's classes of time are measured.
        pauses: piece -> share of its time under the profiler in which the thread is between ops.
        fidelity: how far simulations with it were off from a run: arm -> measure -> median error in percent.
    """

    name: str
    device: str
    description: str
    values: Mapping[str, float]
    sources: Mapping[str, str]
    pieces: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    profiled: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    pauses: Mapping[str, float] = field(default_factory=dict)
    fidelity: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def __getitem__(self, constant: str) -> float:
        return self.values[constant]

    def with_values(self, changes: Mapping[str, float]) -> Cluster:
        """The same with other constants; their source becomes "swept".

        Raises:
            FreeScaleError: no such constant, or out of range.
        """
        for name, value in changes.items():
            _check(f"cluster.{name}", name, value, _ranges(self.device, self.name))
        swept = dict.fromkeys(changes, "swept")
        return replace(self, values={**self.values, **changes}, sources={**self.sources, **swept})

    @property
    def under_the_profiler(self) -> Cluster:
        """The same with what pieces and exchanges cost while the profiler records; itself if that was not measured."""
        if not self.profiled:
            return self
        values = {name: self.values.get(f"profiled_{name}", value) for name, value in self.values.items()}
        return replace(self, pieces=self.profiled, values=values)

    @property
    def accuracy(self) -> str:
        """In one sentence, how far its simulations were off from runs."""
        if not self.fidelity:
            return f"{self.name}: no simulation with it has been compared with a run, so its error is not known"
        worst = {
            measure: max(errors.get(measure, 0.0) for errors in self.fidelity.values())
            for measure in dict.fromkeys(measure for errors in self.fidelity.values() for measure in errors)
        }
        said = ", ".join(f"{measure.replace('_', ' ')} {error:.0f} %" for measure, error in worst.items())
        return f"{self.name}: median error against a run, worst of {len(self.fidelity)} arms: {said}"

    @property
    def assumed(self) -> list[str]:
        """Constants that are assumptions."""
        return sorted(name for name, source in self.sources.items() if source.startswith("assumed"))


def load(name_or_file: str) -> Cluster:
    """A packaged cluster by name, or one in a file.

    Raises:
        FreeScaleError: there is none, or it is not valid; names the file, the field and the allowed range.
    """
    file = Path(name_or_file)
    if name_or_file in PACKAGED:
        text = files("freescale.simulate").joinpath(f"clusters/{name_or_file}.toml").read_text(encoding="utf-8")
    elif file.suffix == ".toml" and file.is_file():
        text = file.read_text(encoding="utf-8")
    elif name_or_file == THIS_MACHINE and not Path(f"{THIS_MACHINE}.toml").is_file():
        raise FreeScaleError("cluster: this-machine has not been measured here; run `freescale-bench calibrate` first")
    elif name_or_file == THIS_MACHINE:
        text = Path(f"{THIS_MACHINE}.toml").read_text(encoding="utf-8")
    else:
        known = ", ".join((*PACKAGED, THIS_MACHINE))
        raise FreeScaleError(f"cluster: {name_or_file!r} is neither a .toml file nor one of {known}")
    return parse(text, name_or_file)


def parse(text: str, file: str) -> Cluster:
    """A cluster from TOML text; `file` names it in messages."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise FreeScaleError(f"{file}: not valid TOML ({error})") from None
    for key in ("name", "device", "description"):
        if not isinstance(table.get(key), str):
            raise FreeScaleError(f"{file}: {key}: missing, expected a text")
    ranges = _ranges(table["device"], file)
    constants = table.get("constants", {})
    if not isinstance(constants, dict):
        raise FreeScaleError(f"{file}: constants: expected a table")
    for name in ranges:
        if name not in constants:
            raise FreeScaleError(f"{file}: constants.{name}: missing; give {{ value = …, source = … }}")
    values, sources = {}, {}
    for name, entry in constants.items():
        values[name], sources[name] = _constant(file, name, entry, ranges)
    if table["device"] == "cpu" and not table.get("pieces"):
        raise FreeScaleError(f"{file}: pieces: missing; `freescale-bench calibrate` measures them")
    pieces, profiled, fidelity = (
        _numbers(file, name, table.get(name, {})) for name in ("pieces", "profiled", "fidelity")
    )
    pauses = _numbers(file, "pauses", {"of": table.get("pauses", {})})["of"]
    above = [piece for piece, share in pauses.items() if share > 1]
    if above:
        raise FreeScaleError(f"{file}: pauses.{above[0]}: {pauses[above[0]]:g}, expected a share from 0 to 1")
    head = table["name"], table["device"], table["description"]
    return Cluster(*head, values, sources, pieces, profiled, pauses, fidelity)


def _ranges(device: str, file: str) -> dict[str, tuple[float, float]]:
    if device not in ("cuda", "cpu"):
        raise FreeScaleError(f"{file}: device: {device!r}, expected cuda or cpu")
    return RANGES if device == "cuda" else CPU_RANGES


def _constant(file: str, name: str, entry: Any, ranges: dict[str, tuple[float, float]]) -> tuple[float, str]:
    if not isinstance(entry, dict) or "value" not in entry:
        raise FreeScaleError(f"{file}: constants.{name}: expected {{ value = …, source = … }}")
    if not isinstance(entry.get("source"), str) or not entry["source"].strip():
        raise FreeScaleError(f'{file}: constants.{name}: no source; say where it comes from, or "assumed: …"')
    _check(f"{file}: constants.{name}", name, entry["value"], ranges)
    return float(entry["value"]), entry["source"]


def _check(where: str, name: str, value: Any, ranges: dict[str, tuple[float, float]]) -> None:
    if name not in ranges:
        raise FreeScaleError(f"{where}: no such constant; there are {', '.join(ranges)}")
    low, high = ranges[name]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not low <= value <= high:
        raise FreeScaleError(f"{where}: {value!r}, expected a number from {low:g} to {high:g}")


def _numbers(file: str, name: str, table: Any) -> dict[str, dict[str, float]]:
    """A table of tables of numbers that are not negative."""
    if not isinstance(table, dict) or not all(isinstance(entries, dict) for entries in table.values()):
        raise FreeScaleError(f"{file}: {name}: expected tables, [{name}.NAME]")
    for key, entries in table.items():
        for unit, value in entries.items():
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0:
                raise FreeScaleError(f"{file}: {name}.{key}.{unit}: {value!r}, expected a number from 0 on")
    return {key: {unit: float(value) for unit, value in entries.items()} for key, entries in table.items()}
