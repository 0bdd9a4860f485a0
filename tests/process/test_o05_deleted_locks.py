"""O05: a lock file is never removed by Millpond, and one that a person removed lets no call be made twice."""

from __future__ import annotations

import os
import signal
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

from mill import Home
from test_liveness import daemon

from millpond import Queue
from millpond.drill.faultlane import FaultLane
from millpond.testing.promises import check_promises


def lane(fault: FaultLane) -> dict[str, Any]:
    return {"free": {"kind": "chat", "base_url": fault.base_url, "model": "fault-1", "price": 0, "max_in_flight": 1}}


def begins(process: subprocess.Popen[str]) -> None:
    """Wait until it drains."""
    assert process.stdout is not None
    assert process.stdout.readline().startswith("draining ")


def test_o05_who_drains_who_is_refused_and_who_comes_later_meet_at_one_file(tmp_path: Path) -> None:
    with FaultLane() as fault:
        home = Home(tmp_path, lanes=lane(fault))
        file = home.home / "queue.db.d/drain.lock"
        with daemon(home) as first:
            begins(first)
            seen = file.open()  # while it is open, no other file can have its number
            _, refused = home.run("drain", code=75)
            assert f"pid {first.pid}" in refused
            first.send_signal(signal.SIGTERM)
            first.communicate(timeout=60)
        with daemon(home) as later:
            begins(later)
        home.run("drain")
        with seen:
            assert os.fstat(seen.fileno()).st_nlink == 1, "nobody removes it, however a drain ends"


def test_o05_a_lock_that_is_deleted_by_hand_ends_its_drain_and_no_call_is_made_twice(tmp_path: Path) -> None:
    with FaultLane(per_prompt={"q0": ["slow"]}, slow_s=2) as fault:
        home = Home(tmp_path, lanes=lane(fault))
        with Queue.open(home.home) as queue:
            queue.enqueue_many([f"q{n}" for n in range(10)])
            with daemon(home) as robbed:
                assert fault.wait_for(1, 30)
                (home.home / "queue.db.d/drain.lock").unlink()
                home.run("drain", "--until-empty")
                _, err = robbed.communicate(timeout=60)
            assert robbed.returncode == 74, err
            assert "deleted or replaced" in err
            assert queue.counts()["done"] == 10
            assert set(Counter(post.idempotency_key for post in fault.posts()).values()) == {1}
            assert [row.outcome for row in queue.ledger()] == ["ok"] * 10
            check_promises(queue.store)
