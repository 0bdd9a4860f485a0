"""What must hold of a store at every moment, whatever was done to it (DESIGN §1), as far as its readers can see."""

from __future__ import annotations

from collections import Counter

from millpond.rules.lifecycle import LIVE
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
