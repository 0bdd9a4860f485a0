"""What a verb costs, in steps of SQLite's machine and in rows written; never in time, which other programs share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import apsw
import pytest
from population import fill, fill_answers

from millpond.rules.admission import Closing
from millpond.rules.filters import parse
from millpond.rules.job import Reply
from millpond.store import looking
from millpond.store.persons import Moved
from millpond.store.store import Store, open_sqlite
from millpond.testing.store_scene import Scene, asked


class Meter:
    """Counts the steps and the rows of every statement run on the connections opened while it stands."""

    def __init__(self) -> None:
        self.steps = 0
        self.rows_read = 0
        self.connections: list[apsw.Connection] = []

    def watch(self, connection: apsw.Connection) -> None:
        connection.trace_v2(apsw.SQLITE_TRACE_PROFILE | apsw.SQLITE_TRACE_ROW, self._count)
        self.connections.append(connection)

    def _count(self, event: dict[str, Any]) -> None:
        if event["code"] == apsw.SQLITE_TRACE_ROW:
            self.rows_read += 1
        else:
            self.steps += event["stmt_status"]["SQLITE_STMTSTATUS_VM_STEP"]

    def of(self, verb: Callable[[], Any]) -> int:
        """The steps that a verb takes."""
        self.steps = 0
        verb()
        return self.steps

    def rows_written(self) -> int:
        """Rows inserted, updated and deleted so far by all connections."""
        return sum(connection.total_changes() for connection in self.connections)


@pytest.fixture
def meter() -> Iterator[Meter]:
    meter = Meter()
    apsw.connection_hooks.append(meter.watch)
    yield meter
    apsw.connection_hooks.remove(meter.watch)


def open_scene(path: Path) -> Scene:
    return Scene(lambda now_ms: Store(open_sqlite(path, durable=False), now_ms))


def add_requests(path: Path, job_id: int, rows: int) -> None:
    connection = apsw.Connection(str(path))
    with connection:
        connection.execute(
            "INSERT INTO request (submission_id, position, job_id, disposition) WITH RECURSIVE n (i) AS "
            "(SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :rows) SELECT 1, i, :job_id, 'joined' FROM n",
            {"rows": rows, "job_id": job_id},
        ).fetchall()
        connection.execute("UPDATE job SET requests = requests + ? WHERE id = ?", (rows, job_id)).fetchall()
        connection.execute("UPDATE submission SET requests = requests + ? WHERE id = 1", (rows,)).fetchall()
    connection.close()


def test_a_hundred_thousand_requests_on_one_job_cost_its_journey_nothing(tmp_path: Path, meter: Meter) -> None:
    one = steps_of_a_journey(tmp_path / "one.db", meter, requests=1)
    many = steps_of_a_journey(tmp_path / "many.db", meter, requests=100_000)
    assert one == many
    assert min(one) > 0


def steps_of_a_journey(path: Path, meter: Meter, requests: int) -> list[int]:
    """The steps of routing, leasing, recording and settling a job on which so many requests hang, and of one more."""
    scene = open_scene(path)
    job_id = scene.ask("k").job_id
    if requests > 1:
        add_requests(path, job_id, requests - 1)
    taken: list[Any] = []
    steps = [
        meter.of(scene.route),
        meter.of(lambda: taken.append(scene.take(job_id))),
        meter.of(lambda: taken.append(scene.send(taken[0]))),
        meter.of(lambda: taken.append(scene.settle(taken[1], Reply("an answer"), lease=taken[0]))),
        meter.of(lambda: scene.ask("k")),
    ]
    assert taken[2].requests == requests
    scene.store.close()
    return steps


@pytest.mark.parametrize("what", ["ready", "unrouted", "waiting", "done", "failed"])
def test_a_backlog_costs_a_lease_nothing(tmp_path: Path, meter: Meter, what: str) -> None:
    small, large = (steps_of_a_lease(tmp_path / f"{size}.db", meter, what, size) for size in (2_000, 20_000))
    assert large <= 1.1 * small, f"{small} steps with 2,000, {large} with 20,000"


def steps_of_a_lease(path: Path, meter: Meter, what: str, size: int) -> int:
    """The steps of the fourth lease of one job, beside so many jobs of a kind."""
    scene = open_scene(path)
    fill(path, **({"ready": 50, "unrouted": 0, "waiting": 0, "done": 50, "failed": 50} | {what: size}))
    fill_answers(path)
    scene.clock.advance(10_000 - scene.now_ms)  # of what waits, half is due
    for _ in range(3):
        scene.lease(1, wake_rows=256)
    steps = meter.of(lambda: scene.lease(1, wake_rows=256))
    scene.store.close()
    return steps


def test_a_saturated_lane_costs_no_row_writes(tmp_path: Path, meter: Meter) -> None:
    scene = open_scene(tmp_path / "queue.db")
    for at in range(5):
        scene.ask(f"k{at}")
    scene.route()
    scene.close_lane("free", Closing(scene.now_ms + 60_000, "429", "saturated"))
    before = meter.rows_written()
    for _ in range(3):
        assert scene.lease(5) == []
        scene.clock.advance(1)
    assert scene.lease(5, room={}) == []
    assert meter.rows_written() == before
    scene.store.close()


def test_an_idle_lease_writes_nothing(tmp_path: Path, meter: Meter) -> None:
    scene = open_scene(tmp_path / "queue.db")
    before = meter.rows_written()
    assert scene.lease(5, fair_every=1) == []
    assert meter.rows_written() == before
    scene.store.close()


def test_many_equal_requests_write_their_job_once(tmp_path: Path, meter: Meter) -> None:
    """A request row and an event each; the job, its payload and the submission once, however many join."""
    scene = open_scene(tmp_path / "queue.db")
    scene.ask_many(asked("warm up"))
    counts: list[int] = []
    for size in (100, 200):
        before = meter.rows_written()
        scene.ask_many(*[asked(f"k{size}")] * size)
        counts.append(meter.rows_written() - before)
    assert counts[1] - counts[0] == 2 * 100
    scene.store.close()


def test_what_persons_do_to_many_requests_of_a_job_writes_their_rows_and_reads_none(
    tmp_path: Path, meter: Meter
) -> None:
    """A retry that hands them to another job included: of everything else as much as for few."""
    small, large = (rows_of_persons(tmp_path / f"{size}.db", meter, size) for size in (100, 1_000))
    assert [written - 100 for written, _ in small] == [written - 1_000 for written, _ in large]
    assert [read for _, read in small] == [read for _, read in large]
    assert max(written - 100 for written, _ in small) < 10, "beside the requests: the job, counts, an event or two"


def rows_of_persons(path: Path, meter: Meter, size: int) -> list[tuple[int, int]]:
    """Rows written and rows read by each verb, beside so many equal requests of one submission."""
    meter.connections.clear()  # those of the scene before this one are closed
    scene = open_scene(path)
    scene.ask_many(*[asked("k")] * size)
    job_id = scene.ask("k").job_id
    found: list[tuple[int, int]] = []

    def measure(verb: Callable[[], list[Moved]]) -> None:
        written, meter.rows_read = meter.rows_written(), 0
        [done] = verb()
        assert done.moved
        found.append((meter.rows_written() - written, meter.rows_read))

    store = scene.store
    measure(lambda: store.cancel([(job_id, 0)], submissions=[1]))
    measure(lambda: store.retry([job_id], submissions=[1]))
    store.cancel([(job_id, 0)], submissions=[2])
    measure(lambda: store.cancel([(job_id, 0)]))
    measure(lambda: store.retry([job_id], submissions=[1]))
    measure(lambda: store.cancel([(job_id, 0)], submissions=[1]))
    scene.ask("k")
    measure(lambda: store.retry([job_id], submissions=[2]))
    assert len(store.requests(job_id + 1, 10_000)) == size + 2
    store.close()
    return found


def test_asking_whether_a_submission_waits_costs_one_page_however_large_it_is(tmp_path: Path, meter: Meter) -> None:
    """From the cursor of a wait: with one that waits at once, and where all before the cursor have had their end."""
    steps: list[list[int]] = []
    for size in (2_000, 20_000):
        path = tmp_path / f"{size}.db"
        scene = open_scene(path)
        answered = scene.answered("k").job_id
        add_requests(path, answered, size)
        waits = scene.ask("waits")
        sql = "UPDATE request SET submission_id = 1, position = ? WHERE id = ?"
        connection = apsw.Connection(str(path))
        connection.execute(sql, (size + 1, waits.request_id)).fetchall()
        connection.close()
        assert scene.store.first_pending(1) == size + 1
        steps.append([meter.of(partial(scene.store.first_pending, 1, after)) for after in (size, size + 1)])
        one_page = partial(looking.first_pending, submission_id=1, after=-1, limit=500)
        steps[-1].append(meter.of(lambda: scene.store.db.read(one_page)))  # noqa: B023  # called at once
        scene.store.close()
    assert steps[0] == steps[1]
    assert 0 < max(steps[0][:2]) < 200 < steps[0][2]


FEW = {"done": 50, "failed": 50, "waiting": 50, "ready": 20, "unrouted": 20}
DRIVEN = {
    "state:failed": "done", "state:cancelled": "ready", "state:waiting": "done", "state:backoff": "ready",
    "state:held": "waiting", "state:leased": "done", "state:ready": "done", "id:10..20": "done",
    "submission:mine": "done", "submission:mine -state:failed": "failed",
}  # fmt: skip
"""A filter -> jobs that it does not admit, of which there may be any number."""


@pytest.mark.parametrize("words", DRIVEN)
def test_what_a_filter_leaves_out_costs_it_nothing(tmp_path: Path, meter: Meter, words: str) -> None:
    small, large = (steps_of_a_filter(tmp_path / f"{size}.db", meter, words, size) for size in (1_000, 10_000))
    assert large <= 1.05 * small + 20, f"{small} steps beside 1,000, {large} beside 10,000"


def steps_of_a_filter(path: Path, meter: Meter, words: str, size: int) -> int:
    """The steps of reading all jobs that a filter admits, the oldest and the newest of which are far apart."""
    scene = open_scene(path)
    scene.store.open_submission("mine")
    fill(path, **(FEW | {DRIVEN[words]: size}))
    connection = apsw.Connection(str(path))
    with connection:
        connection.execute(
            "INSERT INTO request (submission_id, position, job_id, disposition) "
            "SELECT 1, id, id, 'new' FROM job WHERE id <= 20"
        ).fetchall()
        connection.execute("UPDATE submission SET requests = 20").fetchall()
        connection.execute("INSERT INTO owner VALUES ('lessee', 'worker', 'h', 1, 'b', 1, 0)").fetchall()
        connection.execute("UPDATE job SET lease_owner = 'lessee' WHERE state = 'leased'").fetchall()
        connection.execute("DELETE FROM tally").fetchall()
        connection.execute("INSERT INTO tally SELECT state, count(*) FROM job GROUP BY state").fetchall()
        connection.execute(
            "INSERT INTO tally SELECT 'held', count(*) FROM job WHERE state = 'waiting' AND wait_reason = 'held'"
        ).fetchall()
    connection.close()
    found: list[Any] = []
    steps = meter.of(lambda: found.extend(scene.store.jobs(parse(words, scene.now_ms))))
    assert found
    scene.store.close()
    return steps


def test_the_last_of_the_ledger_costs_the_same_however_long_it_is(tmp_path: Path, meter: Meter) -> None:
    steps: list[int] = []
    for size in (1_000, 10_000):
        scene = open_scene(tmp_path / f"{size}.db")
        fill(tmp_path / f"{size}.db", **(FEW | {"done": size}))
        found: list[Any] = []
        steps.append(meter.of(lambda: found.extend(scene.store.attempts(last=20))))  # noqa: B023  # called at once
        assert [row.seq for row in found] == list(range(size + 500 - 19, size + 500 + 1))
        scene.store.close()
    assert steps[0] == steps[1]
