"""Under which name this process holds leases of a queue now: a name that others may have given up is laid down.

A process that slept cannot know what others did meanwhile. Whoever gave its name up may write so only after it has
woken, so nothing new is done under that name. What is under way goes on under the new one, unless it was given up.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from millpond.engine.clock import boot_ms
from millpond.engine.owner import Owner
from millpond.rules.job import OwnerRow
from millpond.store.store import Store


class Tenure:
    """An owner and its successors in one process. Not thread-safe: one renews at a time."""

    def __init__(
        self, store: Store, folder: Path, role: str, *, lease_ms: int, boot_ms: Callable[[], int] = boot_ms
    ) -> None:
        """Become an owner: its lock is held, its beat goes, its row is written."""
        self._store = store
        self._make = partial(Owner, folder, role, lease_ms=lease_ms, boot_ms=boot_ms)
        self._owner = self._make(store.now_ms())
        try:
            store.enlist(self._owner.row)
        except BaseException:
            self._owner.leave(lambda: None)
            raise

    @property
    def uuid(self) -> str:
        """The name under which it leases now."""
        return self._owner.uuid

    @property
    def pid(self) -> int:
        """Whose process that is."""
        return self._owner.row.pid

    def stands(self) -> bool:
        """Whether it may lease under its name. What the queue's table says of it is asked by the lease itself."""
        return self._owner.stands()

    def may_send(self, name: str) -> bool:
        """Whether something that was leased under this name may be sent: it is the present one, and stands."""
        return name == self._owner.uuid and self._owner.stands()

    @contextmanager
    def renewing(self) -> Generator[OwnerRow]:
        """Take a new name: inside, `store.reclaim.succeed` is to be written for the row that this gives.

        If that fails, the name stays what it was.
        """
        heir = self._make(self._store.now_ms())
        try:
            yield heir.row
        except BaseException:
            heir.leave(lambda: None)
            raise
        old, self._owner = self._owner, heir
        old.leave(lambda: None)

    def renew(self) -> None:
        """Take a new name, on this thread."""
        with self.renewing() as heir:
            self._store.succeed(self.uuid, heir)

    def leave(self, write_what_waits: Callable[[], object] = lambda: None) -> None:
        """Give back what it holds, uncounted: it leaves by itself.

        First comes what waits to be written: what has a reply must not be given to anybody else. If that raises, it
        leaves as the dead do.
        """
        self._owner.leave(partial(self._bury, write_what_waits))

    def _bury(self, write_what_waits: Callable[[], object]) -> None:
        write_what_waits()
        self._store.reclaim(self.uuid, died=False)
