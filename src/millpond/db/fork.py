"""What becomes of open databases when the process forks: nothing of them is open while it happens.

SQLite keeps, beside each connection, one record a file for the whole process: which locks "this process" holds. A fork
copies that record but not the locks. A child that opens the file anew beside an inherited connection is told that it
already holds what it does not: when its parent closed, the log was deleted under the child and 11 of its 11 committed
rows were lost (tests/db/test_fork.py). So connections are closed before the fork, in the parent, where closing is
sound, and both sides open their own on next use. Where that cannot be done in time, see `Connection.after_fork`.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Protocol
from weakref import WeakSet

FORK_WAIT_S = 5.0
"""How long a fork waits for other threads to end their transactions. Those take milliseconds; a line of four writers
behind the turnstile took 0.5 s (DESIGN §8)."""


class Forks(Protocol):
    """Something that must get ready for a fork, and be told on which side of it it is now."""

    fork_order: int
    """Smaller ones get ready first: what others may be waiting for must not stand still before they do."""

    def before_fork(self, deadline: float) -> None:
        """Let go of whatever must not be inherited; do not wait past `deadline` (time.monotonic)."""
        ...

    def after_fork(self, *, child: bool) -> None:
        """Go on, in the parent or in the child. In the child the caller is the only thread there is."""
        ...


class Bystander:
    """What has nothing to let go of before a fork, and for which nothing waits: it only is told afterwards."""

    fork_order = 0

    def before_fork(self, deadline: float) -> None:
        """Nothing is held that a child must not inherit, or the child closes its copy."""


_members: WeakSet[Forks] = WeakSet()
_joining = threading.Lock()
_asked: list[Forks] = []
_forking = False


def join(member: Forks) -> None:
    """From now on tell this object of forks, for as long as it lives."""
    with _joining:
        _members.add(member)


def pass_gate() -> None:
    """Wait while a fork is being made ready. To be called before a lock that the fork waits for is taken.

    A thread that releases and takes its lock in a loop would otherwise never let a fork have it.
    """
    if _forking:
        with _joining:
            pass


def _before() -> None:
    global _forking
    _joining.acquire()
    _forking = True
    _asked.extend(sorted(_members, key=lambda member: member.fork_order))
    deadline = time.monotonic() + FORK_WAIT_S
    for member in _asked:
        member.before_fork(deadline)


def _after_in_parent() -> None:
    global _forking
    for member in _asked:
        member.after_fork(child=False)
    _asked.clear()
    _forking = False
    _joining.release()


def _after_in_child() -> None:
    global _forking, _joining
    _forking = False
    _joining = threading.Lock()
    for member in _asked:
        member.after_fork(child=True)
    _asked.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before, after_in_parent=_after_in_parent, after_in_child=_after_in_child)
