"""Ctrl-C where a loop runs already, as in a notebook: the drain is on a thread of its own, and ends before its lock."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

CELL = """
import asyncio, json, os, signal, sys, threading
from millpond import Policy, Queue
from millpond.lanes import CallableLane

queue = Queue.open(sys.argv[1], policy=Policy())
queue.enqueue("a")
began, cut, seen = threading.Event(), threading.Event(), []
thread = threading.main_thread().ident

async def answer(work):
    began.set()
    try:
        await asyncio.sleep({sleeps})
    except asyncio.CancelledError:
        cut.set()
        await asyncio.sleep(0.3)  # what a client does that closes its connection
        seen.append(queue.drainer() is not None)
        raise
    return "reply"

def drain():
    queue.drain(lanes=CallableLane(answer, price="0.01", effects=True), daemon=True)
    seen.append("went on")

async def cell():
    drain()

def interrupt():
    {after}
    signal.pthread_kill(thread, signal.SIGINT)
    while {twice} and not cut.wait(0.2):  # two that are pending at once would be one
        signal.pthread_kill(thread, signal.SIGINT)

threading.Thread(target=interrupt).start()
try:
    {runs}
except KeyboardInterrupt:
    seen.append("interrupted")
print(json.dumps([seen, queue.drainer(), [row.outcome for row in queue.ledger()], queue.counts()["leased"]]))
"""


NOTEBOOK = "asyncio.new_event_loop().run_until_complete(cell())"
RUNS = pytest.mark.parametrize(
    "runs", [NOTEBOOK, "drain()", "asyncio.run(cell())"], ids=["in a notebook", "in a script", "within asyncio.run"]
)


def run_cell(
    home: Path, *, sleeps: float = 60, twice: bool = False, runs: str = NOTEBOOK, after: str = "began.wait()"
) -> Any:
    program = CELL.format(sleeps=sleeps, twice=twice, runs=runs, after=after)
    said = subprocess.run(
        [sys.executable, "-c", program, str(home)], capture_output=True, text=True, timeout=60, check=False
    )
    assert said.returncode == 0, said.stderr
    return json.loads(said.stdout)


@RUNS
def test_once_lets_the_call_in_flight_end(tmp_path: Path, runs: str) -> None:
    assert run_cell(tmp_path, sleeps=0.5, runs=runs) == [["interrupted"], None, ["ok"], 0]


def test_once_ends_a_drain_that_waits_for_work(tmp_path: Path) -> None:
    assert run_cell(tmp_path, sleeps=0, after="queue.wait(1)") == [["interrupted"], None, ["ok"], 0]


@RUNS
def test_twice_cuts_the_call_and_keeps_the_lock_until_it_has_ended(tmp_path: Path, runs: str) -> None:
    assert run_cell(tmp_path, twice=True, runs=runs) == [[True, "interrupted"], None, ["ambiguous"], 0]
