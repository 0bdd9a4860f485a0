"""Every order in which two drainers, a person and the clock can take their turns over one key, state by state.

A move is one effect of one journey, one verb, or a jump of the clock: what the product does in one transaction. From
each state every move that can be made is made, on a world built anew; states that are equal are gone on from only once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from histories import LEASE_MS, OK, ask, two_lanes, world

from millpond.rules import effects as steps
from millpond.rules.policy import Policy
from millpond.testing.simulation.calls import Plan
from millpond.testing.simulation.drainer import Drainer, Flight
from millpond.testing.simulation.world import World

OF_THE_BOOK = (steps.Reserve, steps.Release, steps.Post)
"""Effects that change nothing on which another move here depends: done at once, they leave fewer orders to try."""

Verb = Callable[[World, int], object]
Move = Callable[[], object]


@dataclass(frozen=True)
class Scenario:
    """One key, asked for once. What becomes of its calls in turn, later ones going well; what a person does in turn."""

    plans: Sequence[Plan]
    verbs: Mapping[str, Verb] = field(default_factory=dict[str, Verb])
    sleeps: bool = False
    """The first drainer may stand still past its lease once, be given up by the second, and go on."""
    policy: Policy = field(default_factory=two_lanes)


class Heard:
    """A journey that remembers what it was told: with its lease, that is all that it knows."""

    def __init__(self, course: Any) -> None:
        self._course = course
        self.told: list[str] = []

    def send(self, answer: Any) -> Any:
        self.told.append(repr(answer))
        return self._course.send(answer)

    def throw(self, problem: Exception) -> Any:
        self.told.append(repr(problem))
        return self._course.throw(problem)


class Board:
    """A world in which somebody is to make a move."""

    def __init__(self, made: World, scenario: Scenario) -> None:
        self.world = made
        self._verbs = list(scenario.verbs.items())
        self._sleeps = scenario.sleeps
        self._slept = ""
        """The owner whose beat was seen to stand still."""
        self._drainers = made.drainers[:2]
        for other in made.drainers[2:]:
            other.spool.remove()
        made.drainers[2:] = []
        made.plans += [*scenario.plans, *[OK] * 20]
        self.job = ask(made)

    def moves(self) -> dict[str, Move]:
        """What can be done now, by name."""
        made, now_ms = self.world, self.world.clock()
        found: dict[str, Move] = {}
        for name, drainer in zip("AB", self._drainers, strict=True):
            for flight in drainer.flights:
                if flight.can_go(now_ms):
                    found[f"{name} {type(flight.next).__name__} {flight.lease.job_id}/{flight.lease.lease_no}"] = (
                        partial(self._fly, drainer, flight)
                    )
            if not drainer.flights and any(job.state == "ready" for job in made.witness.seen.jobs.values()):
                found[f"{name} leases"] = partial(self._lease, drainer)
        if self._verbs:
            found[self._verbs[0][0]] = self._next_verb
        if self._sleeps and self._drainers[0].flights:
            found["A sleeps"] = self._sleep
        if self._slept in made.witness.seen.living:
            found["B reclaims A"] = self._reclaim
        if self._drainers[0].owner == self._slept:
            found["A takes a new name"] = self._take_new_name
        waiting = [at for drainer in self._drainers for flight in drainer.flights if (at := flight.next_ms())]
        if waiting and min(waiting) > now_ms:
            found["time"] = partial(made.pass_time, min(waiting) - now_ms)
        return found

    def state(self) -> int:
        """Everything on which the rest can depend."""
        made, seen = self.world, self.world.witness.seen
        flights = [
            (flight.lease, flight.uid, flight.waits, flight.wait_until_ms, flight.detached, flight._course.told)  # type: ignore[attr-defined]
            for drainer in self._drainers
            for flight in drainer.flights
        ]
        owners = [(drainer.owner, len(drainer.flights)) for drainer in self._drainers]
        told = {name: value for name, value in vars(made.witness).items() if name not in ("_look", "_policy", "seen")}
        tables = [seen.jobs, seen.requests, seen.attempts, seen.artifacts, seen.replies, sorted(seen.living)]
        whole = (made.clock(), tables, owners, flights, len(self._verbs), self._sleeps, self._slept)
        return hash((repr(whole), *(_sorted(value) for value in told.values())))

    def _lease(self, drainer: Drainer) -> None:
        self.world.lease(drainer, 1)
        for flight in drainer.flights:
            flight._course = Heard(flight._course)  # type: ignore[assignment]

    def _fly(self, drainer: Drainer, flight: Flight) -> None:
        self.world.fly(flight)
        while isinstance(flight.next, OF_THE_BOOK):
            self.world.fly(flight)
        drainer.land()

    def _next_verb(self) -> None:
        _, verb = self._verbs.pop(0)
        verb(self.world, self.job)

    def _sleep(self) -> None:
        self._sleeps, self._slept = False, self._drainers[0].owner
        self.world.freeze(self._drainers[0], LEASE_MS)
        self.world.pass_time(LEASE_MS)

    def _take_new_name(self) -> None:
        self._drainers[0].take_new_name()
        self.world.witness.check()

    def _reclaim(self) -> None:
        self.world.store.reclaim(self._slept, max_leases_lost=self.world.policy.max_leases_lost)
        self.world.witness.check()


def _sorted(value: Any) -> str:
    return repr(sorted(map(repr, value.items() if isinstance(value, dict) else value))) if value else repr(value)


@contextmanager
def board(scenario: Scenario) -> Iterator[Board]:
    """The first move is to be made."""
    with world(scenario.policy) as made:
        yield Board(made, scenario)


def explore(scenario: Scenario) -> tuple[int, int]:
    """Make every move from every state, and let each end come to rest. How many states and ends there are."""
    known: set[int] = set()
    ends = 0
    todo: list[tuple[str, ...]] = [()]
    while todo:
        made = todo.pop()
        with board(scenario) as now:
            try:
                for name in made:
                    now.moves()[name]()
                while (state := now.state()) not in known:
                    known.add(state)
                    moves = now.moves()
                    if not moves:
                        ends += 1
                        now.world.calm()
                        break
                    first, *others = moves
                    todo += [(*made, other) for other in others]
                    made = (*made, first)
                    moves[first]()
            except Exception as broken:
                broken.add_note("after: " + ", ".join(made))
                raise
    return len(known), ends
