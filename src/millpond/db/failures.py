"""What SQLite's refusals mean to a person: what happened, where, what to do next."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn, cast

import apsw

from millpond.rules.errors import MillpondError, QueueBusy, QueueUnavailable

_BUSY = frozenset({apsw.SQLITE_BUSY, apsw.SQLITE_LOCKED})
_DOCTOR = "then run `millpond doctor`"


def translate(error: apsw.Error, path: Path) -> MillpondError | None:
    """The refusal in our words, or None where the SQL is at fault and not the disk, the file or its lock."""
    # Errors that apsw finds by itself (a parameter that is missing) bear no result code.
    code: int = getattr(error, "result", apsw.SQLITE_ERROR) & 0xFF
    if code in _BUSY:
        return QueueBusy(
            f"{path} stayed locked by another program past the busy wait; nothing was written. "
            f"Try again; if it lasts, find who holds it open (`fuser -v {path}`)"
        )
    if getattr(error, "extendedresult", code) == apsw.SQLITE_IOERR_SHMSIZE:  # the log's index found no room to grow
        code = apsw.SQLITE_FULL
    words = _words(code, path)
    if words is None:
        return None
    return QueueUnavailable(f"{words} [{_name(error)}]")


def raise_translated(error: apsw.Error, path: Path) -> NoReturn:
    """Raise the refusal in our words, or the error itself where there are none."""
    refusal = translate(error, path)
    if refusal is None:
        raise error
    raise refusal from error


def _words(code: int, path: Path) -> str | None:
    folder = path.parent
    if code in (apsw.SQLITE_READONLY, apsw.SQLITE_PERM, apsw.SQLITE_CANTOPEN) and _is_mounted_read_only(folder):
        return (
            f"{path} stands on a file system that is mounted read-only; nothing was written. To look into it all the "
            f"same, copy {path.name} (and {path.name}-wal, if there is one) to another folder and name that with --home"
        )
    match code:
        case apsw.SQLITE_FULL:
            return f"no room left for {path}; nothing was written. Free space (`df -h {folder}`), then do it again"
        case apsw.SQLITE_IOERR:
            return (
                f"the disk refused to read or write {path}; nothing was acknowledged. "
                f"Check its space, quota and health (`df -h {folder}`, `dmesg`), then do it again"
            )
        case apsw.SQLITE_READONLY | apsw.SQLITE_PERM:
            return (
                f"{path} may not be written; nothing was written. "
                f"Check owner, mode and mount of the file and its folder (`ls -ld {folder} {path}*`), {_DOCTOR}"
            )
        case apsw.SQLITE_CANTOPEN:
            return (
                f"{path} cannot be opened; nothing was written. Check that the folder exists and may be entered "
                f"(`ls -ld {folder}`) and that files may still be opened (`ulimit -n`), {_DOCTOR}"
            )
        case apsw.SQLITE_CORRUPT:
            return (
                f"{path} is damaged; nothing was written. Stop every program that uses it, "
                f"copy it aside together with its -wal file, {_DOCTOR}; restore a backup if it says so"
            )
        case apsw.SQLITE_NOTADB:
            return f"{path} is not an SQLite database; it was left as it is. Name another path, or move that file away"
        case apsw.SQLITE_PROTOCOL | apsw.SQLITE_NOLFS:
            return (
                f"the file system of {path} does not lock files as SQLite needs; nothing was written. "
                f"Keep the queue on a local disk"
            )
        case _:
            return None


def _is_mounted_read_only(folder: Path) -> bool:
    try:
        return bool(os.statvfs(folder).f_flag & os.ST_RDONLY)
    except OSError:
        return False


def _name(error: apsw.Error) -> str:
    code: int = getattr(error, "extendedresult", apsw.SQLITE_ERROR)
    names = cast("dict[int, str]", {**apsw.mapping_result_codes, **apsw.mapping_extended_result_codes})
    return f"{names.get(code, code)}: {error}"


def translate_os(error: OSError, path: Path) -> QueueUnavailable:
    """The same for a refusal of the operating system, met on a folder or on the turnstile."""
    return QueueUnavailable(
        f"{path}: {os.strerror(error.errno or 0)}; nothing was written. "
        f"Check owner, mode and free space of {path.parent} (`ls -ld`, `df -h`), then do it again"
    )


@contextmanager
def naming_the_temporary(folder: Callable[[], str]) -> Generator[None]:
    """Say of any refusal in the block that it came from the temporary folder, where no room is the usual reason."""
    try:
        yield
    except (apsw.Error, OSError) as error:
        words = _name(error) if isinstance(error, apsw.Error) else error.strerror or str(error)
        raise QueueUnavailable(
            f"the temporary folder {folder()} refused what does not fit into memory ({words}). "
            f"Free space there (`df -h {folder()}`) or name another folder in TMPDIR, then do it again"
        ) from error
