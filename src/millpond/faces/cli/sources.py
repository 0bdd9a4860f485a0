"""What the FILEs of a command line are: which can be read once only, and that each can be read before any is."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from millpond.rules.errors import UsageError

if TYPE_CHECKING:
    from millpond.rows import Refused, Row

    Read: TypeAlias = Callable[[str], Iterator[Row | Refused]]
    """The rows of a file, which is opened when the first of them is asked for."""

STDIN = "-"


@dataclass(frozen=True, slots=True)
class Source:
    """One FILE, or standard input, and its rows, which are read once."""

    file: str
    rows: Iterable[Row | Refused]

    @property
    def title(self) -> str:
        """What it is called in refusals."""
        return "stdin" if self.file == STDIN else self.file

    @property
    def name(self) -> str:
        """What its submission is called where nobody says it."""
        return "stdin" if self.file == STDIN else Path(self.file).name

    @property
    def folder(self) -> Path | None:
        """Where the paths that stand in its rows begin; None for standard input."""
        return None if self.file == STDIN else Path(self.file).absolute().parent


def sources_of(files: Sequence[str], read: Read, *, is_single: bool) -> list[Source]:
    """The files that were named, else standard input where it is none of a person's.

    Raises UsageError where there is none, where one cannot be read at all, and (`is_single`) where there is more than
    one row. Streams are not tried: what was read of them would be gone.
    """
    named = files or ((STDIN,) if not sys.stdin.isatty() else ())
    if not named:
        raise UsageError("found no FILE, wanted one or more, or - for standard input")
    if named.count(STDIN) > 1:
        raise UsageError("found - more than once, wanted it once: standard input is read once")
    if is_single and len(named) > 1:
        raise _one_row_only(f"{len(named)} files")
    if is_single:
        return [Source(file, _single(read(file))) for file in named]
    for file in named:
        rows = read(file)
        if not _is_stream(file):
            next(rows)
    return [Source(file, read(file)) for file in named]


def _single(rows: Iterator[Row | Refused]) -> list[Row | Refused]:
    """The one row there is. Raises UsageError if there are more: they cannot share a key."""
    first = list(islice(rows, 2))
    if len(first) > 1:
        raise _one_row_only("more than one row")
    return first


def _one_row_only(found: str) -> UsageError:
    return UsageError(f"--key: found {found}, wanted a single row; --map key=COLUMN gives each row its own")


def _is_stream(file: str) -> bool:
    """Whether it can be read only once: standard input, a pipe, a device."""
    if file == STDIN:
        return True
    path = Path(file)
    return path.exists() and not (path.is_file() or path.is_dir())
