"""O25: who waits hears of what others do, waits no longer than was said, and costs next to nothing meanwhile."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from mill import Home
from test_liveness import daemon

from millpond import Policy, Queue
from millpond.drill.faultlane import FaultLane


def test_o25_a_daemon_that_waits_takes_up_what_another_process_hands_in(tmp_path: Path) -> None:
    with FaultLane() as fault:
        free = {"kind": "chat", "base_url": fault.base_url, "model": "fault-1", "price": 0}
        home = Home(tmp_path, lanes={"free": free})
        with daemon(home) as waiting:
            assert waiting.stdout is not None
            assert waiting.stdout.readline().startswith("draining ")
            for n in (1, 2):
                (tmp_path / "asked.txt").write_text(f"q{n}\n", encoding="utf-8")
                home.run("enqueue", "asked.txt")
                assert fault.wait_for(n, 30), "it has missed that something was handed in"


def test_o25_a_wait_ends_by_its_own_time_whatever_others_do_meanwhile(tmp_path: Path) -> None:
    """Each commit of others wakes who waits: none may begin its time anew."""
    over = threading.Event()
    beside: list[int] = []
    with Queue.open(tmp_path / "pond", policy=Policy()) as queue:
        mine = queue.enqueue("mine")

        def work_of_others() -> None:
            with Queue.open(tmp_path / "pond", policy=Policy()) as another:
                while not over.wait(0.05):
                    beside.append(another.enqueue(f"not mine {len(beside)}").job_id)

        others = threading.Thread(target=work_of_others)
        answers: list[bool] = []
        waiter = threading.Thread(target=lambda: answers.append(queue.wait(mine, timeout=0.5)), daemon=True)
        others.start()
        waiter.start()
        waiter.join(20)
        over.set()
        others.join()
        assert answers == [False], "it waited past its time"
        assert beside


def test_o25_four_who_wait_in_an_idle_queue_read_no_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Queue.open(tmp_path / "pond", policy=Policy()) as queue:
        receipts = queue.enqueue_many([f"q{n}" for n in range(4)])
        looks: list[str] = []
        reads: list[int] = []
        looked = threading.Condition()
        version, standing = queue.store.db.data_version, queue.store.standing

        def counted() -> int:
            with looked:
                looks.append(threading.current_thread().name)
                looked.notify_all()
            return version()

        monkeypatch.setattr(queue.store.db, "data_version", counted)
        monkeypatch.setattr(queue.store, "standing", lambda ids: reads.append(1) or standing(ids))
        waiting = [queue.ending_of(receipt) for receipt in receipts]
        with looked:
            met = len(looks)
            assert looked.wait_for(lambda: len(looks) >= met + 3, 30), "all four were looked for once"
            reads.clear()
            assert looked.wait_for(lambda: len(looks) >= met + 10, 30)
        assert reads == [], "the tables were read though nobody committed"
        assert len(set(looks)) == 1, "one thread looks on behalf of all"
        queue.cancel([receipt.job_id for receipt in receipts])
        for one in waiting:
            one.result(20)
        assert reads
