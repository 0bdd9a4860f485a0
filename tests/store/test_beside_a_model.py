"""The SQLite store beside a model in dicts: whatever is done to both in whatever order, they say and hold the same."""

from __future__ import annotations

import tempfile
import weakref
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from millpond.store.store import Store, open_sqlite
from millpond.testing import store_machine


def make_sqlite(now_ms: Callable[[], int]) -> Store:
    """A store in a folder that goes with it."""
    folder = tempfile.TemporaryDirectory()
    store = Store(open_sqlite(Path(folder.name) / "queue.db", durable=False), now_ms)
    weakref.finalize(store, folder.cleanup)
    return store


Machine = store_machine(make_sqlite)


def at_length(max_examples: int, steps: int) -> settings:
    return settings(
        max_examples=max_examples,
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow],
    )


class TestBesideAModel(Machine.TestCase):
    settings = at_length(150, 40)


@pytest.mark.prove
@pytest.mark.timeout(1_800)
class TestBesideAModelAtLength(Machine.TestCase):
    settings = at_length(2_000, 80)
