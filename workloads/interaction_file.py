"""Reading the columns of an interaction log that are needed, as they are, from text or Parquet.

Fields stay text (text files) or what they are (Parquet); what they mean is `workloads.interaction_log`'s business.
Text is parsed by pyarrow in one pass over the bytes, so that ten million rows take seconds.
"""

from __future__ import annotations

import codecs
import csv
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from freescale.errors import FreeScaleError
from workloads.interaction_columns import has_header, numbered, resolve

NO_VALUE = ("", "NaN", "nan", "NA", "N/A", "null", "NULL", "None", "\\N")

_PIECE = 1 << 24
_SEPARATORS = ("::", "\t", ",", ";", "|")


@dataclass(frozen=True)
class RawColumns:
    """The needed columns of a file.

    Attributes:
        file: its path, for messages.
        values: meaning -> one value per row; text files give strings, with `NO_VALUE` as null.
        names: meaning -> the column's name in the file.
        place: row number from 0 -> where that is, such as "line 17".
    """

    file: str
    values: dict[str, pa.ChunkedArray]
    names: dict[str, str]
    place: Callable[[int], str]


def read_columns(path: str, given: Mapping[str, str]) -> RawColumns:
    """Read a `.parquet` or `.pq` file as Parquet and any other as separated text in UTF-8.

    Separators are recognised from the first line: `::`, tab, comma, semicolon or bar.

    Raises:
        FreeScaleError: the file cannot be read as that; names file, line and what was expected.
    """
    file = Path(path)
    if not file.is_file():
        raise FreeScaleError(f"{path}: {'a folder' if file.is_dir() else 'no such file'}, expected an interaction log")
    if file.stat().st_size == 0:
        raise FreeScaleError(f"{path}: empty, expected an interaction log")
    try:
        if file.suffix.lower() in (".parquet", ".pq"):
            return _read_parquet(path, given)
        return _read_text(path, file.read_bytes(), given)
    except OSError as error:
        raise FreeScaleError(f"{path}: cannot be read: {_one_line(error)}") from None


def _read_parquet(path: str, given: Mapping[str, str]) -> RawColumns:
    try:
        names = pa.parquet.read_schema(path).names
        places = resolve(path, names, given, header=True)
        table = pa.parquet.ParquetFile(path).read(columns=[names[place] for place in sorted(set(places.values()))])
    except (pa.ArrowException, OSError) as error:
        raise FreeScaleError(f"{path}: not a readable Parquet file, perhaps cut off: {_one_line(error)}") from None
    values = {}
    for meaning, place in places.items():
        values[meaning] = table.column(names[place])
        if pa.types.is_dictionary(values[meaning].type):
            values[meaning] = values[meaning].cast(values[meaning].type.value_type)
        if pa.types.is_nested(values[meaning].type):
            raise FreeScaleError(f"{path}: column {names[place]!r} is {values[meaning].type}, expected single values")
    columns = {meaning: names[place] for meaning, place in places.items()}
    return RawColumns(path, values, columns, lambda row: f"row {row + 1}")


def _read_text(path: str, data: bytes, given: Mapping[str, str]) -> RawColumns:
    if data.startswith(b"\x1f\x8b"):
        raise FreeScaleError(f"{path}: compressed, expected text; unpack it first")
    data = data.removeprefix(codecs.BOM_UTF8)
    _check_utf8(path, data)
    first = next((line for line in data[:_PIECE].splitlines() if line.strip()), b"").decode(errors="replace")
    separator = next((candidate for candidate in _SEPARATORS if candidate in first), None)
    if separator is None:
        raise FreeScaleError(f"{path}: line 1: one column, expected user, item and time, separated by tab, comma or ::")
    if separator == "::":
        data, first, separator = data.replace(b"::", b"\t"), first.replace("::", "\t"), "\t"
    fields = next(csv.reader([first], delimiter=separator))
    header = has_header(fields)
    names = fields if header else numbered(len(fields))
    places = resolve(path, names, given, header)

    keys = numbered(len(fields))
    wanted = [keys[place] for place in sorted(set(places.values()))]
    torn: list[pa.csv.InvalidRow] = []
    lines_before = 1 if header else 0

    def remember(row: pa.csv.InvalidRow) -> str:
        torn.append(row)
        return "error"

    try:
        table = pa.csv.read_csv(
            pa.BufferReader(data),
            # One thread: only then does the parser know the number of a bad row.
            read_options=pa.csv.ReadOptions(column_names=keys, use_threads=False),
            parse_options=pa.csv.ParseOptions(delimiter=separator, invalid_row_handler=remember),
            convert_options=pa.csv.ConvertOptions(
                include_columns=wanted,
                column_types=dict.fromkeys(wanted, pa.string()),
                null_values=list(NO_VALUE),
                strings_can_be_null=True,
            ),
        ).slice(lines_before)
    except pa.ArrowException as error:
        if not torn:
            raise FreeScaleError(f"{path}: cannot be parsed: {_one_line(error)}") from None
        line = _line_number(data, torn[0].number - 1)
        raise FreeScaleError(
            f"{path}: line {line}: {torn[0].actual_columns} columns, expected {torn[0].expected_columns}"
        ) from None
    values = {meaning: table.column(keys[place]) for meaning, place in places.items()}
    columns = {meaning: names[place] for meaning, place in places.items()}
    return RawColumns(path, values, columns, lambda row: f"line {_line_number(data, row + lines_before)}")


def _check_utf8(path: str, data: bytes) -> None:
    """In pieces, so that no second copy of a large file is made."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    for start in range(0, len(data), _PIECE):
        kept = len(decoder.getstate()[0])  # bytes of a character that the piece before broke off
        try:
            decoder.decode(data[start : start + _PIECE], final=start + _PIECE >= len(data))
        except UnicodeDecodeError as error:
            line = data.count(b"\n", 0, start - kept + error.start) + 1
            raise FreeScaleError(f"{path}: line {line}: not UTF-8 text; convert it first") from None


def _line_number(data: bytes, record: int) -> int:
    """Line, from 1, of a record, from 0; the parser passes over empty lines."""
    number = 0
    for line in data.splitlines():
        number += 1
        if line:
            if record == 0:
                break
            record -= 1
    return number


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]
