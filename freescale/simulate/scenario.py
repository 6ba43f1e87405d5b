"""Scenarios: a question, the inputs it is simulated with, what is swept, and what others reported for it."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from freescale.errors import FreeScaleError

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover
    import tomli as tomllib

Value = Any
Point = dict[str, Value]
_KEYS = {
    "title": str, "question": str, "preset": str, "cluster": str, "ranks": int, "arms": list, "policy": str,
    "blocks": int, "steps": int, "warmup": int, "workload": dict, "constants": dict, "sweep": dict, "reported": list,
    "assumed": dict,
}  # fmt: skip
_REQUIRED = ("title", "question", "preset", "cluster", "ranks", "arms")


@dataclass(frozen=True)
class Reported:
    """A figure that others reported: `measure` of `arm` at a point of the sweep; `source` says who."""

    measure: str
    arm: str
    value: float
    at: Mapping[str, Value]
    source: str


@dataclass(frozen=True)
class Scenario:
    """See the module.

    Attributes:
        settings: preset, cluster, ranks, arms, policy, blocks, steps, warmup, as far as given.
        workload, constants: changes to the preset and to the cluster.
        sweep: key -> values; a key is `ranks`, `policy`, `cluster`, `workload.FIELD` or `cluster.CONSTANT`.
        assumed: input -> why it was chosen, for what is not known.
    """

    name: str
    title: str
    question: str
    settings: Mapping[str, Value]
    workload: Mapping[str, Value]
    constants: Mapping[str, float]
    sweep: Mapping[str, Sequence[Value]]
    reported: tuple[Reported, ...]
    assumed: Mapping[str, str]


def names() -> list[str]:
    """Packaged scenarios."""
    folder = files("freescale.simulate").joinpath("scenarios")
    return sorted(Path(entry.name).stem for entry in folder.iterdir() if entry.name.endswith(".toml"))


def load(name_or_file: str) -> Scenario:
    """A packaged scenario by name, or one in a file.

    Raises:
        FreeScaleError: there is none, or it is not valid; names the file and the field.
    """
    file = Path(name_or_file)
    if name_or_file in names():
        text = files("freescale.simulate").joinpath(f"scenarios/{name_or_file}.toml").read_text(encoding="utf-8")
    elif file.suffix == ".toml" and file.is_file():
        text = file.read_text(encoding="utf-8")
    else:
        raise FreeScaleError(f"scenario: {name_or_file!r} is neither a .toml file nor one of {', '.join(names())}")
    return parse(text, name_or_file)


def parse(text: str, file: str) -> Scenario:
    """A scenario from TOML text; `file` names it in messages."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise FreeScaleError(f"{file}: not valid TOML ({error})") from None
    for key, value in table.items():
        if key not in _KEYS:
            raise FreeScaleError(f"{file}: {key}: no such key; there are {', '.join(_KEYS)}")
        if not isinstance(value, _KEYS[key]):
            raise FreeScaleError(f"{file}: {key}: {value!r}, expected {_KEYS[key].__name__}")
    for key in _REQUIRED:
        if key not in table:
            raise FreeScaleError(f"{file}: {key}: missing")
    for key, values in table.get("sweep", {}).items():
        if not isinstance(values, list) or not values:
            raise FreeScaleError(f"{file}: sweep.{key}: {values!r}, expected a list of values")
    settings = ("preset", "cluster", "ranks", "arms", "policy", "blocks", "steps", "warmup")
    return Scenario(
        Path(file).stem,
        table["title"],
        table["question"],
        {key: table[key] for key in settings if key in table},
        table.get("workload", {}),
        table.get("constants", {}),
        table.get("sweep", {}),
        tuple(_reported(file, entry) for entry in table.get("reported", [])),
        table.get("assumed", {}),
    )


def points(sweep: Mapping[str, Sequence[Value]]) -> list[Point]:
    """Every combination of the swept values; one empty point without any."""
    return [dict(zip(sweep, values, strict=True)) for values in itertools.product(*sweep.values())]


def parse_sweep(texts: Sequence[str]) -> Mapping[str, Sequence[Value]]:
    """`key=a,b,c` from the command line; values that look like numbers are numbers.

    Raises:
        FreeScaleError: not of that form.
    """
    sweep = {}
    for text in texts:
        key, _, values = text.partition("=")
        if not key or not values:
            raise FreeScaleError(f"sweep: {text!r}, expected KEY=A,B,C, for example ranks=64,128,256")
        sweep[key] = [_value(value) for value in values.split(",")]
    return sweep


def _value(text: str) -> Value:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return None if text == "none" else text


def _reported(file: str, entry: Any) -> Reported:
    try:
        return Reported(entry["measure"], entry["arm"], float(entry["value"]), entry.get("at", {}), entry["source"])
    except (KeyError, TypeError, ValueError) as error:
        raise FreeScaleError(f"{file}: reported: {entry!r} lacks measure, arm, value or source ({error})") from None
