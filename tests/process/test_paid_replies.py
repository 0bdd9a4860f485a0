"""A reply that was paid for is never lost: the disk is full, refuses or is gone, the database stays locked, the process
is killed, in any order, and still each question is asked once and its answer is in force.

What the lane saw is read from the lane.
"""

from __future__ import annotations

import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pathlib import Path
from time import monotonic, sleep

import pytest
from held_up import Drain, full, locked, moved_away, no_longer_than, small_disk
from mill import Home
from standing import Step, killed

from millpond import Queue
from millpond.drill.faultlane import FaultLane
from millpond.testing.promises import check_promises

N = 3
SAYS = "an answer of some length. " * 20


class Pond:
    """Three questions that are asked, on a disk of its own where the fault is one of the disk."""

    def __init__(self, folder: Path, fault: FaultLane) -> None:
        self.fault = fault
        self.folder = folder
        paid = {"kind": "chat", "base_url": fault.base_url, "model": "fault-1", "price": {"call_usd": 0.01}}
        self.home = Home(folder, lanes={"paid": {**paid, "max_in_flight": N, "after_hold": "same"}})
        self.database = self.home.home / "queue.db"
        self.spool = self.home.home / "queue.db.d" / "spool"
        self.home.ask(*(f"question {n}" for n in range(N)))

    def refuses(self, what: str, drain: Drain) -> AbstractContextManager[None]:
        """What keeps the queue from being written, from now until the block ends."""
        match what:
            case "full":
                return full(self.folder)
            case "locked":
                return locked(self.database)
            case "gone":
                return moved_away(self.database)
            case "limit":
                return no_longer_than(drain, self.database)
            case _:
                return nullcontext()

    def held_up(self, *words: str, **how: object) -> Drain:
        """A drain that has all its replies, and has written none of them."""
        drain = Drain(self.home, *words, **how)  # type: ignore[arg-type]
        drain.hears("replied", N)
        assert self.fault.accepted() == N
        return drain

    @contextmanager
    def refused(self, what: str, *words: str, **how: object) -> Iterator[Drain]:
        """A drain that has kept its replies, since the queue does not take them until the block ends."""
        drain = self.held_up(*words, **how)
        with self.refuses(what, drain):
            drain.say("go")
            drain.hears("kept job")
            yield drain

    def check(self) -> None:
        """Every reply is in force, and was bought once."""
        posts = Counter(post.prompt_digest for post in self.fault.posts())
        assert sorted(posts.values()) == [1] * N, "POSTs per key"
        with Queue.open(self.home.home) as queue:
            assert queue.counts() == {**dict.fromkeys(queue.counts(), 0), "done": N}
            assert [result.text for result in queue.results("asked.txt")] == [SAYS] * N
            assert [(row.outcome, row.resolution) for row in queue.ledger()] == [("ok", None)] * N
            assert queue.report().paid_twice.calls == 0
            check_promises(queue.store)
            assert queue.store.living_owners() == []
        assert list(self.spool.iterdir()) == []


@pytest.fixture
def fault() -> Iterator[FaultLane]:
    with FaultLane(answer=lambda _: SAYS) as lane:
        yield lane


@pytest.fixture(scope="module")
def disk() -> Iterator[ExitStack]:
    """Disks that are there until whoever looks at a test from outside has seen its ledger."""
    with ExitStack() as stack:
        yield stack


def pond(tmp_path: Path, disk: ExitStack, fault: FaultLane, what: str) -> Pond:
    folder = tmp_path
    if what == "full":
        folder = disk.enter_context(small_disk(tmp_path / "disk", "4m"))
    return Pond(folder, fault)


REFUSALS = ["full", "limit", "locked", "gone"]
NAMES = {"full": "a full disk", "limit": "an I/O error", "locked": "o15 a lock", "gone": "a file that is gone"}
HOWEVER_REFUSED = pytest.mark.parametrize("what", REFUSALS, ids=[NAMES[what] for what in REFUSALS])


@HOWEVER_REFUSED
def test_replies_that_the_queue_cannot_take_are_in_force_once_it_can(
    tmp_path: Path, disk: ExitStack, fault: FaultLane, what: str
) -> None:
    here = pond(tmp_path, disk, fault, what)
    with here.refused(what) as drain:
        pass
    said = drain.ends(0)
    assert "this drain writes them by itself, and it leases nothing before" in said
    assert said.count("kept job") == said.count("written job") == 1, "one line, however many replies"
    here.check()


@HOWEVER_REFUSED
def test_replies_that_were_kept_outlive_their_process(
    tmp_path: Path, disk: ExitStack, fault: FaultLane, what: str
) -> None:
    here = pond(tmp_path, disk, fault, what)
    with here.refused(what) as drain:
        wait_for_entries(here, N)
        drain.kill()
        if what == "full":  # nothing is called, nor given to anybody, while they cannot be written
            _, err = here.home.run("drain", code=74)
            assert "no room left" in err
            assert fault.accepted() == N
    here.home.run("drain")
    here.check()


@pytest.mark.parametrize("what", ["full", "locked"])
def test_a_drain_that_must_end_says_that_replies_wait(
    tmp_path: Path, disk: ExitStack, fault: FaultLane, what: str
) -> None:
    here = pond(tmp_path, disk, fault, what)
    with here.refused(what, "--grace", "1") as drain:
        drain.process.send_signal(signal.SIGTERM)
        said = drain.ends(74 if what == "full" else 75)
        assert f"{N} replies not written yet; kept in" in said
    here.home.run("drain")
    here.check()


def test_a_foreground_drain_ends_by_itself_where_trying_on_does_not_help(
    tmp_path: Path, disk: ExitStack, fault: FaultLane
) -> None:
    here = pond(tmp_path, disk, fault, "full")
    drain = here.held_up("--grace", "1", patience_s=1)
    with here.refuses("full", drain):
        drain.say("go")
        assert "no room left" in drain.ends(74)
    here.home.run("drain")
    here.check()


STEPS = [
    "millpond.engine.spool:Spool.keep:before",
    "millpond.engine.spool:Spool.keep:after",
    "millpond.engine.spool:Spool.clear:before",
    "millpond.engine.spool:Spool.clear:after",
]


@pytest.mark.parametrize("step", STEPS)
def test_a_drain_that_is_killed_beside_its_spool_loses_no_reply_that_reached_it(
    tmp_path: Path, disk: ExitStack, fault: FaultLane, step: str
) -> None:
    here = pond(tmp_path, disk, fault, "locked")
    with here.refused("locked", stands=step) as drain:
        if "keep" in step:
            drain.hears("here", N)
            drain.kill()
    if "clear" in step:  # committed, and still in the spool when it dies
        drain.hears("here")
        drain.kill()
    if step.endswith("keep:before"):  # in the memory of one process, and nowhere else: nobody can know
        here.home.run("drain")
        with Queue.open(here.home.home) as queue:
            assert queue.counts()["done"] == N
            assert queue.report().paid_twice.calls == N
        return
    here.home.run("drain")
    here.check()


REPLAYS = [
    Step("millpond.engine.spool", "_write_late", "before"),
    Step("millpond.engine.spool", "_write_late", "after"),
    Step("millpond.engine.spool", "_write_late", "before", times=2),
    Step("millpond.engine.spool", "_write_entries", "after"),
    Step("millpond.engine.spool", "replay", "after"),
    Step("millpond.store.store", "Store.reclaim", "before"),
    Step("millpond.store.store", "Store.reclaim", "after"),
]


@pytest.mark.parametrize("step", REPLAYS, ids=lambda step: f"{step}-{step.times}")
def test_whoever_writes_what_another_left_may_be_killed_too(
    tmp_path: Path, disk: ExitStack, fault: FaultLane, step: Step
) -> None:
    here = pond(tmp_path, disk, fault, "locked")
    with here.refused("locked") as drain:
        wait_for_entries(here, N)
        drain.kill()
    killed(here.home, step, "drain")
    assert fault.accepted() == N
    here.home.run("drain")
    here.check()


def test_nothing_is_called_where_no_reply_could_be_kept(tmp_path: Path, disk: ExitStack, fault: FaultLane) -> None:
    here = pond(tmp_path, disk, fault, "full")
    with full(here.folder, leave=128 << 10):
        _, err = here.home.run("drain", code=74)
        assert "nothing is called without it. Free 192 KiB" in err
        assert fault.accepted() == 0
    here.home.run("drain")
    here.check()


def test_a_read_only_folder_is_said_and_nothing_is_called(tmp_path: Path, disk: ExitStack, fault: FaultLane) -> None:
    here = pond(tmp_path, disk, fault, "full")
    (here.folder / "asked.txt").write_text("one more\n")
    remount(here.folder, "ro")
    _, err = here.home.run("drain", code=74)
    assert "queue.db stands on a file system that is mounted read-only; nothing was written" in err
    assert "copy queue.db (and queue.db-wal, if there is one) to another folder" in err
    here.home.run("enqueue", "asked.txt", code=74)
    remount(here.folder, "rw")
    assert fault.accepted() == 0
    here.home.run("drain")
    here.check()


def test_where_no_ledger_row_can_be_written_nothing_is_called(
    tmp_path: Path, disk: ExitStack, fault: FaultLane
) -> None:
    here = pond(tmp_path, disk, fault, "full")
    with full(here.folder, leave=84 << 10):
        assert "no room left" in Drain(here.home, "--grace", "1", patience_s=1).ends(74)
        assert fault.accepted() == 0
    here.home.run("drain")
    here.check()


def remount(folder: Path, mode: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{mode}", str(folder)], check=True)


def wait_for_entries(here: Pond, n: int) -> None:
    """Until so many replies stand in the spool."""
    until_s = monotonic() + 60
    while sum(path.read_bytes().count(b"\0MILLPOND-REPLY\0") for path in here.spool.iterdir()) < n:
        assert monotonic() < until_s
        sleep(0.02)
