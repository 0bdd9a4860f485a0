"""O15: many processes write at once, and nobody is told "database is locked"."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import apsw

from millpond import Policy, Queue
from millpond.rules.policy import LanePolicy

PROCESSES, JOBS = 6, 500

WORKER = """
import sys
from millpond import Policy, Queue
from millpond.rules.policy import LanePolicy

home, name, jobs = sys.argv[1], sys.argv[2], int(sys.argv[3])
with Queue.open(home, policy=Policy(lanes={"own": LanePolicy("own", kind="callable")})) as queue:
    for n in range(jobs):
        print("job", queue.enqueue(f"{name} {n}").job_id)
        for lease in queue.lease(1):
            print("leased", lease.job_id, lease.lease_no)
            queue.settle(lease, queue.record(lease), f"answer {lease.job_id}")
"""

READER = """
import sys
from millpond import Queue

with Queue.open(sys.argv[1]) as queue:
    print("ready", flush=True)
    while not sys.stdin.closed and queue.counts()["done"] < int(sys.argv[2]):
        assert queue.store.db.integrity_check() == [], "the database is damaged"
print("intact")
"""


def test_o15_six_writers_and_a_reader_lose_nothing_and_lease_nothing_twice(tmp_path: Path) -> None:
    home = str(tmp_path / "home")
    total = PROCESSES * JOBS
    Queue.open(home).close()
    reader = subprocess.Popen([sys.executable, "-c", READER, home, str(total)], stdout=subprocess.PIPE, text=True)
    writers = [
        subprocess.Popen([sys.executable, "-c", WORKER, home, f"w{n}", str(JOBS)], stdout=subprocess.PIPE, text=True)
        for n in range(PROCESSES)
    ]
    said = [writer.communicate()[0].splitlines() for writer in writers]
    assert [writer.returncode for writer in writers] == [0] * PROCESSES
    jobs = Counter(line for lines in said for line in lines if line.startswith("job "))
    leases = Counter(line for lines in said for line in lines if line.startswith("leased "))
    with Queue.open(home, policy=Policy(lanes={"own": LanePolicy("own", kind="callable")})) as queue:
        for lease in queue.lease(total):  # a writer whose last lease came up empty leaves one for others
            queue.settle(lease, queue.record(lease), "answer")
        assert queue.counts()["done"] == total
        assert queue.store.miscounted() == {}
        assert len(list(queue.ledger())) == total
    assert reader.communicate()[0].split() == ["ready", "intact"]
    assert (len(jobs), set(jobs.values())) == (total, {1})
    assert set(leases.values()) == {1}


IMPATIENT = """
import sys
from millpond.db.sqlite import SqliteDatabase
SqliteDatabase.__init__.__kwdefaults__["busy_ms"] = 100
from millpond.faces.cli import main
main()
"""


def test_o15_an_enqueue_that_cannot_commit_gives_no_id_and_says_so(tmp_path: Path) -> None:
    home, rows = tmp_path / "home", tmp_path / "rows.txt"
    rows.write_text("Is a duck a bird?\nIs a newt a fish?\n", encoding="utf-8")
    Queue.open(home).close()
    other = apsw.Connection(str(home / "queue.db"))
    other.execute("BEGIN IMMEDIATE").fetchall()
    how = [sys.executable, "-c", IMPATIENT, "--home", str(home), "enqueue", str(rows)]
    refused = subprocess.run(how, capture_output=True, text=True, timeout=60, check=False)
    assert (refused.returncode, refused.stdout) == (75, "")
    assert "stayed locked" in refused.stderr
    other.execute("ROLLBACK").fetchall()
    other.close()
    taken = subprocess.run(how, capture_output=True, text=True, timeout=60, check=False)
    assert (taken.returncode, taken.stdout) == (0, "1\n2\n"), "none had been used up"
