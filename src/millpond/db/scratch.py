"""Texts by name for the length of one look: more of them than memory should hold, in a file that nobody else sees."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, cast

import apsw

from millpond.db.failures import naming_the_temporary

CACHE_KIB = 16_384
"""Memory that it takes at most; what is beyond it stands in a temporary file, which SQLite deletes as it opens it."""


class Scratch:
    """A mapping of texts that grows on disk. Of one thread; to be used as a context manager.

    Raises QueueUnavailable naming the temporary folder if that refuses.
    """

    def __init__(self) -> None:
        self._handle = apsw.Connection("")  # no name: private, temporary, on disk once it outgrows its cache
        for sql in (
            "PRAGMA journal_mode = OFF",
            "PRAGMA synchronous = OFF",
            f"PRAGMA cache_size = -{CACHE_KIB}",
            "CREATE TABLE kept (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
        ):
            self._run(sql)

    def __enter__(self) -> Scratch:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._handle.close(True)

    def of(self, names: Sequence[str]) -> dict[str, str]:
        """The texts of those names that are kept."""
        sql = "SELECT name, value FROM kept WHERE name IN (SELECT value FROM json_each(?))"
        return dict(self._run(sql, json.dumps(names)))

    def keep(self, texts: Mapping[str, str]) -> None:
        """Keep texts under new names; a name that is kept already keeps its text."""
        with naming_the_temporary(_folder), self._handle:
            sql = "INSERT INTO kept VALUES (?, ?) ON CONFLICT DO NOTHING"
            cast(Any, self._handle.cursor()).executemany(sql, texts.items()).fetchall()

    def _run(self, sql: str, *params: str) -> list[Any]:
        with naming_the_temporary(_folder):
            return cast(Any, self._handle.cursor()).execute(sql, params).fetchall()


def _folder() -> str:
    """Where SQLite puts its temporary files: https://www.sqlite.org/tempfiles.html, section 5."""
    places = (os.environ.get("SQLITE_TMPDIR"), os.environ.get("TMPDIR"), "/var/tmp", "/usr/tmp", "/tmp")
    return next((place for place in places if place and os.access(place, os.W_OK)), ".")
