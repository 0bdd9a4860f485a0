"""Events in words: every kind that is stored has its own, on one line, whatever its data say."""

from __future__ import annotations

import pytest

from millpond.report.happened import WORDS, in_words, whose
from millpond.rules.job import Event
from millpond.rules.lifecycle import EVENT_KINDS

TOLD_AS_ENQUEUE = {"schedule", "enqueue_held", "enqueue_answered"}


def event(kind: str, **data: object) -> Event:
    return Event("1", 0, kind, 5, None, data)


def test_every_kind_of_event_has_words() -> None:
    assert set(EVENT_KINDS) - TOLD_AS_ENQUEUE == WORDS.keys()


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (event("enqueue", request_id=9, disposition="new"), "request 9 asks for it"),
        (event("enqueue", request_id=9, disposition="joined"), "request 9 joined it, and is not billed"),
        (event("enqueue", request_id=9, disposition="reused"), "request 9 was answered by it, and is not billed"),
        (event("record", attempt="u", lane="free", attempt_no=2), "attempt 2 leaves for lane free"),
        (event("end", attempt="u", outcome="ok", code="ok"), "a call ended: ok"),
        (event("end", attempt="u", outcome="unusable", code="truncated"), "a call ended: unusable (truncated)"),
        (event("answer", attempt="u", lane="free"), "answered by lane free"),
        (event("answer"), "answered by the artifact of its key"),
        (event("fail", reason="refused: no\nreally"), "failed: refused: no really"),
        (event("back_off", not_before_ms=0), "a pause until 1970-01-01T00:00:00.000Z"),
        (event("hold"), "held, since the outcome of an earlier call of its key is unknown"),
        (event("hold", not_before_ms=0),
         "held, since the outcome of an earlier call of its key is unknown, until 1970-01-01T00:00:00.000Z"),
        (event("release", owner="x"), "ready again; its worker is gone"),
        (event("close_lane", lane="free", until_ms=None, reason="401: {no}"),
         "lane free closed until a person opens it: 401: {no}"),
        (event("withdraw", requests=1), "1 request was withdrawn"),
        (event("withdraw", requests=20_000), "20,000 requests were withdrawn"),
        (event("take_back", requests=1), "1 request asks again"),
        (event("take_back", requests=2), "2 requests ask again"),
        (event("retry_joined", job_id=7), "asked again; its requests joined job 7"),
        (event("of_a_newer_program", depth=3, why="so"), "depth 3, why so"),
    ],
)  # fmt: skip
def test_an_event_is_told_on_one_line(told: Event, words: str) -> None:
    assert in_words(told) == words


def test_an_event_is_about_a_job_or_about_the_queue() -> None:
    assert whose(event("lease")) == "job 5"
    assert whose(Event("1", 0, "close_lane", None, None, {})) == "queue"
