"""The rows of the kill matrix: where a drain is killed, once or again while that is mended, and what came of it.

Each row is played by real processes against a lane that counts the POSTs it accepts. The lanes differ in what can still
be known of a call whose reply was never written down, and in what policy does where that is nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from mill import Home
from standing import Step, killed, mended, of_a_journey

from millpond import Queue, Receipt
from millpond.drill.chatfake import default_answer
from millpond.drill.faultlane import FaultLane
from millpond.engine.spool import MARK

QUESTION = "Is a duck a bird?"

LaneKind = Literal["plain", "recalls", "asks", "fails"]

LANES: dict[LaneKind, dict[str, Any]] = {
    "plain": {"after_hold": "same"},
    "recalls": {"after_hold": "same", "recall": "store", "settling_s": 0.3, "hold_s": 10},
    "asks": {"after_hold": "ask"},
    "fails": {"after_hold": "fail"},
}

Called = Literal["no", "recorded", "sent", "written"]
"""What had become of the call when the program was killed: nothing; its ledger row; it may have left; its reply is
written down."""


@dataclass(frozen=True)
class Point:
    """A place between two durable steps, in words for the table; in `program`, `millpond drain` or another verb."""

    words: str
    step: Step
    called: Called = "no"
    program: str = "drain"


@dataclass(frozen=True)
class Row:
    """One row: the points at which programs are killed, one after the other, before a last drain goes on to the end."""

    lane: LaneKind
    points: tuple[Point, ...]

    @property
    def is_refused(self) -> bool:
        """Whether the queue takes nothing from the moment its lane has the call until the first program is killed."""
        return self.points[0] in SPOOL

    @property
    def where(self) -> str:
        """The points in words."""
        return ", then ".join(point.words for point in self.points)

    def __str__(self) -> str:
        return f"{self.lane}: {self.where}"


@dataclass(frozen=True)
class Seen:
    """What a row came to, read from the lane and from the queue."""

    posts: int
    ledger: tuple[str, ...]
    """Outcome, and how it was decided, of each row in order."""
    maybe_paid_again: int
    """Calls that the report counts as perhaps paid for twice."""
    answered_by: str

    def line(self, row: Row) -> str:
        """The row of the table."""
        ledger = ", ".join(self.ledger)
        return f"| {row.where} | {row.lane} | {self.posts} | {ledger} | {self.maybe_paid_again} | {self.answered_by} |"


HEADING = ["| killed | lane | POSTs | the ledger | perhaps paid again | answered by |", "|---|---|---|---|---|---|"]


# --- where -----------------------------------------------------------------------------------------------------------


def function(room: str, name: str, side: str) -> Step:
    return Step(f"millpond.{room}", name, side)


def on_the_wire(event: str, side: str) -> Step:
    return Step("millpond.lanes.wire", "_Watch.trace", side, given=event)


JOURNEY = [
    Point("before the lease", function("store.lease", "lease", "before")),
    Point("lease not committed", function("store.lease", "lease", "after")),
    Point("leased", function("engine.perform", "Performer.perform", "before")),
    Point("admitted", of_a_journey("Admit", "after")),
    Point("reservation not committed", function("spend.entries", "reserve", "after")),
    Point("reserved", of_a_journey("Reserve", "after")),
    Point("ledger row not committed", function("store.ledger", "record", "after")),
    Point("recorded", of_a_journey("Record", "after"), "recorded"),
    Point("before the head is sent", on_the_wire("send_request_headers.started", "before"), "recorded"),
    Point("head sent", on_the_wire("send_request_headers.complete", "after"), "recorded"),
    Point("body sent", on_the_wire("send_request_body.complete", "after"), "sent"),
    Point("first byte", on_the_wire("receive_response_headers.complete", "after"), "sent"),
    Point("reply read", on_the_wire("receive_response_body.complete", "after"), "sent"),
    Point("reply in hand", of_a_journey("Call", "after"), "sent"),
    Point("settlement not committed", function("store.settle", "settle", "after"), "sent"),
    Point("settled, event not told", function("engine.perform", "_Flight._report", "before"), "written"),
    Point("settled", of_a_journey("Settle", "after"), "written"),
    Point("charge not committed", function("spend.entries", "post", "after"), "written"),
    Point("charged, not marked as posted", function("store.accounts", "mark_posted", "before"), "written"),
    Point("posted", of_a_journey("Post", "after"), "written"),
    Point("before its owner leaves", function("engine.draining", "_Hold.give_back", "before"), "written"),
]
"""One call, from the lease to the end of the drain."""

_POSTS = ("charge not committed", "charged, not marked as posted", "posted")
SECOND_CALL = [
    replace(point, step=replace(point.step, times=2)) if point.words in _POSTS else point for point in JOURNEY
]
"""The same after a call whose end nobody knows: the first charge is then the estimate of that one."""

RECLAIM = [
    Point("before the reclaim", function("store.store", "Store.reclaim", "before")),
    Point("reclaim not committed", function("store.reclaim", "reclaim", "after")),
    Point("reclaimed", function("store.store", "Store.reclaim", "after")),
    Point("book kept", function("engine.draining", "keep_book", "after")),
]
DECIDE = [
    Point("history read", of_a_journey("LookBack", "after")),
    Point("resolution not committed", function("store.settle", "resolve", "after")),
    Point("resolved", of_a_journey("Resolve", "after")),
    Point("estimate charged", of_a_journey("Post", "after")),
]
GIVE = [
    Point("before the job is given back", of_a_journey("Give", "before")),
    Point("job's move not committed", function("store.settle", "give", "after")),
    Point("job given back", of_a_journey("Give", "after")),
]
RECALL = [
    Point("before its lane is asked", function("engine.recall", "ask", "before")),
    Point("its lane has answered", function("engine.recall", "ask", "after")),
    Point("recalled end not committed", function("store.settle", "settle", "after")),
    Point("recalled end committed", function("engine.recall", "recalled", "before")),
]
SPOOL = [
    Point("refused by the queue, not yet kept", function("engine.spool", "Spool.keep", "before"), "sent"),
    Point("refused, entry written", function("engine.spool", "Spool._write", "after"), "written"),
    Point("refused, kept", function("engine.spool", "Spool.keep", "after"), "written"),
]
"""While the queue takes nothing: its file is not where it was."""
REPLAY = [
    Point("before the replay", function("engine.spool", "_replay", "before")),
    Point("replayed end not committed", function("store.settle", "settle", "after")),
    Point("replayed end committed", function("engine.spool", "_write_late", "after")),
    Point("spool deleted", function("engine.spool", "_replay", "after")),
]
BOOK_OF_RECONCILE = Point("before the book is kept", function("engine.reconciling", "keep_book", "before"))
OF_RECONCILE = [
    replace(point, words=f"{point.words}, in `reconcile`", program="reconcile")
    for point in (*RECLAIM[:3], *RECALL, BOOK_OF_RECONCILE)
]

NAMED = {point.words: point for point in (*JOURNEY, *SPOOL)}


def once() -> list[Row]:
    """Killed once, at every point of a journey, on every kind of lane."""
    return [Row(lane, (point,)) for point in (*JOURNEY, *SPOOL) for lane in LANES]


def again() -> list[Row]:
    """A reply is lost with its process, and the one that mends that is killed as well."""
    lost, unsent, settled = NAMED["reply in hand"], NAMED["head sent"], NAMED["settled"]
    rows = [Row("plain", (lost, point)) for point in (*RECLAIM, *DECIDE, *SECOND_CALL)]
    rows += [Row("recalls", (lost, point)) for point in (*RECLAIM, *RECALL, *OF_RECONCILE)]
    rows += [Row("recalls", (unsent, point)) for point in RECALL]
    rows += [Row("asks", (lost, point)) for point in (*RECLAIM, DECIDE[0], *GIVE)]
    rows += [Row("fails", (lost, point)) for point in (*RECLAIM, *DECIDE, *GIVE)]
    rows += [Row("plain", (settled, point)) for point in RECLAIM]
    rows += [Row("plain", (NAMED["refused, kept"], point)) for point in (*REPLAY, *RECLAIM)]
    rows += [Row("recalls", (NAMED["refused, kept"], point)) for point in REPLAY]
    return rows


ROWS = [*once(), *again()]


# --- what came of it -------------------------------------------------------------------------------------------------


def settings(fault: FaultLane, kind: LaneKind) -> dict[str, Any]:
    paid = {"kind": "chat", "base_url": fault.base_url, "model": "fault-1", "price": {"call_usd": 0.01}}
    deadlines = {"connect_s": 2, "first_byte_s": 2, "total_s": 2}
    lane = {**paid, "max_attempts": 5, "max_in_flight": 1, "deadlines": deadlines, **LANES[kind]}
    return {"backoff": {"first_s": 0.05}, "lanes": {"lane": lane}, "lease_s": 2}


def play(row: Row, folder: Path) -> Seen:
    """Kill at each of the points, drain to the end, and say what the lane and the queue then say.

    Everything that must hold of the queue and its spend book, whatever happened, is checked here.
    """
    database = folder / ".millpond/queue.db"
    away = database.with_suffix(".away")

    def answer(asked: dict[str, Any]) -> str:
        if row.is_refused and fault.accepted() == 1:
            database.rename(away)
        return default_answer(asked)

    with FaultLane(answer=answer) as fault:
        home = Home(folder, **settings(fault, row.lane))
        with Queue.open(home.home) as queue:
            receipt = queue.enqueue(QUESTION)
        sent, was_kept = 0, False
        for point in row.points:
            sent += point.called in ("sent", "written")
            words = ("drain", "--until-empty") if point.program == "drain" else (point.program,)
            killed(home, point.step, *words, once=lambda sent=sent: fault.wait_for(sent, timeout_s=60))
            if away.exists():
                away.rename(database)
                was_kept = any(MARK in spool.read_bytes() for spool in database.parent.glob("queue.db.d/spool/*.spool"))
        with mended(home) as queue:
            return _seen(queue, receipt, fault.accepted(), was_kept)


def _seen(queue: Queue, receipt: Receipt, posts: int, was_kept: bool) -> Seen:
    ledger = list(queue.ledger())
    [job] = queue.store.jobs()
    answers = [(no, one) for no, one in enumerate(ledger, 1) if one.artifact_id is not None]
    assert len(answers) == (job.state == "done"), "one artifact in force a key"
    answered_by = {"waiting": "nobody: a person is asked", "failed": "nobody: it failed"}.get(job.state, job.state)
    for no, one in answers:
        result = queue.result(receipt)
        assert result is not None
        assert str(result.text).startswith("answer to")
        answered_by = f"call {no}" + (", recalled" if one.resolution == "recalled" else ", kept" * was_kept)
    words = tuple(f"{one.outcome} ({one.resolution})" if one.resolution else str(one.outcome) for one in ledger)
    return Seen(posts, words, queue.report().paid_twice.calls, answered_by)
