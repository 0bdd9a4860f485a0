"""What must hold of a store at every moment, whatever was done to it (DESIGN §1), as far as its readers can see."""

from __future__ import annotations

from collections import Counter

from millpond.rules.lifecycle import LIVE
from millpond.spend.book import SpendBook
from millpond.store.store import Store


def check_promises(store: Store) -> None:
    """Nothing accepted is lost, nothing is alive twice, counts are true. AssertionError says which promise broke."""
    jobs = {job.id: job for job in store.jobs()}
    attempts = list(store.attempts())
    assert store.miscounted() == {}, f"the tally differs from a recount (kept, counted): {store.miscounted()}"
    live = Counter(job.idempotency_key for job in jobs.values() if job.state in LIVE)
    assert max(live.values(), default=0) <= 1, f"keys with two live jobs: {live}"
    still_open = Counter(row.idempotency_key for row in attempts if row.outcome is None)
    assert max(still_open.values(), default=0) <= 1, f"keys with two open attempts: {still_open}"
    winners = Counter(row.artifact_id for row in attempts if row.artifact_id is not None)
    assert max(winners.values(), default=0) <= 1, f"artifacts with two replies: {winners}"
    hanging = 0
    for job in jobs.values():
        requests = store.requests(job.id, 10_000)
        hanging += len(requests)
        asking = [one for one in requests if one.withdrawn_ms is None]
        assert asking or job.state not in LIVE, f"job {job.id} is {job.state} and nobody asks for it"
        assert not asking or job.state != "cancelled", f"job {job.id} is cancelled and somebody asks for it"
    handed_in = sum(submission.requests for submission in store.submissions(10_000))
    assert hanging == handed_in, f"{handed_in} requests were accepted, {hanging} hang on jobs that exist"
    seqs = [int(event.cursor) for event in store.events(0, 100_000)]
    assert seqs == sorted(set(seqs)), "events are out of order"


def check_book(store: Store, book: SpendBook) -> None:
    """At rest, the spend book says what the ledger says. AssertionError says where they differ.

    Each attempt that has ended, or was decided, has one charge, equal to its cost, an estimate as long as its end is
    unknown. Each that is open or undecided has its reservation and no charge. Nothing else of this queue is reserved.
    """
    reserved = dict[str, str]()
    while page := book.reservations(max(reserved, default=""), 1_000):
        reserved.update(page)
    sums: Counter[str] = Counter()
    for row in store.attempts():
        charge = book.charge(row.uid)
        if row.outcome is None or (row.outcome == "ambiguous" and row.resolution is None):
            assert charge is None, f"attempt {row.uid} is undecided and charged: {charge}"
            assert reserved.pop(row.uid, None) is not None, f"attempt {row.uid} is undecided and not reserved"
            continue
        assert charge is not None, f"attempt {row.uid} ({row.outcome}, {row.resolution}) is not charged"
        said = (row.lane, row.started_ms, row.cost, row.outcome == "ambiguous")
        found = (charge.lane, charge.at_ms, charge.usd, charge.is_estimate)
        assert found == said, f"attempt {row.uid}: the ledger says {said}, the book {found}"
        sums[row.lane] += 1
    assert reserved == {}, f"reserved for nothing: {reserved}"
    assert book.miscounted() is None, f"the sum of what is reserved differs from a recount: {book.miscounted()}"
    spent = book.spent(0)
    for lane, charges in sums.items():  # other queues may have charged more
        assert spent[lane].charges >= charges, f"the book adds up {spent[lane].charges} charges of {lane}: {charges}"
