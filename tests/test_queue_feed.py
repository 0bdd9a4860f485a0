"""The feed of a queue, followed: what it costs while nothing happens."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import apsw
import pytest

from millpond import Policy, Queue


class Statements:
    """Counts what the connections opened while it stands run: looks at events, and looks for commits of others."""

    def __init__(self) -> None:
        self.reads_of_events = 0
        self.polls = 0
        self.polled_often = threading.Event()

    def watch(self, connection: apsw.Connection) -> None:
        connection.trace_v2(apsw.SQLITE_TRACE_STMT, self._count)

    def _count(self, event: dict[str, Any]) -> None:
        self.reads_of_events += re.search(r"SELECT\b.*\bFROM event\b", event["sql"], re.DOTALL) is not None
        self.polls += "data_version" in event["sql"]
        if self.polls >= 20:
            self.polled_often.set()


@pytest.fixture
def statements() -> Iterator[Statements]:
    statements = Statements()
    apsw.connection_hooks.append(statements.watch)
    yield statements
    apsw.connection_hooks.remove(statements.watch)


def test_who_follows_reads_events_when_somebody_commits_and_not_before(tmp_path: Path, statements: Statements) -> None:
    with ThreadPoolExecutor() as threads, Queue.open(tmp_path / "pond", policy=Policy()) as queue:
        first = threads.submit(next, queue.feed(follow=True))
        assert statements.polled_often.wait(30)
        assert not first.done()
        assert 1 <= statements.reads_of_events <= 3
        queue.enqueue("a duck")
        assert first.result(30).kind == "enqueue"
        assert statements.reads_of_events <= 6
