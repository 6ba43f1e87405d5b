"""Finding trace files and reading their bytes, compressed or not, a chunk at a time.

Sizes are bounded: what unpacks to far more than any trace is refused before it fills memory or time.
"""

from __future__ import annotations

import glob
import io
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from isal import isal_zlib

from analyzer.errors import AnalyzerError

CHUNK_BYTES = 1 << 18  # with what is decoded from it, it fits the cache of a core
_PACKED_BYTES = 1 << 17
_GZIP = 31  # zlib's code for a gzip stream
MAX_JSON_BYTES = 8 << 30
MAX_RATIO = 100  # JSON of a trace packs to a tenth or a twentieth
_RATIO_MATTERS_FROM = 256 << 20
_MAX_ZIP_MEMBERS = 10_000
_SUFFIXES = (".json", ".json.gz", ".zip")
_OWN_FILES = ("manifest.json", "report.json")
_IsalError: type[Exception] = isal_zlib.error  # type: ignore[assignment]  # its stub calls the class a value
_DAMAGED = (EOFError, zipfile.BadZipFile, zlib.error, _IsalError)


@dataclass(frozen=True)
class TraceSource:
    """One trace: a file, or a member of a zip archive."""

    path: Path
    member: str | None = None

    @property
    def name(self) -> str:
        """How messages call it."""
        return str(self.path) if self.member is None else f"{self.path}/{self.member}"

    @property
    def bytes_on_disk(self) -> int:
        try:
            return self.path.stat().st_size
        except OSError:
            return 0


def find_traces(path: Path | str) -> list[TraceSource]:
    """The traces that a file, a folder, a zip archive or a glob pattern stands for, in name order.

    Raises:
        AnalyzerError: no such path, or no trace there.
    """
    path = Path(path)
    if path.is_dir():
        files = [file for file in sorted(path.iterdir()) if file.is_file() and _looks_like_trace(file.name)]
    elif path.is_file():
        files = [path]
    elif glob.has_magic(str(path)):
        files = [Path(file) for file in sorted(glob.glob(str(path))) if Path(file).is_file()]
    else:
        raise AnalyzerError(f"{path}: no such file or folder")
    found = [source for file in files for source in _sources(file)]
    if not found:
        raise AnalyzerError(f"{path}: no trace there; expected files that end in {', '.join(_SUFFIXES)}")
    return found


def _looks_like_trace(name: str) -> bool:
    return name.endswith(_SUFFIXES) and not name.startswith(".") and name not in _OWN_FILES


def _sources(file: Path) -> list[TraceSource]:
    if not zipfile.is_zipfile(file):
        return [TraceSource(file)]
    with _opened_zip(file) as archive:
        names = [entry.filename for entry in archive.infolist() if not entry.is_dir()]
    if len(names) > _MAX_ZIP_MEMBERS:
        raise AnalyzerError(f"{file}: {len(names)} files in one archive, more than {_MAX_ZIP_MEMBERS}; unpack it")
    return [TraceSource(file, name) for name in sorted(names) if _looks_like_trace(Path(name).name)]


def _opened_zip(file: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(file)
    except (*_DAMAGED, OSError) as error:
        raise AnalyzerError(f"{file}: not a readable zip archive ({error}); copy it again") from error


class Chunks:
    """The bytes of a trace's JSON, decompressed, in chunks of at most CHUNK_BYTES. Iterate once.

    If decompression breaks, iteration ends there and `damage` says why: what came before may still be whole.

    Raises:
        AnalyzerError: while iterating: the file cannot be read, or unpacks to more than a trace can hold.
    """

    def __init__(self, source: TraceSource) -> None:
        self.source = source
        self.damage: str | None = None
        self._unpacked = 0

    def __iter__(self) -> Iterator[bytes]:
        name = self.source.name
        try:
            if self.source.member is None:
                with self.source.path.open("rb") as file:
                    yield from self._chunks(file, self.source.bytes_on_disk)
            else:
                with _opened_zip(self.source.path) as archive, archive.open(self.source.member) as file:
                    assert isinstance(file, zipfile.ZipExtFile)
                    yield from self._chunks(file, self.source.bytes_on_disk)
        except _DAMAGED as error:
            self.damage = str(error) or type(error).__name__
        except (OSError, RuntimeError, NotImplementedError) as error:  # the last two: encrypted or exotic zip members
            raise AnalyzerError(f"{name}: cannot be read ({getattr(error, 'strerror', None) or error})") from error

    def _chunks(self, file: io.BufferedReader | zipfile.ZipExtFile, packed_bytes: int) -> Iterator[bytes]:
        packed = file.peek(2)[:2] == b"\x1f\x8b"
        for chunk in _unpacked(file) if packed else iter(partial(file.read, CHUNK_BYTES), b""):
            self._unpacked += len(chunk)
            self._refuse_bombs(packed_bytes)
            yield chunk

    def _refuse_bombs(self, packed_bytes: int) -> None:
        name, unpacked = self.source.name, self._unpacked
        if unpacked > MAX_JSON_BYTES:
            raise AnalyzerError(f"{name}: more than {MAX_JSON_BYTES >> 30} GiB of JSON; record fewer steps in a trace")
        if unpacked > _RATIO_MATTERS_FROM and unpacked > MAX_RATIO * packed_bytes:
            raise AnalyzerError(
                f"{name}: unpacks to more than {MAX_RATIO} times its size, which no trace does; refused as harmful"
            )


def _unpacked(file: io.BufferedReader | zipfile.ZipExtFile) -> Iterator[bytes]:
    """Contents of a gzip file, as far as they go: everything before a damaged place is handed out before the error."""
    unpacker = isal_zlib.decompressobj(wbits=_GZIP)
    waiting = b""
    while waiting := waiting or file.read(_PACKED_BYTES):
        if unpacker.eof:  # streams may follow one another
            unpacker = isal_zlib.decompressobj(wbits=_GZIP)
        chunk = unpacker.decompress(waiting, CHUNK_BYTES)
        waiting = unpacker.unused_data if unpacker.eof else unpacker.unconsumed_tail
        if chunk:
            yield chunk
    if not unpacker.eof:
        raise EOFError("the compressed data end early")
