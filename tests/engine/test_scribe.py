"""What is written again, and what is not."""

from __future__ import annotations

import asyncio

import pytest
from mill_of_one import Mill

from millpond.db import writer
from millpond.db.database import Transaction
from millpond.engine import scribe
from millpond.engine.scribe import Scribe
from millpond.rules.errors import QueueUnavailable


def looks(monkeypatch: pytest.MonkeyPatch, *found: str) -> None:
    """What is found at each look for a second SQLite: as a transaction begins, and before and after its commit."""
    coming = iter(found)
    monkeypatch.setattr(writer, "find_company", lambda _: next(coming, ""))
    monkeypatch.setattr(scribe, "RETRY_S", 0.01)


def write(mill: Mill, done: list[int]) -> None:
    """Write something, noting each time that it is done."""

    def operation(tx: Transaction) -> None:
        tx.all("set_meta_once", name="a name", value="a value")
        done.append(1)

    pen = Scribe(mill.store.db)
    try:
        asyncio.run(pen.write(operation))
    finally:
        pen.close()


def test_what_was_refused_before_its_commit_is_written_again(mill: Mill, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[int] = []
    looks(monkeypatch, "", "a second SQLite")
    write(mill, done)
    assert len(done) == 2


def test_what_may_be_written_is_not_written_again(mill: Mill, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[int] = []
    looks(monkeypatch, "", "", "a second SQLite")
    with pytest.raises(QueueUnavailable, match="may be lost and is not acknowledged"):
        write(mill, done)
    assert len(done) == 1
