"""Where results go: a file that appears whole or not at all, or stdout without keys."""

from __future__ import annotations

import os
import secrets
import stat
import sys
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import IO, Any, Literal

from millpond.faces.cli import terminal
from millpond.rules.errors import QueueUnavailable

Form = Literal["t", "b"]
"""How a file is opened: as text, or as bytes."""


def is_file(path: Path | None) -> bool:
    """Whether an -o names a file; nothing, and -, are stdout."""
    return path is not None and str(path) != "-"


def to(path: Path | None, form: Form = "t") -> AbstractContextManager[Any]:
    """What an -o names, open for writing: a file that appears whole, or stdout."""
    return _stdout() if path is None or str(path) == "-" else whole(path, form)


@contextmanager
def whole(path: Path, form: Form = "t") -> Generator[IO[Any]]:
    """A file that appears whole or not at all: written beside it, made durable, renamed over it.

    A file that is there already leaves it its permissions. What is no regular file (a pipe, a device) is written to as
    it stands. Raises QueueUnavailable naming the file.
    """
    target = Path(os.path.realpath(path))
    text: dict[str, Any] = {"encoding": "utf-8", "newline": ""} if form == "t" else {}
    try:
        if target.exists() and not target.is_file():
            with target.open(f"w{form}", **text) as file:
                yield file
            return
        # A name of its own: process ids are the same in several containers, and after a crash.
        part = target.with_name(f".{target.name[:40]}.{secrets.token_hex(8)}.part")
        _parts.add(part)
        try:
            with os.fdopen(_open_like(target, part), f"w{form}", **text) as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)
            _parts.discard(part)
    except OSError as problem:
        words = problem.strerror or str(problem)
        raise QueueUnavailable(f"{path}: cannot be written ({words}); name another file with -o") from problem


_parts: set[Path] = set()
"""Files that are being written."""


def remove_parts() -> None:
    """Remove every file that is not whole yet, for a program that ends where it stands."""
    for part in _parts:
        with suppress(OSError):
            part.unlink()


def _open_like(target: Path, part: Path) -> int:
    """Open a new file with the permissions of the one that it will replace, if that is there, from its first moment."""
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC
    try:
        mode = stat.S_IMODE(target.stat().st_mode)
    except FileNotFoundError:
        return os.open(part, flags, 0o666)
    descriptor = os.open(part, flags, 0o600)
    os.fchmod(descriptor, mode)
    return descriptor


@contextmanager
def _stdout() -> Generator[Any]:
    yield _Hiding()
    sys.stdout.flush()


class _Hiding:
    """Stdout without the values of key variables and, on a terminal, without what a terminal would obey."""

    def write(self, text: str) -> int:
        text = terminal.without_secrets(text)
        sys.stdout.write(terminal.plain(text, lines=True) if terminal.is_terminal() else text)
        return len(text)
