"""For how long a process listens on to calls whose jobs no longer wait for them: by its own clock, and by no other.

Whoever begins a hold writes how long it is to be: a soft timeout of this process, or a cancel in another. Where it ends
on the wall clock says nothing, since that may have been set anew meanwhile: a hold would end at once, and its call be
paid for a second time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection

from millpond.engine.clock import awake_ms
from millpond.store.store import Store


class Listening:
    """When the holds of one process began, as it first saw them. Not thread-safe."""

    def __init__(self, store: Store, now_ms: Callable[[], int] = awake_ms) -> None:
        """`now_ms` is compared with itself only."""
        self._store = store
        self._now_ms = now_ms
        self._began_ms: dict[str, int] = {}

    def end_holds(self, *owners: str) -> list[str]:
        """End those of these owners' holds that are over; the calls themselves go on. Their attempts.

        To be called again and again. One that nobody holds any more is forgotten.
        """
        now_ms = self._now_ms()
        held = {uid: hold_ms for owner in owners for uid, hold_ms in self._store.own_holds(owner).items()}
        self._began_ms = {uid: self._began_ms.get(uid, now_ms) for uid in held}
        over = [uid for uid, hold_ms in held.items() if now_ms - self._began_ms[uid] >= hold_ms]
        for uid in over:
            self._store.stop_listening(uid)
        return over

    @property
    def calls(self) -> Collection[str]:
        """The attempts that were listened to at the last look."""
        return self._began_ms.keys()
