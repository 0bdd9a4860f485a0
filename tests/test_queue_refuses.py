"""What is handed to a Queue and cannot be meant: refused in words, by name, before anything is done."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from millpond import Policy, Queue, UsageError

CALLS: dict[str, Callable[[Queue], Any]] = {
    "job: found '5'": lambda queue: queue.job("5"),  # type: ignore[arg-type]
    "job: found a number beyond all ids": lambda queue: queue.explain(2**70),
    "job: found -1": lambda queue: queue.ledger(-1),
    "last: found 0": lambda queue: queue.ledger(last=0),
    "limit: found -1": lambda queue: queue.jobs(limit=-1),
    "before_id: found '7'": lambda queue: queue.jobs(before_id="7"),  # type: ignore[arg-type]
    "limit: found a number beyond": lambda queue: queue.submissions(limit=2**70),
    "submission: found True": lambda queue: queue.submission(True),
    "no submission 'nope'": lambda queue: queue.results("nope"),
    "request: found a str": lambda queue: queue.result("7"),  # type: ignore[arg-type]
    "request: found a Submission": lambda queue: queue.wait([queue.submission("s")]),  # type: ignore[list-item]
    "request: found a NoneType": lambda queue: queue.wait(None),  # type: ignore[arg-type]
    "request: found a float": lambda queue: queue.wait(1.5),  # type: ignore[arg-type]
    "no request 9 in": lambda queue: queue.wait([1, 9]),
    "timeout: found '3'": lambda queue: queue.wait(1, timeout="3"),  # type: ignore[arg-type]
    "job: found a str": lambda queue: queue.cancel(["5"]),  # type: ignore[list-item]
    "job: found a Receipt": lambda queue: queue.cancel(queue.enqueue("a")),  # type: ignore[arg-type]
    "job: found a Job": lambda queue: queue.retry([queue.job(1)]),  # type: ignore[list-item]
    "job: found a NoneType": lambda queue: queue.retry(None),  # type: ignore[arg-type]
    "max_jobs: found 1.5": lambda queue: queue.drain(max_jobs=1.5),  # type: ignore[arg-type]
    "max_iters: found 0": lambda queue: queue.drain(max_iters=0),
    "n: found 1.5": lambda queue: queue.lease(1.5),  # type: ignore[arg-type]
    "n: found a number beyond": lambda queue: queue.lease(10**30),
    "n: found '3'": lambda queue: queue.lease("3"),  # type: ignore[arg-type]
    "n: found a NoneType": lambda queue: queue.lease(None),  # type: ignore[arg-type]
    "n: found -1": lambda queue: queue.lease(-1),
    "lease: found a str": lambda queue: queue.settle("x", "y", "mixed"),  # type: ignore[arg-type]
    "lease: found a NoneType": lambda queue: queue.record(None),  # type: ignore[arg-type]
    "lease: found a int": lambda queue: queue.renew(1),  # type: ignore[arg-type]
    "lease: found a Job": lambda queue: queue.release(queue.job(1)),  # type: ignore[arg-type]
    "found None, wanted 'all'": lambda queue: queue.stop([None]),  # type: ignore[list-item]
    "found '', wanted 'all'": lambda queue: queue.stop([""]),
    "found ['own'], wanted 'all'": lambda queue: queue.stop([["own"]]),  # type: ignore[list-item]
    "found 5, wanted 'all'": lambda queue: queue.resume(5),  # type: ignore[arg-type]
    "cursor '99'": lambda queue: queue.feed("99"),
    "cursor 'soon'": lambda queue: queue.feed("soon"),
}


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Queue]:
    with Queue.open(tmp_path / "pond", policy=Policy(durable=False)) as queue:
        queue.enqueue_many(["Is a duck a bird?"], submission="s")
        yield queue


@pytest.mark.parametrize("words", CALLS)
def test_it_is_refused_in_words(words: str, queue: Queue) -> None:
    with pytest.raises(UsageError) as refused:
        CALLS[words](queue)
    assert str(refused.value).startswith(words)


def test_an_id_that_is_given_twice_is_meant_once(queue: Queue) -> None:
    assert queue.cancel([1, 1, 1, 9], dry_run=True) == replace(queue.cancel([1, 1, 1, 9]), done=0, dry_run=True)
