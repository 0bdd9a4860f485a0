"""What doctor looks at, and that it finds what is broken."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any

import apsw
import pytest
import yaml
from beside_no_book import build

from millpond.db import mounts
from millpond.engine.drain_lock import DrainLock
from millpond.engine.owner import Owner, lock_file
from millpond.report import doctor
from millpond.report.doctor import LARGE_LOG_BYTES, Check, examine, not_writable
from millpond.rules.errors import SettingsError
from millpond.rules.job import OwnerRow
from millpond.rules.price import Cost
from millpond.settings import Settings, load
from millpond.spend.book import SpendBook
from millpond.store.store import Store, open_sqlite
from millpond.testing.store_scene import asked


@pytest.fixture
def server() -> Iterator[int]:
    """A port on which somebody listens."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening.getsockname()[1]


def settings(folder: Path, **keys: Any) -> Settings:
    """The settings of a folder with a home of its own."""
    (folder / "millpond.yaml").write_text(yaml.safe_dump(keys))
    return load(cwd=folder, env={"XDG_CONFIG_HOME": str(folder / "xdg")})


def opened(found: Settings) -> Store:
    """Its store."""
    assert isinstance(found.queue, Path)
    return Store(open_sqlite(found.queue), lambda: 1_800_000_000_000)


def chat(port: int, **more: Any) -> dict[str, Any]:
    """A lane's settings."""
    return {"kind": "chat", "price": 0, "base_url": f"http://user:hush@127.0.0.1:{port}/v1", "model": "m", **more}


def by_name(checks: list[Check]) -> Mapping[str, Check]:
    """Checks by their names."""
    return {check.name: check for check in checks}


def test_a_healthy_queue_has_no_fault(tmp_path: Path, server: int) -> None:
    found = settings(tmp_path, lanes={"free": chat(server)})
    store = opened(found)
    checks = examine(found, store, {})
    assert [check for check in checks if not check.is_ok] == []
    assert [check.name for check in checks] == [
        "sqlite", "file system", "folder", "disk", "journal", "schema", "log", "one sqlite", "integrity",
        "tally", "drainer", "replies", "owners", "spend book", "lane free", "settings",
    ]  # fmt: skip
    assert f"127.0.0.1:{server} answers" in by_name(checks)["lane free"].words
    assert "millpond.yaml" in by_name(checks)["settings"].words
    store.close()


def test_a_copy_that_shares_the_book_is_noticed(tmp_path: Path) -> None:
    found = settings(tmp_path)
    store = opened(found)
    assert by_name(examine(found, store, {}))["spend book"].words == f"none yet at {found.spend}"
    assert not found.spend.exists()
    book = SpendBook(found.spend, store.uuid, store.now_ms)
    store.enlist(OwnerRow("ours", "worker", "host", 1, "boot", 0))
    book.reserve("a", "ours", "free", None)
    assert by_name(examine(found, store, {}))["spend book"].words == str(found.spend)
    book.reserve("b", "an owner of the copy", "free", None)
    assert "1 call reserved under this queue's name by owners that it does not know" in (
        by_name(examine(found, store, {}))["spend book"].words
    )
    book.close()
    store.close()


def test_what_other_queues_reserve_is_named_the_oldest_first(tmp_path: Path) -> None:
    """One whose folder was deleted never releases it: whoever shares the book can see whose it is, and how old."""
    found = settings(tmp_path)
    store = opened(found)
    for n, (queue, worst) in enumerate([("young", None), ("deleted", Cost(Decimal("0.01"), "v")), (store.uuid, None)]):
        book = SpendBook(found.spend, queue, lambda n=n: 1_800_000_000_000 - n)
        book.reserve(f"uid-{n}", "owner", "p", worst)
        book.close()
    check = by_name(examine(found, store, {}))["spend book"]
    store.close()
    assert check.words.endswith(
        "; reserved by other queues, the oldest first: 1 call at most $0.0100 since 2027-01-15T07:59:59.999Z by queue "
        "deleted; 1 call at most $0.00 + 1 unpriced since 2027-01-15T08:00:00.000Z by queue young"
    )


def break_book(path: Path, how: str) -> None:
    """Leave in a book's place what no drain can reserve in."""
    if how == "a folder":
        path.unlink()
        path.mkdir()
    elif how == "no database":
        path.write_bytes(b"a page of somebody's thesis " * 400)
    else:
        change = {"a newer schema": "PRAGMA user_version = 999", "wrong sums": "UPDATE reserved SET calls = 7"}[how]
        database = apsw.Connection(str(path))
        database.execute(change)
        database.close()


@pytest.mark.parametrize("how", ["a folder", "no database", "a newer schema", "wrong sums"])
@pytest.mark.parametrize("has_queue", [True, False])
def test_a_spend_book_that_takes_no_reservation_is_a_fault(tmp_path: Path, how: str, has_queue: bool) -> None:
    found = settings(tmp_path)
    book = SpendBook(found.spend, "queue", lambda: 0)
    book.reserve("a", "ours", "free", None)
    book.close()
    store = opened(found) if has_queue else None
    assert by_name(examine(found, store, {}))["spend book"].is_ok
    for beside in found.spend.parent.glob(f"{found.spend.name}-*"):
        beside.unlink()
    break_book(found.spend, how)
    check = by_name(examine(found, store, {}))["spend book"]
    assert not check.is_ok
    assert check.words.startswith(f"{found.spend} {'is a folder, wanted a file' if how == 'a folder' else ''}")
    if store is not None:
        store.close()


def test_a_folder_in_the_place_of_the_queue_is_a_fault(tmp_path: Path) -> None:
    found = settings(tmp_path, queue={"path": str(tmp_path)})
    check = by_name(examine(found, None, {}))["queue"]
    assert not check.is_ok
    assert check.words == f"{tmp_path} is a folder, wanted a file"


def test_a_lock_file_that_cannot_be_opened_hides_one_owner_and_keeps_no_look_from_its_end(tmp_path: Path) -> None:
    """As one of another user; a folder cannot be opened for writing by anybody, root neither."""
    found = settings(tmp_path)
    store = opened(found)
    assert isinstance(found.queue, Path)
    folder = found.queue.with_name("queue.db.d")
    for uuid in ("hidden", "gone"):
        store.enlist(OwnerRow(uuid, "drainer", socket.gethostname(), 7, "an earlier boot", 1))
    lock_file(folder, "hidden").mkdir(parents=True)
    checks = by_name(examine(found, store, {}))
    assert checks["lock file"].words == (
        f"nobody knows whether pid 7 on {socket.gethostname()} lives: {lock_file(folder, 'hidden')}: Is a directory"
    )
    assert not checks["lock file"].is_ok
    assert checks["owners"].words.startswith("0 living; died with work in hand: pid 7")
    [need] = [one for one in build(store, found.policy, None).needs_you if one.name == "hidden"]
    assert need.next == "millpond doctor"
    (folder / "drain.lock").mkdir()
    checks = by_name(examine(found, store, {}))
    assert checks["drainer"].words == f"{folder / 'drain.lock'}: Is a directory"
    assert {"owners", "spend book", "settings"} < checks.keys()
    store.close()


def test_without_a_queue_nothing_is_made(tmp_path: Path, server: int) -> None:
    found = settings(tmp_path, lanes={"free": chat(server)})
    checks = by_name(examine(found, None, {}))
    assert checks["queue"].is_ok
    assert "millpond enqueue" in checks["queue"].words
    assert [path.name for path in tmp_path.iterdir()] == ["millpond.yaml"]


def test_keys_are_asked_for_and_never_told(tmp_path: Path, server: int) -> None:
    found = settings(tmp_path, lanes={"free": chat(server, key_env="A_KEY"), "other": chat(server, key_env="B_KEY")})
    checks = examine(found, None, {"A_KEY": "sk-very-secret-value", "B_KEY": "  "})
    keys = [check for check in checks if "key variable" in check.words]
    assert [(check.is_ok, check.words) for check in keys] == [
        (True, "key variable A_KEY is set"), (False, "key variable B_KEY is not set"),
    ]  # fmt: skip
    assert keys[1].next == "export B_KEY=…"
    told = " ".join(f"{check.words} {check.next}" for check in checks)
    assert "secret" not in told
    assert "hush" not in told, "an address may hold a password"


def test_a_lane_that_the_drain_would_refuse_is_a_fault(tmp_path: Path, server: int) -> None:
    echo = {"kind": "command", "command": ["cat"], "recall": "store", "price": 0}
    found = settings(tmp_path, lanes={"echo": echo, "kept": chat(server, recall="store", key_env="A_KEY")})
    faults = [check for check in examine(found, None, {"A_KEY": "k"}) if not check.is_ok]
    assert ["lanes.echo.recall: found store, and a lane of kind 'command'" in check.words for check in faults] == [True]


def test_a_lane_that_cannot_be_reached_is_a_fault(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    found = settings(
        tmp_path, lanes={"free": chat(port), "off": chat(port, enabled=False), "bare": {"max_attempts": 1}}
    )
    checks = by_name(examine(found, None, {}))
    assert not checks["lane free"].is_ok
    assert "cannot be reached: Connection refused" in checks["lane free"].words
    assert "lane off" not in checks
    assert checks["lane bare"].is_ok
    assert "has no kind" in checks["lane bare"].words


def test_counts_that_differ_from_the_jobs_are_found(tmp_path: Path) -> None:
    found = settings(tmp_path)
    store = opened(found)
    assert by_name(examine(found, store, {}))["tally"].is_ok
    assert isinstance(found.queue, Path)
    database = apsw.Connection(str(found.queue))
    database.execute("INSERT INTO tally (name, n) VALUES ('ready', 3) ON CONFLICT (name) DO UPDATE SET n = 3")
    database.close()
    tally = by_name(examine(found, store, {}))["tally"]
    assert not tally.is_ok
    assert "ready 3 kept, 0 counted" in tally.words
    store.close()


def test_an_owner_that_died_with_work_in_hand_is_named(tmp_path: Path) -> None:
    found = settings(tmp_path)
    store = opened(found)
    assert isinstance(found.queue, Path)
    folder = found.queue.with_name("queue.db.d")
    living, dead = (Owner(folder, "worker", n, lease_ms=15_000) for n in (1, 2))
    for owner in (living, dead):
        store.enlist(owner.row)
    assert by_name(examine(found, store, {}))["owners"].words == "2 living, the oldest beat 0 s ago"
    dead._lock.release()  # as its process would by dying
    owners = by_name(examine(found, store, {}))["owners"]
    assert not owners.is_ok
    assert owners.words == (
        f"1 living, the oldest beat 0 s ago; died with work in hand: pid {os.getpid()} on {socket.gethostname()}"
    )
    living.leave(lambda: None)
    store.close()


def test_an_owner_on_another_machine_is_a_fault_once_it_holds_work_and_nobody_drains(
    tmp_path: Path,
) -> None:
    found = settings(tmp_path)
    store = opened(found)
    store.enlist(OwnerRow("elsewhere", "drainer", "another-host", 7, "boot", 1))
    before = by_name(examine(found, store, {}))
    store.enqueue_one(asked(next_lane="free"))
    store.lease("elsewhere", {"free": 1}, 1)
    held = by_name(examine(found, store, {}))["elsewhere"]
    store.close()
    assert before["owners"].is_ok
    assert before["owners"].words == "0 living; on other machines, watched by who drains: pid 7 on another-host"
    assert "elsewhere" not in before
    assert (held.is_ok, held.next) == (False, "millpond drain --until-empty")
    assert held.words.startswith("1 job leased on another machine (pid 7 on another-host)")


def test_who_drains_is_named(tmp_path: Path) -> None:
    found = settings(tmp_path)
    store = opened(found)
    lock = DrainLock(store.db.lock_folder)  # type: ignore[attr-defined]
    lock.take(1)
    assert f"pid {os.getpid()}" in by_name(examine(found, store, {}))["drainer"].words
    lock.release()
    store.close()


def test_a_network_share_is_refused_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mountinfo").write_text("1 0 0:9 / / rw - nfs4 server:/export rw\n")
    monkeypatch.setattr(mounts, "MOUNTINFO", tmp_path / "mountinfo")
    found = settings(tmp_path)
    with pytest.raises(SettingsError, match="Two ways out"):
        opened(found)
    check = by_name(examine(found, None, {}))["file system"]
    assert not check.is_ok
    assert "is on nfs4 on server:/export, a network share: its locks do not hold" in check.words
    assert "local disk" in check.next


def test_what_may_not_be_written_is_named() -> None:
    with tempfile.TemporaryDirectory() as made:  # pytest's own folders let nobody else in
        folder = Path(made)
        folder.chmod(0o755)
        queue = folder / "queue.db"
        (folder / "queue.db.d").mkdir()
        for path in (queue, folder / "queue.db-wal", folder / "queue.db.d" / "drain.lock", folder / "other"):
            path.touch()
            path.chmod(0o666)
        queue.chmod(0o444)
        (folder / "queue.db.d" / "drain.lock").chmod(0o444)
        assert not_writable(folder, queue) == ([] if os.geteuid() == 0 else [queue])
        with as_somebody_else():
            refused = not_writable(folder, queue)
        assert {queue, folder / "queue.db.d" / "drain.lock"} <= set(refused)
        assert not {folder / "queue.db-wal", folder / "other"} & set(refused)


@contextmanager
def as_somebody_else() -> Iterator[None]:
    """Without the rights of root, if this is root, who may write everything."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no /proc/locks")
def test_o07_an_outside_reader_that_pins_the_log_is_named_with_its_size(tmp_path: Path) -> None:
    found = settings(tmp_path)
    store = opened(found)
    path = str(found.queue)
    outside = subprocess.Popen(
        [sys.executable, "-c", PINS, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert outside.stdout is not None
    assert outside.stdout.readline() == "reading\n"
    for n in range(LARGE_LOG_BYTES // 10_000_000 + 1):
        store.db.write(lambda tx, n=n: tx.all("set_meta_once", name=f"n{n}", value="x" * 10_000_000), full=False)
    log = by_name(examine(found, store, {}))["log"]
    assert not log.is_ok
    assert log.words.startswith("write-ahead log of 7")
    assert f"MB, read by pid {outside.pid} (" in log.words
    assert f"end what keeps reading: pid {outside.pid}" in log.next
    outside.communicate()
    for n in range(2):  # the first brings the log into the file, the second begins it anew
        store.db.write(lambda tx, n=n: tx.all("set_meta_once", name=f"last {n}", value="x"))
    log = by_name(examine(found, store, {}))["log"]
    assert (log.is_ok, log.words) == (True, "write-ahead log of 17 MB")
    store.close()


PINS = """
import apsw, sys
c = apsw.Connection(sys.argv[1], flags=apsw.SQLITE_OPEN_READONLY)
c.execute("BEGIN")
c.execute("SELECT * FROM job").fetchall()
print("reading", flush=True)
sys.stdin.read()
"""


def test_a_second_sqlite_in_this_process_is_named(tmp_path: Path) -> None:
    """In a process of its own: a second SQLite, once loaded, stays."""
    code = """
import sqlite3, sys
from pathlib import Path
from millpond.report.doctor import examine
from millpond.settings import load
from millpond.store.store import Store, open_sqlite

found = load(cwd=Path(sys.argv[1]), env={"XDG_CONFIG_HOME": sys.argv[1]})
store = Store(open_sqlite(found.queue), lambda: 1)
other = sqlite3.connect(found.queue)
other.execute("SELECT * FROM job").fetchall()
[check] = [check for check in examine(found, store, {}) if check.name == "one sqlite"]
print(check.is_ok, check.words)
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("False a second SQLite in this process (the standard library's sqlite3) has")


def test_an_old_sqlite_and_a_full_disk_are_faults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.apsw, "sqlite_lib_version", lambda: "3.40.1")
    monkeypatch.setattr(doctor, "LOW_DISK_BYTES", 1 << 60)
    checks = by_name(examine(settings(tmp_path), None, {}))
    assert not checks["sqlite"].is_ok
    assert "found" not in checks["sqlite"].next
    assert not checks["disk"].is_ok


def test_a_damaged_file_is_found(tmp_path: Path) -> None:
    found = settings(tmp_path)
    store = opened(found)
    store.db.write(lambda tx: [tx.all("set_meta_once", name=f"n{n}", value="x" * 900) for n in range(100)] and None)
    store.close()
    assert isinstance(found.queue, Path)
    raw = bytearray(found.queue.read_bytes())
    raw[len(raw) - 4096 * 6 : len(raw) - 4096 * 5] = b"\xff" * 4096
    found.queue.write_bytes(raw)
    store = opened(found)
    checks = examine(found, store, {})
    store.close()
    [fault] = [check for check in checks if not check.is_ok and check.name in ("integrity", "queue")]
    assert "keep a copy" in fault.next
    assert checks[-1].name == "settings", "the rest is looked at all the same"


def test_a_file_that_cannot_be_opened_is_a_fault_in_words(tmp_path: Path) -> None:
    checks = by_name(examine(settings(tmp_path), None, {}, refused="queue.db is no database"))
    assert not checks["queue"].is_ok
    assert checks["queue"].words == "queue.db is no database"
