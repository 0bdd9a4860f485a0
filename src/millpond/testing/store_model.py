"""A queue in dicts: what the store's verbs mean, without SQL, chunks, events or durability. It has one lane.

Each verb says what the store's verb of that name must answer, and leaves the model as the store must then be.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from millpond.rules.lifecycle import LIVE

MAX_LEASES_LOST = 2
"""How often a worker may die with a job before the job fails."""


@dataclass
class ModelJob:
    """A job: its key, what stands for its work, and what the verbs have made of it."""

    key: str
    work: str
    state: str = "ready"
    why: str | None = None
    not_before: int | None = None
    priority: int = 0
    lease_no: int = 0
    owner: str | None = None
    made: int = 0
    lost: int = 0
    answer: str | None = None
    requests: dict[int, bool] = field(default_factory=dict[int, bool])
    """Request id -> whether it still asks."""

    def go(self, state: str, why: str | None = None, not_before: int | None = None) -> bool:
        """Move, and leave whoever held it. Always True."""
        self.state, self.why, self.not_before, self.owner = state, why, not_before, None
        return True


@dataclass
class ModelAttempt:
    """A row of the ledger."""

    key: str
    work: str
    seq: int
    job: int
    owner: str
    outcome: str | None = None
    resolution: str | None = None
    listener: str | None = None

    @property
    def undecided(self) -> bool:
        """Whether its end is unknown and neither policy nor person has spoken."""
        return self.outcome == "ambiguous" and self.resolution is None


class Model:
    """The whole queue. Jobs by id, attempts by uid; `in_force`: key -> the uid whose reply is."""

    def __init__(self) -> None:
        self.jobs: dict[int, ModelJob] = {}
        self.attempts: dict[str, ModelAttempt] = {}
        self.in_force: dict[str, str] = {}
        self.retired: dict[str, int] = {}
        self.accepted: set[str] = set()
        self.dead: set[str] = set()

    # --- what stands under a key --------------------------------------------------------------------------------------

    def live(self, key: str) -> ModelJob | None:
        return next((job for job in self.jobs.values() if job.key == key and job.state in LIVE), None)

    def blocked(self, key: str) -> bool:
        return any(t.key == key and self.speaks(t) for t in self.attempts.values())

    def named(self, key: str) -> str | None:
        if job := self.live(key):
            return job.work
        if key in self.in_force:
            return self.attempts[self.in_force[key]].work
        return next((t.work for t in self.attempts.values() if t.key == key and self.speaks(t)), None)

    @staticmethod
    def speaks(attempt: ModelAttempt) -> bool:
        """Whether evidence of it can still come: it is open, or its end is unknown and somebody listens."""
        return attempt.outcome is None or (attempt.undecided and attempt.listener is not None)

    def unknown(self, key: str) -> bool:
        """Whether a word is wanted on some call of a key."""
        return any(it.key == key and it.undecided for it in self.attempts.values())

    def follow(self, job: ModelJob, state: str, why: str | None, not_before: int | None) -> bool:
        """Do as was decided; nobody is asked where nothing is unknown any more."""
        return job.go("ready") if why == "asked" and not self.unknown(job.key) else job.go(state, why, not_before)

    def wake(self, key: str, pause_until: int | None = None) -> None:
        wakes = ("held",) if self.unknown(key) else ("held", "asked")
        if (job := self.live(key)) and job.why in wakes and not self.blocked(key):
            job.go("ready") if pause_until is None else job.go("waiting", "backoff", pause_until)

    def lost(self, job_id: int, lease_no: int, owner: str) -> bool:
        job = self.jobs[job_id]
        return job.state != "leased" or job.lease_no != lease_no or owner in self.dead

    # --- the verbs ----------------------------------------------------------------------------------------------------

    def ask(self, key: str, work: str, fresh: bool, priority: int, start: int, now: int) -> str:
        if self.named(key) not in (None, work):
            return "conflict"
        if fresh and key in self.in_force:
            del self.in_force[key]
            self.retired[key] = len(self.attempts)
        if key in self.in_force:
            return "reused"
        job = self.live(key)
        if job is None:
            return "new"
        job.priority = max(job.priority, priority)
        if job.why == "scheduled" and job.not_before is not None and start < job.not_before:
            job.go("ready") if start <= now else job.go("waiting", "scheduled", start)
        return "joined"

    def hang(self, job_id: int, request_id: int, said: str, new: ModelJob, start: int, now: int) -> None:
        if job_id not in self.jobs:
            self.jobs[job_id] = new
            if said == "reused":
                new.go("done")
                new.answer = self.in_force[new.key]
            elif start > now:
                new.go("waiting", "scheduled", start)
            elif self.blocked(new.key):
                new.go("waiting", "held")
        self.jobs[job_id].requests[request_id] = True

    def lease(self, owner: str, limit: int, now: int) -> list[int]:
        for job in self.jobs.values():
            if job.not_before is not None and job.not_before <= now:
                job.go("ready")
        ready = sorted((-job.priority, id_) for id_, job in self.jobs.items() if job.state == "ready")
        for _, id_ in ready[:limit]:
            self.jobs[id_].go("leased")
            self.jobs[id_].owner = owner
            self.jobs[id_].lease_no += 1
        return [id_ for _, id_ in ready[:limit]]

    def record(self, uid: str, job_id: int, owner: str) -> bool:
        job = self.jobs[job_id]
        if self.blocked(job.key):
            return not job.go("waiting", "held")
        job.made += 1
        self.attempts[uid] = ModelAttempt(job.key, job.work, len(self.attempts) + 1, job_id, owner)
        return True

    def accept(self, uid: str) -> bool:
        it = self.attempts[uid]
        job = self.live(it.key)
        if uid in self.accepted or it.key in self.in_force or self.retired.get(it.key, 0) >= it.seq:
            return False
        if job is not None and job.work != it.work:
            return False
        self.in_force[it.key] = uid
        self.accepted.add(uid)
        if job is not None:
            job.lease_no += 1
            job.answer = uid
            job.go("done")
        return True

    def settle(
        self, uid: str, outcome: str, then: tuple[str, str | None, int | None] | None, lease_no: int | None
    ) -> bool:
        it = self.attempts[uid]
        job = self.jobs[it.job]
        if outcome == "ambiguous":
            self.lose_sight(it, None)
        elif it.outcome in (None, "ambiguous"):
            it.resolution = "late" if it.outcome else None
            it.outcome, it.listener = outcome, None
        elif it.outcome != outcome:
            if job.state == "leased" and job.lease_no == lease_no:
                job.go("ready")
            return False
        accepted = outcome == "ok" and self.accept(uid)
        if then is not None and job.state == "leased" and job.lease_no == lease_no:
            self.follow(job, *then)
        self.wake(it.key, then[2] if then is not None else None)
        return accepted

    def lose_sight(self, it: ModelAttempt, listener: str | None) -> bool:
        if it.outcome is not None and not it.undecided:
            return False
        it.outcome, it.listener = "ambiguous", listener
        return True

    def detach(self, uid: str, lease_no: int, hold_ms: int) -> bool:
        it = self.attempts[uid]
        listens = hold_ms > 0 and it.owner not in self.dead
        held = (it.outcome is None or not listens) and self.lose_sight(it, it.owner if listens else None) and listens
        job = self.jobs[it.job]
        ours = job.state == "leased" and job.lease_no == lease_no
        if ours:
            job.go("waiting", "held") if held or self.blocked(it.key) else job.go("ready")
        self.wake(it.key)
        return ours

    def stop_listening(self, uid: str) -> None:
        if self.attempts[uid].listener:
            self.attempts[uid].listener = None
            self.wake(self.attempts[uid].key)

    def resolve(self, uid: str, choice: str) -> None:
        it = self.attempts[uid]
        if it.undecided:
            it.resolution, it.listener = choice, None
            self.wake(it.key)

    def cancel(self, job_id: int, whose: Collection[int], hold_ms: int) -> tuple[bool, bool]:
        """Withdraw those of these requests that hang on a job. Whether anything was, and whether the job goes on."""
        job = self.jobs[job_id]
        asking = [id_ for id_, asks in job.requests.items() if asks and id_ in whose]
        if job.state not in LIVE or not asking:
            return False, False
        job.requests |= dict.fromkeys(asking, False)
        if any(job.requests.values()):
            return True, True
        job.lease_no += 1
        job.go("cancelled")
        for it in self.attempts.values():
            if it.job == job_id and it.outcome is None:
                self.lose_sight(it, it.owner if hold_ms and it.owner not in self.dead else None)
        return True, False

    def retry(self, job_id: int, whose: Collection[int], *, for_all: bool) -> bool:
        job, live = self.jobs[job_id], self.live(self.jobs[job_id].key)
        meant = dict.fromkeys((id_ for id_ in job.requests if id_ in whose), True)
        if job.state not in ("failed", "cancelled"):
            if for_all or all(job.requests[id_] for id_ in meant):
                return False
            job.requests |= meant
            return True
        blockers = [t.work for t in self.attempts.values() if t.key == job.key and self.speaks(t)]
        answer = self.in_force.get(job.key)
        works = {*blockers, *([live.work] if live else []), *([self.attempts[answer].work] if answer else [])}
        if not meant or works - {job.work}:
            return False
        job.requests |= meant
        if live is not None:
            live.requests |= job.requests
            job.requests = {}
            return True
        if answer is not None:
            job.answer = answer
            return job.go("done")
        job.lost = 0
        if blockers:
            return job.go("waiting", "held")
        for attempt in self.attempts.values():
            if attempt.key == job.key and attempt.undecided:
                attempt.resolution = "same"
        return job.go("ready")

    def reclaim(self, owner: str) -> None:
        if owner in self.dead:
            return
        self.dead.add(owner)
        sent = {t.job for t in self.attempts.values() if t.owner == owner and t.outcome is None}
        touched: set[str] = set()
        for it in self.attempts.values():
            if it.owner == owner and it.outcome is None:
                self.lose_sight(it, None)
                touched.add(it.key)
            if it.listener == owner:
                it.listener = None
                touched.add(it.key)
        for id_, job in self.jobs.items():
            if job.state == "leased" and job.owner == owner:
                job.lost += id_ not in sent
                if self.blocked(job.key):
                    job.go("waiting", "held")
                else:
                    job.go("failed" if id_ not in sent and job.lost >= MAX_LEASES_LOST else "ready")
        for key in touched:
            self.wake(key)
