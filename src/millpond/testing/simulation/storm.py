"""What chance makes of a world: its policy, its leanings, and what is done at each step; `simulate` runs one seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any, TypeVar, get_args

from millpond.rules import effects as steps
from millpond.rules.policy import AfterHold, Backoff, Deadlines, LanePolicy, Policy
from millpond.rules.price import FREE, PriceRule
from millpond.store.enqueue import Asked
from millpond.testing.simulation import calls
from millpond.testing.simulation.drainer import Drainer, Flight
from millpond.testing.simulation.witness import PromiseBroken
from millpond.testing.simulation.world import CHOICES, Run, World, asked

K = TypeVar("K", bound=str)

STEPS = 160
"""Steps of the storm, unless told otherwise."""

LEASE_MS = 15_000

SHARES: Mapping[str, float] = {
    "work": 70, "time": 6, "ask": 9, "withdraw": 1, "take_back": 1, "cancel": 2, "retry": 2.5, "decide": 0.5,
    "replay": 1, "close": 0.2, "open": 0.7, "stop": 0.4, "resume": 1, "crash": 1.8, "freeze": 0.8,
    "say": 0.5, "unpin": 0.9, "drop": 0.4, "set_clock": 0.4, "die_tending": 0.7, "fill": 0.9,
}  # fmt: skip
"""How often each thing is done in the storm, in per cent or so; each seed has its own leanings."""

NEIGHBOURS = 0.3
"""How many seeds have a second queue on the same spend book."""

LEANINGS = (0.25, 1, 1, 3)
"""By how much a seed does something more or less often than others: rare things meet where both are common."""


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
            recall=rng.choice(["none", "store"]),
            settling_ms=rng.choice([0, 5_000]),
            deadlines=Deadlines(total_ms=calls.TOTAL_MS),
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


class Storm:
    """The chance of one seed, at work on a world of its own."""

    def __init__(self, seed: int, *, trace: Callable[[str], object] | None = None) -> None:
        self.rng = random.Random(seed)
        policy = draw_policy(self.rng)
        self._shares = self._lean(SHARES)
        kinds = self._lean(calls.WEIGHTS)
        self._keys = self.rng.choice([1, 2, 3, 4])
        self.world = World(seed, policy=policy, rng=self.rng, kinds=kinds, trace=trace)
        """The one in which the next thing happens."""
        self.worlds = [self.world]
        self._dooms: set[type[Any]] = set()
        """Before which effects a process is to die."""
        if self.rng.random() < NEIGHBOURS:
            self.worlds.append(
                World(seed, policy=draw_policy(self.rng), rng=self.rng, kinds=kinds, trace=trace, beside=self.world)
            )
            self.world.log("two queues on one book")

    def run(self, steps: int = STEPS) -> Run:
        """The storm, then the calm."""
        for _ in range(steps):
            [self.world] = self.rng.choices(self.worlds, [3, 1][: len(self.worlds)])
            self.world.history.steps += 1
            self._step()
        for world in self.worlds:
            world.calm()
        for world in self.worlds:
            world.check_end()
            world.history.happened.update(f"ended {row.outcome}" + (f"/{row.resolution}" if row.resolution else "")
                                          for row in world.witness.seen.attempts.values())  # fmt: skip
        return self.world.history

    def close(self) -> None:
        """Close all queues and remove their folders."""
        for world in self.worlds:
            world.close()

    def _step(self) -> None:
        rng, world, seen = self.rng, self.world, self.world.witness.seen
        [what] = rng.choices(list(self._shares), list(self._shares.values()))
        awake = [drainer for drainer in world.drainers if drainer.is_awake()]
        match what:
            case "work" if awake:
                self._work(rng.choice(awake))
            case "work" | "time":
                self._wait_a_little()
            case "crash":
                self._kill(rng.choice(world.drainers))
            case "die_tending" if awake:
                world.die_tending(rng.choice(awake), after=rng.choice([0, 0, 1, 1, 2, 3, 5]))
            case "freeze" if awake:
                for_ms, beat_age_ms = rng.choice([3_000, 12_000, 20_000, 50_000]), rng.choice([0, LEASE_MS // 3])
                world.freeze(rng.choice(awake), for_ms, beat_age_ms)
            case "fill":
                world.fill(rng.choice([2_000, 9_000]))
            case "drop" if flying := [
                (one, flight) for one in awake for flight in one.flights if flight.may_be_dropped
            ]:
                world.drop(*rng.choice(flying))
            case "set_clock":
                world.set_clock(rng.choice(world.drainers), rng.choice([-3_600_000, -9_000, 9_000, 3_600_000]))
            case "close":
                world.close_lane(rng.choice(list(world.policy.lanes)), rng.choice([None, world.clock() + 9_000]))
            case "open":
                world.open_lanes()
            case "stop":
                world.stop(rng.choice(["all", "paid", [rng.choice(list(world.policy.lanes))]]))
            case "resume":
                world.resume(rng.choice(["all", "all", "paid", [rng.choice(list(world.policy.lanes))]]))
            case _ if what == "ask" or not seen.jobs:
                self._ask()
            case "withdraw":
                world.withdraw(rng.choice(list(seen.requests)), rng.choice([0, 8_000, 20_000]))
            case "take_back":
                world.take_back(self._draw_withdrawn())
            case "cancel":
                world.cancel(self._draw_job("leased"), rng.choice([0, 8_000, 20_000]))
            case "retry":
                world.retry(self._draw_job("failed", "cancelled"), rng.choice([None, None, *world.policy.lanes]))
            case "decide":
                world.decide()
            case "say":
                world.say(self._draw_job("waiting"), rng.choice(CHOICES))
            case "unpin":
                world.unpin(self._draw_pinned())
            case _:
                if ended := self._ended():
                    world.replay(rng.choice(ended))

    def _work(self, drainer: Drainer) -> None:
        """One thing that a drainer can do now, rather one that moves something."""
        able = [flight for flight in drainer.flights if flight.can_go(self.world.clock())]
        chosen = self.rng.random()
        if chosen < 0.1:
            self.world.tend(drainer)
        elif chosen < 0.14:
            self.world.keep_book()
        elif chosen > 0.39 and able:
            self._fly(drainer, self.rng.choice(able))
        elif not self.world.lease(drainer, self.rng.choice([1, 2, 4])):
            if able:
                self._fly(drainer, self.rng.choice(able))
            else:
                self._wait_a_little()
        drainer.land()

    def _kill(self, drainer: Drainer) -> None:
        """Let a process die now, or whichever is next about to do something: else few would die before what is rare."""
        if self.rng.random() < 0.25:
            self.world.crash(drainer)
        else:
            self._dooms.add(self.rng.choice(get_args(steps.Effect)))

    def _fly(self, drainer: Drainer, flight: Flight) -> None:
        if type(flight.next) in self._dooms and not flight.waits:
            self._dooms.discard(type(flight.next))
            self.world.crash(drainer)
        else:
            self.world.fly(flight)

    def _wait_a_little(self) -> None:
        """Let time pass: much of it only where nobody is about to do something, as awake processes are quick."""
        world = self.world
        drainers = [drainer for world in self.worlds for drainer in world.drainers if drainer.is_awake()]
        is_busy = any(flight.can_go(world.clock()) for drainer in drainers for flight in drainer.flights)
        next_ms = None if is_busy else min(filter(None, (world.next_ms() for world in self.worlds)), default=None)
        if is_busy:
            world.pass_time(self.rng.choice([50, 500]))
        elif next_ms is None or self.rng.random() < 0.3:
            self._ask()
        else:
            world.pass_time(next_ms - world.clock() + self.rng.choice([0, 0, 1, 700, 4_000]))

    def _ask(self) -> None:
        asks = [self._draw_ask() for _ in range(self.rng.choice([1, 1, 1, 2, 3]))]
        self.world.ask(*asks, max_age_ms=self.rng.choice([None, None, 5_000]))

    def _draw_ask(self) -> Asked:
        rng, now_ms = self.rng, self.world.clock()
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
            lane=rng.choice(list(self.world.policy.lanes)) if rng.random() < 0.15 else "",
        )

    def _draw_job(self, *states: str) -> int:
        """A job, rather one in these states."""
        jobs = list(self.world.witness.seen.jobs.values())
        return self.rng.choice([job.id for job in jobs if job.state in states] or [job.id for job in jobs])

    def _draw_pinned(self) -> int:
        """A job, rather one that was sent past a lane by a call of an unknown end."""
        seen = self.world.witness.seen
        pinned = {row.idempotency_key for row in seen.attempts.values() if row.resolution == "pin"}
        jobs = [job.id for key, job in seen.live.items() if key in pinned and job.state != "leased"]
        return self.rng.choice(jobs) if jobs else self._draw_job("ready", "waiting")

    def _draw_withdrawn(self) -> int:
        """A request, rather one that is withdrawn."""
        asks = self.world.witness.asks
        return self.rng.choice([id_ for id_, ask in asks.items() if ask.withdrawn] or list(asks))

    def _ended(self) -> list[str]:
        """Calls whose end came, whoever heard it."""
        return [call.uid for call in self.world.witness.calls.values() if call.ends_ms <= self.world.clock()]

    def _lean(self, shares: Mapping[K, float]) -> dict[K, float]:
        """The same things in other shares."""
        return {what: share * self.rng.choice(LEANINGS) for what, share in shares.items()}


def simulate(seed: int, *, steps: int = STEPS, trace: bool = False) -> Run:
    """Run one world from its seed, and say what happened in it; the same seed does the same again, step by step.

    Raises PromiseBroken as soon as a promise does not hold, with the trace as a note; `trace` prints it as it goes.
    """
    storm = Storm(seed, trace=print if trace else None)
    try:
        return storm.run(steps)
    except Exception as broken:  # a refusal of the schema, or a bug of the world, breaks a promise as well
        told = "\n".join(storm.world.history.trace[-60:])
        problem = broken if isinstance(broken, PromiseBroken) else PromiseBroken(f"{type(broken).__name__}: {broken}")
        problem.add_note(f"{told}\nseed {seed}: simulate({seed}, steps={steps}, trace=True) does it again")
        if problem is broken:
            raise
        raise problem from broken
    finally:
        storm.close()
