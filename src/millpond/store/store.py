"""The queue's verbs as one object: each is one transaction, durable as DESIGN §5 says, on a clock that is handed in."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

from millpond.db.database import Database, Transaction
from millpond.db.migrations import read_folder
from millpond.db.sqlite import SqliteDatabase
from millpond.db.statements import load
from millpond.rules.boot import Boot
from millpond.rules.effects import Charge, Ending, EvidenceBy, Instead, Recorded, Then
from millpond.rules.errors import KeyConflict, LeaseLost
from millpond.rules.job import Lease, OwnerRow, Receipt
from millpond.rules.price import Cost
from millpond.rules.stops import Stops, Wanted
from millpond.store import accounts, asking, deciding, lanes, ledger, persons, settle, stops
from millpond.store import lease as leasing
from millpond.store import reclaim as owners
from millpond.store.enqueue import CHUNK_REQUESTS, Asked, enqueue, open_submission
from millpond.store.moves import Fence
from millpond.store.reader import Reader
from millpond.store.reclaim import Reclaimed
from millpond.store.settle import Bill, Settled, unpriced

T = TypeVar("T")

QUEUE_UUID = "queue_uuid"
"""Names this queue for good, wherever its file is moved."""

RESOURCES = "millpond.store"


def open_sqlite(path: Path, *, durable: bool = True, on_commit: Callable[[], None] | None = None) -> SqliteDatabase:
    """Open, and create or migrate, the queue's database file."""
    from importlib.resources import files

    text = files(RESOURCES).joinpath("statements.sql").read_text(encoding="utf-8")
    return SqliteDatabase(
        path,
        statements=load(text),
        migrations=read_folder(files(RESOURCES).joinpath("schema")),
        durable=durable,
        on_commit=on_commit,
    )


class Store(Reader):
    """All that can be done to a queue's tables, and read of them. Thread-safe; one per process and queue is enough.

    Verbs that answer a caller, and record and settle, commit FULL; lease, give and the rest of the machinery NORMAL
    (what they lose at power loss is rebuilt by reclaim, since power loss kills every owner too).
    """

    def __init__(self, db: Database, now_ms: Callable[[], int], boot: Callable[[], Boot] | None = None) -> None:
        super().__init__(db, now_ms, boot)
        if (row := db.read(_named)) is None:  # looking at a queue needs no write lock
            db.write(lambda tx: tx.all("set_meta_once", name=QUEUE_UUID, value=uuid4().hex))
            row = db.read(_named)
        self.uuid: str = row.value

    # --- the door ---------------------------------------------------------------------------------------------------

    def open_submission(self, name: str | None = None, source: str = "api") -> int:
        """A new submission's id; unnamed ones are called `s` and their id."""
        return self.db.write(partial(open_submission, name=name, source=source, now_ms=self.now_ms()))

    def enqueue(
        self, asked: Sequence[Asked], submission_id: int, *, max_age_ms: int | None = None
    ) -> list[Receipt | KeyConflict]:
        """Take requests in, in chunks of one transaction each; one answer a request, in their order."""
        answers: list[Receipt | KeyConflict] = []
        for at in range(0, len(asked), CHUNK_REQUESTS):
            chunk = asked[at : at + CHUNK_REQUESTS]
            answers += self.db.write(
                partial(enqueue, asked=chunk, submission_id=submission_id, now_ms=self.now_ms(), max_age_ms=max_age_ms)
            )
        return answers

    def enqueue_one(self, asked: Asked, *, max_age_ms: int | None = None, source: str = "api") -> Receipt:
        """One request as a submission of its own, in one transaction. Raises KeyConflict."""
        [receipt] = self.enqueue_all([asked], name=None, source=source, max_age_ms=max_age_ms)
        return receipt

    def enqueue_all(
        self, asked: Iterable[Asked], *, name: str | None, source: str, max_age_ms: int | None = None
    ) -> list[Receipt]:
        """A whole submission in one transaction, or nothing of it. Raises the first KeyConflict."""
        answers: list[Receipt | KeyConflict] = []
        self.enqueue_whole(asked, answers.append, name=name, source=source, max_age_ms=max_age_ms)
        return [_receipt(one) for one in answers]

    def enqueue_whole(
        self,
        asked: Iterable[Asked],
        answered: Callable[[Receipt | KeyConflict], object],
        *,
        name: str | None,
        source: str,
        max_age_ms: int | None = None,
    ) -> bool:
        """A whole submission in one transaction; if one of it is refused, nothing is taken in and this is False.

        The requests are read inside the transaction, a chunk at a time, so they must be ready: a list, or a Tape.
        `answered` gets the answer of each, in their order, before it is known whether all are taken in.
        """
        now_ms = self.now_ms()

        def whole(tx: Transaction) -> None:
            id_ = open_submission(tx, name=name, source=source, now_ms=now_ms)
            left, are_all_taken = iter(asked), True
            while chunk := list(islice(left, CHUNK_REQUESTS)):
                for answer in enqueue(tx, chunk, submission_id=id_, now_ms=now_ms, max_age_ms=max_age_ms):
                    are_all_taken = are_all_taken and not isinstance(answer, KeyConflict)
                    answered(answer)
            if not are_all_taken:
                raise _TakenBack

        try:
            self.db.write(whole)
        except _TakenBack:
            return False
        return True

    # --- the journey ------------------------------------------------------------------------------------------------

    def lease(
        self,
        owner: str,
        room: Mapping[str, int],
        limit: int,
        *,
        wake_rows: int = 256,
        fair_every: int = 0,
        route: leasing.NextLane | None = None,
        registry: Mapping[str, Any] | None = None,
        serial: Collection[str] = (),
        free_lanes: Collection[str] = (),
    ) -> list[Lease]:
        """Lease what ranks first: `limit` in all, `room[lane]` of a lane. Raises LeaseLost for a dead owner."""
        return self.db.write(
            partial(
                leasing.lease,
                owner=owner,
                room=room,
                limit=limit,
                now_ms=self.now_ms(),
                wake_rows=wake_rows,
                fair_every=fair_every,
                route=route,
                registry=registry,
                serial=serial,
                free_lanes=free_lanes,
            ),
            full=False,
        ).leases

    def record(
        self,
        lease: Lease,
        uid: str,
        lane: str,
        tier: str = "free",
        free_lanes: Collection[str] = (),
        *,
        recall_hold_ms: int | None = None,
    ) -> Recorded | Instead:
        """Write the ledger row before the call. Instead: send nothing, the job was moved. Raises LeaseLost."""
        verb = partial(ledger.record, lease=lease, uid=uid, lane=lane, tier=tier, free_lanes=free_lanes)
        return self.db.write(partial(verb, recall_hold_ms=recall_hold_ms, now_ms=self.now_ms(), boot=self.boot()))

    def settle(
        self, uid: str, ending: Ending, then: Then, *, lane: str, lease: Lease | None, how: EvidenceBy = "late"
    ) -> Settled:
        """End an attempt on evidence; see `settle.settle`."""
        job = fence(lease) if lease is not None else None
        return self.db.write(
            partial(settle.settle, uid=uid, ending=ending, then=then, lane=lane, job=job, how=how, now_ms=self.now_ms())
        )

    def settle_late(
        self, uid: str, ending: Ending, then: Then, *, lane: str, job: Fence | None, how: EvidenceBy = "late"
    ) -> Settled | None:
        """Write an end that was kept elsewhere, unless it is written; see `settle.settle_late`."""
        return self.db.write(
            partial(
                settle.settle_late,
                uid=uid,
                ending=ending,
                then=then,
                lane=lane,
                job=job,
                how=how,
                now_ms=self.now_ms(),
            )
        )

    def detach(self, uid: str, lease: Lease, hold_ms: int) -> bool:
        """Soft timeout: ambiguous, held, still listened to. Whether the job was still ours to move."""
        return self.db.write(partial(settle.detach, uid=uid, job=fence(lease), hold_ms=hold_ms, now_ms=self.now_ms()))

    def stop_listening(self, uid: str) -> None:
        """End a hold whose listener's own clock has run out."""
        self.db.write(partial(settle.stop_listening, uid=uid, now_ms=self.now_ms()))

    def resolve(self, uid: str, choice: str, *, worst: Cost | None = None, certain: bool = False) -> Charge | None:
        """Decide an ambiguous attempt, booking its worst case as an estimate. What is to be posted of it."""
        return self.db.write(
            partial(settle.resolve, uid=uid, choice=choice, worst=worst, certain=certain, now_ms=self.now_ms())
        )

    def give(self, lease: Lease, then: Then) -> None:
        """Give a leased job back or fail it. Raises LeaseLost if the fence held."""
        if not self.db.write(
            partial(settle.give, job=fence(lease), then=then, now_ms=self.now_ms()), full=then.move == "fail"
        ):
            raise LeaseLost(ledger.lost(lease))

    # --- what the spend book must know ------------------------------------------------------------------------------

    def unposted(self, after: int, limit: int) -> tuple[list[Charge], int]:
        """A page of charges that the spend book may not have, and the cursor to go on from."""
        return self.db.read(partial(accounts.unposted, after=after, limit=limit))

    def mark_posted(self, charges: Iterable[Charge]) -> None:
        """Mark charges as posted that are still what the ledger says. If that is lost, they are posted once more."""
        _all_done(self.db.write_all([partial(accounts.mark_posted, charge=one) for one in charges], full=False))

    def never_recorded(self, owners: Mapping[str, str]) -> list[str]:
        """Those of some attempts (uid -> its owner) whose owner is dead and never recorded them."""
        return self.db.read(partial(accounts.never_recorded, owners=owners))

    def of_strangers(self, owners: Mapping[str, str]) -> list[str]:
        """Those of some attempts (uid -> its owner) whose owner this ledger does not know."""
        return self.db.read(partial(accounts.of_strangers, owners=owners))

    # --- owners -----------------------------------------------------------------------------------------------------

    def enlist(self, owner: OwnerRow) -> None:
        """Write an owner's row: lease and record require it.

        Before anything is reserved under its name, so it is as durable as that: of an owner that the ledger does not
        know no reservation is dropped.
        """
        self.db.write(partial(owners.enlist, owner=owner))

    def reclaim(self, owner: str, *, max_leases_lost: int = 10, died: bool = True) -> Reclaimed:
        """Take back what an owner held, and declare it dead; a second time does nothing.

        `died` False: it leaves by itself, so no lost lease is counted.
        """
        now_ms = self.now_ms()
        return self.db.write(
            partial(owners.reclaim, owner=owner, max_leases_lost=max_leases_lost, died=died, now_ms=now_ms)
        )

    def lapse(self, job_id: int, lease_no: int, *, max_leases_lost: int = 10) -> Reclaimed:
        """Take back one lease of this process that nobody renewed."""
        return self.db.write(
            partial(
                owners.lapse, job_id=job_id, lease_no=lease_no, max_leases_lost=max_leases_lost, now_ms=self.now_ms()
            )
        )

    def succeed(self, old: str, heir: OwnerRow) -> bool:
        """Take a new name. False: the old one had been given up, and what it held is others' now."""
        return self.db.write(partial(owners.succeed, old=old, heir=heir, now_ms=self.now_ms()))

    # --- what is unknown --------------------------------------------------------------------------------------------

    def ask_again(self, next_ms: Mapping[str, int]) -> set[str]:
        """Say of calls when they are asked for the next time; those that are to be asked for now."""
        return self.db.write(partial(asking.ask_again, next_ms=next_ms, now_ms=self.now_ms()), full=False)

    def note_unasked(self, uid: str, why: str | None) -> None:
        """Write down why a lane could not be asked for a call; None: it was."""
        self.db.write(partial(asking.note_unasked, uid=uid, why=why), full=False)

    def forget(self, uid: str, bill: Bill = unpriced, asked_lanes: Collection[str] = ()) -> bool:
        """Decide a call whose hold is over and for which nobody waits. Whether it was decided. See `asking.forget`."""
        now = {"now_ms": self.now_ms(), "boot": self.boot()}
        return None is not self.db.write(partial(asking.forget, uid=uid, bill=bill, asked_lanes=asked_lanes, **now))

    def decide(
        self, job_id: int, choice: deciding.Choice, *, bill: Bill = unpriced, route: leasing.NextLane | None = None
    ) -> persons.Moved:
        """A person's word on what is unknown of a job. See `deciding.decide`."""
        verb = partial(deciding.decide, job_id=job_id, choice=choice, bill=bill, route=route)
        return self.db.write(partial(verb, now_ms=self.now_ms()))

    def unpin(self, job_ids: Iterable[int]) -> list[persons.Moved]:
        """Route pinned jobs from their first lane again, in one commit. Raises as `cancel`."""
        verb = partial(deciding.unpin, now_ms=self.now_ms())
        return _all_done(self.db.write_all([partial(verb, job_id=id_) for id_ in job_ids]))

    # --- persons ----------------------------------------------------------------------------------------------------

    def cancel(self, holds: Iterable[tuple[int, int]], *, submissions: persons.Whose = None) -> list[persons.Moved]:
        """Cancel jobs in one commit, or withdraw what some submissions ask of them.

        `holds`: ids, each with how many ms a call in flight is listened to. Raises the first failure; the others are
        committed all the same.
        """
        verb = partial(persons.cancel, whose=submissions, now_ms=self.now_ms())
        return _all_done(self.db.write_all([partial(verb, job_id=id_, hold_ms=ms) for id_, ms in holds]))

    def retry(
        self,
        job_ids: Iterable[int],
        *,
        granted: int = 0,
        lane: str | None = None,
        submissions: persons.Whose = None,
        bill: Bill = unpriced,
    ) -> list[persons.Moved]:
        """Ask again for jobs in one commit, for everyone or for some submissions. Raises as `cancel`."""
        verb = partial(persons.retry, whose=submissions, granted=granted, lane=lane, bill=bill, now_ms=self.now_ms())
        return _all_done(self.db.write_all([partial(verb, job_id=id_) for id_ in job_ids]))

    # --- lanes ------------------------------------------------------------------------------------------------------

    def open_lane(self, lane: str) -> None:
        """Open a lane, whoever closed it."""
        self.db.write(partial(lanes.open_lane, lane=lane))

    def stop(self, wanted: Iterable[Wanted], *, origin: str) -> Stops:
        """Let nothing more be leased or recorded on these lanes until a person says so."""
        return self.db.write(partial(stops.stop, wanted=list(wanted), origin=origin, now_ms=self.now_ms()))

    def resume(self, wanted: Iterable[Wanted], *, origin: str) -> Stops:
        """End stops; `all` ends every one."""
        return self.db.write(partial(stops.resume, wanted=list(wanted), origin=origin, now_ms=self.now_ms()))


def _named(tx: Transaction) -> Any:
    return tx.one("meta", name=QUEUE_UUID)


def _all_done(outcomes: Iterable[T | Exception]) -> list[T]:
    done: list[T] = []
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome
        done.append(outcome)
    return done


def fence(lease: Lease) -> Fence:
    """A lease's fence."""
    return Fence(lease.job_id, lease.lease_no)


class _TakenBack(Exception):
    """One request of a whole submission was refused, so its transaction must not be committed."""


def _receipt(answer: Receipt | KeyConflict) -> Receipt:
    if isinstance(answer, KeyConflict):
        raise answer
    return answer
