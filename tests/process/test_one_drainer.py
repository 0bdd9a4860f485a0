"""Several processes at one queue: many enqueue, one drains, a second drainer is told who does."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path

from mill import Home

from millpond import Queue
from millpond.drill.faultlane import FaultLane

ENQUEUERS, LINES = 3, 120


def test_three_processes_enqueue_while_one_drains_and_a_second_drain_names_it(tmp_path: Path) -> None:
    with FaultLane(seed=3) as fault:
        home = Home(
            tmp_path, lanes={"free": {"kind": "chat", "base_url": fault.base_url, "model": "fault-1", "price": 0}}
        )
        files = [tmp_path / f"part{n}.txt" for n in range(ENQUEUERS)]
        for n, path in enumerate(files):  # every second line is asked by all three
            path.write_text("\n".join(f"question {line if line % 2 else f'{n}-{line}'}" for line in range(LINES)))
        home.run("enqueue", str(files[0]), "--name", "first")

        drainer = home.start("drain", "--daemon")
        assert fault.wait_for(1, 30), "the drainer has not begun"
        _, err = home.run("drain", code=75)
        assert f"pid {drainer.pid}" in err

        enqueuers = [home.start("enqueue", str(path), "--name", f"part{n}") for n, path in enumerate(files)]
        ids = [process.communicate(timeout=60)[0].split() for process in enqueuers]
        assert [process.returncode for process in enqueuers] == [0] * ENQUEUERS
        with Queue.open(home.home) as queue:
            for n in range(ENQUEUERS):
                assert queue.wait(f"part{n}", timeout=60), queue.counts()
            drainer.send_signal(signal.SIGTERM)
            _, err = drainer.communicate(timeout=30)
            assert drainer.returncode == 143, err

            assert [len(part) for part in ids] == [LINES] * ENQUEUERS
            asked = {int(one) for part in ids for one in part}
            distinct = ENQUEUERS * LINES // 2 + LINES // 2
            assert len(asked) == distinct
            assert queue.counts() == {**dict.fromkeys(queue.counts(), 0), "done": distinct}
            leases = Counter(event.job_id for event in queue.feed() if event.kind == "lease")
            assert leases == dict.fromkeys(asked, 1), "leased once each"
            assert len(list(queue.ledger())) == fault.accepted() == distinct
    home.run("drain")  # the lock is free again


def test_a_drainer_that_was_killed_leaves_nothing_behind_that_the_next_does_not_finish(tmp_path: Path) -> None:
    with FaultLane(per_prompt={"one": ["hang", "ok"], "two": ["hang", "ok"]}) as fault:
        free = {"kind": "chat", "base_url": fault.base_url, "model": "fault-1", "price": 0, "max_in_flight": 2}
        home = Home(tmp_path, lanes={"free": {**free, "after_hold": "same", "max_attempts": 3}})
        (tmp_path / "asked.txt").write_text("one\ntwo\nthree\n")
        home.run("enqueue", "asked.txt")
        drainer = home.start("drain")
        assert fault.wait_for(2, 30)
        drainer.kill()
        drainer.communicate(timeout=30)
        with Queue.open(home.home) as queue:
            assert queue.counts()["leased"] == 2
        home.run("drain")
        with Queue.open(home.home) as queue:
            assert queue.counts()["done"] == 3
            ledger = [(row.outcome, row.resolution, row.code) for row in queue.ledger()]
            assert sorted(ledger, key=str) == [("ambiguous", "same", "died")] * 2 + [("ok", None, "ok")] * 3
            assert queue.store.living_owners() == []


def test_the_second_signal_ends_a_drain_whose_handler_cannot_be_stopped(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(
        "import time\n\ndef answer(work):\n    open('began', 'w').close()\n    time.sleep(300)\n"
    )
    os.mkfifo(tmp_path / "began")
    home = Home(tmp_path, lanes={"own": {"kind": "python", "target": "slow:answer", "price": 0}})
    (tmp_path / "asked.txt").write_text("one\n")
    home.run("enqueue", "asked.txt")
    drainer = home.start("drain")
    with open(tmp_path / "began", encoding="utf-8"):  # opens once the handler runs
        pass
    assert drainer.stdout is not None
    drainer.send_signal(signal.SIGINT)
    while "stopping" not in drainer.stdout.readline():  # two that are pending at once would be one
        pass
    drainer.send_signal(signal.SIGINT)
    out, err = drainer.communicate(timeout=60)
    assert drainer.returncode == 130, err
    assert "done 0" in out
    with Queue.open(home.home) as queue:
        assert [row.outcome for row in queue.ledger()] == ["ambiguous"]
        assert queue.counts()["ready"] == 1
