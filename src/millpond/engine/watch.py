"""Watching others live: an owner whose beat stood still for its whole lease, while we were awake, is given up."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from millpond.db import fork
from millpond.engine.beat import BEATS_A_LEASE, Sighting, sight
from millpond.engine.clock import awake_ms
from millpond.engine.owner import is_dead, is_here, lock_file
from millpond.engine.trouble import Trouble
from millpond.rules.job import OwnerRow
from millpond.rules.policy import Policy

UNSEEN_MS = Policy().lease_ms
"""How long an owner of another machine is watched of which there is no beat, and so no lease, to be seen."""


@dataclass(slots=True)
class _Seen:
    """An owner's last beat, for how long we have watched it stand still, and whether we ever saw another."""

    sighting: Sighting | None
    still_ms: int = 0
    has_beaten: bool = False


class Watch(fork.Bystander):
    """What one process has seen of the others. One a process and queue is enough; each look adds to it.

    Of an owner of another machine the beat alone says whether it lives, which whoever has its file can see. It may be
    gone, and its disk be here now; or the file is shared by some way on which no lock is seen.

    Time counts only as far as the watcher was awake: a pause between two looks counts for no more than a beat's time.
    So a watcher that slept, perhaps together with whom it watches, gives nobody up on waking who can still beat.
    """

    def __init__(self, folder: Path, now_ms: Callable[[], int] = awake_ms) -> None:
        """`folder` is where the queue's locks stand."""
        self._folder = folder
        self._now_ms = now_ms
        self._looked_ms = now_ms()
        self._seen: dict[str, _Seen] = {}
        self._looking = threading.Lock()
        self.is_undecided = False
        """Whether an owner of another machine, by the last look, may be gone, and has not been watched long enough."""
        self._trouble = Trouble("an owner cannot be judged, so its work is not taken back")
        fork.join(self)

    def gone(self, living: Iterable[OwnerRow]) -> list[OwnerRow]:
        """Look once; those of them whose work may be taken back. Their lock is free, or their beat stood still."""
        with self._looking:  # two threads that look at once would count the same time twice
            now_ms = self._now_ms()
            step_ms, self._looked_ms = max(now_ms - self._looked_ms, 0), now_ms
            before, self._seen = self._seen, {}
            living = list(living)
            gone = [owner for owner in living if self._is_gone(owner, before.get(owner.uuid), step_ms)]
            away = [self._seen[owner.uuid] for owner in living if owner not in gone and not is_here(owner)]
            self.is_undecided = not all(seen.has_beaten for seen in away)
            return gone

    def after_fork(self, *, child: bool) -> None:
        """What was seen is true in the child too; who looked is not there."""
        if child:
            self._looking = threading.Lock()

    def _is_gone(self, owner: OwnerRow, seen: _Seen | None, step_ms: int) -> bool:
        try:
            if is_dead(self._folder, owner):
                return True
        except OSError as problem:  # a file of another user's, or we are out of descriptors
            self._trouble.met(problem)
            if seen is not None:
                self._seen[owner.uuid] = seen
            return False
        now = sight(lock_file(self._folder, owner.uuid))
        if seen is None or (now is not None and now != seen.sighting):
            if now is not None or not is_here(owner):
                self._seen[owner.uuid] = _Seen(now, has_beaten=seen is not None)
            return False
        # A file that was deleted stands still as well: a living owner notices at its next beat, and has a new name.
        lease_ms = seen.sighting.lease_ms if seen.sighting is not None else UNSEEN_MS
        seen.still_ms += min(step_ms, lease_ms // BEATS_A_LEASE)
        self._seen[owner.uuid] = seen
        return seen.still_ms >= lease_ms
