"""A program that stands still at a step that the test names, until it is killed there from outside or let go on.

It stands before or after something that it does: the performing of an effect, or any function by its name, in a loop or
in a thread. It says so on stderr; what else it does meanwhile goes on. A line on its stdin lets it go on.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from mill import Home

from millpond import Queue
from millpond.testing.promises import check_book, check_promises

STANDS = """
import asyncio, importlib, inspect, sys
room, name, key, side, times, given_one = sys.argv[1:7]
sys.argv = ["millpond", *sys.argv[7:]]
place = importlib.import_module(room)
for part in name.split(".")[:-1]:
    place = getattr(place, part)
name = name.split(".")[-1]
table = getattr(place, name) if key else None
key = key and getattr(importlib.import_module("millpond.rules.effects"), key)
do = table[key] if key else getattr(place, name)
met = 0

def is_here(given):
    global met
    if given_one and not any(isinstance(one, str) and one.endswith(given_one) for one in given):
        return False
    met += 1
    return met == int(times)

def here():
    print("here", file=sys.stderr, flush=True)

async def stand_in_the_loop(*given, **named):
    is_this = is_here(given)
    if side == "before" and is_this:
        here()
        await asyncio.to_thread(sys.stdin.readline)
    answer = await do(*given, **named)
    if side == "after" and is_this:
        here()
        await asyncio.to_thread(sys.stdin.readline)
    return answer

def stand(*given, **named):
    is_this = is_here(given)
    if side == "before" and is_this:
        here()
        sys.stdin.readline()
    answer = do(*given, **named)
    if side == "after" and is_this:
        here()
        sys.stdin.readline()
    return answer

stands = stand_in_the_loop if inspect.iscoroutinefunction(do) else stand
if key:
    table[key] = stands
else:
    setattr(place, name, stands)
from millpond.faces.cli import main
main()
"""


@dataclass(frozen=True)
class Step:
    """Where a program stands still: before or after the `times`-th call of something that it does.

    `given`: only calls count that were given a text which ends so.
    """

    room: str
    name: str
    side: str
    key: str = ""
    times: int = 1
    given: str = ""

    def __str__(self) -> str:
        return f"{self.side}-{self.given or self.key or self.name.rpartition('.')[2]}"


def of_a_journey(effect: str, side: str) -> Step:
    return Step("millpond.engine.perform", "_PERFORM", side, effect)


def standing(step: Step, *words: str) -> list[str]:
    """How to run `millpond WORDS…` so that it stands at that step. Its stdin is to be a pipe."""
    where = (step.room, step.name, step.key, step.side, str(step.times), step.given)
    return [sys.executable, "-c", STANDS, *where, *words]


def killed(home: Home, step: Step, *words: str, once: Callable[[], bool] = lambda: True) -> str:
    """Run `millpond WORDS…` until it stands at that step, and kill it there `once` that holds. What it had printed."""
    with subprocess.Popen(
        standing(step, *words),
        cwd=home.folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stderr is not None
        said: list[str] = []
        try:
            while (line := process.stderr.readline()) and line != "here\n":
                said.append(line)
            assert line == "here\n", f"it never came to {step}:\n{''.join(said)}"
            assert once(), f"at {step}, what was waited for did not come"
        finally:
            process.kill()
        out, _ = process.communicate(timeout=60)
        assert process.returncode == -9
    return out


def mended(home: Home) -> Queue:
    """The queue after its drain has gone on to the end, with every promise kept."""
    home.run("drain", "--until-empty")
    queue = Queue.open(home.home, spend=Path(os.environ["XDG_DATA_HOME"]) / "millpond/spend.db")
    check_promises(queue.store)
    check_book(queue.store, queue.book)
    assert queue.store.miscounted() == {}
    assert queue.store.living_owners() == []
    return queue
