"""Bytes to lines: what a source is called, how it is opened, and what is no text at all."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

from millpond.rules.errors import UsageError
from millpond.rules.identity import found

Source = str | os.PathLike[str] | IO[Any]
"""A file: a path, "-" for standard input, or one that is open."""
Line = tuple[int, bytes]

MAX_LINE_BYTES = 100_000_000
"""Longest line that is read, and largest cell of a CSV file: it bounds what one row may take of memory."""

_START_BYTES = 1 << 16
"""So much of a file is looked at for the zero bytes that text does not have."""

LONE_RETURNS = "found carriage returns alone as line ends, wanted line feeds; tr '\\r' '\\n' < FILE"
"""The refusal of line ends as old Macs and some exports write them: as text, the whole file would be one prompt."""

_BOM = b"\xef\xbb\xbf"
_NOT_TEXT = (
    (b"\x1f\x8b", "a gzip file", "gzip -dc FILE | …"),
    (b"PK\x03\x04", "a zip file (spreadsheets are zip files too)", "unpack it, or save the sheet as CSV"),
    (b"\x28\xb5\x2f\xfd", "a zstd file", "zstd -dc FILE | …"),
    (b"PAR1", "a Parquet file", "say the format parquet"),
    (b"\xff\xfe\0\0", "UTF-32 text", "iconv -f UTF-32 -t UTF-8"),
    (b"\0\0\xfe\xff", "UTF-32 text", "iconv -f UTF-32 -t UTF-8"),
    (b"\xff\xfe", "UTF-16 text", "iconv -f UTF-16 -t UTF-8"),
    (b"\xfe\xff", "UTF-16 text", "iconv -f UTF-16 -t UTF-8"),
)


def title_of(source: object) -> str:
    """What a source is called in refusals."""
    if hasattr(source, "__arrow_c_stream__"):  # before it is compared: a frame compares cell by cell
        return "the data frame"
    if isinstance(source, str) and source == "-":
        return "standard input"
    if isinstance(source, (str, os.PathLike)):
        return os.fspath(cast("str | os.PathLike[str]", source))
    name = getattr(source, "name", None)
    return name if isinstance(name, str) else "the file"


@contextmanager
def opened(source: Source, title: str) -> Generator[IO[Any]]:
    """The file to read: one that was handed in stays open, one that is opened here is closed."""
    if isinstance(source, str) and source == "-":  # a lazy frame refuses to be compared
        yield getattr(sys.stdin, "buffer", sys.stdin)
    elif isinstance(source, (str, os.PathLike)):
        try:
            file = Path(source).open("rb", buffering=_START_BYTES)  # noqa: SIM115
        except (OSError, ValueError) as problem:
            raise UsageError(f"cannot read {title[-200:]!r}: {why(problem)}; wanted a readable file") from problem
        with file:
            yield file
    elif hasattr(source, "readline"):
        yield source
    else:
        hint = "; collect() it first" if hasattr(source, "collect") else ""
        raise UsageError(f'found {found(source)}, wanted a path, "-", an open file or a data frame{hint}')


def lines_of(file: IO[Any], title: str) -> Iterator[Line]:
    """The physical lines with their numbers, from 1, as bytes and without a byte order mark."""
    number = seen = 0
    while True:
        try:
            line: bytes | str = file.readline(MAX_LINE_BYTES + 1)
        except (OSError, ValueError) as problem:
            raise UsageError(f"cannot read {title[-200:]!r} after line {number}: {why(problem)}") from problem
        if not line:
            return
        number += 1
        if isinstance(line, str):
            line = line.encode(errors="surrogatepass")
        if number == 1:
            _refuse_other_than_text(line, title)
            _refuse_binary(_buffered(file), title)  # where it can be seen, before any row is given out
            line = line.removeprefix(_BOM)
            if b"\r" in line.rstrip(b"\r\n") and not line.endswith(b"\n"):  # then the whole file is this line
                raise UsageError(f"{title}: {LONE_RETURNS}")
        if len(line) > MAX_LINE_BYTES:
            raise UsageError(f"{title} line {number}: found more than {MAX_LINE_BYTES:,} bytes, wanted shorter lines")
        if seen < _START_BYTES:
            _refuse_binary(line, title)
            seen += len(line)
        yield number, line


def _refuse_other_than_text(start: bytes, title: str) -> None:
    for magic, what, way in _NOT_TEXT:
        if start.startswith(magic):
            raise UsageError(f"{title}: found {what}, wanted UTF-8 text; {way}")
    if b"\0" in start[:4]:
        raise UsageError(f"{title}: found UTF-16 text, or no text at all, wanted UTF-8; iconv -f UTF-16 -t UTF-8")


def _refuse_binary(start: bytes, title: str) -> None:
    if b"\0" in start:
        raise UsageError(f"{title}: found zero bytes, as in a binary file, wanted UTF-8 text")


def _buffered(file: IO[Any]) -> bytes:
    """What has been read ahead of a file; nothing of a pipe, which would be waited for."""
    peek = getattr(file, "peek", None)
    return peek()[:_START_BYTES] if peek is not None and file.seekable() else b""


def why(problem: Exception) -> str:
    """The reason of a failure, without numbers and names of files."""
    return (isinstance(problem, OSError) and problem.strerror) or str(problem)
