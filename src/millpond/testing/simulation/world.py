"""One world: a queue in a file, drainers that freeze and die, callers and persons, all by one chance.

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
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

from millpond.db.migrations import read_folder
from millpond.db.sqlite import SqliteDatabase
from millpond.db.statements import load
from millpond.rules.admission import Closing
from millpond.rules.effects import ACCEPT, Heard
from millpond.rules.errors import KeyConflict
from millpond.rules.job import Prompt, Receipt
from millpond.rules.policy import AfterHold, Backoff, LanePolicy, Policy
from millpond.rules.price import FREE, PriceRule
from millpond.rules.verdict import end
from millpond.store.bodies import dump_work
from millpond.store.enqueue import Asked
from millpond.store.lanes import close_lane
from millpond.store.persons import Whose
from millpond.store.store import RESOURCES, Store, open_sqlite
from millpond.testing.clock import DAWN_MS, FakeClock
from millpond.testing.simulation import calls
from millpond.testing.simulation.calls import Plan
from millpond.testing.simulation.drainer import Drainer, Flight, Ground
from millpond.testing.simulation.witness import PromiseBroken, Witness, look

K = TypeVar("K", bound=str)

STEPS = 160
"""Steps of the storm, unless told otherwise."""

CALM_ROUNDS = 2_000
"""Rounds of the calm after which what still lives is stuck."""

MEMORY = Path("/dev/shm")
"""Where files live in memory, on systems that have it: a simulation proves nothing about disks."""

LEASE_MS = 15_000

SHARES: Mapping[str, float] = {
    "work": 70, "time": 6, "ask": 9, "withdraw": 1, "take_back": 1, "cancel": 2, "retry": 2.5, "decide": 0.5,
    "replay": 1, "close": 0.2, "open": 0.7, "crash": 1.2, "freeze": 0.8,
}  # fmt: skip
"""How often each thing is done in the storm, in per cent or so; each seed has its own leanings."""

LEANINGS = (0.25, 1, 1, 3)
"""By how much a seed does something more or less often than others: rare things meet where both are common."""


@dataclass(slots=True)
class Run:
    """What happened in one run: its seed, how long it took, and how often each thing came up."""

    seed: int
    steps: int = 0
    calm_rounds: int = 0
    happened: Counter[str] = field(default_factory=Counter[str])
    trace: list[str] = field(default_factory=list[str])


def draw_policy(rng: random.Random) -> Policy:
    """Lanes of some seed: two or three, cheap or dear, with and without soft timeouts, each with its after_hold."""
    holds: list[AfterHold] = ["pin", "same", "ask", "fail"]
    lanes: dict[str, LanePolicy] = {}
    for name in ("free", "paid", "spare")[: rng.choice([2, 2, 3])]:
        lanes[name] = LanePolicy(
            name,
            kind="callable",
            tier="free" if name == "free" else "paid",
            price=FREE if name == "free" else PriceRule("stated", Decimal(1), Decimal(2)),
            max_attempts=rng.choice([1, 2, 3]),
            max_in_flight=rng.choice([1, 2, 3]),
            serial=rng.random() < 0.15,
            soft_timeout_ms=calls.SOFT_MS if rng.random() < 0.85 else None,
            after_hold=rng.choices(holds, [5, 4, 2, 1])[0],
            hold_ms={"realtime": rng.choice([0, 6_000]), "batch": rng.choice([8_000, 20_000])},
            max_output_tokens=rng.choice([None, 100]),
        )
    return Policy(
        lanes=lanes,
        backoff=Backoff(first_ms=500, cap_ms=4_000),
        max_attempts_per_job=rng.choice([3, 6, 12]),
        max_leases_lost=rng.choice([2, 4]),
        fair_every=rng.choice([0, 2, 16]),
        wake_chunk_rows=rng.choice([1, 256]),
        lease_ms=LEASE_MS,
    )


class World:
    """A queue and all who work on it. Its verbs are what chance chooses from; a directed history calls them itself."""

    def __init__(
        self, seed: int, *, policy: Policy | None = None, trace: Callable[[str], object] | None = None
    ) -> None:
        self.rng = random.Random(seed)
        self.history = Run(seed)
        self.clock = FakeClock()
        memory = MEMORY if os.access(MEMORY, os.W_OK) else None
        self.folder = Path(tempfile.mkdtemp(prefix="millpond-simulate-", dir=memory))
        self.path = self.folder / "queue.db"
        self._tell = trace
        self.policy = policy or draw_policy(self.rng)
        self._shares = self._lean(SHARES)
        self._kinds = self._lean(calls.WEIGHTS)
        self._keys = self.rng.choice([1, 2, 3, 4])
        self.plans: list[Plan] = []
        """What becomes of the next calls, one after the other; after the last, chance decides."""
        self.store = Store(open_sqlite(self.path, durable=False), self.clock)
        self._eye = SqliteDatabase(
            self.path,
            statements=load(files("millpond.testing.simulation").joinpath("looks.sql").read_text(encoding="utf-8")),
            migrations=read_folder(files(RESOURCES).joinpath("schema")),
            durable=False,
        )
        self.witness = Witness(self._eye, self.policy)
        self.ground = Ground(self.store, self.clock, self.policy, self.rng, self.witness, self._plan, self.log)
        self.drainers = [Drainer(self.ground) for _ in range(self.rng.choice([2, 3, 4]))]
        self.dead: list[Drainer] = []

    def close(self) -> None:
        """Close the queue and remove its folder."""
        self.store.close()
        self._eye.close()
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
        self.witness.check()
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
        self.witness.check()

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
        [done] = self.store.retry([job_id], granted=granted, lane=lane, submissions=whose)
        if done.moved:
            self.log("retried" if whose is None else "taken back", f"job {job_id}", *meant, lane or "")
            self.witness.withdrawn(meant, False)
        self.witness.check()

    def replay(self, uid: str) -> None:
        """Hand in once more, without a lease, what a call gave: out of a spool, or by a worker who is not sure."""
        call = self.witness.calls[uid]
        lane = self.policy.lane(call.lane)
        ending = end(Heard(call.evidence, self.clock(), 0.0), lane, self.policy)
        self.log("replayed", uid, ending.outcome)
        self.witness.delivered(uid, ending)
        self.store.settle(uid, ending, ACCEPT, lane=call.lane, lease=None)
        self.witness.check()

    # --- drainers ---------------------------------------------------------------------------------------------------

    def fly(self, flight: Flight) -> None:
        """One effect of one journey."""
        effect = type(flight.next).__name__
        if not flight.waits:
            self.log(effect, f"job {flight.lease.job_id}/{flight.lease.lease_no}", flight.lease.owner, flight.uid)
        flight.step()
        self.witness.check(flight.lease)

    def lease(self, drainer: Drainer, most: int = 2) -> int:
        """Let a drainer lease into its free slots."""
        name = drainer.owner
        got = drainer.lease(most)
        if drainer.owner != name:
            self.log("reborn", name, "is", drainer.owner)
        if got:
            taken = [f"job {flight.lease.job_id}/{flight.lease.lease_no}" for flight in drainer.flights[-got:]]
            self.log("leased", drainer.owner, *taken)
        self.witness.check()
        return got

    def tend(self, drainer: Drainer) -> int:
        """Let a drainer end its own holds that ran out, and reclaim what it may take for dead. How much it did."""
        done = self.store.end_own_holds(drainer.owner)
        living = self.witness.seen.living
        for other in [*self.drainers, *self.dead]:
            if other.owner in living and drainer.may_reclaim(other):
                reclaimed = self.store.reclaim(other.owner, max_leases_lost=self.policy.max_leases_lost)
                self.log("reclaimed", other.owner, "dead" if not other.is_alive else "frozen", reclaimed)
                done += 1
        self.dead = [other for other in self.dead if other.owner in look(self._eye).living]
        self.witness.check()
        return done

    def crash(self, drainer: Drainer) -> None:
        """A process dies, its calls with it; another comes up."""
        for flight in drainer.flights:
            self.history.happened[f"crash at {type(flight.next).__name__}"] += 1
        self.log("crashed", drainer.owner)
        drainer.is_alive = False
        drainer.flights = []
        self.drainers.remove(drainer)
        self.dead.append(drainer)
        self.drainers.append(Drainer(self.ground))
        self.witness.check()

    def freeze(self, drainer: Drainer, for_ms: int) -> None:
        """A process stands still: others may take it for dead, and it goes on as if nothing had been."""
        self.log("froze", drainer.owner, for_ms)
        drainer.frozen_ms = self.clock()
        drainer.frozen_until_ms = self.clock() + for_ms

    def pass_time(self, ms: int) -> None:
        """Let time pass."""
        self.clock.advance(ms)
        self.log("passed", ms)

    # --- chance -----------------------------------------------------------------------------------------------------

    def run(self, steps: int = STEPS) -> Run:
        """The storm, then the calm."""
        for _ in range(steps):
            self.history.steps += 1
            self._step()
        self.calm()
        return self.history

    def _lean(self, shares: Mapping[K, float]) -> dict[K, float]:
        """The same things in other shares."""
        return {what: share * self.rng.choice(LEANINGS) for what, share in shares.items()}

    def _step(self) -> None:
        rng, seen = self.rng, self.witness.seen
        [what] = rng.choices(list(self._shares), list(self._shares.values()))
        awake = [drainer for drainer in self.drainers if drainer.is_awake()]
        match what:
            case "work" if awake:
                self._work(rng.choice(awake))
            case "work" | "time":
                self._wait_a_little()
            case "crash":
                self.crash(rng.choice(self.drainers))
            case "freeze" if awake:
                self.freeze(rng.choice(awake), rng.choice([3_000, 20_000, 50_000]))
            case "close":
                self.close_lane(rng.choice(list(self.policy.lanes)), rng.choice([None, self.clock() + 9_000]))
            case "open":
                self._open_lanes()
            case _ if what == "ask" or not seen.jobs:
                self._ask()
            case "withdraw":
                self.withdraw(rng.choice(list(seen.requests)), rng.choice([0, 8_000, 20_000]))
            case "take_back":
                self.take_back(self._draw_withdrawn())
            case "cancel":
                self.cancel(self._draw_job("leased"), rng.choice([0, 8_000, 20_000]))
            case "retry":
                self.retry(self._draw_job("failed", "cancelled"), rng.choice([None, None, *self.policy.lanes]))
            case "decide":
                self._decide()
            case _:
                if ended := self._ended():
                    self.replay(rng.choice(ended))

    def _work(self, drainer: Drainer) -> None:
        """One thing that a drainer can do now, rather one that moves something."""
        able = [flight for flight in drainer.flights if flight.can_go(self.clock())]
        chosen = self.rng.random()
        if chosen < 0.1:
            self.tend(drainer)
        elif chosen > 0.35 and able:
            self.fly(self.rng.choice(able))
        elif not self.lease(drainer, self.rng.choice([1, 2, 4])):
            if able:
                self.fly(self.rng.choice(able))
            else:
                self._wait_a_little()
        drainer.land()

    def _wait_a_little(self) -> None:
        """Let time pass: much of it only where nobody is about to do something, as awake processes are quick."""
        is_busy = any(flight.can_go(self.clock()) for one in self.drainers if one.is_awake() for flight in one.flights)
        next_ms = None if is_busy else self.next_ms()
        if is_busy:
            self.pass_time(self.rng.choice([50, 500]))
        elif next_ms is None or self.rng.random() < 0.3:
            self._ask()
        else:
            self.pass_time(next_ms - self.clock() + self.rng.choice([0, 0, 1, 700, 4_000]))

    def _ask(self) -> None:
        asks = [self._draw_ask() for _ in range(self.rng.choice([1, 1, 1, 2, 3]))]
        self.ask(*asks, max_age_ms=self.rng.choice([None, None, 5_000]))

    def _draw_ask(self) -> Asked:
        rng, now_ms = self.rng, self.clock()
        work = f"k{rng.randrange(self._keys)}"
        key = work
        if rng.random() < 0.15:
            key += f"#{rng.randrange(2)}"
        if rng.random() < 0.25:  # a caller's own key, used for different work
            key, work = "own", f"w{rng.randrange(2)}"
        return asked(
            key,
            work,
            fresh=rng.random() < 0.5,
            priority=rng.choice([0, 0, 5]),
            service_class=rng.choice(["batch", "realtime"]),
            due_ms=now_ms + rng.choice([5_000, 60_000]) if rng.random() < 0.2 else None,
            not_before_ms=now_ms + rng.choice([1_000, 15_000]) if rng.random() < 0.25 else None,
            lane=rng.choice(list(self.policy.lanes)) if rng.random() < 0.15 else "",
        )

    def _draw_job(self, *states: str) -> int:
        """A job, rather one in these states."""
        jobs = list(self.witness.seen.jobs.values())
        return self.rng.choice([job.id for job in jobs if job.state in states] or [job.id for job in jobs])

    def _draw_withdrawn(self) -> int:
        """A request, rather one that is withdrawn."""
        asks = self.witness.asks
        return self.rng.choice([id_ for id_, ask in asks.items() if ask.withdrawn] or list(asks))

    def _ended(self) -> list[str]:
        """Calls whose end came, whoever heard it."""
        return [call.uid for call in self.witness.calls.values() if call.ends_ms <= self.clock()]

    def _plan(self, lane: str) -> Plan:
        if self.plans:
            return self.plans.pop(0)
        return calls.draw(self.rng, self._kinds)

    def _decide(self) -> int:
        """A person answers what waits for one: cancel, then retry pays again. How many."""
        waiting = [job.id for job in self.witness.seen.jobs.values() if job.wait_reason == "asked"]
        for job_id in waiting:
            self.cancel(job_id, 0)
            self.retry(job_id)
        return len(waiting)

    def close_lane(self, lane: str, until_ms: int | None) -> None:
        """A person closes a lane."""
        self.log("closed", lane, until_ms)
        closing = Closing(until_ms, "person: a rest", "person")
        self.store.db.write(partial(close_lane, lane=lane, closing=closing, now_ms=self.clock()))
        self.witness.check()

    def _open_lanes(self) -> int:
        """A person opens what is closed until a person opens it."""
        closed = [row.lane for row in self.store.closed_lanes().values() if row.closed_until_ms is None]
        for lane in closed:
            self.log("opened", lane)
            self.store.open_lane(lane)
        return len(closed)

    # --- the calm ---------------------------------------------------------------------------------------------------

    def calm(self) -> None:
        """Let everything come to an end. Raises PromiseBroken for what does not."""
        self.log("calm")
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
        self.witness.check_end()

    def _round(self) -> int:
        """Everything that can be done now, once. How much that was."""
        done = self._open_lanes() + self._decide()
        for drainer in self.drainers:
            if not drainer.is_awake():
                continue
            done += self.tend(drainer) + self.lease(drainer, 8)
            for flight in [flight for flight in drainer.flights if flight.can_go(self.clock())]:
                self.fly(flight)
                done += 1
            drainer.land()
        return done

    def next_ms(self) -> int | None:
        """When the clock alone brings something."""
        now_ms = self.clock()
        times = [row.closed_until_ms for row in self.store.closed_lanes().values() if row.closed_until_ms is not None
                 and self.store.any_ready(row.lane)]  # fmt: skip
        times += [due] if (due := self.store.next_due_ms()) is not None else []
        for drainer in self.drainers:
            times += [drainer.frozen_until_ms] if not drainer.is_awake() else []
            times += [at for flight in drainer.flights if (at := flight.next_ms()) is not None]
        times += [row.hold_until_ms for row in self.witness.seen.attempts.values() if row.listener is not None]
        return min((at for at in times if at > now_ms), default=None)

    def _left(self) -> list[str]:
        left = [f"job {job.id} {job.state}/{job.wait_reason} next {job.next_lane!r}"
                for job in self.witness.seen.jobs.values() if job.live]  # fmt: skip
        return left + [f"{drainer.owner} at {type(one.next).__name__}" for drainer in self.drainers
                       for one in drainer.flights]  # fmt: skip


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


def simulate(seed: int, *, steps: int = STEPS, trace: bool = False) -> Run:
    """Run one world from its seed, and say what happened in it; the same seed does the same again, step by step.

    Raises PromiseBroken as soon as a promise does not hold, with the trace as a note; `trace` prints it as it goes.
    """
    world = World(seed, trace=print if trace else None)
    try:
        return world.run(steps)
    except Exception as broken:  # a refusal of the schema, or a bug of the world, breaks a promise as well
        told = "\n".join(world.history.trace[-60:])
        problem = broken if isinstance(broken, PromiseBroken) else PromiseBroken(f"{type(broken).__name__}: {broken}")
        problem.add_note(f"{told}\nseed {seed}: simulate({seed}, steps={steps}, trace=True) does it again")
        if problem is broken:
            raise
        raise problem from broken
    finally:
        world.close()
