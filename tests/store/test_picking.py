"""Picking jobs by a filter: which word drives, and that none drives past a job that the walk would find."""

from __future__ import annotations

import itertools
import random

import pytest

from millpond.rules.effects import Then
from millpond.rules.filters import matches, parse
from millpond.rules.job import Job
from millpond.store import picking
from millpond.store.picking import IdRange, InState, InSubmissions, Source, Walk, narrowest
from millpond.store.store import Store
from millpond.testing.store_scene import Scene, asked

FILTERS = [
    "", "state:ready", "state:leased", "state:waiting", "state:held", "state:scheduled", "state:backoff", "state:asked",
    "state:failed", "state:cancelled", "state:done", "state:offloaded", "-state:failed", "state:failed state:cancelled",
    "state:ready lane:paid", "submission:s3", "submission:3", "submission:twice", "-submission:s3", "submission:nobody",
    "submission:s3 submission:twice", "submission:s3 state:failed", "id:10..20", "id:10..20 state:ready",
    "id:..7 id:3..", "id:20..10", "-id:10..20 state:failed", "state:failed text:k1", "id:12",
    "submission:twice -state:done",
]  # fmt: skip


def crowd(scene: Scene) -> None:
    """About 60 jobs in every state that a job can be in, on two lanes, asked for by submissions that share them."""
    rng = random.Random(7)
    for _ in range(8):
        scene.ask_many(*(asked(f"k{rng.randrange(60)}", lane=rng.choice(["free", "paid"])) for _ in range(9)))
    for at in range(5):
        scene.ask(f"later{at}", not_before_ms=scene.now_ms + 10**6)
    for _ in range(2):
        again = scene.store.open_submission("twice")
        scene.store.enqueue([asked(f"k{at}", lane="free") for at in range(12)][:1], again)
    ends = itertools.cycle(["ok", "fail", "cancel", "hold", "ask", "back_off", "keep"])
    for lease in scene.lease(35, room={"free": 99, "paid": 99}):
        match next(ends):
            case "ok":
                scene.settle(scene.send(lease, lease.lane), "blue", lease=lease)
            case "fail":
                scene.store.give(lease, Then("fail", reason="refused: no"))
            case "cancel":
                scene.cancel(lease.job_id)
            case "hold":
                scene.store.detach(scene.send(lease, lease.lane), lease, 10**6)
            case "ask":
                scene.settle(scene.send(lease), "ambiguous", Then("ask"), lease=lease)
            case "back_off":
                scene.store.give(lease, Then("back_off", delay_ms=10**6))
            case _:
                pass


def picked(store: Store, words: str, *, page_rows: int = 4, before_id: int | None = None) -> list[int]:
    found = picking.matching(store.db, parse(words, store.now_ms()), before_id=before_id, page_rows=page_rows)
    return [job.id for job in found]


def walked(store: Store, words: str, before_id: int | None = None) -> list[int]:
    terms = parse(words, store.now_ms())
    return [job.id for job in store.jobs(before_id=before_id) if matches(terms, job, store.look_into)]


@pytest.mark.parametrize("words", FILTERS)
def test_every_driving_word_finds_what_a_walk_finds_newest_first(scene: Scene, words: str) -> None:
    crowd(scene)
    assert picked(scene.store, words) == walked(scene.store, words)
    assert picked(scene.store, words, before_id=17) == walked(scene.store, words, 17)


def test_the_crowd_has_jobs_for_every_word(scene: Scene) -> None:
    crowd(scene)
    counts = scene.store.counts()
    assert [name for name in counts if counts[name] == 0] == ["offloaded"]
    assert len(walked(scene.store, "submission:twice")) > 0


def source(store: Store, words: str) -> Source:
    terms = parse(words, store.now_ms())
    ids = [term for term in terms if term.field == "id" and not term.is_negated]
    within = IdRange(ids[0].low or 0, (ids[0].high or 10**9) + 1) if ids else IdRange()
    return store.db.read(lambda tx: narrowest(tx, terms=terms, within=within))


def test_the_narrowest_word_drives(scene: Scene) -> None:
    for at in range(40):
        scene.ask(f"k{at}")
    scene.ask_many(asked("k1"), asked("k2"))
    scene.cancel(1)
    assert isinstance(source(scene.store, ""), Walk)
    assert isinstance(source(scene.store, "-state:cancelled -submission:s41 lane:free"), Walk)
    assert source(scene.store, "state:cancelled submission:s41").rows == 1
    assert isinstance(source(scene.store, "state:ready submission:s41"), InSubmissions)
    assert isinstance(source(scene.store, "state:failed"), InState)
    assert source(scene.store, "state:failed").rows == 0
    assert isinstance(source(scene.store, "id:5 state:ready"), Walk)
    assert source(scene.store, "id:5 state:ready").rows == 1


def test_what_is_done_to_a_page_moves_no_page_to_come(scene: Scene) -> None:
    """Every job that is met is cancelled, or sent to another lane: none is passed over, none is met twice."""
    for words, change in (
        ("state:ready", lambda job: scene.cancel(job.id)),
        ("state:cancelled", lambda job: scene.retry(job.id)),
        ("state:ready", lambda _: scene.route()),
    ):
        for at in range(23):
            scene.ask(f"{words}{at}")
        wanted = walked(scene.store, words)
        met: list[int] = []
        for job in picking.matching(scene.store.db, parse(words, scene.now_ms), before_id=None, page_rows=5):
            met.append(job.id)
            change(job)
        assert met == wanted, words


def test_a_job_that_changes_its_lane_between_two_pages_is_met_once(scene: Scene) -> None:
    """Not routed yet, all stand in one part of the index; before the second page, half have moved to another part."""
    for at in range(20):
        scene.ask(f"k{at}")
    met: list[int] = []
    for job in picking.matching(scene.store.db, parse("state:ready", 0), before_id=None, page_rows=3):
        met.append(job.id)
        if len(met) == 3:
            scene.route()
            scene.unroute("free", limit=8)
    assert met == list(range(20, 0, -1))


def test_a_submissions_job_is_not_asked_again_whether_it_is_the_submissions(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    scene.ask_many(*(asked(f"k{at}") for at in range(5)))
    for at in range(30):
        scene.ask(f"other{at}")
    looked: list[str] = []
    monkeypatch.setattr(picking.looking, "look_into", lambda tx, term, job_id: looked.append(term.field) or True)
    assert picked(scene.store, "submission:s1 text:k") == [5, 4, 3, 2, 1]
    assert set(looked) == {"text"}


@pytest.mark.parametrize("words", ["", "state:ready", "submission:s1"])
def test_no_source_reads_beyond_its_range(scene: Scene, words: str) -> None:
    scene.ask_many(*(asked(f"k{at}") for at in range(30)))
    found = source(scene.store, words).pages(scene.store.db, IdRange(10, 20), 3)
    assert [[row.id for row in page] for page in found] == [[19, 18, 17], [16, 15, 14], [13, 12, 11], [10]]


def test_jobs_asked_by_a_submission_are_its_own_alone(scene: Scene) -> None:
    scene.ask_many(asked("a"), asked("b"), asked("a"))
    scene.ask_many(asked("b"), asked("c"))
    assert [job.id for job in scene.store.jobs_asked_by([1])] == [2, 1]
    assert [job.id for job in scene.store.jobs_asked_by([2])] == [3, 2]
    assert [job.id for job in scene.store.jobs_asked_by([2, 1, 9])] == [3, 2, 1]
    assert all(isinstance(job, Job) for job in scene.store.jobs_asked_by([1]))
