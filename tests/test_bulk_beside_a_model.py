"""Random cancels and retries, by ids, filters and submissions, beside a model in dicts; each is tried dry before."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from millpond import BulkReport, KeyConflict, Policy, bulk
from millpond.rules.effects import Then
from millpond.rules.job import Job, Lease
from millpond.rules.lifecycle import LIVE
from millpond.rules.policy import LanePolicy
from millpond.store.store import Store, open_sqlite
from millpond.testing.promises import check_promises
from millpond.testing.store_scene import Scene, asked

POLICY = Policy(lanes={"free": LanePolicy("free", hold_ms={"realtime": 60_000, "batch": 60_000})})
KEYS = ["duck", "newt", "owl", "eel"]
NAMES = ["night", "morning"]
STEPS = 200


@dataclass
class Asking:
    """A request: whose it is, the job it hangs on, whether it is withdrawn."""

    submission: int
    job: int
    withdrawn: bool = False


@dataclass
class Model:
    """Jobs by their states, as far as persons see them: `live`, `undeliverable`, `done`, `failed`, `cancelled`."""

    key: dict[int, str] = field(default_factory=dict)
    state: dict[int, str] = field(default_factory=dict)
    requests: dict[int, Asking] = field(default_factory=dict)
    answered: set[str] = field(default_factory=set)

    def hanging(self, job: int) -> list[Asking]:
        return [one for one in self.requests.values() if one.job == job]

    def live(self, key: str) -> int | None:
        alive = [
            id_ for id_, state in self.state.items() if state in ("live", "undeliverable") and self.key[id_] == key
        ]
        assert len(alive) < 2
        return alive[0] if alive else None

    def cancel(self, job: int, whose: list[int] | None) -> str:
        """What it does: `moved`, `goes_on` or nothing."""
        meant = [one for one in self.hanging(job) if whose is None or one.submission in whose]
        if self.state.get(job) not in ("live", "undeliverable") or all(one.withdrawn for one in meant):
            return ""
        for one in meant:
            one.withdrawn = True
        if not all(one.withdrawn for one in self.hanging(job)):
            return "goes_on"
        self.state[job] = "cancelled"
        return "moved"

    def retry(self, job: int, whose: list[int] | None) -> str:
        meant = [one for one in self.hanging(job) if whose is None or one.submission in whose]
        goes_on = self.state.get(job) in ("live", "done")
        if not meant or (goes_on and (whose is None or not any(one.withdrawn for one in meant))):
            return ""
        for one in meant:
            one.withdrawn = False
        if not goes_on:
            self.ask_again(job)
        return "moved"

    def ask_again(self, job: int) -> None:
        alive = self.live(self.key[job])
        if alive not in (None, job):
            for one in self.hanging(job):
                one.job = alive
        else:
            self.state[job] = "done" if self.key[job] in self.answered else "live"


class Beside:
    """A store and the model, and what is done to both."""

    def __init__(self, path: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.scene = Scene(lambda now_ms: Store(open_sqlite(path, durable=False), now_ms))
        self.store, self.model = self.scene.store, Model()
        self.calls: list[tuple[Lease, str]] = []
        self.done = Counter[str]()

    def hand_in(self) -> None:
        id_ = self.store.open_submission(self.rng.choice(NAMES))
        wanted = [
            asked(self.rng.choice(KEYS), position=at, fresh=self.rng.random() < 0.3)
            for at in range(self.rng.randint(1, 4))
        ]
        for one, receipt in zip(wanted, self.store.enqueue(wanted, id_), strict=True):
            assert not isinstance(receipt, KeyConflict)
            if one.fresh:
                self.model.answered.discard(one.idempotency_key)
            self.model.requests[receipt.request_id] = Asking(id_, receipt.job_id)
            self.model.key.setdefault(receipt.job_id, one.idempotency_key)
            self.model.state.setdefault(receipt.job_id, "done" if receipt.disposition == "reused" else "live")

    def work(self) -> None:
        """Send what is ready, or shelve it; or end a call, whatever became of its job meanwhile."""
        for lease in self.scene.lease(self.rng.randint(0, 2)):
            if self.rng.random() < 0.15:
                self.store.give(lease, Then("shelve"))
                self.model.state[lease.job_id] = "undeliverable"
            elif uid := self.scene.record(lease):
                self.calls.append((lease, uid))
        if self.calls and self.rng.random() < 0.6:
            lease, uid = self.calls.pop(self.rng.randrange(len(self.calls)))
            good = self.rng.random() < 0.3
            then = {} if good else {"then": Then("fail", reason="refused: no")}
            settled = self.scene.settle(uid, "ok" if good else "permanent", lease=lease, **then)
            if settled.accepted:
                if alive := self.model.live(lease.idempotency_key):
                    self.model.state[alive] = "done"
                self.model.answered.add(lease.idempotency_key)
            elif settled.moved:
                self.model.state[lease.job_id] = "failed"

    def draw(self) -> bulk.Which:
        newest = len(self.store.submissions(1_000))
        some = self.rng.sample(range(1, max(self.model.state) + 2), 2)
        state = self.rng.choice(["ready", "failed", "cancelled", "done"])
        one = self.store.submission(self.rng.randint(1, newest))
        assert one is not None
        return self.rng.choice([
            some, some[0], one, one, f"state:{state}", f"submission:{one.id}", f"submission:{self.rng.choice(NAMES)}",
            f"submission:{one.id} state:{state}", f"submission:{one.id} submission:night",
        ])  # fmt: skip

    def person(self) -> None:
        """One verb, dry and then real: both say what the model says."""
        which, name = self.draw(), self.rng.choice(["cancel", "retry"])
        dry, real = (self.run(name, which, dry_run=dry_run) for dry_run in (True, False))
        assert (dry.eligible, dry.skipped, dry.reasons, dry.goes_on) == (
            real.eligible, real.skipped, real.reasons, real.goes_on), (name, which)  # fmt: skip
        assert (dry.done, real.done) == (0, real.eligible), (name, which)

    def run(self, name: str, which: bulk.Which, *, dry_run: bool) -> BulkReport:
        chosen = bulk.choose(self.store, which)
        jobs: list[Job | None] = list(chosen.jobs)
        make = bulk.Cancel if name == "cancel" else bulk.Retry
        told = self.store.last_event()
        report = bulk.run(make(self.store, POLICY, chosen.submissions), jobs, dry_run=dry_run)
        if dry_run:
            assert self.store.last_event() == told
        else:
            verb = self.model.cancel if name == "cancel" else self.model.retry
            whose = None if chosen.submissions is None else list(chosen.submissions)
            did = Counter(verb(job.id if job else 0, whose) for job in jobs)
            expected = (did["moved"] + did["goes_on"], did["goes_on"], did[""])
            assert (report.done, report.goes_on, report.skipped) == expected, (name, which)
            self.done.update({f"{name} {how}".strip(): n for how, n in did.items()})
        return report

    def check(self) -> None:
        assert self.store.miscounted() == {}
        check_promises(self.store)
        for id_, state in self.model.state.items():
            job = self.scene.job(id_)
            seen = "live" if job.state in LIVE else job.state
            assert ("undeliverable" if job.wait_reason == "undeliverable" else seen) == state
            hanging = {one.id: one.withdrawn_ms is not None for one in self.store.requests(id_)}
            assert hanging == {no: one.withdrawn for no, one in self.model.requests.items() if one.job == id_}
        joined = 0
        for one in self.store.submissions(1_000):
            theirs = [request for request in self.model.requests.values() if request.submission == one.id]
            stand = Counter("cancelled" if each.withdrawn else self.model.state[each.job] for each in theirs)
            pending = stand["live"] + stand["undeliverable"]
            assert (one.requests, one.pending, one.done, one.failed, one.cancelled) == (
                len(theirs), pending, stand["done"], stand["failed"], stand["cancelled"])  # fmt: skip
            assert sum(one.dispositions.values()) == sum(one.states.values()) == one.requests
            joined += one.dispositions["joined"]
        assert self.store.tally().get("joined", 0) == joined


@pytest.mark.parametrize("seed", range(6))
def test_random_cancels_and_retries_do_what_they_say(tmp_path: Path, seed: int) -> None:
    both = Beside(tmp_path / "queue.db", seed)
    both.hand_in()
    for _ in range(STEPS):
        both.rng.choice([both.hand_in, both.work, both.work, both.person, both.person])()
        both.check()
    both.store.close()
    assert both.done.keys() == {"cancel", "cancel moved", "cancel goes_on", "retry", "retry moved"}
