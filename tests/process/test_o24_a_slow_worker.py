"""O24: a worker that comes back after its lease was given away moves nothing, and loses nothing that it paid for."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from mill import Home

from millpond import Queue
from millpond.testing.promises import check_promises

WORKER = """
import sys
from millpond import LeaseLost, Queue, Retryable

queue = Queue.open(sys.argv[1])
[lease] = queue.lease()
attempt = queue.record(lease)
print("leased", flush=True)
sys.stdin.readline()
try:
    queue.settle(lease, attempt, "A-text" if sys.argv[2] == "an answer" else Retryable("no room here"))
    print("settled")
except LeaseLost as lost:
    print("lost", lost.accepted)
"""


@pytest.mark.parametrize(
    ("brings", "ledger"),
    [("an answer", [("ok", "late"), ("ok", None)]), ("a failure", [("retryable", "late"), ("ok", None)])],
    ids=["an answer", "a failure"],
)
def test_o24_a_slow_worker_cannot_settle_what_another_has_settled(
    tmp_path: Path, brings: str, ledger: list[tuple[str, str | None]]
) -> None:
    own = {"kind": "command", "command": ["cat"], "price": 0, "after_hold": "same", "max_attempts": 2}
    home = Home(tmp_path, lanes={"own": own}, lease_s=1)
    with Queue.open(home.home) as queue:
        receipt = queue.enqueue("Who settles this?")
        with subprocess.Popen(
            [sys.executable, "-c", WORKER, str(home.home), brings],
            cwd=tmp_path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        ) as slow:  # fmt: skip
            assert slow.stdout is not None
            assert slow.stdout.readline() == "leased\n"
            slow.send_signal(signal.SIGSTOP)
            while not (leases := queue.lease()):
                time.sleep(0.02)  # it is watched until its beat has stood still for its lease
            [lease] = leases
            uid = queue.record(lease)
            assert uid is not None
            assert queue.settle(lease, uid, "B-text")
            slow.send_signal(signal.SIGCONT)
            said, _ = slow.communicate("settle\n", timeout=60)
        assert said == "lost False\n"
        assert [result.text for result in queue.results()] == ["B-text"]
        assert [(row.outcome, row.resolution) for row in queue.ledger()] == ledger
        assert [row.artifact_id is not None for row in queue.ledger()].count(True) == 1
        assert queue.job(receipt.job_id).state == "done"
        check_promises(queue.store)
