"""The calls that workers of one's own make: while any is under way, this process ends their holds when these run out.

Only the listener ends its hold, since no clock of another process is trusted for it. A drainer looks after its own as
it goes round; a worker has no round, and may be deep in the very call whose job was cancelled. So there is a thread,
from the first ledger row until the last call has been settled.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from millpond.db import fork
from millpond.rules.errors import MillpondError

LOOK_S = 0.25
"""How often the holds are looked at: one step into an index, and nothing is written until one is over."""

log = logging.getLogger("millpond.engine")


class Listening:
    """The calls under way, each with the owner whose hold it may become. Thread-safe."""

    fork_order = 0
    """Nothing waits for it."""

    def __init__(self, end_holds: Callable[[str], object]) -> None:
        """`end_holds(owner)` ends the holds of this owner that have run out."""
        self._end_holds = end_holds
        self._begin_anew()
        fork.join(self)

    def begin(self, uid: str, owner: str) -> None:
        """A call is about to leave."""
        with self._changed:
            self._calls[uid] = owner
            if self._thread is None:
                self._thread = threading.Thread(target=self._listen, name="millpond-listening", daemon=True)
                self._thread.start()

    def over(self, uid: str) -> None:
        """How a call ended is written."""
        with self._changed:
            self._calls.pop(uid, None)
            self._changed.notify_all()

    def stop(self) -> None:
        """Whatever is still under way is listened to no more. Returns once nothing more is asked of the store."""
        with self._changed:
            self._calls.clear()
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join()

    def before_fork(self, deadline: float) -> None:
        """Nothing to prepare: the child has calls of its own."""

    def after_fork(self, *, child: bool) -> None:
        """The parent's calls are the parent's, and its thread does not run in the child."""
        if child:
            self._begin_anew()

    def _begin_anew(self) -> None:
        self._changed = threading.Condition()
        self._calls: dict[str, str] = {}
        self._thread: threading.Thread | None = None

    def _listen(self) -> None:
        try:
            while owners := self._owners():
                for owner in owners:
                    try:
                        self._end_holds(owner)
                    except MillpondError as problem:  # busy or full just now: the next look is not far away
                        log.warning("could not end the holds of calls that are still listened to: %s", problem)
        except BaseException:  # a fault of ours: the next call that is recorded has a thread again
            log.exception("the thread that ends the holds of a worker's calls has ended")
            with self._changed:
                self._thread = None
            raise

    def _owners(self) -> set[str]:
        """Whose holds are to be looked at, after a pause; nobody's ends the thread."""
        with self._changed:
            self._changed.wait_for(lambda: not self._calls, LOOK_S)
            if not self._calls:
                self._thread = None
            return set(self._calls.values())
