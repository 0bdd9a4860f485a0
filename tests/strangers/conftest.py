"""llmock on loopback, and a queue whose lanes are all llmock."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from llmock.pytest_plugin import LLMock
from llmock.testing import LLMockServer
from pond import Pond


@pytest.fixture(scope="module")
def llmock_server() -> Iterator[LLMockServer]:
    """In the place of the plugin's own, which lasts a session: its thread would be there when other tests fork."""
    with LLMockServer() as server:
        assert httpx2.get(f"{server.url}/health").json()["status"] == "ok"
        yield server


@pytest.fixture
def make_pond(tmp_path: Path, llmock: LLMock) -> Iterator[Any]:
    """Make a Pond; it is closed at the end."""
    ponds: list[Pond] = []

    def make(**lane: Any) -> Pond:
        ponds.append(Pond(tmp_path / f"pond-{len(ponds)}", llmock, **lane))
        return ponds[-1]

    yield make
    for pond in ponds:
        pond.queue.close()
