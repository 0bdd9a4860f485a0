"""One world: a queue in a file, drainers that freeze and die, callers and persons, all by one chance (`storm`).

A step is one effect of one journey, one verb of a caller or a person, one fault, or time that passes. After each the
witness looks. Then comes the calm: nobody asks any more, nothing fails any more, and everything must come to an end.
"""

from __future__ import annotations

import hashlib
import os
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any, get_args

from millpond.db.migrations import read_folder
from millpond.db.sqlite import APPLICATION_ID as QUEUE_ID
from millpond.db.sqlite import SqliteDatabase
from millpond.db.statements import load
from millpond.engine import taking_back
from millpond.engine.bookkeeping import keep_book, try_to_post
from millpond.engine.drain import TEND_MS
from millpond.rules.admission import Closing
from millpond.rules.boot import Boot
from millpond.rules.effects import ACCEPT, Heard
from millpond.rules.errors import KeyConflict
from millpond.rules.job import Lease, Prompt, Receipt
from millpond.rules.policy import Policy
from millpond.rules.stops import Whole, wanted
from millpond.rules.verdict import end
from millpond.spend.book import APPLICATION_ID
from millpond.spend.book import RESOURCES as BOOK_RESOURCES
from millpond.store.bodies import dump_work
from millpond.store.deciding import Choice
from millpond.store.enqueue import Asked
from millpond.store.lanes import close_lane
from millpond.store.persons import Whose
from millpond.store.store import RESOURCES, Store, open_sqlite
from millpond.testing.clock import DAWN_MS, FakeClock
from millpond.testing.simulation import calls
from millpond.testing.simulation.auditor import Auditor
from millpond.testing.simulation.calls import Kind, Plan
from millpond.testing.simulation.drainer import Drainer, Flight, Ground
from millpond.testing.simulation.fuse import Died, Fuse, MortalBook, MortalDatabase
from millpond.testing.simulation.witness import PromiseBroken, Witness

CHOICES = get_args(Choice)

CALM_ROUNDS = 2_000
"""Rounds of the calm after which what still lives is stuck."""

MEMORY = Path("/dev/shm")
"""Where files live in memory, on systems that have it: a simulation proves nothing about disks."""


@dataclass(slots=True)
class Run:
    """What happened in one run: its seed, how long it took, and how often each thing came up."""

    seed: int
    steps: int = 0
    calm_rounds: int = 0
    happened: Counter[str] = field(default_factory=Counter[str])
    trace: list[str] = field(default_factory=list[str])


class World:
    """A queue and all who work on it. Its verbs are what chance chooses from; a directed history calls them itself."""

    def __init__(
        self,
        seed: int,
        *,
        policy: Policy,
        rng: random.Random | None = None,
        kinds: Mapping[Kind, float] = calls.WEIGHTS,
        trace: Callable[[str], object] | None = None,
        beside: World | None = None,
    ) -> None:
        """`rng` is the seed's chance, if some of it was drawn before; `kinds` say how often calls end in which way.

        `beside` another world this one has its own queue and people, and the same clock, history and spend book.
        """
        self.rng = rng or random.Random(seed)
        self.history = Run(seed) if beside is None else beside.history
        self.clock = FakeClock() if beside is None else beside.clock
        memory = MEMORY if os.access(MEMORY, os.W_OK) else None
        self.folder = Path(tempfile.mkdtemp(prefix="millpond-simulate-", dir=memory))
        self.path = self.folder / "queue.db"
        self._tell = trace
        self.policy = policy
        self._kinds = kinds
        self.full_until_ms = 0
        self.plans: list[Plan] = []
        """What becomes of the next calls, one after the other; after the last, chance decides."""
        self._skew_ms = 0
        self._fuse = Fuse()
        db = MortalDatabase(open_sqlite(self.path, durable=False), self._fuse)
        self.store = Store(db, lambda: self.clock() + self._skew_ms, lambda: Boot("boot", self.clock()))
        self._eye = _eye(self.path, "looks.sql", RESOURCES)
        self.witness = Witness(self._eye, self.policy)
        book_path = self.folder / "spend.db" if beside is None else beside.book.path
        self.book = MortalBook(book_path, self.store.uuid, self.clock, self._fuse)
        self.book.db.checkpoint()  # it is there from the first look on
        self._book_eye = _eye(book_path, "entries.sql", BOOK_RESOURCES, application_id=APPLICATION_ID)
        self.auditor = Auditor(self._book_eye, self.store.uuid)
        self.ground = Ground(
            self.store,
            self.book,
            self.clock,
            self.policy,
            self.rng,
            self.witness,
            self.auditor,
            self._plan,
            self.log,
            self.folder,
            self.takes,
            letters="ad" if beside is None else "be",
        )
        self.drainers = [Drainer(self.ground) for _ in range(self.rng.choice([2, 3, 4]))]
        self.dead: list[Drainer] = []

    def close(self) -> None:
        """Close the queue and remove its folder."""
        for drainer in self.drainers:
            drainer.spool.remove()
        self.store.close()
        self._eye.close()
        self.book.close()
        self._book_eye.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def log(self, what: str, *words: object) -> None:
        """One line of the trace."""
        self.history.happened[what] += 1
        line = f"{self.history.steps:4} {self.clock() - DAWN_MS:8} ms  {what} " + " ".join(map(str, words))
        self.history.trace.append(line.rstrip())
        if self._tell is not None:
            self._tell(line.rstrip())

    # --- callers ----------------------------------------------------------------------------------------------------

    def ask(self, *wanted: Asked, max_age_ms: int | None = None) -> list[Receipt | KeyConflict]:
        """Hand requests in as one submission."""
        submission = self.store.open_submission()
        placed = [replace(one, position=at) for at, one in enumerate(wanted)]
        answers = self.store.enqueue(placed, submission, max_age_ms=max_age_ms)
        for one, answer in zip(wanted, answers, strict=True):
            if isinstance(answer, KeyConflict):
                self.log("conflict", one.idempotency_key)
                continue
            how = f"job {answer.job_id}{' fresh' if one.fresh else ''}"
            self.log("asked", one.idempotency_key, f"request {answer.request_id}", answer.disposition, how)
            self.witness.acknowledged(answer.request_id, one.idempotency_key, one.fingerprint, answer.disposition)
        self._check()
        for job_id in {one.job_id for one in answers if isinstance(one, Receipt) and one.disposition == "new"}:
            if self.witness.seen.jobs[job_id].wait_reason == "held":
                self.log("asked behind a call", f"job {job_id}")
        return answers

    def withdraw(self, request_id: int, hold_ms: int) -> None:
        """Withdraw what the submission of a request asks of its job."""
        row = self.witness.seen.requests[request_id]
        self.cancel(row.job_id, hold_ms, [row.submission_id])

    def cancel(self, job_id: int, hold_ms: int, whose: Whose = None) -> None:
        """Cancel one job, or withdraw what some submissions ask of it."""
        seen = self.witness.seen
        [done] = self.store.cancel([(job_id, hold_ms)], submissions=whose)
        if done.moved:
            self.log("cancelled" if whose is None else "withdrawn", f"job {job_id}", *seen.hanging(job_id, whose))
            self.witness.withdrawn(seen.hanging(job_id, whose), True)
            if all(self.witness.asks[one].withdrawn for one in seen.hanging(job_id)):
                self._cancelled(job_id, hold_ms)
        self._check()

    def _cancelled(self, job_id: int, hold_ms: int) -> None:
        for row in self.witness.seen.attempts.values():
            if row.job_id == job_id and row.outcome is None:
                self.witness.held(row.uid, self.clock() + hold_ms)

    def take_back(self, request_id: int) -> None:
        """Ask again for what the submission of a request asked of its job."""
        row = self.witness.seen.requests[request_id]
        self.retry(row.job_id, whose=[row.submission_id])

    def retry(self, job_id: int, lane: str | None = None, whose: Whose = None) -> None:
        """Ask again for one job, for everyone or for some submissions."""
        meant = self.witness.seen.hanging(job_id, whose)
        granted = self.policy.max_attempts_per_job
        [done] = self.store.retry([job_id], granted=granted, lane=lane, submissions=whose, bill=self.ground.bill)
        if done.moved:
            self.log("retried" if whose is None else "taken back", f"job {job_id}", *meant, lane or "")
            self.witness.withdrawn(meant, False)
        self._check()
        self.witness.spoken()

    def replay(self, uid: str) -> None:
        """Hand in once more, without a lease, what a call gave: out of a spool, or by a worker who is not sure."""
        call = self.witness.calls[uid]
        lane = self.policy.lane(call.lane)
        ending = end(Heard(call.evidence, self.clock(), 0.0), lane, self.policy)
        self.log("replayed", uid, ending.outcome)
        self.witness.delivered(uid, ending)
        settled = self.store.settle(uid, ending, ACCEPT, lane=call.lane, lease=None)
        if self.rng.random() < 0.5:  # else whoever handed it in died before that
            try_to_post(self.store, self.book, settled.charge)
        self._check()

    def close_lane(self, lane: str, until_ms: int | None) -> None:
        """A person closes a lane."""
        self.log("closed", lane, until_ms)
        closing = Closing(until_ms, "person: a rest", "person")
        self.store.db.write(partial(close_lane, lane=lane, closing=closing, now_ms=self.clock()))
        self._check()

    def open_lanes(self) -> int:
        """A person opens what is closed until a person opens it."""
        closed = [row.lane for row in self.store.closed_lanes().values() if row.closed_until_ms is None]
        for lane in closed:
            self.log("opened", lane)
            self.store.open_lane(lane)
        return len(closed)

    def stop(self, which: Whole | Iterable[str]) -> None:
        """A person stops lanes."""
        self.log("stopped", which)
        self.store.stop(wanted(which), origin="person")
        self.witness.stopped |= set(wanted(which))
        self.witness.check()

    def resume(self, which: Whole | Iterable[str] = "all") -> int:
        """A person ends stops; how many stood."""
        ended = self.store.resume(wanted(which), origin="person").changed
        if ended:
            self.log("resumed", which)
        self.witness.stopped -= self.witness.stopped if which == "all" else set(wanted(which))
        self.witness.check()
        return len(ended)

    def decide(self) -> int:
        """A person answers what waits for one. How many such words counted: where a call is under way, none does."""
        waiting = [job.id for job in self.witness.seen.jobs.values() if job.wait_reason == "asked"]
        return sum([self.say(job_id, self.rng.choice(CHOICES)) for job_id in waiting])

    def say(self, job_id: int, choice: Choice) -> bool:
        """A person's word on what is unknown of a job, held or asked. Whether it counted."""
        done = self.store.decide(job_id, choice, bill=self.ground.bill)
        if done.moved:
            self.log("decided", f"job {job_id}", choice)
        self._check()
        self.witness.spoken()
        return done.moved

    def unpin(self, job_id: int) -> None:
        """Route a job from its first lane again."""
        [done] = self.store.unpin([job_id])
        if done.moved:
            self.log("unpinned", f"job {job_id}")
        self._check()

    # --- drainers ---------------------------------------------------------------------------------------------------

    def fly(self, flight: Flight) -> None:
        """One effect of one journey."""
        effect = type(flight.next).__name__
        if not flight.waits:
            self.log(effect, f"job {flight.lease.job_id}/{flight.lease.lease_no}", flight.lease.owner, flight.uid)
        with self._seen_by(next((one for one in self.drainers if flight in one.flights), None)):
            flight.step()
        self._check(flight.lease)

    def lease(self, drainer: Drainer, most: int = 2) -> int:
        """Let a drainer lease into its free slots."""
        name = drainer.owner
        with self._seen_by(drainer):
            got = drainer.lease(most)
        if drainer.owner != name:
            self.log("reborn", name, "is", drainer.owner)
        if got:
            taken = [f"job {flight.lease.job_id}/{flight.lease.lease_no}" for flight in drainer.flights[-got:]]
            self.log("leased", drainer.owner, *taken)
        self._check()
        return got

    def tend(self, drainer: Drainer) -> int:
        """Let a drainer end its own holds that ran out, reclaim what it may take for dead, and ask lanes what is due.

        How much it did. What the dead could not write is written first, and while the queue takes nothing, nobody is
        reclaimed.
        """
        with self._seen_by(drainer):
            done = self._tend_own(drainer)
        self.witness.check()
        if self.takes():
            self._tell_of(self.dead)
            taking_back.replay(self.store, self.folder, only_left=True)
            self.witness.check()
        living, most = self.witness.seen.living, self.policy.max_leases_lost
        for other in [*self.drainers, *self.dead] if self.takes() else []:
            if other.owner in living and drainer.may_reclaim(other):
                self._tell_of([*self.dead, *self.drainers])
                reclaimed = taking_back.take_back(self.store, self.folder, other.owner, max_leases_lost=most)
                self.log("reclaimed", other.owner, "dead" if not other.is_alive else "frozen", reclaimed)
                done += 1
        done += drainer.ask_lanes()
        self._check()
        living, kept = self.witness.seen.living, self.witness.kept.keys()
        self.dead = [one for one in self.dead if one.owner in living or kept & set(one.kept)]
        return done

    def _tell_of(self, owners: Iterable[Drainer]) -> None:
        """Tell the witness of the replies in their spools, which are about to be written."""
        kept = dict.fromkeys(uid for owner in owners for uid in owner.kept if uid in self.witness.kept)
        for uid in kept:
            self.log("found", uid)
            self.witness.delivered(uid, self.witness.kept[uid])
        if len(kept) > 1:  # which of them comes first for its key is not for us to say
            self.witness.owed = None

    def takes(self) -> bool:
        """Whether the queue takes what ends: its disk is not full."""
        return self.full_until_ms <= self.clock()

    def fill(self, for_ms: int) -> None:
        """The disk is full for a while. Only the ends of calls meet it here: all else just waits, in life too."""
        self.log("full", for_ms)
        self.full_until_ms = self.clock() + for_ms

    def _tend_own(self, drainer: Drainer) -> int:
        """Take a new name if its own fell, end its holds that ran out, take back its leases that nobody renewed."""
        done = 0
        if not drainer.stands():
            name = drainer.owner
            drainer.take_new_name()
            self.log("reborn", name, "is", drainer.owner)
            done += 1
        for uid in drainer.listening.end_holds(drainer.owner) if not drainer.spool.pending() else ():
            self.log("hold over", uid)
            done += 1
        for job_id, lease_no in drainer.lapsed() if self._has_written(drainer) else ():
            lapsed = self.store.lapse(job_id, lease_no, max_leases_lost=self.policy.max_leases_lost)
            self.log("lapsed", f"job {job_id}/{lease_no}", lapsed)
            del drainer.silent[job_id, lease_no]
            done += 1
        return done

    def _has_written(self, drainer: Drainer) -> bool:
        """Write what waits in a drainer's spool before a lease of its own is taken back; False: that cannot be now."""
        if not drainer.spool.pending() or not drainer.lapsed():
            return True
        if self.takes():
            self._tell_of([drainer])
            drainer.spool.write_all(self.store)
            self.witness.check()
        return self.takes()

    @contextmanager
    def _seen_by(self, drainer: Drainer | None) -> Generator[None]:
        """What is done inside reads the wall clock as this drainer does."""
        self._skew_ms = drainer.skew_ms if drainer else 0
        try:
            yield
        finally:
            self._skew_ms = 0

    def drop(self, drainer: Drainer, flight: Flight) -> None:
        """The task of a lease dies, and its process does not: nobody hears its call, nobody renews its lease."""
        self.log("dropped", f"job {flight.lease.job_id}/{flight.lease.lease_no}", flight.uid)
        drainer.flights.remove(flight)
        drainer.silent[flight.lease.job_id, flight.lease.lease_no] = self.clock()
        if flight.uid:
            self.witness.held(flight.uid, self.clock())

    def set_clock(self, drainer: Drainer, skew_ms: int) -> None:
        """The wall clock that a drainer reads is set anew."""
        self.log("set its clock", drainer.owner, skew_ms)
        drainer.skew_ms = skew_ms

    def keep_book(self) -> None:
        """Let a drainer bring the spend book up to the ledger: in the product, next after it has tended."""
        keep_book(self.store, self.book)
        self.log("kept the book")
        self._check()

    def die_tending(self, drainer: Drainer, after: int) -> bool:
        """A process dies while it tends and keeps the book, after so many transactions. Whether it made as many."""
        before = self.witness.told()
        try:
            with self._fuse.lit(after):
                self.tend(drainer)
                self.keep_book()
        except Died:
            self.witness.died(before)
            self.log("died tending", drainer.owner, f"after {after} transactions")
            self.crash(drainer)
            return True
        return False

    def crash(self, drainer: Drainer) -> None:
        """A process dies, its calls with it; another comes up."""
        for flight in drainer.flights:
            self.history.happened[f"crash at {type(flight.next).__name__}"] += 1
        self.log("crashed", drainer.owner)
        drainer.is_alive = False
        drainer.spool.remove()
        drainer.flights = []
        self.drainers.remove(drainer)
        self.dead.append(drainer)
        self.drainers.append(Drainer(self.ground))
        self._check()

    def freeze(self, drainer: Drainer, for_ms: int, beat_age_ms: int = 0) -> None:
        """A process stands still, some time after its last beat: others may take it for dead, and write so late."""
        self.log("froze", drainer.owner, for_ms, f"beat {beat_age_ms} ms ago")
        drainer.freeze(for_ms, beat_age_ms)
        if for_ms + beat_age_ms >= self.policy.lease_ms:
            self.witness.suspects.add(drainer.owner)

    def _plan(self, lane: str) -> Plan:
        """What becomes of the next call on a lane, whichever it is."""
        if self.plans:
            return self.plans.pop(0)
        return calls.draw(self.rng, self._kinds)

    def pass_time(self, ms: int) -> None:
        """Let time pass."""
        self.clock.advance(ms)
        self.log("passed", ms)

    # --- the calm ---------------------------------------------------------------------------------------------------

    def calm(self) -> None:
        """Let everything come to an end. Raises PromiseBroken for what does not."""
        self.log("calm")
        self.full_until_ms = 0
        for drainer in self.drainers:
            drainer.skew_ms = 0
        self._kinds = calls.CALM_WEIGHTS
        for self.history.calm_rounds in range(CALM_ROUNDS):
            if self._round():
                continue
            next_ms = self.next_ms()
            if next_ms is None:
                break
            self.clock.advance(max(next_ms - self.clock(), 1))
        else:
            raise PromiseBroken(f"not quiet after {CALM_ROUNDS} rounds: {self._left()}")
        if left := self._left():
            raise PromiseBroken(f"stuck for ever: {left}")
        self.check_end()

    def check_end(self) -> None:
        """At rest nothing is left open, and the book says what the ledger says."""
        self.witness.check_end()
        self.auditor.check(self.witness.seen)
        self.auditor.check_end(self.witness.seen)

    def _check(self, moved_by: Lease | None = None) -> None:
        """Hold what is now against what was promised, after each step."""
        self.witness.check(moved_by)
        self.auditor.check(self.witness.seen)

    def _round(self) -> int:
        """Everything that can be done now, once. How much that was."""
        done = self.open_lanes() + self.resume() + self.decide()
        for drainer in self.drainers:
            if not drainer.is_awake():
                continue
            done += self.tend(drainer) + self.lease(drainer, 8)
            for flight in [flight for flight in drainer.flights if flight.can_go(self.clock())]:
                self.fly(flight)
                done += 1
            drainer.land()
        self.keep_book()
        return done

    def next_ms(self) -> int | None:
        """When the clock alone brings something."""
        now_ms = self.clock()
        times = [row.closed_until_ms for row in self.store.closed_lanes().values() if row.closed_until_ms is not None
                 and self.store.any_ready(row.lane)]  # fmt: skip
        times += [due] if (due := self.store.next_due_ms()) is not None else []
        for drainer in self.drainers:
            times += [drainer.frozen_until_ms] if not drainer.is_awake() else []
            times += [died_ms + self.policy.lease_ms for died_ms in drainer.silent.values()]
            times += [at for flight in drainer.flights if (at := flight.next_ms()) is not None]
        attempts = self.witness.seen.attempts.values()
        listened = [row for row in attempts if row.listener is not None]
        times += [max(row.hold_until_ms, now_ms + TEND_MS) for row in listened]  # begun when its listener saw it
        times += [row.hold_until_ms for row in attempts if row.outcome == "ambiguous" and row.resolution is None]
        times += [row.ask_ms for row in attempts if row.ask_ms is not None]
        return min((at for at in times if at > now_ms), default=None)

    def _left(self) -> list[str]:
        left = [f"job {job.id} {job.state}/{job.wait_reason} next {job.next_lane!r}"
                for job in self.witness.seen.jobs.values() if job.live]  # fmt: skip
        return left + [f"{drainer.owner} at {type(one.next).__name__}" for drainer in self.drainers
                       for one in drainer.flights]  # fmt: skip


def _eye(path: Path, statements: str, room: str, application_id: int = QUEUE_ID) -> SqliteDatabase:
    """A connection of the simulation's own, to look with."""
    text = files("millpond.testing.simulation").joinpath(statements).read_text(encoding="utf-8")
    return SqliteDatabase(
        path,
        statements=load(text),
        migrations=read_folder(files(room).joinpath("schema")),
        durable=False,
        application_id=application_id,
    )


def asked(key: str, work: str = "", **wishes: Any) -> Asked:
    """A request for some work (default: named as its key) under a key."""
    task = work or key
    plain: Mapping[str, Any] = {
        "position": 0,
        "kind": "prompt",
        "route": "",
        "fingerprint": fingerprint(task),
        "idempotency_key": key,
        "body": dump_work(Prompt(task)),
    }
    return Asked(**{**plain, **wishes})


def fingerprint(work: str) -> str:
    """Stands for the real one: as long, and different for different work."""
    return hashlib.sha256(work.encode()).hexdigest()
