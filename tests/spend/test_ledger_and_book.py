"""Ledger and spend book, which no transaction spans: what is left over on either side is found again."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path

import pytest

from millpond import Queue
from millpond.engine.bookkeeping import keep_book, post
from millpond.rules.effects import ACCEPT, Charge, Heard, Then
from millpond.rules.errors import LeaseLost
from millpond.rules.job import Lease, OwnerRow
from millpond.rules.policy import LanePolicy, Policy
from millpond.rules.price import Cost, PriceRule
from millpond.rules.verdict import end
from millpond.spend.book import SpendBook
from millpond.store.store import Store, open_sqlite
from millpond.testing import evidence_of
from millpond.testing.promises import check_book
from millpond.testing.store_scene import Scene

CENT = Cost(Decimal("0.01"), "stated")
PAID = LanePolicy("free", kind="callable", tier="paid", price=PriceRule("stated", call_usd=Decimal("0.004")))
POLICY = Policy(lanes={"free": PAID})


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    opened: list[Store] = []

    def make(now_ms: Callable[[], int]) -> Store:
        opened.append(Store(open_sqlite(tmp_path / "queue.db"), now_ms))
        return opened[0]

    yield Scene(make)
    opened[0].close()


@pytest.fixture
def book(scene: Scene, tmp_path: Path) -> Iterator[SpendBook]:
    book = SpendBook(tmp_path / "spend.db", scene.store.uuid, scene.store.now_ms)
    yield book
    book.close()


def recorded(scene: Scene, book: SpendBook, uid: str = "u") -> Lease:
    """A call that is about to leave."""
    scene.ask(uid)
    [lease] = scene.lease()
    book.reserve(uid, lease.owner, "free", CENT)
    scene.store.record(lease, uid, "free", "paid")
    return lease


def settled(
    scene: Scene, answer: object, uid: str = "u", lease: Lease | None = None, then: Then = ACCEPT
) -> Charge | None:
    ending = end(Heard(evidence_of(answer), scene.now_ms, 0.0), PAID, POLICY)
    return scene.store.settle(uid, ending, then, lane="free", lease=lease).charge


def test_what_was_settled_and_not_posted_is_posted(scene: Scene, book: SpendBook) -> None:
    settled(scene, "ok", lease=recorded(scene, book))
    assert book.charge("u") is None
    keep_book(scene.store, book)
    check_book(scene.store, book)
    assert book.charge("u") == Charge("u", "free", scene.now_ms, Decimal("0.004"), is_estimate=False)
    assert scene.store.unposted(0, 10)[0] == []


def test_an_undecided_call_keeps_its_reservation_and_is_charged_when_policy_decides(
    scene: Scene, book: SpendBook
) -> None:
    lease = recorded(scene, book)
    assert settled(scene, "ambiguous", lease=lease, then=Then("release", next_lane="")) is None
    keep_book(scene.store, book)
    assert set(book.reservations("", 10)) == {"u"}
    estimate = scene.store.resolve("u", "pin", worst=CENT)
    assert estimate == Charge("u", "free", scene.now_ms, CENT.usd, is_estimate=True)
    keep_book(scene.store, book)
    assert (book.charge("u"), book.reservations("", 10)) == (estimate, {})


def test_a_late_actual_replaces_the_estimate_of_policy(scene: Scene, book: SpendBook) -> None:
    lease = recorded(scene, book)
    settled(scene, "ambiguous", lease=lease, then=Then("release", next_lane=""))
    scene.store.resolve("u", "pin", worst=CENT)
    keep_book(scene.store, book)
    settled(scene, "ok")
    keep_book(scene.store, book)
    check_book(scene.store, book)
    assert book.charge("u") == Charge("u", "free", scene.now_ms, Decimal("0.004"), is_estimate=False)


def test_evidence_between_post_and_mark_is_posted_as_well(scene: Scene, book: SpendBook) -> None:
    """Whoever posted the estimate marks nothing: it is no longer what the ledger says."""
    lease = recorded(scene, book)
    settled(scene, "ambiguous", lease=lease, then=Then("release", next_lane=""))
    estimate = scene.store.resolve("u", "pin", worst=CENT)
    assert estimate is not None
    book.post([estimate])
    actual = settled(scene, "ok")
    scene.store.mark_posted([estimate])
    assert scene.store.unposted(0, 10)[0] == [actual]
    keep_book(scene.store, book)
    check_book(scene.store, book)


def test_who_is_slow_to_post_an_estimate_undoes_no_actual(scene: Scene, book: SpendBook) -> None:
    lease = recorded(scene, book)
    settled(scene, "ambiguous", lease=lease, then=Then("release", next_lane=""))
    estimate = scene.store.resolve("u", "pin", worst=CENT)
    assert estimate is not None
    settled(scene, "ok")
    keep_book(scene.store, book)
    post(scene.store, book, [estimate])
    check_book(scene.store, book)


def test_a_reservation_is_dropped_only_after_its_owners_reclaim_is_committed(scene: Scene, book: SpendBook) -> None:
    scene.ask()
    [lease] = scene.lease()
    book.reserve("u", lease.owner, "free", CENT)
    keep_book(scene.store, book)
    assert set(book.reservations("", 10)) == {"u"}, "it may be recorded yet"
    scene.store.reclaim(lease.owner)
    keep_book(scene.store, book)
    assert book.reservations("", 10) == {}


def test_what_a_dead_owner_did_record_stays_reserved(scene: Scene, book: SpendBook) -> None:
    lease = recorded(scene, book)
    scene.store.reclaim(lease.owner)
    keep_book(scene.store, book)
    assert set(book.reservations("", 10)) == {"u"}
    check_book(scene.store, book)


def test_the_neighbours_reservations_are_not_ours_to_drop(scene: Scene, book: SpendBook) -> None:
    neighbour = SpendBook(book.path, "neighbour", scene.store.now_ms)
    neighbour.reserve("theirs", "owner we have never heard of", "free", CENT)
    keep_book(scene.store, book)
    assert set(neighbour.reservations("", 10)) == {"theirs"}
    neighbour.close()


def test_a_copy_of_a_queue_drops_nothing_of_the_other(scene: Scene, book: SpendBook, tmp_path: Path) -> None:
    """Both bear one name in the book, and neither knows the other's owners."""
    scene.store.db.checkpoint()  # type: ignore[attr-defined]
    shutil.copy(tmp_path / "queue.db", tmp_path / "copy.db")
    copy = Store(open_sqlite(tmp_path / "copy.db"), scene.store.now_ms)
    hand = SpendBook(book.path, copy.uuid, scene.store.now_ms)
    assert copy.uuid == scene.store.uuid
    book.reserve("ours", scene.owner("our owner"), "free", CENT)
    copy.enlist(OwnerRow("their owner", "worker", "host", 1, "boot", scene.now_ms))
    hand.reserve("theirs", "their owner", "free", CENT)
    keep_book(copy, hand)
    keep_book(scene.store, book)
    assert set(book.reservations("", 10)) == {"ours", "theirs"}
    assert copy.of_strangers(book.reservations("", 10)) == ["ours"]
    copy.reclaim("their owner")
    keep_book(copy, hand)
    assert set(book.reservations("", 10)) == {"ours"}
    hand.close()
    copy.close()


def test_more_than_a_page_is_posted_and_dropped(scene: Scene, book: SpendBook) -> None:
    scene.store.enlist(OwnerRow("dead", "worker", "host", 1, "boot", scene.now_ms))
    scene.store.reclaim("dead")
    for n in range(520):
        book.reserve(f"r{n:04}", "dead", "free", None)
    for n in range(520):
        settled(scene, "ok", uid=f"u{n}", lease=recorded(scene, book, f"u{n}"))
    keep_book(scene.store, book)
    assert (book.reservations("", 10), scene.store.unposted(0, 10)[0]) == ({}, [])
    assert book.spent(0)["free"].charges == 520


def test_a_person_who_asks_again_charges_the_unknown_call_at_an_unknown_cost(scene: Scene, book: SpendBook) -> None:
    lease = recorded(scene, book)
    scene.store.cancel([(lease.job_id, 0)])
    settled(scene, "ambiguous", lease=lease, then=Then("release"))
    scene.store.retry([lease.job_id])
    keep_book(scene.store, book)
    assert book.charge("u") == Charge("u", "free", scene.now_ms, None, is_estimate=True)
    assert book.spent(0)["free"].unknown == 1


# --- a queue and its book ---------------------------------------------------------------------------------------------


def test_a_queue_keeps_its_book_where_it_was_told_and_several_share_it(tmp_path: Path) -> None:
    charges: list[int] = []
    for name in ("pond", "lake"):
        with Queue.open(tmp_path / name, spend=tmp_path / "books/shared.db") as queue:
            queue.enqueue(f"asked of the {name}")
            assert queue.drain(lanes={"free": lambda work, **_: "yes"}).done == 1
            check_book(queue.store, queue.book)
            lanes = queue.status().spend.lanes
            assert lanes is not None
            charges.append(lanes["free"].charges)
    assert charges == [1, 2]
    assert not (tmp_path / "pond/spend.db").exists()


def test_readers_make_no_book(tmp_path: Path) -> None:
    with Queue.open(tmp_path / "pond") as queue:
        queue.enqueue("a")
        queue.status()
        list(queue.results())
        queue.report()
    assert not (tmp_path / "pond/spend.db").exists()


def test_workers_of_ones_own_reserve_and_post(tmp_path: Path) -> None:
    with Queue.open(tmp_path / "pond", policy=POLICY) as queue:
        queue.enqueue("a")
        [lease] = queue.lease(1)
        uid = queue.record(lease)
        assert uid is not None
        assert set(queue.book.reservations("", 10)) == {uid}
        assert queue.settle(lease, uid, "yes")
        check_book(queue.store, queue.book)
        assert queue.book.reserved().calls == 0
        queue.enqueue("b")
        [lease] = queue.lease(1)
        queue.cancel([lease.job_id])
        with pytest.raises(LeaseLost, match="no longer held"):
            queue.record(lease)
        assert queue.book.reserved().calls == 0, "the owner has taken it back"
