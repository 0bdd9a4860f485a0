"""Who waits for what in a queue: one thread looks on behalf of all, and only when somebody has committed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from enum import Enum
from itertools import chain, islice
from typing import Any, cast
from weakref import WeakValueDictionary

from millpond.db import fork
from millpond.rules.errors import QueueUnavailable, UsageError
from millpond.rules.job import Receipt
from millpond.rules.numbers import whole_number
from millpond.store.reader import PAGE_ROWS
from millpond.store.store import Store


class Everything(Enum):
    """What is waited for where nothing is named. No None: one that came by mistake would wait for a whole queue."""

    EVERYTHING = "everything"


EVERYTHING = Everything.EVERYTHING

Waitable = Receipt | int
"""A request: by what was given for it, or by its id."""

POLL_S = 0.2
"""How often other processes' commits are looked for: one PRAGMA for all who wait, under 0.1 % of a core (DESIGN §9)."""

PAUSE_S = 0.01
"""How long the tables are let alone after a look, however many commit: what ends meanwhile is seen at once."""


class Doorbell:
    """Rung after each commit of this process. Across processes the door is looked at (`POLL_S`)."""

    def __init__(self) -> None:
        self._rung = threading.Event()

    def ring(self) -> None:
        """Wake whoever looks on behalf of the others."""
        self._rung.set()

    def heard(self, timeout_s: float) -> None:
        """Return once it was rung, or after so long."""
        self._rung.wait(timeout_s)
        self._rung.clear()

    def renew(self) -> None:
        """In a forked child: the old one may have been held by a thread that is not there any more."""
        self._rung = threading.Event()


class _Look:
    """What one look at the tables has shown so far: who waits for the same asks once."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._pending: dict[int, bool] = {}

    def learn(self, requests: Iterable[int]) -> None:
        """Read how these stand, as far as it is not known."""
        unknown = iter({one for one in requests if one not in self._pending})
        while page := list(islice(unknown, PAGE_ROWS)):
            self._pending |= dict.fromkeys(page, False) | self.store.standing(page)

    def first_pending(self, requests: Sequence[int]) -> int | None:
        """The first of these that still waits for its answer."""
        self.learn(requests)
        return next((one for one in requests if self._pending[one]), None)


@dataclass(slots=True, eq=False, weakref_slot=True)
class _Awaited:
    """What is waited for: one request after the other (`request`, then what `following` finds), or an event."""

    request: int | None = None
    following: Callable[[_Look], int | None] = lambda _: None
    after: int | None = None


class Waiters(fork.Bystander):
    """Futures for what happens in a queue. They may be awaited by threads and by loops, and cancelled by them.

    The thread that looks is started for the first who waits, and ends with the last. A future whose queue is closed, or
    cannot be read, raises what the next read would raise.
    """

    def __init__(self, store: Store, doorbell: Doorbell) -> None:
        self._store = store
        self._doorbell = doorbell
        self._closing = threading.Event()
        self._mutex = threading.Lock()
        self._waiters: dict[Future[None], _Awaited] = {}
        self._shared: WeakValueDictionary[int | Everything, _Awaited] = WeakValueDictionary()
        self._thread: threading.Thread | None = None
        self._came = False
        fork.join(self)

    def for_named(self, named: Iterable[Waitable]) -> Future[None]:
        """As `for_requests`, of those that a caller names. Raises UsageError for what is none, or not in this queue."""
        ids = [request_id(one) for one in named]
        for start in range(0, len(ids), PAGE_ROWS):
            page = ids[start : start + PAGE_ROWS]
            known = self._store.standing(page)
            if unknown := next((one for one in page if one not in known), None):
                raise no_request(unknown)
        return self.for_requests(ids)

    def for_requests(self, ids: Sequence[int]) -> Future[None]:
        """Done once all of these requests, which must exist, are answered, failed or cancelled."""
        at = 0

        def following(look: _Look) -> int | None:
            # Round once: what was settled when it was passed may have been asked again since.
            nonlocal at
            page_starts = range(0, len(ids), PAGE_ROWS)
            for start in chain(page_starts[at:], page_starts[: at + 1]):
                pending = look.first_pending(ids[start : start + PAGE_ROWS])
                if pending is not None:
                    at = start // PAGE_ROWS
                    return pending
            return None

        first = following(_Look(self._store))
        return _done() if first is None else self._add(_Awaited(first, following))

    def for_submission(self, submission_id: int) -> Future[None]:
        """Done once all requests of a submission are answered, failed or cancelled."""
        first = self._store.first_pending(submission_id)
        if first is None:
            return _done()
        after = first - 1

        def following(look: _Look) -> int | None:
            nonlocal after
            position = look.store.first_pending(submission_id, after)
            if position is None and after >= 0:
                position = look.store.first_pending(submission_id)
            after = after if position is None else position - 1
            return None if position is None else look.store.request_at(submission_id, position)

        return self._add(_Awaited(following=following), shared_as=submission_id)

    def for_all(self) -> Future[None]:
        """Done once no request of the queue waits for its answer, those included that come meanwhile."""
        if self._store.any_pending_request() is None:
            return _done()
        everything = _Awaited(following=lambda look: look.store.any_pending_request())
        return self._add(everything, shared_as=EVERYTHING)

    def for_event(self, after: int) -> Future[None]:
        """Done once there is an event with a seq above this one."""
        return self._add(_Awaited(after=after))

    def close(self) -> None:
        """Let the thread notice that the store is closed, and wait for it."""
        self._closing.set()
        self._doorbell.ring()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def after_fork(self, *, child: bool) -> None:
        """In a child nobody waits: its threads are gone."""
        if child:
            self._mutex = threading.Lock()
            self._waiters = {}
            self._shared = WeakValueDictionary()
            self._thread = None
            self._closing = threading.Event()
            self._doorbell.renew()

    def _add(self, awaited: _Awaited, *, shared_as: int | Everything | None = None) -> Future[None]:
        """A future for it. `shared_as` names what may be waited for by many: they are looked after as one."""
        future: Future[None] = Future()
        future.add_done_callback(self._forget)  # before it is waited for: an interrupt may come between any two lines
        with self._mutex:
            if shared_as is not None:
                awaited = self._shared.setdefault(shared_as, awaited)
            self._waiters[future] = awaited
            self._came = True
            if self._thread is None:
                self._thread = self._started()
        self._doorbell.ring()
        return future

    def _started(self) -> threading.Thread:
        thread = threading.Thread(target=self._run, name="millpond-waiters", daemon=True)
        try:
            thread.start()
        except RuntimeError as problem:  # the system gives none
            self._waiters.clear()  # nobody was there before, or there would be a thread
            raise QueueUnavailable(f"no thread to wait with ({problem}); end some others, or raise the limit") from None
        return thread

    def _forget(self, future: Future[None]) -> None:
        with self._mutex:
            self._waiters.pop(future, None)
            nobody = not self._waiters
        if nobody:
            self._doorbell.ring()

    def _run(self) -> None:
        version: int | None = None
        while True:
            with self._mutex:
                if not self._waiters:
                    self._thread = None
                    return
                waiters, came, self._came = dict(self._waiters), self._came, False
            try:
                seen = self._store.db.data_version()
                over = self._over(waiters) if came or seen != version else ()
                version = seen
            except Exception as problem:  # closed, or unreadable: everyone learns of it
                _end(waiters, problem)
                continue
            _end(over)
            self._doorbell.heard(POLL_S)
            self._closing.wait(PAUSE_S)

    def _over(self, waiters: dict[Future[None], _Awaited]) -> list[Future[None]]:
        """Whose waiting is over."""
        look = _Look(self._store)
        awaited = set(waiters.values())
        look.learn(one.request for one in awaited if one.request is not None)
        last_seq = self._store.last_event() if any(one.after is not None for one in awaited) else 0
        over = {one for one in awaited if _is_over(one, look, last_seq)}
        return [future for future, one in waiters.items() if one in over]


def request_id(one: Waitable) -> int:
    """The request that is meant. Raises UsageError for what can be none."""
    if isinstance(one, Receipt):
        return one.request_id
    if not isinstance(cast(Any, one), int):
        raise UsageError(f"request: found a {type(one).__name__}, wanted a Receipt or the id of a request")
    return whole_number(one, "request")


def no_request(id_: int) -> UsageError:
    """What is raised for a request that the queue does not have."""
    return UsageError(f"no request {id_} in this queue")


def _is_over(awaited: _Awaited, look: _Look, last_seq: int) -> bool:
    if awaited.after is not None:
        return last_seq > awaited.after
    if awaited.request is None or look.first_pending([awaited.request]) is None:
        awaited.request = awaited.following(look)
    return awaited.request is None


def _done() -> Future[None]:
    done: Future[None] = Future()
    done.set_result(None)
    return done


def _end(futures: Iterable[Future[None]], problem: Exception | None = None) -> None:
    """Tell all of them, but for those that were cancelled meanwhile."""
    for future in futures:
        if not future.set_running_or_notify_cancel():
            continue
        if problem is None:
            future.set_result(None)
        else:
            future.set_exception(problem)
