"""What holds ledger and spend book together, as no transaction spans both: after any death, book == ledger again."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from millpond.rules.effects import Charge
from millpond.rules.errors import MillpondError
from millpond.spend.book import SpendBook
from millpond.store.store import Store

PAGE_ROWS = 500

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


def keep_book(store: Store, book: SpendBook) -> None:
    """Bring the book up to the ledger: drop what dead owners reserved and never recorded, post what is not posted.

    The reclaim of a dead owner must be committed before. Only this queue's entries are touched, page by page. Safe at
    any time, by anybody, any number of times. Raises QueueUnavailable and QueueBusy.
    """
    after = ""
    while owners := book.reservations(after, PAGE_ROWS):
        for uid in store.never_recorded(owners):
            book.release(uid)
        after = max(owners)
    seq = 0
    while True:
        charges, seq = store.unposted(seq, PAGE_ROWS)
        if not charges:
            return
        post(store, book, charges)
