"""The run directory: the contract between running and looking.

It lives in `analyzer` because the arrows do: the harness writes it, the analyzer adds to it, the dashboard reads it,
and `analyzer` is the one package all three may import. Every file is written to a temporary name and renamed, so a
reader sees a whole file or none.

    manifest.json      what was run, on what, by which command; `complete` turns true last
    steps.parquet      a row per block × arm × step × rank
    samples.parquet    what the machine did meanwhile: a row per turn × rank
    traces/<arm>/rank-00000.json.gz
    bubbles.parquet · collectives.parquet · report.json      written by the analyzer
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from analyzer.errors import AnalyzerError

SCHEMA = 1
MANIFEST, STEPS, SAMPLES, REPORT = "manifest.json", "steps.parquet", "samples.parquet", "report.json"
BUBBLES, COLLECTIVES, TRACES = "bubbles.parquet", "collectives.parquet", "traces"
PROVENANCES = ("measured", "emulated", "simulated")


@dataclass(frozen=True)
class RunDirectory:
    """One run directory, opened for reading. `manifest` is the parsed manifest.json."""

    path: Path
    manifest: dict[str, Any]

    @property
    def complete(self) -> bool:
        return bool(self.manifest.get("complete"))

    @property
    def arms(self) -> list[str]:
        return list(self.manifest.get("arms", []))

    def steps(self) -> pd.DataFrame:
        """steps.parquet; an empty frame when the run died before its first step."""
        return self._parquet(STEPS)

    def samples(self) -> pd.DataFrame:
        """samples.parquet; an empty frame when the run has none."""
        return self._parquet(SAMPLES)

    def bubbles(self) -> pd.DataFrame:
        return self._parquet(BUBBLES)

    def collectives(self) -> pd.DataFrame:
        return self._parquet(COLLECTIVES)

    def report(self) -> dict[str, Any] | None:
        """report.json, or None when the run has not been analysed."""
        file = self.path / REPORT
        return read_json(file) if file.exists() else None

    def traces(self, arm: str) -> list[Path]:
        """Trace files of one arm, in rank order."""
        return sorted((self.path / TRACES / arm).glob("rank-*.json.gz"))

    def _parquet(self, name: str) -> pd.DataFrame:
        file = self.path / name
        if not file.exists():
            return pd.DataFrame()
        try:
            # In one go: a run that goes on replaces the file, and pandas would open it more than once.
            return pd.read_parquet(io.BytesIO(file.read_bytes()))
        except (OSError, ValueError) as error:
            raise AnalyzerError(f"{file}: not a readable Parquet file ({error}); run the command again") from error


def is_run_directory(path: Path) -> bool:
    return (path / MANIFEST).is_file()


def open_run(path: Path | str) -> RunDirectory:
    """Open a run directory, complete or not.

    Raises:
        AnalyzerError: no manifest.json there, damaged, or written by a newer version.
    """
    path = Path(path)
    if not is_run_directory(path):
        raise AnalyzerError(f"{path}: not a run directory (no {MANIFEST}); give a folder made by `freescale-bench run`")
    manifest = read_json(path / MANIFEST)
    schema = manifest.get("schema")
    if not isinstance(schema, int) or schema > SCHEMA:
        raise AnalyzerError(f"{path / MANIFEST}: schema {schema!r} is newer than {SCHEMA}; upgrade freescale-bench")
    return RunDirectory(path, manifest)


def list_runs(root: Path | str) -> Iterator[RunDirectory]:
    """Run directories directly under `root`, newest name first; unreadable ones are skipped by name only.

    A folder whose manifest is damaged is still yielded, with a manifest that says so, because a person looking for a
    lost run must find it.
    """
    root = Path(root)
    if not root.is_dir():
        return
    for path in sorted(root.iterdir(), reverse=True):
        if path.is_dir() and is_run_directory(path):
            try:
                yield open_run(path)
            except AnalyzerError as error:
                yield RunDirectory(path, {"schema": SCHEMA, "complete": False, "failure": {"reason": str(error)}})


def make_run(root: Path, name: str) -> Path:
    """Create an empty folder `name` under `root`; a number is appended when the name is taken."""
    root.mkdir(parents=True, exist_ok=True)
    for number in range(1, 1000):
        path = root / (name if number == 1 else f"{name}-{number}")
        with contextlib.suppress(FileExistsError):
            path.mkdir()
            return path
    raise AnalyzerError(f"{root / name}: 999 runs of this name exist; give another --out")


def update_manifest(run: Path, **fields: Any) -> None:
    """Set fields of a run's manifest."""
    write_json(run / MANIFEST, read_json(run / MANIFEST) | fields)


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object from a file; AnalyzerError names the file and the place when it is none."""
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise AnalyzerError(f"{file}: not readable JSON ({error})") from error
    if not isinstance(value, dict):
        raise AnalyzerError(f"{file}: expected a JSON object, found {type(value).__name__}")
    return value


def write_json(file: Path, value: dict[str, Any]) -> None:
    """Atomically write `value` as JSON. NaN and infinity are refused: they are not JSON."""
    text = json.dumps(value, indent=1, allow_nan=False) + "\n"
    _atomically(file, lambda temporary: Path(temporary).write_text(text, encoding="utf-8"))


def write_parquet(file: Path, frame: pd.DataFrame) -> None:
    """Atomically write a frame as Parquet (zstd, no index)."""
    _atomically(file, lambda temporary: frame.to_parquet(temporary, index=False, compression="zstd"))


def write_bytes(file: Path, content: bytes) -> None:
    """Atomically write a file."""
    _atomically(file, lambda temporary: Path(temporary).write_bytes(content))


def _atomically(file: Path, write: Callable[[str], Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(prefix=f".{file.name}.", dir=file.parent)
    os.close(descriptor)
    try:
        write(temporary)
        os.chmod(temporary, 0o644)  # mkstemp makes it private; a run directory is for sharing
        os.replace(temporary, file)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
