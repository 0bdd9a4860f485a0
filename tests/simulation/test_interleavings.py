"""Small cases in every order: two drainers, a person and the clock over one key, from each state every move."""

from __future__ import annotations

import pytest
from histories import HOLD_MS, LATE, OK, ask, two_lanes
from interleavings import Scenario, Verb, explore
from removals import REMOVALS

from millpond.testing import PromiseBroken
from millpond.testing.simulation.calls import Plan
from millpond.testing.simulation.world import World

LOST = Plan("lost", 2_000)
PATIENT = two_lanes(soft_timeout_ms=None)


def cancel(world: World, job: int) -> None:
    world.cancel(job, 0)


def cancel_and_listen(world: World, job: int) -> None:
    world.cancel(job, HOLD_MS)


def retry(world: World, job: int) -> None:
    world.retry(job)


def ask_again(world: World, _: int) -> None:
    ask(world)


def ask_fresh(world: World, _: int) -> None:
    ask(world, fresh=True)


def withdraw_first(world: World, _: int) -> None:
    world.withdraw(1, 0)


def take_back_first(world: World, _: int) -> None:
    world.take_back(1)


def in_turn(*verbs: Verb) -> dict[str, Verb]:
    return {f"{at}. {verb.__name__}": verb for at, verb in enumerate(verbs, 1)}  # type: ignore[attr-defined]


SCENARIOS = {
    "a drainer sleeps past its lease": Scenario([OK, OK], sleeps=True),
    "cancelled and listened to, and asked for again": Scenario([LATE, OK], in_turn(cancel_and_listen, ask_again)),
    "cancelled, and retried": Scenario([OK, OK], in_turn(cancel, retry)),
    "joined, and the first request withdrawn": Scenario([OK, OK], in_turn(ask_again, withdraw_first)),
    "fresh answers wanted": Scenario([OK, OK], in_turn(ask_fresh, ask_fresh)),
}
LONG = {
    "cancelled, and asked for again": Scenario([OK, OK], in_turn(cancel, ask_again)),
    "a call is lost, and its drainer sleeps": Scenario([LOST, OK], sleeps=True),
    "a call is lost, and its drainer sleeps; the same lane": Scenario(
        [LOST, OK], sleeps=True, policy=two_lanes("same")
    ),
    "a late call, and its drainer sleeps": Scenario([LATE, OK], sleeps=True),
    "asleep, cancelled, and asked for again": Scenario([OK, OK], in_turn(cancel, ask_again), sleeps=True),
    "asleep, cancelled, and retried": Scenario([OK, OK], in_turn(cancel, retry), sleeps=True, policy=PATIENT),
    "asleep, and a fresh answer wanted": Scenario([OK, OK], in_turn(ask_fresh), sleeps=True),
    "cancelled, asked for again, and fresh": Scenario([OK, OK], in_turn(cancel, ask_again, ask_fresh), policy=PATIENT),
    "withdrawn, asked for again, and taken back": Scenario(
        [OK, OK], in_turn(withdraw_first, ask_again, take_back_first), policy=PATIENT
    ),
    "late, fresh, and cancelled": Scenario([LATE, OK], in_turn(ask_fresh, cancel, ask_again)),
    "cancelled, retried, and cancelled again": Scenario([OK, LATE], in_turn(cancel, retry, cancel_and_listen)),
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_promise_holds_in_every_order(name: str) -> None:
    states, ends = explore(SCENARIOS[name])
    assert states > 50
    assert ends > 5


@pytest.mark.prove
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", LONG)
def test_every_promise_holds_in_every_order_of_more(name: str) -> None:
    states, _ = explore(LONG[name])
    print(f"{name}: {states} states")
    assert states > 200


CAUGHT = {
    "A job moves only under its present `lease_no`": "a drainer sleeps past its lease",
    "`record` writes only under the present `lease_no`": "cancelled, and retried",
    "A ledger row stands before its call leaves": "fresh answers wanted",
    "`record` looks for open and held attempts of the key": "cancelled and listened to, and asked for again",
    "A good reply counts by its key, whoever holds the job": "a drainer sleeps past its lease",
    "Reclaim ends every open attempt of its owner": "a drainer sleeps past its lease",
    "A retry takes back withdrawals": "cancelled, and retried",
}


@pytest.mark.parametrize("rule", CAUGHT)
def test_a_rule_that_is_taken_out_is_missed_in_some_order(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    REMOVALS[rule].take_out(monkeypatch)
    with pytest.raises(PromiseBroken) as broken:
        explore(SCENARIOS[CAUGHT[rule]])
    [note] = broken.value.__notes__
    assert note.startswith("after: A leases, "), "the moves that led there are told"
