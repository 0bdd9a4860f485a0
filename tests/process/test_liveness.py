"""Real processes that are killed, frozen and woken: who lives is known, and nothing is sent or counted twice."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from mill import Home

from millpond import LeaseLost, Policy, Queue
from millpond.drill.faultlane import FaultLane
from millpond.engine.beat import sight
from millpond.engine.owner import lock_file
from millpond.rules.job import Lease
from millpond.testing.promises import check_promises

LEASE_S = 1.0

WORKER = """
import sys
from millpond import Queue
queue = Queue.open(sys.argv[1])
[lease] = queue.lease()
if sys.argv[2] == "record":
    queue.record(lease)
print(lease.job_id, lease.lease_no, flush=True)
sys.stdin.readline()
queue.close() if sys.argv[3] == "close" else None
"""


def until(is_so: Callable[[], Any], what: str) -> Any:
    """Look until something is so that another process does, and of which there is no event."""
    deadline = time.monotonic() + 60
    while not (found := is_so()):
        assert time.monotonic() < deadline, f"it never came that {what}"
        time.sleep(0.02)
    return found


def lane(fault: FaultLane, **more: Any) -> dict[str, Any]:
    free = {"kind": "chat", "base_url": fault.base_url, "model": "fault-1", "price": 0, "after_hold": "same"}
    return {"lanes": {"free": {**free, "max_attempts": 9, **more}}, "lease_s": LEASE_S, "backoff": {"first_s": 0.01}}


@contextmanager
def daemon(home: Home) -> Iterator[subprocess.Popen[str]]:
    """A drain that goes on until it is told; it is gone afterwards, however frozen."""
    process = home.start("drain", "--daemon")
    try:
        yield process
    finally:
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.communicate()


def drainer(queue: Queue) -> str:
    """The name of the one that drains now."""
    [owner] = [owner.uuid for owner in queue.store.living_owners() if owner.role == "drainer"]
    return owner


def taken_over(queue: Queue) -> Lease:
    """Lease what a frozen owner holds, once it has been watched for long enough."""
    [lease] = until(queue.lease, "the job of the frozen drainer can be leased")
    return lease


@pytest.mark.parametrize("first", ["B settles first", "A settles first"])
def test_o24_a_frozen_drainer_is_given_up_and_sends_nothing_twice_when_it_wakes(tmp_path: Path, first: str) -> None:
    with FaultLane(per_prompt={"one": ["slow"]}, slow_s=2) as fault:
        home = Home(tmp_path, **lane(fault))
        home.ask("one")
        with daemon(home) as frozen, Queue.open(home.home) as queue:
            assert fault.wait_for(1, 30)
            frozen.send_signal(signal.SIGSTOP)
            old = drainer(queue)
            lease = taken_over(queue)
            assert (lease.job_id, lease.lease_no) == (1, 2)
            uid = queue.record(lease)
            assert uid is not None
            if first == "B settles first":
                assert queue.settle(lease, uid, "B-text")
                frozen.send_signal(signal.SIGCONT)
                until(lambda: next(iter(queue.ledger())).outcome == "ok", "A's late reply is written")
            else:
                frozen.send_signal(signal.SIGCONT)
                until(lambda: queue.job(1).state == "done", "A's late reply is accepted by its key")
                with pytest.raises(LeaseLost) as lost:
                    queue.settle(lease, uid, "B-text")
                assert not lost.value.accepted
            home.ask("two")
            assert queue.wait("asked.txt", timeout=60)
            [text] = [result.text for result in queue.results() if result.job_id == 1]
            assert (text == "B-text") == (first == "B settles first")
            ledger = [(row.outcome, row.resolution) for row in queue.ledger()]
            assert ledger == [("ok", "late"), ("ok", None), ("ok", None)]
            assert fault.accepted() == 2, "one call for each of A's jobs; B made its own"
            assert drainer(queue) != old
            check_promises(queue.store)


@contextmanager
def worker(home: Home, how: str = "", end: str = "") -> Iterator[subprocess.Popen[str]]:
    """A process that has leased a job."""
    with subprocess.Popen(
        [sys.executable, "-c", WORKER, str(home.home), how, end],
        cwd=home.folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline(), "it leased nothing"
        yield process
        process.kill()
        process.communicate()


def test_o24_a_drain_takes_back_what_a_frozen_worker_holds(tmp_path: Path) -> None:
    with FaultLane() as fault:
        home = Home(tmp_path, **lane(fault))
        home.ask("one")
        with worker(home) as frozen:
            frozen.send_signal(signal.SIGSTOP)
            with daemon(home), Queue.open(home.home) as queue:
                assert queue.wait(1, timeout=60)
                assert (queue.job(1).leases_lost, fault.accepted()) == (1, 1)


def test_o24_a_drainer_that_slept_unnoticed_keeps_its_call(tmp_path: Path) -> None:
    with FaultLane(per_prompt={"one": ["slow"]}, slow_s=2) as fault:
        home = Home(tmp_path, **lane(fault))
        home.ask("one")
        with daemon(home) as sleeper, Queue.open(home.home) as queue:
            assert fault.wait_for(1, 30)
            old = drainer(queue)
            sleeper.send_signal(signal.SIGSTOP)
            [alert] = until(lambda: queue.status().alerts, "whoever asks once is told that it stands still")
            assert alert.name == f"stands_still_s:{sleeper.pid}"
            assert alert.value > alert.limit == LEASE_S
            assert "drains, but has stood still for" in home.run("drain", code=75)[1]
            assert "drains, but has stood still for" in home.run("doctor", code=1)[0]
            sleeper.send_signal(signal.SIGCONT)
            until(lambda: drainer(queue) != old, "it has a new name")
            assert queue.status().alerts == ()
            assert queue.wait(1, timeout=60)
            ledger = [(row.outcome, row.resolution) for row in queue.ledger()]
            assert (ledger, fault.accepted()) == ([("ok", None)], 1)
            assert queue.job(1).leases_lost == 0


def test_o25_an_idle_daemon_writes_its_beats_and_nothing_else(tmp_path: Path) -> None:
    """Counted by the kernel: every write of the process, to whatever file."""
    with FaultLane() as fault:
        home = Home(tmp_path, **lane(fault))
        home.ask("one")
        with daemon(home) as process, Queue.open(home.home) as queue:
            assert queue.wait(timeout=60)
            path = lock_file(queue.folder, drainer(queue))

            def beats() -> int:
                seen = sight(path)
                assert seen is not None
                return seen.beat

            def writes() -> int:
                lines = Path(f"/proc/{process.pid}/io").read_text(encoding="ascii").splitlines()
                return next(int(line.split()[1]) for line in lines if line.startswith("syscw:"))

            first, version = beats(), queue.store.db.data_version()
            until(lambda: beats() > first + 1, "it beats")  # what it had still to do is done by then
            beats_before, writes_before = beats(), writes()
            until(lambda: beats() >= beats_before + 6, "it beats on")
            written, beaten = writes() - writes_before, beats() - beats_before
            assert written <= beaten + 1
            assert queue.store.db.data_version() == version, "nothing was committed"
            home.ask("two")
            assert queue.wait(timeout=60), "and it hears of work"


# --- O13: what kills its worker is not tried for ever -----------------------------------------------------------------


def test_o13_a_job_that_kills_its_worker_fails_after_so_many_whoever_starts_again(tmp_path: Path) -> None:
    """What is killed counts, over restarts; who leaves by itself, is stopped or finds a lane closed does not."""
    with FaultLane(script=["429"], latency_s=0) as fault:
        home = Home(tmp_path, **lane(fault), max_leases_lost=3)
        home.ask("one")

        def lost() -> tuple[int, str]:
            with Queue.open(home.home, policy=Policy(max_leases_lost=3)) as queue:
                queue.lease(0)  # whoever looks for work takes back what the dead held
                return queue.job(1).leases_lost, queue.job(1).state

        with worker(home):
            pass
        assert lost() == (1, "ready")
        with worker(home, end="close") as process:
            process.communicate("leave\n", timeout=30)
        assert lost() == (1, "ready")
        home.run("drain", "--max-iters", "1")  # the lane is saturated: parked, or ready behind it
        with Queue.open(home.home) as queue:
            queue.resume_lane("free")
        assert lost()[0] == 1
        with worker(home):
            pass
        assert lost() == (2, "ready")
        with worker(home):
            pass
        assert lost() == (3, "failed")
        with Queue.open(home.home) as queue:
            job = queue.job(1)
            assert (job.reason, job.attempts_made) == ("leases_lost: worker died 3 times", 0)
            assert fault.accepted() == 1, "the one that was refused"
            queue.retry(1)
        assert lost() == (0, "ready"), "a person grants as many again"


def test_o13_a_drainer_that_is_terminated_counts_no_lost_lease(tmp_path: Path) -> None:
    with FaultLane(per_prompt={"one": ["hang"]}) as fault:
        home = Home(tmp_path, **lane(fault), max_leases_lost=1, grace_s=0)
        home.ask("one")
        for stops in range(1, 4):
            process = home.start("drain")
            assert fault.wait_for(stops, 30)
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=60)
            with Queue.open(home.home) as queue:
                assert (queue.job(1).leases_lost, queue.job(1).state) == (0, "ready")


def test_o13_calls_of_drainers_that_are_killed_have_a_cap_for_life(tmp_path: Path) -> None:
    """Ten restarts, and a person who asks again: no more is sent than the attempts that were granted."""
    with FaultLane(per_prompt={"one": ["hang"] * 99}) as fault:
        home = Home(tmp_path, **lane(fault), max_attempts_per_job=3)
        home.ask("one")
        for sent in (1, 2, 3):
            process = home.start("drain")
            assert fault.wait_for(sent, 30)
            process.kill()
            process.communicate(timeout=60)
        for _ in range(2):
            home.run("drain")
        with Queue.open(home.home) as queue:
            assert (queue.job(1).state, len(fault.posts())) == ("failed", 3)
            assert (queue.job(1).reason or "").startswith("attempts: lifetime cap of 3")
        home.run("retry", "1")
        for sent in (4, 5, 6):
            process = home.start("drain")
            assert fault.wait_for(sent, 30)
            process.kill()
            process.communicate(timeout=60)
        home.run("drain")
        with Queue.open(home.home) as queue:
            assert (queue.job(1).state, len(fault.posts())) == ("failed", 6)
            assert queue.report().paid_twice.calls == 0, "free calls are paid by nobody"
