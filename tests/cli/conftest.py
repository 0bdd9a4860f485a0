"""A folder of one's own, and a lane that answers."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from folder import Mill, chat

from millpond.drill.faultlane import FaultLane


@pytest.fixture
def mill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mill:
    """An empty folder, entered; no settings from outside reach it."""
    for name in os.environ:
        if name.startswith("MILLPOND_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    folder = tmp_path / "folder"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return Mill(folder)


@pytest.fixture
def lane() -> Iterator[FaultLane]:
    """A lane that answers at once with the last message in capitals."""
    with FaultLane(answer=lambda body: str(body["messages"][-1]["content"]).upper()) as server:
        yield server


@pytest.fixture
def drained(mill: Mill, lane: FaultLane) -> Mill:
    """A queue that has answered `cats.csv`, a file of three rows of which two are the same work."""
    mill.settings(lanes={"free": chat(lane)})
    mill.file("cats.csv", "id,animal,legs\na,cat,4\nb,bird,2\nc,cat,4\n")
    mill.run("enqueue", "cats.csv", "--task", "How many legs has a {animal}?", "--map", "custom_id=id")
    mill.run("drain")
    return mill
