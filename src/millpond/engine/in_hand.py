"""What workers of one's own have in hand, leases and calls: while there is any, a thread looks after it.

Only the listener ends its hold, and only the owner judges its leases, since no clock of another process is trusted. A
drainer looks after its own as it goes round. A worker has no round, and may be deep in the very call whose job was
cancelled, or never come back. So there is a thread, from the first lease until the last is settled or given back.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Generator
from contextlib import contextmanager
from dataclasses import dataclass

from millpond.db import fork
from millpond.engine.beat import BEATS_A_LEASE
from millpond.rules.errors import MillpondError
from millpond.rules.job import Lease

LOOK_S = 0.25
"""How often it is looked at: one step into an index, and nothing is written until a hold or a lease is over."""

log = logging.getLogger("millpond.engine")

Name = tuple[int, int]
"""A lease: its job, its number."""


@dataclass(slots=True)
class _Call:
    """A call under way: under whose name it is listened to, and on which lane it was made."""

    owner: str
    lane: str
    is_left: bool = False
    """Its worker never came back. It is in hand as long as it is listened to: nobody else ends its hold."""


@dataclass(slots=True)
class _Held:
    """A lease, and for how long nobody has said that its job is still being worked on."""

    uid: str = ""
    """Its call, once it is recorded."""
    silent_ms: float = 0
    at_work: int = 0
    """How many threads of this process are at it: nobody is silent then, however long a lane or a lock keeps them."""


class InHand(fork.Bystander):
    """The leases and calls of a process. Thread-safe.

    A lease is silent as long as its worker neither records, renews nor settles it. Time counts only as far as the
    process was awake: a pause between two looks counts for no more than a beat's time.
    """

    def __init__(
        self,
        lease_ms: int,
        *,
        look: Callable[[], object],
        end_holds: Callable[..., Collection[str] | None],
        lapse: Callable[[int, int], object],
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`look()` comes first in each round. `end_holds(*owners)` ends the holds of these that are over, and says
        which calls are listened to, None if it did not look; `lapse(job_id, lease_no)` takes a lease back.
        """
        self._lease_ms = lease_ms
        self._look = look
        self._end_holds = end_holds
        self._lapse = lapse
        self._monotonic_s = monotonic_s
        self._begin_anew()
        fork.join(self)

    def took(self, lease: Lease) -> None:
        """A job was leased, to be worked on by somebody of this process."""
        with self._changed:
            self._leases[lease.job_id, lease.lease_no] = _Held()
            self._see_to_a_thread()

    def heard_of(self, lease: Lease) -> None:
        """Its worker is still at it."""
        with self._changed:
            if held := self._leases.get((lease.job_id, lease.lease_no)):
                held.silent_ms = 0

    @contextmanager
    def at_work(self, lease: Lease) -> Generator[None]:
        """Its worker is at it for as long as this lasts."""
        with self._changed:
            held = self._leases.get((lease.job_id, lease.lease_no)) or _Held()
            held.at_work += 1
        try:
            yield
        finally:
            with self._changed:
                held.at_work, held.silent_ms = held.at_work - 1, 0

    def begin(self, uid: str, owner: str, lease: Lease, lane: str) -> None:
        """A call is about to leave."""
        with self._changed:
            self._calls[uid] = _Call(owner, lane)
            if held := self._leases.get((lease.job_id, lease.lease_no)):
                held.uid, held.silent_ms = uid, 0
                self._lease_of[uid] = lease.job_id, lease.lease_no
            self._see_to_a_thread()

    def inherit(self, old: str, heir: str) -> None:
        """The process is listening under a new name."""
        with self._changed:
            for call in self._calls.values():
                call.owner = heir if call.owner == old else call.owner

    def lane_of(self, uid: str) -> str:
        """On which lane a call was made that is under way here; "" where it is not known."""
        with self._changed:
            call = self._calls.get(uid)
            return call.lane if call is not None else ""

    def over(self, uid: str) -> None:
        """How a call ended is written."""
        with self._changed:
            self._calls.pop(uid, None)
            if (name := self._lease_of.pop(uid, None)) is not None:
                self._leases.pop(name, None)
            self._changed.notify_all()

    def gave(self, lease: Lease) -> None:
        """A lease is over. Its call, if there is one, still is to end."""
        with self._changed:
            held = self._leases.get((lease.job_id, lease.lease_no))
            if held is not None and not held.uid:
                del self._leases[lease.job_id, lease.lease_no]
            self._changed.notify_all()

    def stop(self) -> None:
        """Whatever is still in hand is looked after no more. Returns once nothing more is asked of the store."""
        with self._changed:
            self._calls.clear()
            self._leases.clear()
            self._lease_of.clear()
            self._changed.notify_all()
            thread = self._thread
        if thread is not None:
            thread.join()

    def after_fork(self, *, child: bool) -> None:
        """The parent's leases and calls are the parent's, and its thread does not run in the child."""
        if child:
            self._begin_anew()

    def _begin_anew(self) -> None:
        self._changed = threading.Condition()
        self._calls: dict[str, _Call] = {}
        self._leases: dict[Name, _Held] = {}
        self._lease_of: dict[str, Name] = {}
        """The lease of each call, as long as it is in hand."""
        self._thread: threading.Thread | None = None

    def _see_to_a_thread(self) -> None:
        if self._thread is None:
            self._looked_s = self._monotonic_s()
            self._thread = threading.Thread(target=self._look_after, name="millpond-in-hand", daemon=True)
            self._thread.start()

    def _look_after(self) -> None:
        try:
            while self._pause():
                self._ask("see whether this process was given up", self._look)
                self._ask("end the holds of calls that are still listened to", self._end_holds_of_calls)
                for name in self._silent():
                    if self._ask("take back a lease that nobody renewed", lambda n=name: self._lapse(*n)):
                        self._drop(name)
        except BaseException:  # a fault of ours: the next lease or call has a thread again
            log.exception("the thread that looks after a worker's leases and calls has ended")
            with self._changed:
                self._thread = None
            raise

    def _ask(self, what: str, do: Callable[[], object]) -> bool:
        try:
            do()
        except MillpondError as problem:  # busy or full just now: the next look is not far away
            log.warning("could not %s: %s", what, problem)
            return False
        return True

    def _pause(self) -> bool:
        """Wait a little. False: nothing is in hand any more, and the thread is over."""
        with self._changed:
            self._changed.wait_for(lambda: not (self._calls or self._leases), LOOK_S)
            if not (self._calls or self._leases):
                self._thread = None
                return False
            return True

    def _end_holds_of_calls(self) -> None:
        with self._changed:
            owners = {call.owner for call in self._calls.values()}
            left = {uid for uid, call in self._calls.items() if call.is_left}
        listened = self._end_holds(*owners)
        if listened is not None:
            with self._changed:
                for uid in left.difference(listened):
                    self._calls.pop(uid, None)

    def _silent(self) -> list[Name]:
        """The leases whose workers have been silent for a whole lease."""
        with self._changed:
            now_s = self._monotonic_s()
            step_ms = min((now_s - self._looked_s) * 1000, self._lease_ms / BEATS_A_LEASE)
            self._looked_s = now_s
            for held in self._leases.values():
                held.silent_ms = 0 if held.at_work else held.silent_ms + step_ms
            return [name for name, held in self._leases.items() if held.silent_ms >= self._lease_ms]

    def _drop(self, name: Name) -> None:
        with self._changed:
            held = self._leases.pop(name, None)
            if held is not None and (call := self._calls.get(held.uid)) is not None:
                call.is_left = True
                self._lease_of.pop(held.uid, None)
