"""Every signal at every moment of a real drain: nothing lost, nothing retried that may have been sent, no lease left.

The barrier is the process itself: it stands still at a step until a line comes to its stdin, or at a lane that hangs.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from mill import ROOT, Home
from standing import Step, of_a_journey, standing

from millpond import Queue
from millpond.drill.faultlane import FaultLane
from millpond.testing.promises import check_promises

DOCS = ROOT / "docs/cli.md"
TABLE = r"(<!-- signals: .*? -->\n)(.*?)(<!-- end of the signals -->)"

Ledger = list[str | None]
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def listening_to_hangups() -> None:
    """As in a terminal, whatever started these tests."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


class Drain:
    """A drain of this folder that has come to its moment."""

    def __init__(self, process: subprocess.Popen[str], fault: FaultLane) -> None:
        self.process = process
        self.fault = fault
        self.said: list[str] = []

    def says(self, words: str) -> None:
        """Read on until it says this."""
        assert self.process.stdout is not None
        while words not in (line := self.process.stdout.readline()):
            assert line, f"it ended before it said {words!r}: {self.said}"
            self.said.append(line)

    def warns(self, words: str) -> None:
        """Read the next line of its stderr, which must say this."""
        assert self.process.stderr is not None
        assert words in self.process.stderr.readline()

    def stands(self) -> None:
        """Read on until it stands at its step."""
        self.warns("here")

    def go_on(self) -> None:
        """Let it go on from its step."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def ends(self, code: int) -> str:
        """Wait for its end, which must have this exit code; what it said."""
        out, err = self.process.communicate(timeout=60)
        assert self.process.returncode == code, err
        return "".join(self.said) + out


@dataclass(frozen=True)
class Left:
    """The ledger that a drain leaves behind, job 1 first, and the words of that for people."""

    ledger: Ledger
    words: str


@dataclass(frozen=True)
class Moment:
    """Where a drain is when the signal comes, and what is left once it has ended: by one, by two, by SIGKILL."""

    name: str
    words: str
    bring: Callable[[Drain], object]
    once: Left
    twice: Left
    killed: Left
    step: Step | None = None
    """Where it stands still."""
    options: tuple[str, ...] = ("--grace", "60")
    is_in_the_loop: bool = True


IDLE = Moment(
    "idle",
    "it waits: nothing is ready",
    lambda drain: drain.says("draining "),
    once=Left([], "ends at once"),
    twice=Left([], "ends at once"),
    killed=Left([], "nothing is lost"),
    options=("--until-empty",),
)
CALL = Moment(
    "call",
    "a call is in flight",
    lambda drain: drain.fault.wait_for(1, 30),
    once=Left(["ambiguous"], "it may end within the grace; past that it is cut, and ambiguous"),
    twice=Left(["ambiguous"], "it is cut, and ambiguous"),
    killed=Left([None], "the next drain finds it open, and makes it ambiguous"),
    options=("--grace", "0.1"),
)
SETTLE = Moment(
    "settle",
    "a reply is being written",
    Drain.stands,
    once=Left(["ok"], "it is written"),
    twice=Left(["ok"], "it is written"),
    killed=Left([None], "the next drain finds its call open, and makes it ambiguous"),
    step=of_a_journey("Settle", "before"),
)
RECONCILE = Moment(
    "reconcile",
    "it starts, and takes back what a dead one held",
    Drain.stands,
    once=Left(["ambiguous"], "that is done, and nothing is leased"),
    twice=Left([None], "ends where it stands; the next drain takes it back"),
    killed=Left([None], "the next drain takes it back"),
    step=Step("millpond.store.store", "Store.reclaim", "before"),
    is_in_the_loop=False,
)
WRITTEN, ALL_DONE = Left(["ok"], "its call was let end"), Left(["ok", "ok"], "it went on")
MOMENTS = {one.name: one for one in (IDLE, CALL, SETTLE, RECONCILE)}


def lane_of(fault: FaultLane) -> dict[str, Any]:
    paid = {"kind": "chat", "base_url": fault.base_url, "model": "fault-1", "price": {"call_usd": 0.01}}
    return paid | {"max_in_flight": 1, "max_attempts": 4, "after_hold": "same"}


@contextmanager
def drain_at(moment: Moment, folder: Path) -> Iterator[tuple[Home, Drain]]:
    """Two jobs for a lane with one slot, and a drain that has come to its moment. The next call of a key goes well."""
    first = {"one": ["hang", "ok"], "two": ["ok"]} if moment.name in ("call", "reconcile") else None
    with FaultLane(per_prompt=first) as fault:
        home = Home(folder, lanes={"paid": lane_of(fault)})
        with Queue.open(home.home) as queue:
            queue.enqueue_many(["one", "two"], not_before="1h" if moment.name == "idle" else None)
        if moment.name == "reconcile":
            with home.start("drain", stdin=subprocess.DEVNULL) as dead:
                assert fault.wait_for(1, 30)
                dead.kill()
                dead.communicate()
        words = ("drain", *moment.options)
        program = standing(moment.step, *words) if moment.step else [sys.executable, "-m", "millpond", *words]
        process = subprocess.Popen(
            program, cwd=folder, preexec_fn=listening_to_hangups, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        try:
            drain = Drain(process, fault)
            moment.bring(drain)
            yield home, drain
        finally:
            process.kill()
            process.communicate()


def ledger(queue: Queue) -> Ledger:
    return [row.outcome for row in queue.ledger()]


def finishes(home: Home, drain: Drain, left: Left, *, is_orderly: bool) -> None:
    """What it left is as it must be, and the next drain does all that is left, and pays for no more than it says."""
    with Queue.open(home.home) as queue:
        assert ledger(queue) == left.ledger, left.words
        assert queue.drainer() is None, "the lock is free"
        for id_ in (1, 2):
            if queue.job(id_).wait_reason == "scheduled":  # the hour is over
                queue.cancel(id_)
                queue.retry(id_)
        if is_orderly:
            assert queue.counts()["leased"] == 0
            assert queue.store.living_owners() == []
    home.run("drain", "--until-empty")
    with Queue.open(home.home) as queue:
        assert queue.counts()["done"] == 2, queue.counts()
        check_promises(queue.store)
        assert (queue.store.miscounted(), queue.store.living_owners()) == ({}, [])
        rows = list(queue.ledger())
        assert "retryable" not in ledger(queue), "what may have been sent is never taken for unsent"
        assert drain.fault.accepted() == len(rows) == 2 + ledger(queue).count("ambiguous")
        assert [queue.job(id_).attempts_made for id_ in (1, 2)] == [
            sum(row.job_id == id_ for row in rows) for id_ in (1, 2)
        ], "no attempt is lost, and none is counted that was not made"


@pytest.mark.parametrize("number", SIGNALS, ids=lambda one: one.name)
@pytest.mark.parametrize("moment", MOMENTS)
def test_o09_one_signal_at_any_moment(tmp_path: Path, moment: str, number: signal.Signals) -> None:
    at = MOMENTS[moment]
    with drain_at(at, tmp_path) as (home, drain):
        drain.process.send_signal(number)
        if at.step:
            if at.is_in_the_loop:
                drain.says("stopping: 1 in flight may finish")
            drain.go_on()
        said = drain.ends(128 + number)
        assert f"done {1 if at is SETTLE else 0} " in said
        finishes(home, drain, at.once, is_orderly=True)


TWO = [(signal.SIGINT, signal.SIGINT), (signal.SIGTERM, signal.SIGINT), (signal.SIGHUP, signal.SIGTERM)]


@pytest.mark.parametrize(("first", "second"), TWO, ids=lambda one: one.name)
@pytest.mark.parametrize("moment", MOMENTS)
def test_o09_two_signals_at_any_moment(
    tmp_path: Path, moment: str, first: signal.Signals, second: signal.Signals
) -> None:
    """The exit code is that of the first."""
    at = MOMENTS[moment]
    with drain_at(replace(at, options=("--grace", "60")) if at is CALL else at, tmp_path) as (home, drain):
        drain.process.send_signal(first)
        drain.says("stopping: ") if at.is_in_the_loop else drain.warns("stopping, once this step is done")
        drain.process.send_signal(second)
        if at in (CALL, SETTLE):
            drain.says("giving up what is in flight")
        if at is SETTLE:
            drain.go_on()
        drain.ends(128 + first)
        finishes(home, drain, at.twice, is_orderly=at in (CALL, SETTLE))


@pytest.mark.parametrize("moment", MOMENTS)
def test_o09_a_drain_that_is_killed_at_any_moment(tmp_path: Path, moment: str) -> None:
    at = MOMENTS[moment]
    with drain_at(at, tmp_path) as (home, drain):
        drain.process.kill()
        drain.ends(-signal.SIGKILL)
        finishes(home, drain, at.killed, is_orderly=False)


def test_the_page_has_the_table_that_is_run_here() -> None:
    text = DOCS.read_text(encoding="utf-8")
    assert text == drawn(text), f"docs/cli.md is out of date: {__file__} draws it anew"


def drawn(page: str) -> str:
    """The page with the table as it is run here."""
    rows = ["| a drain is at | one signal | two | SIGKILL |", "|---|---|---|---|"]
    rows += [f"| {at.words} | {at.once.words} | {at.twice.words} | {at.killed.words} |" for at in MOMENTS.values()]
    return re.sub(TABLE, lambda m: m[1] + "\n".join(rows) + "\n" + m[3], page, flags=re.DOTALL)


# --- who started it is gone -------------------------------------------------------------------------------------------


def test_o09_a_terminal_that_closes_ends_a_drain_and_loses_nothing(tmp_path: Path) -> None:
    """The system hangs up the session of a terminal that is gone, and nothing can be written there any more."""
    with FaultLane(per_prompt={"one": ["slow"]}, slow_s=1) as fault:
        home = Home(tmp_path, lanes={"paid": lane_of(fault)})
        with Queue.open(home.home) as queue:
            queue.enqueue_many(["one", "two"])
        ours, theirs = pty.openpty()
        process = subprocess.Popen(
            [sys.executable, "-m", "millpond", "drain"], cwd=tmp_path, preexec_fn=in_a_session_of_its_own,
            stdin=theirs, stdout=theirs, stderr=theirs,
        )  # fmt: skip
        os.close(theirs)
        with process:
            assert fault.wait_for(1, 30)
            os.close(ours)
            assert process.wait(60) == 128 + signal.SIGHUP
        finishes(home, Drain(process, fault), WRITTEN, is_orderly=True)


def in_a_session_of_its_own() -> None:
    listening_to_hangups()
    os.setsid()
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


@pytest.mark.parametrize("option", [[], ["--json"]], ids=["words", "json"])
def test_a_drain_that_nobody_reads_finishes_its_call_and_takes_no_more(tmp_path: Path, option: list[str]) -> None:
    """It is told of the soft timeout of the first call, whose slot is taken until that has ended."""
    with FaultLane(per_prompt={"one": ["slow"]}, slow_s=1.5) as fault:
        home = Home(tmp_path, lanes={"paid": lane_of(fault) | {"soft_timeout_s": 0.3}}, reconcile={"hold_s": 60})
        with Queue.open(home.home) as queue:
            queue.enqueue_many(["one", "two"])
        with home.start(*option, "drain", stdin=subprocess.DEVNULL) as process:
            assert fault.wait_for(1, 30)
            for stream in (process.stdout, process.stderr):
                assert stream is not None
                stream.close()
            assert process.wait(60) == 1
        finishes(home, Drain(process, fault), WRITTEN, is_orderly=True)


def test_a_detached_call_is_still_heard_though_nobody_reads_that_it_was(tmp_path: Path) -> None:
    """Found by reading: what told of the detaching raised, and the call that was listened to was cut."""
    with FaultLane(per_prompt={"one": ["slow"]}, slow_s=1.5) as fault:
        home = Home(tmp_path, lanes={"paid": lane_of(fault) | {"soft_timeout_s": 0.5}}, reconcile={"hold_s": 60})
        with Queue.open(home.home) as queue:
            queue.enqueue("one")
        with home.start("drain", stdin=subprocess.DEVNULL) as process:
            assert fault.wait_for(1, 30)
            for stream in (process.stdout, process.stderr):
                assert stream is not None
                stream.close()
            process.wait(60)
        with Queue.open(home.home) as queue:
            assert (ledger(queue), queue.counts()["done"]) == (["ok"], 1)


def test_nohup_keeps_a_drain_from_hearing_the_hangup(tmp_path: Path) -> None:
    with FaultLane(per_prompt={"one": ["slow"]}, slow_s=1) as fault:
        home = Home(tmp_path, lanes={"paid": lane_of(fault)})
        with Queue.open(home.home) as queue:
            queue.enqueue_many(["one", "two"])
        ignore = lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)  # noqa: E731
        with home.start("drain", stdin=subprocess.DEVNULL, preexec_fn=ignore) as process:
            assert fault.wait_for(1, 30)
            process.send_signal(signal.SIGHUP)
            out, err = process.communicate(timeout=60)
        assert (process.returncode, "done 2" in out) == (0, True), err


def test_a_daemon_goes_on_after_a_hangup_and_says_what_it_does(tmp_path: Path) -> None:
    with FaultLane(per_prompt={"one": ["slow"]}, slow_s=1) as fault:
        home = Home(tmp_path, lanes={"paid": lane_of(fault)})
        with Queue.open(home.home) as queue:
            queue.enqueue_many(["one", "two"])
            how: dict[str, Any] = {"stdin": subprocess.DEVNULL, "preexec_fn": listening_to_hangups}
            with home.start("drain", "--daemon", **how) as process:
                drain = Drain(process, fault)
                assert fault.wait_for(1, 30)
                process.send_signal(signal.SIGHUP)
                drain.says("hung up: goes on; settings are not read again")
                assert queue.wait(timeout=30)
                process.send_signal(signal.SIGTERM)
                drain.ends(128 + signal.SIGTERM)
        finishes(home, drain, ALL_DONE, is_orderly=True)


def test_a_daemon_that_nobody_reads_goes_on(tmp_path: Path) -> None:
    with FaultLane() as fault:
        home = Home(tmp_path, lanes={"paid": lane_of(fault)})
        with Queue.open(home.home) as queue:
            queue.enqueue("one")
            with home.start("drain", "--daemon", stdin=subprocess.DEVNULL) as process:
                for stream in (process.stdout, process.stderr):
                    assert stream is not None
                    stream.close()
                assert queue.wait(timeout=30)
                queue.enqueue("two")
                assert queue.wait(timeout=30)
                process.send_signal(signal.SIGTERM)
                assert process.wait(60) == 128 + signal.SIGTERM
        finishes(home, Drain(process, fault), ALL_DONE, is_orderly=True)


if __name__ == "__main__":
    DOCS.write_text(drawn(DOCS.read_text(encoding="utf-8")), encoding="utf-8")
