"""Who dies between two transactions of an errand leaves nothing that others cannot set right."""

from __future__ import annotations

import pytest
from histories import HOLD_MS, LATER, LEASE_MS, OK, REMEMBERS, ask, finish, in_flight, take, two_lanes, until, world

from millpond.rules import effects as steps
from millpond.testing.simulation.calls import Plan
from millpond.testing.simulation.world import World


def much_to_do(world: World) -> None:
    """For whoever tends next: one dead and one asleep, a hold that is over, a call to ask for, and the book to keep."""
    first, second, *_ = world.drainers
    in_flight(world, first, ask(world, "called"), OK)
    until(world, take(world, first, ask(world, "reserved")), steps.Record)
    finish(world, in_flight(world, second, lost := ask(world, "lost"), Plan("lost", 1_000)))
    world.cancel(lost, HOLD_MS)
    until(world, in_flight(world, second, ask(world, "late"), LATER), steps.Listen)
    ended = until(world, in_flight(world, second, ask(world, "ended"), OK), steps.Post)
    assert ended.uid
    world.crash(first)
    world.freeze(second, 2 * LEASE_MS)
    world.pass_time(2 * LEASE_MS)


@pytest.mark.parametrize("recalls", [False, True], ids=["forgets", "remembers"])
def test_a_process_may_die_before_each_transaction_of_its_tending(recalls: bool) -> None:
    deaths = 0
    while True:
        with world(two_lanes(**(REMEMBERS if recalls else {}))) as made:
            much_to_do(made)
            dies = made.die_tending(made.drainers[1], deaths)
            made.calm()
        if not dies:
            break
        deaths += 1
    assert deaths >= 5, "it had hardly anything to do"
