"""Something long that is read a page at a time, where the next page may have to be waited for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from itertools import islice
from typing import Generic, TypeAlias, TypeVar

from millpond.store.store import PAGE_ROWS

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
