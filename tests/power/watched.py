"""A database that remembers what it acknowledged and when, and the verdict on each power cut of its past."""

from __future__ import annotations

import hashlib
import shutil
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import apsw
from disk import Disk, Past

from millpond.db.sqlite import SqliteDatabase
from millpond.store.store import Store, open_sqlite
from millpond.testing.clock import FakeClock
from millpond.testing.promises import check_promises
from millpond.testing.store_scene import asked

FILE = "queue.db"
MAY_BE_LOST = frozenset({"lease", "unroute", "close_lane", "open_lane"})
"""What a power cut may take back (DESIGN §5): it ends every owner too, and reclaim gives back what they held."""

Rows = dict[str, list[Any]]
"""Table -> all its rows."""


class Lost(AssertionError):
    """A power cut took something that was acknowledged, or left something that is not whole."""


@dataclass(frozen=True, slots=True)
class Commit:
    """One that was told to its caller after the first `at` operations of the disk. `rows`: all that stood then."""

    at: int
    verb: str
    must_last: bool
    digest: str
    rows: Rows


class Watched:
    """The database of a store, which is none the wiser; each commit is remembered with all rows as they stood."""

    def __init__(self, database: SqliteDatabase, disk: Disk, commits: list[Commit], *, weak: str = "") -> None:
        """`commits` is added to. The verb named by `weak` is committed as if it might be lost."""
        self._database = database
        self._disk = disk
        self._commits = commits
        self._weak = weak

    def __getattr__(self, name: str) -> Any:
        return getattr(self._database, name)

    def write(self, operation: Callable[[Any], Any], *, full: bool = True) -> Any:
        result = self._database.write(operation, full=full and self._is_as_meant(operation))
        self._note(operation)
        return result

    def write_all(self, operations: Sequence[Callable[[Any], Any]], *, full: bool = True) -> list[Any]:
        are_as_meant = all(map(self._is_as_meant, operations))
        results = self._database.write_all(operations, full=full and are_as_meant)
        if operations:
            self._note(operations[-1])
        return results

    def _is_as_meant(self, operation: Callable[[Any], Any]) -> bool:
        return not self._weak or verb_of(operation) != self._weak

    def _note(self, operation: Callable[[Any], Any]) -> None:
        verb = verb_of(operation)
        rows = look(self._disk.folder / FILE)
        found = digest(rows)
        # One that changed nothing promises nothing of what others left unsynced before it.
        changed = not self._commits or found != self._commits[-1].digest
        self._commits.append(Commit(len(self._disk.log), verb, changed and must_last(operation), found, rows))


def left(rows: Rows) -> Commit:
    """What an earlier power cut has left, which the next one may not take."""
    return Commit(0, "left by the cut before", True, digest(rows), rows)


def verb_of(operation: Callable[[Any], Any]) -> str:
    """The name of the verb that an operation performs; "" for one without a name."""
    function = operation.func if isinstance(operation, partial) else operation
    name = getattr(function, "__name__", "")
    return "" if name == "<lambda>" else name


def must_last(operation: Callable[[Any], Any]) -> bool:
    """Whether its caller may rely on it after a power cut. To give a job back is not, to give it up is."""
    verb = verb_of(operation)
    if verb == "give" and isinstance(operation, partial):
        return operation.keywords["then"].move == "fail"
    return bool(verb) and verb not in MAY_BE_LOST


def look(path: Path) -> Rows:
    """All rows of all tables."""
    connection = apsw.Connection(str(path))
    try:
        return _all_rows(connection)
    finally:
        connection.close()


def digest(rows: Rows) -> str:
    """Names a state of the whole database."""
    return hashlib.sha256(repr(rows).encode()).hexdigest()


def _all_rows(connection: apsw.Connection) -> Rows:
    tables = connection.execute("SELECT name FROM sqlite_schema WHERE type = 'table' ORDER BY name").fetchall()
    return {name: connection.execute(f'SELECT * FROM "{name}"').fetchall() for (name,) in tables}


class Judge:
    """Looks at what cuts have left: every acknowledged commit is there, whole, and no id will be given again."""

    def __init__(self, commits: Sequence[Commit], folder: Path) -> None:
        self._commits = commits
        self._folder = folder
        self._moments = [commit.at for commit in commits]
        self._found: dict[str, State] = {}
        """Image -> what it was found to hold."""
        self._states: dict[str, State] = {}
        """Digest -> the same: images that hold the same rows are opened by a store but once."""

    @property
    def images(self) -> int:
        """How many different disks were looked at."""
        return len(self._found)

    def judge(self, cut: Cut) -> None:
        """Raise Lost if the disk that a cut has left does not hold what it must."""
        whose = f"power cut after operation {cut.at} ({cut.how})"
        key = hashlib.sha256(
            b"".join(hashlib.sha256(data).digest() for _, data in sorted(cut.image.items()))
        ).hexdigest()
        state = self._found.get(key) or self._found.setdefault(key, self._open(cut.image, whose))
        told = bisect_right(self._moments, cut.at)
        last = max((n for n in range(told) if self._commits[n].must_last), default=None)
        if last is None:
            return  # nothing was acknowledged yet; that it opens is all there is to ask
        promised = self._commits[last]
        may_hold = self._commits[last : told + 1]  # the next one may be whole already, though nobody was told
        if state.digest not in {commit.digest for commit in may_hold}:
            wrong = "; ".join(_differences(promised.rows, state.rows))
            raise Lost(f"{whose}: {promised.verb!r} was acknowledged and is not there; rows that differ: {wrong}")
        for table, id_ in state.next_ids.items():
            if id_ <= max((row[0] for row in promised.rows[table]), default=0):
                raise Lost(f"{whose}: {table} {id_} was given to somebody, and is given again")

    def _open(self, image: dict[str, bytes], whose: str) -> State:
        """Put the image where SQLite finds it, open it, and look at it whole."""
        put(image, self._folder)
        try:
            connection = apsw.Connection(str(self._folder / FILE))
            rows = _all_rows(connection)
            faults = connection.execute("PRAGMA integrity_check").fetchall()
            connection.close()
        except apsw.Error as error:
            raise Lost(f"{whose}: the file cannot be used any more: {error}") from error
        if faults != [("ok",)]:
            raise Lost(f"{whose}: the file is damaged: {faults[:3]}")
        found = digest(rows)
        return self._states.get(found) or self._states.setdefault(found, self._use(found, rows))

    def _use(self, found: str, rows: Rows) -> State:
        """Go on with what was left: the promises hold, and the door is open."""
        store = Store(open_sqlite(self._folder / FILE, durable=False), FakeClock())
        try:
            check_promises(store)
            receipt = store.enqueue_one(asked("asked after the cut"))
        finally:
            store.close()
        ids = {"job": receipt.job_id, "request": receipt.request_id, "submission": receipt.submission_id}
        return State(found, rows, ids)


@dataclass(frozen=True, slots=True)
class State:
    """What a disk holds after a cut. `next_ids`: what the next caller is given, by table."""

    digest: str
    rows: Rows
    next_ids: dict[str, int]


def put(image: dict[str, bytes], folder: Path) -> None:
    """Make a folder hold these files and nothing else."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, data in image.items():
        (folder / name).write_bytes(data)


def _differences(promised: Rows, left: Rows) -> Iterator[str]:
    for name, rows in promised.items():
        if rows != left.get(name):
            yield f"{name} ({len(rows)} promised, {len(left.get(name, []))} left)"


def cuts(disk: Disk, moments: Iterable[int], chance: Random, ways: Sequence[str]) -> Iterator[Cut]:
    """What power cuts at these moments leave, in each of these ways: `synced`, `written`, `torn`."""
    past = Past(disk)
    for at in moments:
        past.go_to(at)
        for how in ways:
            match how:
                case "synced":
                    yield Cut(at, how, past.synced())
                case "written":
                    yield Cut(at, how, past.written())
                case _:
                    yield Cut(at, how, past.torn(chance))


@dataclass(frozen=True, slots=True)
class Cut:
    """What a power cut after the first `at` operations left."""

    at: int
    how: str
    image: dict[str, bytes]
