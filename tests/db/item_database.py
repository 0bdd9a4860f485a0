"""A small database of items, for the tests of `db` and for the processes that they start."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from millpond.db.migrations import Migration
from millpond.db.sqlite import SqliteDatabase
from millpond.db.statements import load

STATEMENTS = load("""
-- name: add
INSERT INTO item (body) VALUES (:body) RETURNING id, body;

-- name: add_quietly
INSERT INTO item (body) VALUES (:body)

-- name: add_with_id
INSERT INTO item (id, body) VALUES (:id, :body)

-- name: total
SELECT count(*) AS items FROM item

-- name: listed
SELECT id, body FROM item WHERE id IN {list ids} ORDER BY id

-- name: bodies
SELECT body FROM item ORDER BY id

-- name: rename_all
UPDATE item SET body = :body RETURNING id

-- name: tally_add
INSERT INTO tally (name, n) VALUES (:name, :delta) ON CONFLICT (name) DO UPDATE SET n = n + excluded.n

-- name: tallies
SELECT name, n FROM tally ORDER BY name

-- name: shrink_disk
PRAGMA max_page_count = 8
""")

MIGRATIONS = (
    Migration(
        1,
        "first",
        (
            "CREATE TABLE item (id INTEGER PRIMARY KEY, body TEXT NOT NULL)",
            "CREATE TABLE tally (name TEXT PRIMARY KEY, n INTEGER NOT NULL)",
        ),
    ),
)


def open_items(path: Path | str, **settings: Any) -> SqliteDatabase:
    return SqliteDatabase(Path(path), **{"statements": STATEMENTS, "migrations": MIGRATIONS, **settings})


def add(body: str = "x") -> Any:
    return lambda transaction: transaction.one("add", body=body).id


def total(database: SqliteDatabase) -> int:
    return database.read(lambda transaction: transaction.one("total").items)


def bodies(database: SqliteDatabase) -> list[str]:
    return database.read(lambda transaction: [row.body for row in transaction.all("bodies")])


def start_script(code: str, *arguments: object, pass_fds: Iterable[int] = ()) -> subprocess.Popen[str]:
    """Start a Python process that can import this module. `code` finds `arguments` in sys.argv[1:]."""
    here = str(Path(__file__).parent)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([here, *filter(None, sys.path)])}
    return subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        env=environment,
        pass_fds=tuple(pass_fds),
        text=True,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def finish(process: subprocess.Popen[str]) -> str:
    """Wait for it, demand exit 0 and silence on stderr, return what it printed."""
    out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    return out


def run_script(code: str, *arguments: object) -> str:
    return finish(start_script(code, *arguments))
