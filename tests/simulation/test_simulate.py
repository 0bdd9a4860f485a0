"""Worlds of chance: every promise holds in all of them, and one that breaks can be run again."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time
from typing import get_args

import pytest
from histories import LATE, OK, ask, take, two_lanes, world
from removals import without_sql

from millpond.rules import effects as steps
from millpond.rules.policy import AfterHold
from millpond.testing import PromiseBroken, simulate
from millpond.testing.simulation.calls import Plan
from millpond.testing.simulation.drainer import PERFORM

SEEDS_AT_A_TIME = 8
PROVE_S = 600
"""How long the long run takes, in all its parts together."""

PARTS = os.cpu_count() or 1


@pytest.mark.parametrize("first", range(0, 80, SEEDS_AT_A_TIME))
def test_every_promise_holds_whatever_happens(first: int) -> None:
    for seed in range(first, first + SEEDS_AT_A_TIME):
        simulate(seed)


@pytest.mark.prove
@pytest.mark.timeout(2 * PROVE_S)
@pytest.mark.parametrize("part", range(PARTS))
def test_every_promise_holds_in_worlds_that_nobody_has_seen(part: int) -> None:
    """New seeds each time, for as long as the budget lasts. What breaks says its seed."""
    seed = first = secrets.randbelow(10**9) * 1_000
    ends = time.monotonic() + PROVE_S
    while time.monotonic() < ends:
        simulate(seed, steps=400 if seed % 10 == 0 else 160)
        seed += 1
    print(f"seeds {first} to {seed}, part {part}: every promise held")


def test_the_same_seed_does_the_same_again() -> None:
    run = simulate(7)
    assert simulate(7) == run
    assert simulate(8).trace != run.trace


def test_what_breaks_says_how_to_see_it_again(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    without_sql(("insert_reply", "VALUES (:uid, :body)", "SELECT :uid, :body WHERE length(:body) < 0"))(monkeypatch)
    with pytest.raises(PromiseBroken) as broken:
        simulate(0)
    [note] = broken.value.__notes__
    assert note.endswith("seed 0: simulate(0, steps=160, trace=True) does it again")
    with pytest.raises(PromiseBroken) as again:
        simulate(0, trace=True)
    assert str(again.value) == str(broken.value)
    assert capsys.readouterr().out.splitlines()[-1] in note


def test_many_seeds_from_the_shell() -> None:
    words = [sys.executable, "-m", "millpond.testing.simulate", "--seeds", "3:5", "--steps", "40"]
    said = subprocess.run(words, capture_output=True, text=True, check=True)
    assert said.stdout.startswith("2 seeds, every promise held\n")
    assert (said.stderr, "sent" in said.stdout) == ("", True)


def test_every_effect_of_the_journey_is_performed() -> None:
    assert set(PERFORM) == set(get_args(steps.Effect))


# --- small cases, tried in every way ----------------------------------------------------------------------------------

UNKNOWN = [Plan("late", 55_000), Plan("lost", 2_000)]
"""First calls of which nobody knows in the end: only these come to what the lane does after a hold."""

KNOWN = [OK, LATE, Plan("retryable", 500), Plan("saturated", 500)]


def dies_or_sleeps(after_hold: AfterHold, plan: Plan, at: int, *, dies: bool) -> str | None:
    """One request, its first call as planned; after `at` effects its drainer dies, or sleeps past its lease.

    Returns the effect before which that was, None if the journey was over by then.
    """
    with world(two_lanes(after_hold)) as made:
        worker, heir, *_ = made.drainers
        made.plans += [plan, OK]
        flight = take(made, worker, ask(made))
        for _ in range(at):
            if flight.next is None:
                return None
            at_ms = flight.next_ms()
            if at_ms is not None and at_ms > made.clock():
                made.pass_time(at_ms - made.clock())
            made.fly(flight)
        effect = type(flight.next).__name__
        if dies:
            made.crash(worker)
        else:
            made.freeze(worker, 40_000)
            made.pass_time(made.policy.lease_ms)
            made.tend(heir)
        made.calm()
        return effect


@pytest.mark.parametrize("after_hold", get_args(AfterHold))
@pytest.mark.parametrize("dies", [True, False], ids=["dies", "sleeps"])
def test_a_drainer_may_die_or_sleep_before_each_effect(after_hold: AfterHold, dies: bool) -> None:
    met: set[str] = set()
    for plan in [*UNKNOWN, *(KNOWN if after_hold == "pin" else [])]:
        at = 0
        while (effect := dies_or_sleeps(after_hold, plan, at, dies=dies)) is not None:
            met.add(effect)
            at += 1
    assert met >= {"Admit", "Record", "Call", "Detach", "Listen", "StopListening", "Settle"}
