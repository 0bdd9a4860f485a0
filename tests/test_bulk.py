"""Cancel and retry of many jobs: by a filter, by ids, by a submission whose jobs others share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from millpond import BulkReport, Permanent, Policy, Prompt, Queue, UsageError, bulk


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Queue]:
    with Queue.open(tmp_path / "home", policy=Policy(durable=False)) as queue:
        yield queue


def shout(work: Prompt) -> str:
    return work.task.upper()


def refuse(work: Prompt) -> str:
    raise Permanent("no")


def two_runs(queue: Queue) -> None:
    """The same file twice, the second time with one more row."""
    queue.enqueue_many(["duck", "newt", "duck"], submission="animals.csv")
    queue.enqueue_many(["duck", "newt", "duck", "owl"], submission="animals.csv")


def test_two_runs_of_one_file_are_two_submissions_over_the_same_jobs(queue: Queue) -> None:
    two_runs(queue)
    newer, older = queue.submissions()
    assert (older.name, newer.name, older.id, newer.id) == ("animals.csv", "animals.csv", 1, 2)
    assert older.dispositions == {"new": 2, "joined": 1, "reused": 0}
    assert newer.dispositions == {"new": 1, "joined": 3, "reused": 0}
    assert len(queue.jobs()) == 3
    assert queue.drain(lanes=shout).attempts == 3
    assert [one.text for one in queue.results(1)] == ["DUCK", "NEWT", "DUCK"]
    assert [one.text for one in queue.results(2)] == ["DUCK", "NEWT", "DUCK", "OWL"]


@pytest.mark.parametrize("words", ["submission:2", "submission:2 state:ready", 'id:1.. submission:"2"'])
def test_cancel_by_submission_leaves_to_others_what_they_ask(queue: Queue, words: str) -> None:
    two_runs(queue)
    assert queue.cancel(words, dry_run=True) == BulkReport(3, 0, 0, {}, goes_on=2, dry_run=True)
    assert queue.counts()["cancelled"] == 0
    assert queue.cancel(words) == BulkReport(3, 3, 0, {}, goes_on=2)
    assert queue.wait(queue.submission(2), 0)
    assert not queue.wait(queue.submission(1), 0)
    queue.drain(lanes=shout)
    assert [one.text for one in queue.results(1)] == ["DUCK", "NEWT", "DUCK"]
    assert list(queue.results(2)) == []
    assert queue.submission(2).cancelled == 4
    assert queue.cancel(words.replace(" state:ready", "")) == BulkReport(
        0, 0, 3, {"already done": 2, "already cancelled": 1})  # fmt: skip


def test_a_submission_may_be_handed_in_as_it_is(queue: Queue) -> None:
    two_runs(queue)
    queue.enqueue_many(["owl"], submission="2")  # a name that is another's number
    newer = queue.submission(2)
    assert queue.cancel(newer) == BulkReport(3, 3, 0, {}, goes_on=3)
    assert queue.retry(newer, dry_run=True) == BulkReport(3, 0, 0, {}, dry_run=True)
    assert queue.retry(newer) == BulkReport(3, 3, 0, {})
    assert queue.retry(newer) == BulkReport(0, 0, 3, {"is ready": 3})
    queue.drain(lanes=shout)
    assert len(list(queue.results(2))) == 4


def test_a_name_means_every_submission_that_bears_it(queue: Queue) -> None:
    two_runs(queue)
    assert queue.cancel("submission:animals.csv") == BulkReport(3, 3, 0, {})
    assert queue.counts()["cancelled"] == 3


def test_a_number_means_that_submission_and_no_other_of_that_name(queue: Queue) -> None:
    first = queue.enqueue_many(["duck"])[0]
    second = queue.enqueue_many(["newt"], submission=str(first.submission_id))[0]
    by_name = queue.enqueue_many(["owl"], submission="2024")[0]
    assert [job.id for job in queue.jobs(f"submission:{first.submission_id}")] == [first.job_id]
    assert queue.cancel(f"submission:{first.submission_id}").done == 1
    assert queue.job(second.job_id).state == "ready"
    assert [job.id for job in queue.jobs("submission:2024 -state:done")] == [by_name.job_id]
    assert queue.submission("2024").id == by_name.submission_id


def test_a_filter_without_a_submission_cancels_jobs_for_everyone(queue: Queue) -> None:
    two_runs(queue)
    assert queue.cancel("duck") == BulkReport(1, 1, 0, {})
    assert queue.cancel("-submission:1") == BulkReport(1, 1, 0, {}), "not asked by 1: the owl, for whoever asks for it"
    assert (queue.submission(1).cancelled, queue.submission(2).cancelled) == (2, 3)


def test_retry_by_submission_takes_back_its_own_withdrawals_from_jobs_that_went_on(queue: Queue) -> None:
    two_runs(queue)
    queue.cancel("submission:2")
    queue.drain(lanes=shout)
    assert queue.retry("submission:2", dry_run=True) == BulkReport(3, 0, 0, {}, dry_run=True)
    assert queue.retry("submission:2") == BulkReport(3, 3, 0, {})
    assert [one.text for one in queue.results(2)] == ["DUCK", "NEWT", "DUCK"], "answered without a call"
    assert queue.drain(lanes=shout).attempts == 1, "the owl's"
    assert [one.text for one in queue.results(2)] == ["DUCK", "NEWT", "DUCK", "OWL"]


def test_retry_by_submission_asks_again_for_what_failed(queue: Queue) -> None:
    two_runs(queue)
    queue.cancel("submission:1")
    queue.drain(lanes=refuse)
    assert queue.retry("submission:2 duck") == BulkReport(1, 1, 0, {})
    queue.drain(lanes=shout)
    assert [one.text for one in queue.results(2)] == ["DUCK", "DUCK"]
    assert queue.submission(1).cancelled == 3, "what another withdrew stays withdrawn"


def test_many_jobs_are_moved_a_chunk_to_a_commit_and_none_is_passed_over(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bulk, "CHUNK_JOBS", 7)
    monkeypatch.setattr("millpond.store.reader.PAGE_ROWS", 5)
    queue.enqueue_many([f"q{n}" for n in range(50)])
    assert queue.cancel("state:ready", dry_run=True) == BulkReport(50, 0, 0, {}, dry_run=True)
    assert queue.cancel("state:ready") == BulkReport(50, 50, 0, {})
    assert queue.retry("state:cancelled") == BulkReport(50, 50, 0, {})
    assert queue.cancel("id:1..") == BulkReport(50, 50, 0, {})
    assert queue.cancel("id:1..") == BulkReport(0, 0, 50, {"already cancelled": 50})


def test_ids_are_taken_in_their_order_and_unknown_ones_are_said(queue: Queue) -> None:
    queue.enqueue_many(["a", "b"])
    assert queue.cancel(iter([2, 9, 1, -1])) == BulkReport(2, 2, 2, {"unknown job": 2})
    assert queue.retry(2) == BulkReport(1, 1, 0, {})
    assert queue.cancel([], dry_run=True) == BulkReport(0, 0, 0, {}, dry_run=True)


def test_requests_that_have_moved_to_another_job_are_asked_again_there(queue: Queue) -> None:
    queue.enqueue("duck")
    queue.drain(lanes=refuse)
    queue.enqueue("duck")
    assert queue.retry(1) == BulkReport(1, 1, 0, {}), "its request joined job 2"
    moved = {"its requests have moved to another job": 1}
    assert queue.retry(1, dry_run=True) == BulkReport(0, 0, 1, moved, dry_run=True)
    assert queue.retry(1) == BulkReport(0, 0, 1, moved)


def test_what_could_be_done_is_not_always_what_is_done(queue: Queue) -> None:
    """Two failed jobs of one key that asked for different work: either can be asked again, and not both."""
    for task in ("duck", "newt"):
        queue.enqueue(task, key="mine")
        queue.drain(lanes=refuse)
    assert queue.retry([1, 2], dry_run=True) == BulkReport(2, 0, 0, {}, dry_run=True)
    assert queue.retry([1, 2]) == BulkReport(2, 1, 1, {"its key names other work by now": 1})


@pytest.mark.parametrize("words", ["", "  "])
def test_an_empty_filter_is_refused(queue: Queue, words: str) -> None:
    queue.enqueue("a")
    for verb in (queue.cancel, queue.retry):
        with pytest.raises(UsageError, match="found nothing, wanted words"):
            verb(words)
