"""Something long that is read a page at a time, where the next page may have to be waited for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from itertools import islice
from typing import Generic, TypeAlias, TypeVar

from millpond.rules.job import Event, Result
from millpond.store.reader import PAGE_ROWS
from millpond.store.store import Store
from millpond.waiters import Waiters

T = TypeVar("T")
PageOrWait: TypeAlias = "Sequence[T] | Future[None]"
"""A page, or something to wait for before there is one."""


class Paged(Iterator[T], Generic[T]):
    """One after the other for a thread, which waits where there is nothing yet.

    An event loop takes `steps` instead: it reads a page on another thread, and awaits a future where this would wait.
    """

    def __init__(self, steps: Iterator[PageOrWait[T]]) -> None:
        self.steps = steps
        self._page: Iterator[T] = iter(())

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        while True:
            for one in self._page:
                return one
            step = next(self.steps)
            if isinstance(step, Future):
                try:
                    step.result()
                finally:
                    step.cancel()  # nobody looks for it any more, should this be an interrupt
            else:
                self._page = iter(step)


def by_pages(rows: Iterator[T]) -> Paged[T]:
    """What needs no waiting, a page of it at a time."""
    return Paged(iter(lambda: list(islice(rows, PAGE_ROWS)), []))


def events_since(store: Store, waiters: Waiters, after: int, *, follow: bool) -> Paged[Event]:
    """Events with a seq above this one: up to now, or with `follow` for ever, each as it happens."""

    def steps() -> Iterator[PageOrWait[Event]]:
        last_seq = after
        while True:
            while page := store.events(last_seq):
                yield page
                last_seq = int(page[-1].cursor)
            if not follow:
                return
            yield waiters.for_event(last_seq)

    return Paged(steps())


def as_they_come(
    store: Store, waiters: Waiters, submission_id: int, read: Callable[..., Iterator[Result]]
) -> Paged[Result]:
    """Results in the order of a submission, each as soon as it and all before it are settled.

    `read(after=…, until=…)` reads those at positions above the one and up to the other.
    """

    def steps() -> Iterator[PageOrWait[Result]]:
        after = -1
        while (pending := store.first_pending(submission_id, after)) is not None:
            yield from by_pages(read(after=after, until=pending - 1)).steps
            after = pending - 1
            request_id = store.request_at(submission_id, pending)
            assert request_id is not None, "requests are not deleted"
            yield waiters.for_requests([request_id])
        yield from by_pages(read(after=after)).steps

    return Paged(steps())
