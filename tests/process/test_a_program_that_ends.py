"""A program that ends in the middle of a call, as by a signal: it is never written down as if nothing had been sent."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from millpond import Queue

PROGRAM = """
import asyncio, os, signal, sys
from millpond import AsyncQueue, Policy
from millpond.lanes import CallableLane, CommandLane
from millpond.rules.policy import LanePolicy

async def post():
    print("sent", flush=True)
    await asyncio.sleep(0.5)
    return "reply"

async def plain(work):
    return await post()

async def gather(work):
    return (await asyncio.gather(post()))[0]

async def wait_for(work):
    return await asyncio.wait_for(asyncio.ensure_future(post()), 30)

async def group(work):
    async with asyncio.TaskGroup() as tasks:
        posting = tasks.create_task(post())
    return posting.result()

async def own_words(work):
    [got] = await asyncio.gather(post(), return_exceptions=True)
    if isinstance(got, BaseException):
        raise ConnectionError("no reply")
    return got

os.mkfifo("sent")
command = CommandLane(LanePolicy("command", kind="command", command=("sh", "-c", "echo sent > sent; sleep 600")))

def cancel_all():
    for task in asyncio.all_tasks():
        task.cancel()

async def main():
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, cancel_all)
    lane = {lane}
    queue = await AsyncQueue.open(sys.argv[1], policy=Policy(grace_ms=5_000))
    await queue.enqueue("a")
    drains = asyncio.create_task(queue.drain(lanes=lane))
    if lane is command:
        print(await asyncio.to_thread(lambda: open("sent").read()), end="", flush=True)
    await asyncio.Event().wait()

try:
    asyncio.run(main())
except (KeyboardInterrupt, asyncio.CancelledError):
    sys.exit(3)
"""


def end_in_a_call(home: Path, program: str, number: signal.Signals) -> None:
    """Run the program until it says that it has sent, then tell it to end."""
    process = subprocess.Popen(
        [sys.executable, "-c", program, str(home)],
        cwd=home.parent,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "sent\n"
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.communicate()
    assert process.returncode == 3, err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["Ctrl-C", "a handler that cancels all"])
@pytest.mark.parametrize(
    ("lane", "ended"),
    [
        ("CallableLane(plain, price=0.50)", ("ok", "ok")),
        ("CallableLane(gather, price=0.50)", ("ambiguous", "given_up")),
        ("CallableLane(wait_for, price=0.50)", ("ambiguous", "given_up")),
        ("CallableLane(group, price=0.50)", ("ambiguous", "given_up")),
        ("CallableLane(own_words, price=0.50)", ("ambiguous", "given_up")),
        ("command", ("ambiguous", "given_up")),
    ],
    ids=["plain", "gather", "wait_for", "group", "own words", "a program's pipes"],
)
def test_what_a_call_had_sent_is_never_written_down_as_free(
    tmp_path: Path, lane: str, ended: tuple[str, str], number: signal.Signals
) -> None:
    """Also where its own tasks were ended under it, of which asyncio asks nobody."""
    end_in_a_call(tmp_path / "pond", PROGRAM.replace("{lane}", lane), number)
    with Queue.open(tmp_path / "pond") as queue:
        [attempt] = queue.ledger()
        assert (attempt.outcome, attempt.code) == ended
        report = queue.report()
        assert report.spent.calls + report.undecided == 1
        assert queue.drainer() is None
