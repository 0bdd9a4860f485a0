"""A drain whose replies come when the queue cannot take them: what refuses, and how that ends, is the test's to say."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from mill import Home

DRAIN = """
import asyncio, importlib, resource, signal, sys, threading
from millpond.db.sqlite import SqliteDatabase
from millpond.engine import drain, perform, scribe, spool
from millpond.rules import effects

patience_s, step = float(sys.argv[1]), sys.argv[2]
sys.argv = ["millpond", *sys.argv[3:]]
SqliteDatabase.__init__.__kwdefaults__["busy_ms"] = 200
drain.PATIENCE_S = scribe.PATIENCE_S = patience_s
spool.SLOT_BYTES = 1 << 13  # so that the spool is shorter than a log
loops, go = [], None
call = perform._PERFORM[effects.Call]

def hear():
    for line in sys.stdin:
        if line.startswith("at most"):
            hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
            most = int(line.split()[2]) if "bytes" in line else hard
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, hard))
            sys.stderr.write("limited\\n")
        else:
            loops[0].call_soon_threadsafe(go.set)

async def held(flight, effect):
    global go
    if go is None:
        go = asyncio.Event()
        loops.append(asyncio.get_running_loop())
        threading.Thread(target=hear, daemon=True).start()
    heard = await call(flight, effect)
    sys.stderr.write("replied\\n")
    await go.wait()
    return heard

perform._PERFORM[effects.Call] = held

if step:
    room, name, side = step.split(":")
    place = importlib.import_module(room)
    for part in name.split(".")[:-1]:
        place = getattr(place, part)
    do = getattr(place, name.split(".")[-1])
    def stand(*given, **named):
        if side == "after":
            answer = do(*given, **named)
        sys.stderr.write("here\\n")
        signal.pause() if threading.current_thread() is threading.main_thread() else threading.Event().wait()
    setattr(place, name.split(".")[-1], stand)
from millpond.faces.cli import main
main()
"""


class Drain:
    """`millpond drain`, whose calls give their replies out of hand when told to."""

    def __init__(self, home: Home, *words: str, patience_s: float = 60, stands: str = "") -> None:
        """`stands`: where it stands still for ever, as `room:function:before|after`."""
        self.process = subprocess.Popen(
            [sys.executable, "-c", DRAIN, str(patience_s), stands, "drain", *words],
            cwd=home.folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.out: list[str] = []
        self.err: list[str] = []
        self._changed = threading.Condition()
        self._readers = [self._reads(self.process.stdout, self.out), self._reads(self.process.stderr, self.err)]

    def say(self, words: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{words}\n")
        self.process.stdin.flush()

    def hears(self, words: str, times: int = 1) -> None:
        """Wait until it has said this so often."""

        def has_said() -> bool:
            return sum(words in line for line in [*self.out, *self.err]) >= times or self.process.poll() is not None

        with self._changed:
            self._changed.wait_for(has_said, timeout=60)
        assert sum(words in line for line in [*self.out, *self.err]) >= times, "\n".join([*self.out, *self.err])

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(timeout=30)

    def ends(self, code: int) -> str:
        """Wait for its end, with this exit code; all that it said."""
        self.process.wait(timeout=90)
        for reader in self._readers:
            reader.join(timeout=30)
        said = "".join([*self.out, *self.err])
        assert self.process.returncode == code, said
        return said

    def _reads(self, pipe: object, lines: list[str]) -> threading.Thread:
        def read() -> None:
            for line in pipe:  # type: ignore[attr-defined]
                with self._changed:
                    lines.append(line)
                    self._changed.notify_all()
            self.process.wait()
            with self._changed:
                self._changed.notify_all()

        thread = threading.Thread(target=read, daemon=True)
        thread.start()
        return thread


@contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """A file system in memory of this size. Skips where this user may not mount one: no package could bring that."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("no tmpfs may be mounted here: run as root, or in a user namespace with mounts")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@contextmanager
def full(folder: Path, *, leave: int = 0) -> Iterator[None]:
    """No block of this disk is free meanwhile, or so many bytes are left."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        for size in (1 << 16, 1 << 12):
            with suppress(OSError):
                while True:
                    file.write(bytes(size))
    os.truncate(filler, filler.stat().st_size - leave)
    try:
        yield
    finally:
        filler.unlink()


LOCK = """
import sys, apsw
database = apsw.Connection(sys.argv[1])
database.execute("BEGIN IMMEDIATE").fetchall()
print("locked", flush=True)
sys.stdin.read()
"""


@contextmanager
def locked(database: Path) -> Iterator[None]:
    """Another program writes to the database meanwhile, and does not come to an end."""
    words = [sys.executable, "-c", LOCK, str(database)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        yield
        process.communicate(timeout=30)


@contextmanager
def moved_away(database: Path) -> Iterator[None]:
    """The database is not where it was, meanwhile."""
    away = database.with_suffix(".away")
    database.rename(away)
    yield
    away.rename(database)


@contextmanager
def no_longer_than(drain: Drain, database: Path) -> Iterator[None]:
    """The process may make no file longer than the database's log is now (a quota of its own, met as an I/O error)."""
    log = database.with_name(database.name + "-wal")
    drain.say(f"at most {log.stat().st_size} bytes")
    drain.hears("limited")
    yield
    if drain.process.poll() is None:
        drain.say("at most all")
        drain.hears("limited", 2)
