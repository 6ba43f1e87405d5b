"""Finding trace files and reading their bytes, compressed or not, a chunk at a time."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from isal import igzip, isal_zlib

from analyzer.errors import AnalyzerError

CHUNK_BYTES = 8 << 20
_DAMAGED: tuple[type[Exception], ...] = (EOFError, igzip.BadGzipFile, zlib.error, isal_zlib.error)
_SUFFIXES = (".json", ".json.gz")


def find_traces(path: Path | str) -> list[Path]:
    """The trace files of a folder, or the file itself, in name order.

    Raises:
        AnalyzerError: no such path, or a folder without traces.
    """
    path = Path(path)
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise AnalyzerError(f"{path}: no such file or folder")
    found = sorted(file for file in path.iterdir() if file.is_file() and file.name.endswith(_SUFFIXES))
    if not found:
        raise AnalyzerError(f"{path}: no trace in it; expected files that end in {' or '.join(_SUFFIXES)}")
    return found


def read_chunks(path: Path) -> Iterator[bytes]:
    """The file's bytes, decompressed, in chunks of at most CHUNK_BYTES.

    Raises:
        AnalyzerError: the file cannot be read or its compression is damaged.
    """
    try:
        with path.open("rb") as file:
            stream: BinaryIO = igzip.GzipFile(fileobj=file) if _is_gzip(file) else file  # type: ignore[assignment]
            while chunk := stream.read(CHUNK_BYTES):
                yield chunk
    except _DAMAGED as error:
        raise AnalyzerError(f"{path}: the compressed file is damaged or cut short ({error}); copy it again") from error
    except OSError as error:
        raise AnalyzerError(f"{path}: cannot be read ({error.strerror or error})") from error


def _is_gzip(file: BinaryIO) -> bool:
    magic = file.read(2)
    file.seek(0)
    return magic == b"\x1f\x8b"
