"""Who waits for what in a queue: one thread looks on behalf of all, and only when somebody has committed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from enum import Enum
from itertools import chain, islice

from millpond.db import fork
from millpond.store.store import PAGE_ROWS, Store


class Everything(Enum):
    """What is waited for where nothing is named. No None: one that came by mistake would wait for a whole queue."""

    EVERYTHING = "everything"


EVERYTHING = Everything.EVERYTHING

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


@dataclass(slots=True, eq=False)
class _Waiter:
    """One who waits: for one request after the other (`request`, then what `following` finds), or for an event."""

    request: int | None = None
    following: Callable[[], int | None] = lambda: None
    after: int | None = None


class Waiters:
    """Futures for what happens in a queue. They may be awaited by threads and by loops, and cancelled by them.

    The thread that looks is started for the first who waits, and ends with the last. A future whose queue is closed, or
    cannot be read, raises what the next read would raise.
    """

    fork_order = 0

    def __init__(self, store: Store, doorbell: Doorbell) -> None:
        self._store = store
        self._doorbell = doorbell
        self._closing = threading.Event()
        self._mutex = threading.Lock()
        self._waiters: dict[Future[None], _Waiter] = {}
        self._thread: threading.Thread | None = None
        self._came = False
        fork.join(self)

    def for_requests(self, ids: Sequence[int]) -> Future[None]:
        """Done once all of these requests, which must exist, are answered, failed or cancelled."""
        at = 0

        def following() -> int | None:
            # Round once: what was settled when it was passed may have been asked again since.
            nonlocal at
            page_starts = range(0, len(ids), PAGE_ROWS)
            for start in chain(page_starts[at:], page_starts[: at + 1]):
                page = ids[start : start + PAGE_ROWS]
                standing = self._store.standing(page)
                pending = next((one for one in page if standing.get(one)), None)
                if pending is not None:
                    at = start // PAGE_ROWS
                    return pending
            return None

        return self._await(following)

    def for_submission(self, submission_id: int) -> Future[None]:
        """Done once all requests of a submission are answered, failed or cancelled."""
        after = -1

        def following() -> int | None:
            nonlocal after
            position = self._store.first_pending(submission_id, after)
            if position is None and after >= 0:
                position = self._store.first_pending(submission_id)
            after = after if position is None else position - 1
            return None if position is None else self._store.request_at(submission_id, position)

        return self._await(following)

    def for_all(self) -> Future[None]:
        """Done once no request of the queue waits for its answer, those included that come meanwhile."""
        return self._await(self._store.any_pending_request)

    def for_event(self, after: int) -> Future[None]:
        """Done once there is an event with a seq above this one."""
        return self._add(_Waiter(after=after))

    def close(self) -> None:
        """Let the thread notice that the store is closed, and wait for it."""
        self._closing.set()
        self._doorbell.ring()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def before_fork(self, deadline: float) -> None:
        """Nothing is held that a child must not inherit."""

    def after_fork(self, *, child: bool) -> None:
        """In a child nobody waits: its threads are gone."""
        if child:
            self._mutex = threading.Lock()
            self._waiters = {}
            self._thread = None
            self._closing = threading.Event()
            self._doorbell.renew()

    def _await(self, following: Callable[[], int | None]) -> Future[None]:
        request = following()
        if request is None:
            done: Future[None] = Future()
            done.set_result(None)
            return done
        return self._add(_Waiter(request=request, following=following))

    def _add(self, waiter: _Waiter) -> Future[None]:
        future: Future[None] = Future()
        future.add_done_callback(self._forget)  # before it is waited for: an interrupt may come between any two lines
        with self._mutex:
            self._waiters[future] = waiter
            self._came = True
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="millpond-waiters", daemon=True)
                self._thread.start()
        self._doorbell.ring()
        return future

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

    def _over(self, waiters: dict[Future[None], _Waiter]) -> list[Future[None]]:
        """Whose waiting is over."""
        asked = iter({one.request for one in waiters.values() if one.request is not None})
        standing: dict[int, bool] = {}
        while page := list(islice(asked, PAGE_ROWS)):
            standing |= self._store.standing(page)
        over: list[Future[None]] = []
        last_seq = self._store.last_event() if any(one.after is not None for one in waiters.values()) else 0
        for future, one in waiters.items():
            if one.request is not None and not standing.get(one.request):
                one.request = one.following()
            if one.request is None and (one.after is None or last_seq > one.after):
                over.append(future)
        return over


def _end(futures: Iterable[Future[None]], problem: Exception | None = None) -> None:
    """Tell all of them, but for those that were cancelled meanwhile."""
    for future in futures:
        if not future.set_running_or_notify_cancel():
            continue
        if problem is None:
            future.set_result(None)
        else:
            future.set_exception(problem)
