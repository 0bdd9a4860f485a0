"""O14: a program that opens its queue and forks, as servers that load before they fork do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from millpond import Policy, Queue
from millpond.testing.promises import check_promises

FORKS = """
import os, sys
from millpond import Policy, Queue

queue = Queue.open(sys.argv[1], policy=Policy())
queue.enqueue("before the fork")
hears, tells = os.pipe()
children = []
for child in range(2):
    children.append(os.fork())
    if children[-1] == 0:
        os.close(tells)
        queue.enqueue(f"by child {child}")
        os.read(hears, 1)
        for turn in range(50):
            [lease] = queue.lease()
            queue.settle(lease, queue.record(lease, "own"), "an answer")
            queue.enqueue(f"by child {child}, {turn}")
        os._exit(0)  # closing would bring what it wrote into the file after all
if sys.argv[2] == "closes":
    queue.close()
os.close(tells)
for turn in range(500 if sys.argv[2] == "goes on" else 0):
    queue.enqueue(f"by the parent {turn}")
assert [os.waitpid(child, 0)[1] for child in children] == [0, 0]
"""


@pytest.mark.parametrize(("parent", "jobs"), [("goes on", 603), ("closes", 103)])
def test_o14_a_queue_that_was_open_at_the_fork_serves_parent_and_children(
    tmp_path: Path, parent: str, jobs: int
) -> None:
    run = subprocess.run(
        [sys.executable, "-c", FORKS, str(tmp_path / "pond"), parent],
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    with Queue.open(tmp_path / "pond", policy=Policy()) as queue:
        assert queue.store.db.integrity_check() == []
        assert queue.counts()["ready"] + queue.counts()["done"] == jobs
        assert queue.counts()["done"] == 100
        assert len({row.owner for row in queue.ledger()}) == 2, "each child leases under a name of its own"
        check_promises(queue.store)
