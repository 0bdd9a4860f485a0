"""The spend book by itself: what replaces what, what unknown is, and that queues on one book leave each other alone."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import apsw
import pytest

from millpond.rules.effects import Charge
from millpond.rules.errors import QueueUnavailable, SettingsError
from millpond.rules.price import Cost
from millpond.spend import entries
from millpond.spend.book import Reserved, SpendBook, Spent
from millpond.store.store import open_sqlite
from millpond.testing import FakeClock

Hand = Callable[[str], SpendBook]
CENT = Cost(Decimal("0.01"), "stated")


def charge(usd: str | None, *, is_estimate: bool = False, uid: str = "u", at_ms: int = 0, lane: str = "paid") -> Charge:
    return Charge(uid, lane, at_ms, Decimal(usd) if usd is not None else None, is_estimate)


@pytest.mark.parametrize("actual", ["0.004", None, "0"])
def test_an_actual_replaces_an_estimate_and_nothing_replaces_an_actual(book: SpendBook, actual: str | None) -> None:
    book.reserve("u", "owner", "paid", CENT)
    book.post([charge("0.01", is_estimate=True)])
    book.post([charge(actual)])
    book.post([charge("0.01", is_estimate=True)])
    book.post([charge("0.5")])
    assert book.charge("u") == charge(actual)
    known = Decimal(actual or 0)
    assert book.spent(0) == {"paid": Spent(1, int(actual is None), known, Decimal(0))}


def test_an_estimate_of_unknown_cost_is_replaced_too(book: SpendBook) -> None:
    book.post([charge(None, is_estimate=True)])
    assert book.spent(0) == {"paid": Spent(1, 1)}
    book.post([charge("0.004")])
    assert book.spent(0) == {"paid": Spent(1, 0, Decimal("0.004"))}


def test_what_is_posted_twice_is_charged_once(book: SpendBook) -> None:
    book.reserve("u", "owner", "paid", CENT)
    for _ in range(3):
        book.post([charge("0.004")])
    assert book.spent(0) == {"paid": Spent(1, 0, Decimal("0.004"))}
    assert book.reserved() == Reserved()


def test_every_attempt_reserves_if_only_the_unknown(book: SpendBook) -> None:
    book.reserve("a", "owner", "paid", CENT)
    book.reserve("b", "owner", "paid", None)
    book.reserve("b", "owner", "paid", None)
    assert book.reserved() == Reserved(calls=2, unknown=1, worst_usd=Decimal("0.01"))
    book.release("b")
    assert book.reservations("", 10) == {"a": "owner"}


@pytest.fixture
def steps() -> Iterator[list[int]]:
    """The steps of SQLite's machine that each statement takes, on connections that are opened from now on."""
    taken: list[int] = []

    def watch(connection: apsw.Connection) -> None:
        connection.trace_v2(apsw.SQLITE_TRACE_PROFILE, count)

    def count(event: dict[str, Any]) -> None:
        taken.append(event["stmt_status"]["SQLITE_STMTSTATUS_VM_STEP"])

    apsw.connection_hooks.append(watch)
    yield taken
    apsw.connection_hooks.remove(watch)


def test_what_is_reserved_is_read_at_the_same_cost_however_much_that_is(steps: list[int], book: SpendBook) -> None:
    """Nothing takes away what nobody decides, so there may be any number of reservations."""

    def cost() -> int:
        steps.clear()
        book.reserved()
        return sum(steps)

    book.reserve("u", "owner", "paid", CENT)
    book.reserve("v", "owner", "dear", None)
    book.reserved()
    before = cost()
    for n in range(100):
        book.reserve(f"u{n}", "owner", "paid" if n % 2 else "dear", CENT if n % 5 else None)
    assert cost() == before
    assert book.reserved() == Reserved(102, 21, Decimal("0.81"))
    assert book.miscounted() is None


@pytest.mark.parametrize("worst", [CENT, None])
def test_what_is_reserved_is_taken_back_once(book: SpendBook, worst: Cost | None) -> None:
    for _ in range(2):
        book.reserve("a", "owner", "paid", worst)
    book.reserve("b", "owner", "paid", CENT)
    for _ in range(2):
        book.release("a")
        book.post([charge("0.004", uid="a")])
    assert book.reserved() == Reserved(1, 0, Decimal("0.01"))
    assert book.miscounted() is None


def test_money_is_whole_micro_dollars_rounded_up(book: SpendBook) -> None:
    book.post([charge("0.0000001")])
    assert book.charge("u") == charge("0.000001")


def test_a_charge_is_of_the_day_on_which_its_attempt_began(book: SpendBook, clock: FakeClock) -> None:
    midnight = 86_400_000 * 20_000
    book.post([charge("1", uid="before", at_ms=midnight - 1), charge("2", uid="after", at_ms=midnight)])
    assert book.spent(midnight)["paid"].actual_usd == 2
    assert book.spent(midnight - entries.QUARTER_MS)["paid"].actual_usd == 3


def test_a_day_is_read_in_a_bounded_number_of_rows(book: SpendBook) -> None:
    book.post([charge("0.01", uid=f"u{n}", at_ms=n * 60_000) for n in range(1_440)])
    rows = book.db.read(lambda tx: tx.all("spent_since", since_ms=0))
    assert [row.charges for row in rows] == [1_440]
    assert book.db.facts().pages < 200


def test_two_queues_on_one_book_leave_each_other_alone(hand: Hand) -> None:
    pond, lake = hand("pond"), hand("lake")
    pond.reserve("a", "owner", "paid", CENT)
    lake.reserve("b", "owner", "paid", CENT)
    assert (pond.reservations("", 10), lake.reservations("", 10)) == ({"a": "owner"}, {"b": "owner"})
    pond.release("b")
    pond.post([charge("0.5", uid="c")])
    assert lake.reservations("", 10) == {"b": "owner"}
    assert lake.spent(0) == {"paid": Spent(1, 0, Decimal("0.5"))}, "what is spent holds across queues"
    assert lake.reserved() == Reserved(2, 0, Decimal("0.02"))


def test_looking_at_a_book_that_nobody_made_makes_none(book: SpendBook) -> None:
    assert (book.spent(0), book.reserved()) == ({}, Reserved())
    assert not book.path.exists()


def test_a_queue_is_no_spend_book(tmp_path: Path) -> None:
    open_sqlite(tmp_path / "queue.db").close()
    with pytest.raises(SettingsError, match="belongs to another program"):
        SpendBook(tmp_path / "queue.db", "pond", lambda: 0).reserve("a", "owner", "paid", None)


def test_a_book_that_cannot_be_made_is_said_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(QueueUnavailable, match=r"file/spend\.db"):
        SpendBook(tmp_path / "file/spend.db", "pond", lambda: 0).reserve("a", "owner", "paid", None)


def _reserve_many(path: Path, queue: str) -> None:
    book = SpendBook(path, queue, lambda: 0)
    for n in range(50):
        book.reserve(f"{queue}{n}", "owner", "paid", CENT)
        book.post([charge("0.004", uid=f"{queue}{n}")])


def test_processes_share_a_book(book: SpendBook) -> None:
    spawn = multiprocessing.get_context("spawn")
    several = [spawn.Process(target=_reserve_many, args=(book.path, queue)) for queue in ("pond", "lake")]
    for one in several:
        one.start()
    for one in several:
        one.join(60)
        assert one.exitcode == 0
    assert book.spent(0) == {"paid": Spent(100, 0, Decimal("0.4"))}


def test_a_child_of_a_fork_goes_on_with_the_book(book: SpendBook) -> None:
    book.reserve("parent", "owner", "paid", CENT)
    fork = multiprocessing.get_context("fork")
    child = fork.Process(target=book.reserve, args=("child", "owner", "paid", CENT))
    child.start()
    child.join(60)
    assert child.exitcode == 0
    assert set(book.reservations("", 10)) == {"child", "parent"}
