"""Callers of one database who stand in line behind each other, and what was written for them."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from millpond.db import writer
from millpond.db.sqlite import SqliteDatabase


class Line(deque[Any]):
    """The line of a database's callers, that tells of each who comes to stand in it."""

    def __init__(self, database: SqliteDatabase) -> None:
        super().__init__()
        self._came = threading.Condition()
        database._writer._line = self

    def append(self, slot: Any) -> None:
        with self._came:
            super().append(slot)
            self._came.notify_all()

    def reaches(self, length: int) -> None:
        """Wait until so many stand in it."""
        with self._came:
            assert self._came.wait_for(lambda: len(self) >= length, 30), "nobody comes to stand in line"


class Company:
    """A transaction held open in one thread, so that callers line up behind it until `let_go`."""

    def __init__(self, database: SqliteDatabase, *, full: bool = True, more: int = 0) -> None:
        self._database = database
        self.line = Line(database)
        self._more = [self._nothing] * more
        self._inside, self._leave = threading.Event(), threading.Event()
        self.outcomes: dict[str, Any] = {}
        self._threads: list[threading.Thread] = []
        self.start("holder", self._hold, full=full)
        self._inside.wait()

    def _nothing(self, transaction: Any) -> None:
        """One more operation of the holder's."""

    def _hold(self, transaction: Any) -> None:
        self._inside.set()
        self._leave.wait()

    def start(self, name: str, operation: Callable[[Any], Any], *, full: bool = True) -> None:
        """Write in a new thread, and wait until it stands in line."""
        waiting = len(self.line)

        def run() -> None:
            try:
                operations = [operation, *(self._more if name == "holder" else [])]
                outcome = self._database._writer.write(operations, full=full)[0]
                self.outcomes[name] = outcome.error if isinstance(outcome, writer.Raised) else outcome
            except BaseException as error:
                self.outcomes[name] = error

        thread = threading.Thread(target=run, daemon=True)
        self._threads.append(thread)
        thread.start()
        if name != "holder":
            self.line.reaches(waiting + 1)

    def let_go(self) -> dict[str, Any]:
        self._leave.set()
        for thread in self._threads:
            thread.join(30)
            assert not thread.is_alive(), "a caller hangs"
        return self.outcomes


def transactions(trace: list[tuple[int, str]]) -> list[list[str]]:
    """The traced statements from each BEGIN IMMEDIATE to its end."""
    found: list[list[str]] = []
    for _, sql in trace:
        if sql == "BEGIN IMMEDIATE":
            found.append([])
        if found:
            found[-1].append(sql)
    return found
