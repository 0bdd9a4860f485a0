"""Is everything in order? Each check says what was found in one line, and what to do if it is a fault."""

from __future__ import annotations

import glob
import os
import shutil
import socket
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

import apsw

from millpond.db.company import find_company
from millpond.db.connection import JOURNAL_SIZE_LIMIT_BYTES, OLDEST_SQLITE
from millpond.db.log_readers import log_readers
from millpond.db.mounts import mount_of
from millpond.db.sqlite import Facts, SqliteDatabase, lock_folder
from millpond.engine.drain_lock import DrainLock
from millpond.lanes.build import build_lane
from millpond.report.spooled import spooled
from millpond.report.standing import Standing, elsewhere, elsewhere_words, stalled, standing
from millpond.report.words import counted, usd
from millpond.rules.errors import MillpondError, MissingKey
from millpond.rules.policy import LanePolicy
from millpond.rules.times import show_ms
from millpond.settings.load import DEFAULT, Settings
from millpond.spend.book import SpendBook
from millpond.store.reader import PAGE_ROWS
from millpond.store.store import Store

CONNECT_S = 2.0
SHOWN_QUEUES = 10
LOW_DISK_BYTES = 100 << 20
LARGE_LOG_BYTES = 4 * JOURNAL_SIZE_LIMIT_BYTES
"""A log far above what a checkpoint leaves: somebody keeps a read transaction open (O07)."""

KEEP_A_COPY = "stop all that use it and keep a copy of the folder before anything else"

REFUSED_NEXT = "mend what it names, and keep a copy of the folder before you repair the file itself"


@dataclass(frozen=True, slots=True)
class Check:
    """One thing looked at: whether it is in order, what was found, and what to do if it is not."""

    name: str
    is_ok: bool
    words: str
    next: str = ""


def examine(
    settings: Settings, store: Store | None, environ: Mapping[str, str] | None = None, *, refused: str = ""
) -> list[Check]:
    """Look at everything, in a stable order. Keys are never told.

    `store` is None while there is no queue yet, or where it could not be opened: `refused` says why.
    """
    environ = os.environ if environ is None else environ
    assert isinstance(settings.queue, Path), "an address was refused before"
    at = settings.queue
    looks: list[tuple[str, str, Iterator[Check]]] = [("file system", _seen_by(at), _places(at))]
    if store is not None:
        looks += [
            ("queue", KEEP_A_COPY, _database(store)),
            ("tally", KEEP_A_COPY, _tally(store)),
            ("drainer", _seen_by(lock_folder(at) / "drain.lock"), _drainer(lock_folder(at))),
            ("replies", _seen_by(lock_folder(at) / "spool"), _replies(lock_folder(at))),
            ("owners", _seen_by(lock_folder(at) / "owners"), _owners(store, lock_folder(at))),
        ]
    elif refused:
        looks.append(("queue", KEEP_A_COPY, iter([Check("queue", False, refused, REFUSED_NEXT)])))
    else:
        looks.append(("queue", _seen_by(at), _no_queue(at)))
    looks.append(("spend book", "nothing is called before it can be written: mend that first", _book(settings, store)))
    checks = [_sqlite(), *(check for name, mend, look in looks for check in _to_its_end(name, mend, look))]
    return [*checks, *_lanes(settings, environ), _settings(settings)]


def _to_its_end(name: str, mend: str, look: Iterator[Check]) -> Iterator[Check]:
    """What one look finds. If it cannot go on, that is a fault, and no reason to leave out the looks after it."""
    try:
        yield from look
    except MillpondError as problem:
        yield Check(name, False, str(problem), mend)
    except OSError as problem:
        yield Check(name, False, f"{problem.filename}: {problem.strerror}", mend)


def _seen_by(path: Path) -> str:
    return f"mend owner and mode: ls -ld {path}"


def _no_queue(path: Path) -> Iterator[Check]:
    """There is no file of this name; what else there is would keep one from being made."""
    if path.exists():
        yield Check("queue", False, f"{path} is {_kind(path)}, wanted a file", "name another: queue.path, or --queue")
    else:
        yield Check("queue", True, f"none yet at {path}; `millpond enqueue` makes it")


def _kind(path: Path) -> str:
    return "a folder" if path.is_dir() else "no file"


def _sqlite() -> Check:
    found = apsw.sqlite_lib_version()
    wanted = ".".join(map(str, OLDEST_SQLITE))
    is_ok = tuple(int(part) for part in found.split(".")[:3]) >= OLDEST_SQLITE
    return Check("sqlite", is_ok, f"SQLite {found}, wanted {wanted} or later", f"pip install 'apsw>={wanted}'")


def _places(path: Path) -> Iterator[Check]:
    folder = next(one for one in (path.parent, *path.parent.parents) if one.is_dir())
    mount = mount_of(folder)
    yield Check(
        "file system",
        not mount.is_share,
        f"{folder} is on {mount}" + (", a network share: its locks do not hold" if mount.is_share else ""),
        "put the home on a local disk: --home, or home: in millpond.yaml",
    )
    refused = not_writable(folder, path)
    yield Check(
        "folder",
        not refused,
        f"cannot be written: {', '.join(map(str, refused))}" if refused else f"{folder} can be written",
        f"mend owner, mode or mount: ls -ld {folder} {path}*",
    )
    free = shutil.disk_usage(folder).free
    yield Check(
        "disk", free >= LOW_DISK_BYTES, f"{_size(free)} free at {folder} ({mount})", "make room, or move the home"
    )


def not_writable(folder: Path, path: Path) -> list[Path]:
    """What this program would write and may not: the folder, the database and what stands beside it."""
    beside = [folder, *sorted(folder.glob(f"{glob.escape(path.name)}*")), *sorted(lock_folder(path).glob("*"))]
    with_effect = os.access in os.supports_effective_ids
    return [
        one for one in beside
        if not os.access(one, os.W_OK | (os.X_OK if one.is_dir() else 0), effective_ids=with_effect)
    ]  # fmt: skip


def _database(store: Store) -> Iterator[Check]:
    db = store.db
    if not isinstance(db, SqliteDatabase):
        return
    facts = db.facts()
    wal = facts.journal_mode == "wal"
    yield Check(
        "journal", wal, f"journal mode {facts.journal_mode}, wanted wal", "close every program that has it open"
    )
    yield Check("schema", True, f"version {facts.schema_version}, {_size(facts.pages * facts.page_bytes)}")
    yield _log(facts)
    company = find_company(facts.path)
    words = company or "no second SQLite of this process has the file open"
    yield Check("one sqlite", not company, words, "close it there, then close the queue and open it again")
    faults = db.integrity_check(3)
    words = "; ".join(faults) or "SQLite finds the file whole"
    yield Check("integrity", not faults, words, KEEP_A_COPY)


def _log(facts: Facts) -> Check:
    """The log's size, and who keeps it from shrinking: a read transaction that stays open."""
    readers = ", ".join(map(str, log_readers(facts.path)))
    words = f"write-ahead log of {_size(facts.log_bytes)}" + (f", read by {readers}" if readers else "")
    mend = f"end what keeps reading: {readers}" if readers else f"find who has it open: fuser -v {facts.path}-wal"
    return Check("log", facts.log_bytes < LARGE_LOG_BYTES, words, mend)


def _tally(store: Store) -> Iterator[Check]:
    """The maintained counts against the jobs themselves. Reads every job."""
    wrong = store.miscounted()
    if not wrong:
        yield Check("tally", True, "the counts agree with the jobs")
        return
    words = ", ".join(f"{name} {kept:,} kept, {counted:,} counted" for name, (kept, counted) in wrong.items())
    yield Check("tally", False, f"the counts differ from the jobs: {words}", "report it, with this line")


def _drainer(folder: Path) -> Iterator[Check]:
    holder = DrainLock(folder).holder()
    yield Check("drainer", True, f"{holder} drains" if holder else "nobody drains")


def _replies(folder: Path) -> Iterator[Check]:
    found = [Check("replies", False, one.words, one.next) for one in spooled(folder)]
    yield from found or [Check("replies", True, "none waits beside the queue to be written")]


def _owners(store: Store, folder: Path) -> Iterator[Check]:
    seen = [standing(folder, owner) for owner in store.living_owners()]
    away, dead, hidden = ([one for one in seen if one.how == how] for how in ("away", "dead", "hidden"))
    beats = [one.age_ms for one in seen if one.age_ms is not None]
    words = f"{len(seen) - len(away) - len(dead) - len(hidden)} living"
    if beats:
        words += f", the oldest beat {max(beats) / 1000:,.0f} s ago"
    if away:
        words += f"; on other machines, watched by who drains: {_names(away)}"
    if dead:
        words += f"; died with work in hand: {_names(dead)}"
    yield Check("owners", not dead, words, "millpond drain; it takes back what they held")
    for one in hidden:
        words = f"nobody knows whether {one} lives: {one.why}"
        yield Check("lock file", False, words, f"give its file to the user who drains: ls -l {folder / 'owners'}")
    if (held := elsewhere(store)) and DrainLock(folder).holder() is None:
        yield Check("elsewhere", False, elsewhere_words(held), "millpond drain --until-empty")
    for one in stalled(store):
        yield Check("at work", False, one.in_words(), one.next)


def _book(settings: Settings, store: Store | None) -> Iterator[Check]:
    """Whether the book can be read and written, and its sums are right. Reads every reservation."""
    path = settings.spend
    if path.exists() and not path.is_file():
        yield Check("spend book", False, f"{path} is {_kind(path)}, wanted a file", "name another: spend.path")
        return
    yield from (replace(check, name="spend book") for check in _places(path) if not check.is_ok)
    book = SpendBook(path, store.uuid if store is not None else "", _no_time, durable=settings.policy.durable)
    if not book.is_made():
        yield Check("spend book", True, f"none yet at {path}")
        return
    try:
        if (sums := book.miscounted()) is not None:
            kept, counted = (f"{one.worst_usd} USD in {one.calls} calls" for one in sums)
            words = f"{path} keeps {kept} as reserved, and its reservations come to {counted}"
            yield Check("spend book", False, words, "report it, with this line")
        else:
            strange = _of_strangers(book, store) if store is not None else ""
            yield Check("spend book", True, f"{path}{strange}{_of_others(book)}")
    finally:
        book.close()


def _no_time() -> int:
    raise AssertionError("nothing is written by a look")


def _of_others(book: SpendBook) -> str:
    """What other queues have reserved. Whether they still stand is not known here: a deleted one frees nothing."""
    others = [one for one in book.reserved_by_queue(SHOWN_QUEUES + 1) if one[0] != book.queue][:SHOWN_QUEUES]
    words = [
        f"{counted(held.calls, 'call')} at most {usd(held.worst_usd)}"
        + (f" + {held.unknown:,} unpriced" if held.unknown else "")
        + f" since {show_ms(since_ms)} by queue {queue}"
        for queue, since_ms, held in others
    ]
    return f"; reserved by other queues, the oldest first: {'; '.join(words)}" if words else ""


def _of_strangers(book: SpendBook, store: Store) -> str:
    """What is reserved under this queue's name by owners that its ledger does not know."""
    strange, after = 0, ""
    while owners := book.reservations(after, PAGE_ROWS):
        strange, after = strange + len(store.of_strangers(owners)), max(owners)
    if not strange:
        return ""
    return (
        f"; {counted(strange, 'call')} reserved under this queue's name by owners that it does not know: another "
        "copy of its file shares the book (give each copy its own: spend.path), or an older file was put back, and "
        "then they stay reserved"
    )


def _names(owners: Iterable[Standing]) -> str:
    return ", ".join(map(str, owners))


def _lanes(settings: Settings, environ: Mapping[str, str]) -> Iterator[Check]:
    lanes = [lane for lane in settings.policy.lanes.values() if lane.enabled]
    if not lanes:
        yield Check("lanes", False, "no lane is configured", "millpond init, then edit millpond.yaml")
    with ThreadPoolExecutor(8, thread_name_prefix="millpond-doctor") as threads:
        for lane, reached in zip(lanes, threads.map(_reach, lanes), strict=True):
            yield from _lane(lane, reached, environ)


def _lane(lane: LanePolicy, reached: str, environ: Mapping[str, str]) -> Iterator[Check]:
    name = f"lane {lane.name}"
    if lane.key_env:
        is_set = bool(environ.get(lane.key_env, "").strip())
        words = f"key variable {lane.key_env} is {'set' if is_set else 'not set'}"
        yield Check(name, is_set, words, f"export {lane.key_env}=…")
    if lane.can_recall and lane.kind and (refused := _refused(lane, environ)):
        yield Check(name, False, refused, "mend the settings; drain refuses them too")
    if not lane.kind:
        yield Check(name, True, "has no kind: it serves drill, report and router, and is not drained")
    elif lane.base_url:
        yield Check(
            name,
            not reached,
            f"{_address(lane)} {'answers' if not reached else f'cannot be reached: {reached}'}",
            "start the server, or mend base_url",
        )
    elif lane.kind == "command" and lane.command:
        found = shutil.which(lane.command[0])
        yield Check(
            name, found is not None, f"program {lane.command[0]} {'found' if found else 'not found'}", "install it"
        )


def _refused(lane: LanePolicy, environ: Mapping[str, str]) -> str:
    """Why this lane cannot be built as the settings have it; "" where it can, its key apart."""
    try:
        build_lane(lane, environ=environ)
    except MissingKey:
        return ""
    except MillpondError as problem:
        return str(problem)
    return ""


def _reach(lane: LanePolicy) -> str:
    """Why no connection can be made to a lane's server; "" if one can, or if there is none to reach."""
    if not lane.base_url or lane.proxy:
        return ""
    with suppress(ValueError):
        at = urlsplit(lane.base_url)
        port = at.port or (443 if at.scheme == "https" else 80)
        try:
            with socket.create_connection((at.hostname or "", port), timeout=CONNECT_S):
                return ""
        except OSError as error:
            return error.strerror or str(error)
    return "not an address"


def _address(lane: LanePolicy) -> str:
    """Host and port alone: an address may hold a password."""
    return urlsplit(lane.base_url).netloc.rpartition("@")[2]


def _settings(settings: Settings) -> Check:
    said = [origin for _, _, origin in settings.shown() if origin != DEFAULT]
    files = sorted({origin.rpartition(":")[0] for origin in said if origin.rpartition(":")[2].isdecimal()})
    variables = sorted({origin.removeprefix("environment ") for origin in said if origin.startswith("environment ")})
    parts = [*files, *variables, *(["flags"] if "flag" in said else [])]
    words = f"home {settings.home} ({settings.home_origin}); {counted(len(said), 'key')} said"
    if parts:
        words += f" in {', '.join(parts)}"
    if settings.unread:
        words += f"; not read by this version: {', '.join(settings.unread)}"
    return Check("settings", True, words)


def _size(n: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if n < 1000 or unit == "GB":
            break
        n /= 1000
    return f"{n:,.0f} {unit}" if unit == "B" or n >= 10 else f"{n:,.1f} {unit}"
