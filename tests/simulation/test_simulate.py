"""Worlds of chance: every promise holds in all of them, and one that breaks can be run again."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import get_args

import pytest
from histories import LATE, OK, REMEMBERS, ask, take, two_lanes, until, world
from removals import without_sql

from millpond.rules import effects as steps
from millpond.rules.policy import AfterHold
from millpond.testing import PromiseBroken, simulate
from millpond.testing.simulation.calls import Plan
from millpond.testing.simulation.drainer import PERFORM

SEEDS = 100
SEEDS_AT_A_TIME = 50
PROVE_S = 1_200
"""How long the long run takes, in all its parts together."""

PARTS = os.cpu_count() or 1
RANGE = 10**6
"""So many seeds a commit and part has to itself, far more than it ever runs."""

KEPT = Path(__file__).with_name("kept_seeds.txt")
"""Seeds that once broke a promise, `seed steps` a line. The long run adds to it what it finds."""

OFTEN = {
    "asked", "asked behind a call", "cancelled", "closed", "conflict", "crashed", "decided", "died tending", "dropped",
    "forgotten", "found", "froze", "full", "hold over", "kept", "lapsed", "lease lost", "reborn", "recalled",
    "reclaimed", "replayed", "resumed", "retried", "set its clock", "stopped", "taken back", "two queues on one book",
    "withdrawn", "Detach", "Give", "Listen", "Recall", "Release", "Resolve", "StopListening",
    "crash at Admit", "crash at Call", "crash at LookBack", "crash at Post", "crash at Record", "crash at Reserve",
    "crash at Settle", "ended ambiguous/nobody", "ended ambiguous/pin", "ended ambiguous/same", "ended ok/late",
    "ended ok/recalled", "ended retryable/absent", "ended retryable/late",
}  # fmt: skip
"""What comes up among so few seeds already: what is rarer is in the small cases below."""


@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_AT_A_TIME))
def test_every_promise_holds_whatever_happens(first: int) -> None:
    happened: Counter[str] = Counter()
    for seed in range(first, first + SEEDS_AT_A_TIME):
        happened.update(simulate(seed).happened)
    assert happened.keys() >= OFTEN, f"it proves nothing about what it never meets: {OFTEN - happened.keys()}"


def kept() -> list[tuple[int, int]]:
    """The seeds of KEPT, each with its steps."""
    lines = KEPT.read_text(encoding="utf-8").splitlines()
    return [(int(seed), int(steps)) for seed, steps in (line.split() for line in lines if line and line[0] != "#")]


@pytest.mark.parametrize(("seed", "steps"), kept())
def test_what_once_broke_a_promise_keeps_them_all(seed: int, steps: int) -> None:
    simulate(seed, steps=steps)


def first_seed(part: int) -> int:
    """Where this commit's own range of seeds begins; outside a clone, that of this second."""
    words = ["git", "-C", str(KEPT.parent), "rev-parse", "HEAD"]
    try:
        said = subprocess.run(words, capture_output=True, text=True, check=True).stdout
        commit = int(said[:10], 16)
    except (OSError, subprocess.CalledProcessError):
        commit = int(time.time())
    return (commit * PARTS + part) * RANGE


def test_each_part_of_the_long_run_has_seeds_of_its_own() -> None:
    firsts = [first_seed(part) for part in range(PARTS)]
    assert min(firsts) >= SEEDS
    assert len({first // RANGE for first in firsts}) == PARTS


@pytest.mark.prove
@pytest.mark.timeout(2 * PROVE_S)
@pytest.mark.parametrize("part", range(PARTS))
def test_every_promise_holds_in_worlds_that_nobody_has_seen(part: int) -> None:
    """New seeds for each commit, for as long as the budget lasts. What breaks says its seed, and is kept."""
    seed = first = first_seed(part)
    ends = time.monotonic() + PROVE_S
    while time.monotonic() < ends:
        steps = 400 if seed % 10 == 0 else 160
        try:
            simulate(seed, steps=steps)
        except PromiseBroken:
            with KEPT.open("a", encoding="utf-8") as file:
                file.write(f"{seed} {steps}\n")
            raise
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
    words = [sys.executable, "-m", "millpond.testing.simulation", "--seeds", "3:5", "--steps", "40"]
    said = subprocess.run(words, capture_output=True, text=True, check=True)
    assert said.stdout.startswith("2 seeds, every promise held\n")
    assert (said.stderr, "sent" in said.stdout) == ("", True)


def test_seeds_that_are_no_numbers_are_refused_in_words() -> None:
    words = [sys.executable, "-m", "millpond.testing.simulation", "--seeds", "abc"]
    said = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (said.returncode, said.stderr.splitlines()[-1].partition(": ")[2]) == (
        2, "error: argument --seeds: invalid seeds value: 'abc'",
    )  # fmt: skip


def test_every_effect_of_the_journey_is_performed() -> None:
    assert set(PERFORM) == set(get_args(steps.Effect))


# --- small cases, tried in every way ----------------------------------------------------------------------------------

UNKNOWN = [Plan("late", 55_000), Plan("lost", 2_000)]
"""First calls of which nobody knows in the end: only these come to what the lane does after a hold."""

KNOWN = [OK, LATE, Plan("retryable", 500), Plan("saturated", 500)]


NEVER: dict[AfterHold, set[str]] = {"pin": set(), "same": {"Give"}, "ask": {"Resolve"}, "fail": set()}
"""Effects that no journey of these cases comes to, by what its lane does after a hold. Nor does any come to Release: no
record is refused before its drainer dies."""


def dies_or_sleeps(
    after_hold: AfterHold, plan: Plan, at: int, *, dies: bool, closes: bool = False, recalls: bool = False
) -> str | None:
    """One request, its first call as planned; after `at` effects its drainer dies, or sleeps past its lease.

    `closes`: a person closes the first lane meanwhile; `recalls`: it can be asked what became of a call. Returns the
    effect before which that was, None if all was over.
    """
    with world(two_lanes(after_hold, **(REMEMBERS if recalls else {}))) as made:
        worker, heir, *_ = made.drainers
        made.plans += [plan, OK]
        flight = take(made, worker, job := ask(made))
        if closes:
            made.close_lane("free", made.clock() + 5_000)
        for n in range(at + 1):
            if flight.next is None:
                worker.land()
                row = made.witness.seen.jobs[job]
                if not row.live or row.wait_reason == "asked":
                    return None
                while not made.lease(worker, 8):
                    made.pass_time((made.next_ms() or 0) - made.clock())
                [flight] = worker.flights
            if n < at:
                made.pass_time(max(0, (flight.next_ms() or 0) - made.clock()))
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


@pytest.mark.parametrize("dies", [True, False], ids=["dies", "sleeps"])
@pytest.mark.parametrize("plan", [*UNKNOWN, *KNOWN], ids=lambda plan: plan.kind)
def test_a_drainer_may_die_or_sleep_with_an_end_that_it_could_not_write(plan: Plan, dies: bool) -> None:
    with world(two_lanes()) as made:
        worker, heir, *_ = made.drainers
        made.plans.append(plan)
        flight = until(made, take(made, worker, ask(made)), steps.Settle)
        made.fill(60_000)
        made.fly(flight)
        if dies:
            made.crash(worker)
        else:
            made.freeze(worker, 120_000)
        made.pass_time(60_000)
        made.tend(heir)
        row = made.witness.seen.attempts[flight.uid]
        assert row.outcome == made.witness.outcomes.get(flight.uid, "ambiguous")
        made.calm()


@pytest.mark.parametrize("after_hold", get_args(AfterHold))
@pytest.mark.parametrize("dies", [True, False], ids=["dies", "sleeps"])
def test_a_drainer_may_die_or_sleep_before_each_effect(after_hold: AfterHold, dies: bool) -> None:
    met: set[str] = set()
    for plan in [*UNKNOWN, *(KNOWN if after_hold == "pin" else [])]:
        for closes, recalls in [(False, False), *([(True, False)] if plan is OK else [(False, True)])]:
            at = 0
            how = {"dies": dies, "closes": closes, "recalls": recalls}
            while (effect := dies_or_sleeps(after_hold, plan, at, **how)) is not None:
                met.add(effect)
                at += 1
    assert met == {one.__name__ for one in get_args(steps.Effect)} - NEVER[after_hold] - {"Release"}
