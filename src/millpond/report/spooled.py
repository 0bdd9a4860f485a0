"""Paid replies that are not known to be in the queue: each file that holds some, and what to do with it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from millpond.db.sqlite import SqliteDatabase
from millpond.engine.spool import REFUSED_SUFFIX, left_in
from millpond.store.store import Store


@dataclass(frozen=True, slots=True)
class Spooled:
    """One file, in words, and the command or the deed that ends it."""

    words: str
    next: str


def spooled(folder: Path) -> Iterator[Spooled]:
    """Look into the spools beside a queue, whose locks stand in `folder`. One that cannot be read may hold some."""
    for path in sorted((folder / "spool").glob("*")):
        try:
            replies = len(left_in(path))
        except OSError as problem:
            words = f"{path}: {problem.strerror}; replies that were paid for may stand there"
            yield Spooled(words, f"mend owner and mode: ls -l {path}")
            continue
        if not replies:
            continue
        found = "1 paid reply" if replies == 1 else f"{replies:,} paid replies"
        if path.suffix == REFUSED_SUFFIX:
            words = f"{found} in {path}, which this queue cannot take: of another queue, or of another version"
            yield Spooled(words, "keep the file for that one, or delete it")
        else:
            words = f"{found} in {path}, to be written to the queue"
            yield Spooled(words, "millpond drain; one that runs writes its own as soon as the queue takes them")


def keeper(store: Store, uid: str) -> Path | None:
    """The file in which the end of an attempt waits for the queue to take it, as far as it can be read."""
    if not isinstance(store.db, SqliteDatabase):
        return None
    for path in sorted((store.db.lock_folder / "spool").glob("*.spool")):
        with suppress(OSError):
            if uid in left_in(path):
                return path
    return None
