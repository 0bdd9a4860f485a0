"""What holds ledger and spend book together, as no transaction spans both: after any death, book == ledger again."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from millpond.rules.effects import Charge
from millpond.rules.errors import MillpondError
from millpond.spend.book import SpendBook
from millpond.store.store import Store

PAGE_ROWS = 500
"""Reservations, or charges, looked at in one go."""

log = logging.getLogger("millpond.engine")


def post(store: Store, book: SpendBook, charges: Sequence[Charge]) -> None:
    """Post charges, then mark them in the ledger: a death in between posts them once more, which does nothing."""
    book.post(charges)
    store.mark_posted(charges)


def try_to_post(store: Store, book: SpendBook, charge: Charge | None) -> None:
    """Post one charge, if there is one. What the book does not take now is found by the next `keep_book`."""
    if charge is None:
        return
    try:
        post(store, book, [charge])
    except MillpondError as problem:
        not_posted(charge.uid, problem)


def not_posted(uid: str, problem: MillpondError) -> None:
    """Say that the book lags behind the ledger."""
    log.warning("attempt %s is not in the spend book yet; that is tried again: %s", uid, problem)


class Bookkeeper:
    """Looks after the book for as long as a process works, a bounded piece at a time. One thread at a time."""

    def __init__(self, store: Store, book: SpendBook) -> None:
        self._store = store
        self._book = book
        self._after = ""

    def go_on(self) -> None:
        """Look at one page of what is reserved, going on from the last, and at one of what is not posted."""
        self._after = _drop_page(self._store, self._book, self._after)
        _post_page(self._store, self._book, 0)


def keep_book(store: Store, book: SpendBook) -> None:
    """Bring the book up to the ledger: drop what dead owners reserved and never recorded, post what is not posted.

    The reclaim of a dead owner must be committed before. Only this queue's entries are touched, page by page. Safe at
    any time, by anybody, any number of times. Raises QueueUnavailable and QueueBusy.
    """
    after = _drop_page(store, book, "")
    while after:
        after = _drop_page(store, book, after)
    seq = _post_page(store, book, 0)
    while seq:
        seq = _post_page(store, book, seq)


def _drop_page(store: Store, book: SpendBook, after: str) -> str:
    """Drop what of one page was never recorded and never will be. Where the next page begins; "" after the last."""
    owners = book.reservations(after, PAGE_ROWS)
    for uid in store.never_recorded(owners) if owners else ():
        book.release(uid)
    return max(owners) if len(owners) == PAGE_ROWS else ""


def _post_page(store: Store, book: SpendBook, seq: int) -> int:
    """Post one page of what is not posted. Where the next page begins; 0 after the last."""
    charges, last = store.unposted(seq, PAGE_ROWS)
    if charges:
        post(store, book, charges)
    return last if len(charges) == PAGE_ROWS else 0
