"""How a queue stands whose spend book nobody ever wrote."""

from __future__ import annotations

from pathlib import Path

from millpond.engine.drain_lock import Holder
from millpond.report import status
from millpond.report.status import Status
from millpond.rules.policy import Policy
from millpond.spend.book import SpendBook
from millpond.store.store import Store


def build(store: Store, policy: Policy, drainer: Holder | None) -> Status:
    """How a queue stands that never reserved anything."""
    return status.build(store, SpendBook(Path("no/such/book"), store.uuid, store.now_ms), policy, drainer)
