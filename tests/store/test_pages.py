"""What is read a page at a time is read whole, once and in order, whatever a page holds."""

from __future__ import annotations

import pytest

from millpond.store import reader
from millpond.testing.store_scene import RELEASE, Scene, asked


@pytest.fixture(params=[1, 2, 3, 100])
def paged(scene: Scene, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.setattr(reader, "PAGE_ROWS", request.param)
    return scene


def test_the_ledger_of_a_key(paged: Scene) -> None:
    lease, uid = paged.in_flight("k")
    for _ in range(4):
        paged.settle(uid, "retryable", RELEASE, lease=lease)
        other, _ = paged.in_flight("other", priority=1)
        paged.cancel(other.job_id)
        lease = paged.take(lease.job_id)
        uid = paged.send(lease)
    own = [row for row in paged.store.attempts() if row.idempotency_key == "k"]
    assert len(own) == 5
    assert list(paged.store.attempts(lease.job_id)) == own


def test_the_first_pending_request(paged: Scene) -> None:
    paged.ask_many(*(asked(f"k{at}") for at in range(7)))
    for at, lease in enumerate(paged.lease(7)):
        assert paged.store.first_pending(1) == at
        paged.settle(paged.send(lease), "an answer", lease=lease)
    assert paged.store.first_pending(1) is None


def test_jobs_and_results(paged: Scene) -> None:
    ids = [paged.answered(f"k{at}").job_id for at in range(7)]
    assert [job.id for job in paged.store.jobs()] == ids[::-1]
    assert [one.job_id for one in paged.store.results()] == ids
