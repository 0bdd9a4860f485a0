"""What the callers, the lanes and the workers know for themselves, and the promises of DESIGN §1 held against it.

The witness never asks the store what should be so: it is told what was acknowledged, sent, delivered and decided, and
after each step it looks at the tables and raises PromiseBroken at the first thing that cannot be.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from millpond.db.database import Database, Transaction
from millpond.rules.effects import Ending, Heard
from millpond.rules.evidence import Absent, Unknown
from millpond.rules.job import Lease, Usage
from millpond.rules.lifecycle import LIVE
from millpond.rules.policy import Policy
from millpond.rules.price import PriceRule
from millpond.rules.router import whole_hold_ms
from millpond.rules.stops import Wanted
from millpond.rules.times import MAX_MS
from millpond.store.persons import Whose
from millpond.testing.simulation.calls import Call, reply_text
from millpond.testing.simulation.glance import Glance


class PromiseBroken(AssertionError):
    """A promise does not hold. The message names it; the trace of the run that led there is added as a note."""


@dataclass(slots=True)
class Ask:
    """One request that was acknowledged."""

    key: str
    fingerprint: str
    newer_than: int = 0
    """It retired an answer, so only a call with a larger number may answer it."""
    withdrawn: bool = False
    answered_by: str | None = None


@dataclass(frozen=True, slots=True)
class Told:
    """Attempts of which somebody was about to write the end, those of them with evidence, and ends that are kept."""

    delivered: frozenset[str]
    outcomes: frozenset[str]
    kept: dict[str, Ending]


@dataclass(frozen=True, slots=True)
class Seen:
    """The queue's tables as they are between two steps."""

    jobs: dict[int, Any]
    requests: dict[int, Any]
    attempts: dict[str, Any]
    artifacts: list[Any]
    replies: dict[str, str]
    living: frozenset[str]
    tally: dict[str, int]
    live: dict[str, Any] = field(default_factory=dict[str, Any])
    """Key -> its live job."""
    in_force: dict[str, Any] = field(default_factory=dict[str, Any])
    """Key -> its artifact in force."""

    def hanging(self, job_id: int, whose: Whose = None) -> list[int]:
        """The requests of a job: everyone's, or those of some submissions."""
        hanging = [row for row in self.requests.values() if row.job_id == job_id]
        return [row.id for row in hanging if whose is None or row.submission_id in whose]


def look(tx: Transaction) -> Seen:
    """Read everything."""
    jobs, artifacts = tx.all("jobs"), tx.all("artifacts")
    return Seen(
        jobs={row.id: row for row in jobs},
        requests={row.id: row for row in tx.all("requests")},
        attempts={row.uid: row for row in tx.all("attempts")},
        artifacts=artifacts,
        replies={row.attempt_uid: row.body for row in tx.all("replies")},
        living=frozenset(row.uuid for row in tx.all("owners") if not row.dead),
        tally={row.name: row.n for row in tx.all("tally")},
        live={row.idempotency_key: row for row in jobs if row.state in LIVE},
        in_force={row.idempotency_key: row for row in artifacts if row.retired_ms is None},
    )


def _can_be_asked(attempt: Any) -> bool:
    """Whether nobody has decided what became of a call that its lane can be asked for."""
    return attempt.outcome == "ambiguous" and attempt.resolution is None and attempt.recall_hold_ms is not None


@lru_cache(1 << 12)  # each is read at each step
def _text(body: str) -> str | None:
    """The text of a stored reply."""
    return json.loads(body).get("text")


class Witness:
    """Everything that must be so, by what was promised."""

    def __init__(self, db: Database, policy: Policy) -> None:
        self._look = Glance(db, look)
        self._policy = policy
        self.asks: dict[int, Ask] = {}
        self.calls: dict[str, Call] = {}
        self.numbers: dict[str, int] = {}
        """Attempt uid -> its place in the order in which ledger rows were acknowledged."""
        self.outcomes: dict[str, str] = {}
        """Attempt uid -> how it ended, by the first evidence that was delivered."""
        self.used: dict[str, Usage] = {}
        """Attempt uid -> what it used, by the same evidence."""
        self.texts: dict[str, str] = {}
        """Attempt uid -> the reply that was delivered."""
        self.owed: str | None = None
        """The attempt whose good reply must be in force after this step."""
        self.kept: dict[str, Ending] = {}
        """Attempt uid -> its end, which somebody has and the queue did not take yet."""
        self._left: set[str] = set()
        """Those of them that were kept while their owner was not given up: whoever does that writes them first."""
        self._asked_ms: dict[str, int] = {}
        self._recallable_ms: dict[str, int] = {}
        """Attempt uid -> until when at least its key is held for its lane to be asked, by the policy alone."""
        self.suspects: set[str] = set()
        """Names whose beats stood still for a lease: others may give them up at any time from then on."""
        self._delivered: set[str] = set()
        self._held_until: dict[str, int] = {}
        self._retired: dict[str, int] = {}
        self._accepted: set[str] = set()
        self.stopped: set[Wanted] = set()
        """What a person has stopped, and nobody has resumed."""
        self.seen = self._look()

    # --- what happens is told here ----------------------------------------------------------------------------------

    def acknowledged(self, request_id: int, key: str, fingerprint: str, disposition: str) -> None:
        """A request got its id. One that was not reused beside an answer in force has retired that answer."""
        retires = disposition != "reused" and key in self.seen.in_force
        if retires:
            self._retired[key] = len(self.numbers)
        if request_id in self.asks:
            raise PromiseBroken(f"request id {request_id} was given twice")
        for row in self.seen.attempts.values():
            may_answer = row.outcome is None or row.listener in self.seen.living
            if row.idempotency_key == key and row.fingerprint != fingerprint and may_answer:
                raise PromiseBroken(
                    f"request {request_id} was taken in under {key}, and {row.uid} does other work for it"
                )
        self.asks[request_id] = Ask(key, fingerprint, len(self.numbers) if retires else 0)

    def withdrawn(self, request_ids: Iterable[int], withdrawn: bool) -> None:
        """A person withdrew requests, or asked for them again."""
        for one in request_ids:
            self.asks[one].withdrawn = withdrawn

    def leased(self, lease: Lease) -> None:
        """A lease was granted: never on a lane that a person has stopped."""
        if self._is_stopped(lease.lane):
            raise PromiseBroken(f"job {lease.job_id} was leased for lane {lease.lane}, which a person has stopped")

    def _is_stopped(self, lane: str) -> bool:
        costs = self._policy.lanes[lane].price.kind != "free"
        return (
            ("all", None) in self.stopped
            or ("lane", lane) in self.stopped
            or (costs and ("paid", None) in self.stopped)
        )

    def recorded(self, uid: str, lease: Lease, lane: str, now_ms: int) -> None:
        """A ledger row was acknowledged, and its call may leave at once.

        Never on a lane that a person has stopped. Only under the job's present lease, never for a key that has its
        answer, never after policy said that the job's last call is not paid again, and never while an earlier call of
        the key may still speak: one whose owner lives, and whose hold, if it has one, is not over; one whose reply its
        owner kept before it was given up, for others to write first; or one that its lane can be asked for and that
        is undecided.
        """
        job, key = self.seen.jobs[lease.job_id], lease.idempotency_key
        if (job.state, job.lease_no) != ("leased", lease.lease_no):
            raise PromiseBroken(f"lease {lease.lease_no} of job {job.id} is over, and recorded call {uid} under it")
        if self._is_stopped(lane):
            raise PromiseBroken(f"call {uid} was recorded on lane {lane}, which a person has stopped")
        if key in self.seen.in_force:
            raise PromiseBroken(f"call {uid} was recorded for key {key}, which has its answer in force")
        for row in self.seen.attempts.values():
            is_heard = row.uid not in self._delivered and now_ms < self._held_until.get(row.uid, now_ms + 1)
            if row.idempotency_key == key and is_heard and row.owner in self.seen.living:
                raise PromiseBroken(f"call {uid} was recorded while {row.uid} of key {key} is listened to")
            if row.idempotency_key == key and row.uid in self._left and row.owner not in self.seen.living:
                raise PromiseBroken(f"call {uid} was recorded before the end of {row.uid} was written, which was kept")
            if row.idempotency_key == key and row.uid not in self._delivered and self._can_tell(row, now_ms):
                raise PromiseBroken(f"call {uid} was recorded while the lane of {row.uid} can still be asked")
            if row.idempotency_key == key and row.fingerprint == lease.fingerprint and _can_be_asked(row):
                raise PromiseBroken(f"call {uid} was recorded while {row.uid}, which its lane knows of, is undecided")
            if row.idempotency_key == key and row.resolution == "fail" and row.seq > job.floor_seq:
                raise PromiseBroken(f"call {uid} was recorded though {row.uid} is not to be paid for again")
        self.numbers[uid] = len(self.numbers) + 1
        asked = self._policy.lane(lane)
        if asked.can_recall:
            self._recallable_ms[uid] = now_ms + whole_hold_ms(asked, self._policy, lease.service_class)

    def _can_tell(self, row: Any, now_ms: int) -> bool:
        """Whether a call did work of which its lane can still be asked: within its hold, and before any due time."""
        call, job = self.calls.get(row.uid), self.seen.jobs[row.job_id]
        until = min(self._recallable_ms.get(row.uid, 0), self._held_until.get(row.uid, MAX_MS), job.due_ms)
        return call is not None and call.memory is not None and now_ms < until

    def sent(self, call: Call, lease: Lease) -> None:
        """A request leaves: once, with a row in the ledger, under the present lease of its job, by a living owner."""
        row = self.seen.attempts.get(call.uid)
        if row is None:
            raise PromiseBroken(f"call {call.uid} left without a row in the ledger")
        if call.uid in self.calls:
            raise PromiseBroken(f"call {call.uid} left twice")
        if row.owner not in self.seen.living:
            raise PromiseBroken(f"call {call.uid} left after its owner {row.owner} was declared dead")
        job = self.seen.jobs[lease.job_id]
        if (job.state, job.lease_no) != ("leased", lease.lease_no):
            raise PromiseBroken(f"call {call.uid} left though job {job.id} is {job.state}, and its lease is over")
        if row.owner in self.suspects:
            raise PromiseBroken(f"call {call.uid} left under the name {row.owner}, which others may have given up")
        self.calls[call.uid] = call

    def held(self, uid: str, until_ms: int) -> None:
        """The call of an attempt is listened to until then, and no longer by its job. A hold is begun once."""
        row = self.seen.attempts[uid]
        if row.outcome in (None, "ambiguous") and row.resolution is None:
            self._held_until[uid] = min(until_ms, self._held_until.get(uid, until_ms))

    def keep(self, uid: str, ending: Ending) -> None:
        """The queue did not take how an attempt ended; who has it keeps it. Others may have written or kept as much."""
        if uid not in (self._delivered if ending.outcome == "ambiguous" else self.outcomes):
            if ending.outcome != "ambiguous" or uid not in self.kept:
                self.kept[uid] = ending
            if self.seen.attempts[uid].owner in self.seen.living:
                self._left.add(uid)

    def delivered(self, uid: str, ending: Ending) -> None:
        """Somebody is about to write how an attempt ended. The first evidence counts; a reply is kept in any case."""
        row, outcome, reply = self.seen.attempts[uid], ending.outcome, ending.evidence.reply
        self._delivered.add(uid)
        self.kept.pop(uid, None)
        self._left.discard(uid)
        if outcome != "ambiguous":
            self.outcomes.setdefault(uid, outcome)
            self.used.setdefault(uid, ending.evidence.usage or Usage())
        if reply is not None:
            self.texts.setdefault(uid, reply.text)
        live = self.seen.live.get(row.idempotency_key)
        counts = (
            self.outcomes.get(uid) == outcome == "ok"
            and uid not in self._accepted
            and row.idempotency_key not in self.seen.in_force
            and self.numbers[uid] > self._retired.get(row.idempotency_key, 0)
            and (live is None or live.fingerprint == row.fingerprint)
        )
        self.owed = uid if counts else None

    def told(self) -> Told:
        """What was told so far of ends that somebody was about to write."""
        return Told(frozenset(self._delivered), frozenset(self.outcomes), dict(self.kept))

    def died(self, before: Told) -> None:
        """Who was about to write ends since `before` died meanwhile: what is not in the ledger was not delivered."""
        self.seen = self._look()
        for uid in (self._delivered | self.outcomes.keys()) - (before.delivered & before.outcomes):
            if self.seen.attempts[uid].outcome == self.outcomes.get(uid, "ambiguous"):
                continue
            if uid not in before.outcomes:
                for told in (self.outcomes, self.used, self.texts):
                    told.pop(uid, None)
            if uid not in before.delivered:
                self._delivered.discard(uid)
            if uid in before.kept:
                self.kept[uid] = before.kept[uid]
        self.owed = None

    def asked(self, uid: str, said: Heard | Absent | Unknown, looked_ms: int) -> None:
        """A lane was asked what became of a call, and said so; by whose clock the hold is judged may be set anew."""
        self._asked_ms[uid] = max(looked_ms, self._asked_ms.get(uid, looked_ms))
        call = self.calls.get(uid)
        if isinstance(said, Absent) and call is not None and call.memory is not None:
            raise PromiseBroken(f"{uid} did its work, and its lane's silence was taken for proof that it did not")

    def decided(self, uid: str) -> None:
        """The policy is about to decide a call of an unknown end: never before its lane, if it can be asked, was."""
        row = self.seen.attempts[uid]
        if self._policy.lane(row.lane).can_recall and self._asked_ms.get(uid, -1) < row.hold_until_ms:
            raise PromiseBroken(f"{uid} was decided before its lane was asked what became of it")

    def spoken(self) -> None:
        """A person may have decided what was unknown: no hold of that counts any more."""
        for row in self.seen.attempts.values():
            if row.resolution in ("pin", "same", "fail"):
                self._held_until[row.uid] = self._recallable_ms[row.uid] = 0

    # --- what must be so --------------------------------------------------------------------------------------------

    def check(self, moved_by: Lease | None = None) -> None:
        """Look again. `moved_by`: the lease under which this step was made."""
        before, self.seen = self.seen, self._look()
        if moved_by is not None:
            self._check_fence(before, moved_by)
        self._check_requests()
        self._check_jobs()
        self._check_ledger()
        self._check_artifacts(before)
        self.owed = None

    def check_end(self) -> None:
        """After the calm: all that was asked is answered, failed or withdrawn, and nothing is left open."""
        for id_, ask in self.asks.items():
            state = self.seen.jobs[self.seen.requests[id_].job_id].state
            if not ask.withdrawn and state not in ("done", "failed"):
                raise PromiseBroken(f"request {id_} ends with its job {state}")
        for uid in self.kept:
            raise PromiseBroken(f"the end of {uid} was kept, and is never written")
        for row in self.seen.attempts.values():
            if row.outcome is None or row.listener is not None:
                raise PromiseBroken(f"attempt {row.uid} stays open, or listened to by {row.listener}, for ever")
            if row.outcome == "ambiguous" and row.resolution is None:
                raise PromiseBroken(f"nobody ever decides what became of {row.uid}")

    def _check_fence(self, before: Seen, lease: Lease) -> None:
        """A lease that is no longer the job's moves nothing: others may only have answered or woken it."""
        was, now = before.jobs[lease.job_id], self.seen.jobs[lease.job_id]
        if (was.state, was.lease_no) == ("leased", lease.lease_no):
            return
        may_be = {(was.state, was.lease_no), ("done", was.lease_no + 1)}
        if was.wait_reason in ("held", "asked"):
            may_be.add(("ready", was.lease_no))
        if was.state in LIVE and (now.state, now.lease_no) in may_be:
            return
        if (now.state, now.lease_no) != (was.state, was.lease_no):
            raise PromiseBroken(
                f"lease {lease.lease_no} of job {now.id} is over (lease {was.lease_no}, {was.state}), and moved it to "
                f"{now.state}"
            )

    def _check_requests(self) -> None:
        seen = self.seen
        for id_, ask in self.asks.items():
            row = seen.requests.get(id_)
            job = seen.jobs.get(row.job_id) if row is not None else None
            if row is None or job is None:
                raise PromiseBroken(f"request {id_} was acknowledged and is lost")
            if (job.idempotency_key, job.fingerprint) != (ask.key, ask.fingerprint):
                raise PromiseBroken(f"request {id_} for {ask.key} hangs on job {job.id} of {job.idempotency_key}")
            if (row.withdrawn_ms is not None) != ask.withdrawn:
                raise PromiseBroken(f"request {id_}: withdrawn is {row.withdrawn_ms}, its caller said {ask.withdrawn}")
            if row.disposition == "reused" and job.state != "done":
                raise PromiseBroken(f"request {id_} was told of an answer, and its job {job.id} is {job.state}")
            if job.state == "done":
                self._check_answer(id_, ask, job)
            elif ask.answered_by is not None:
                raise PromiseBroken(f"request {id_} was answered by {ask.answered_by} and is {job.state} again")

    def _check_answer(self, request_id: int, ask: Ask, job: Any) -> None:
        artifact = next((row for row in self.seen.artifacts if row.id == job.artifact_id), None)
        if artifact is None:
            raise PromiseBroken(f"job {job.id} is done by artifact {job.artifact_id}, which does not exist")
        uid = artifact.attempt_uid
        text = _text(self.seen.replies.get(uid, '{"text":""}'))
        if text != reply_text(uid, ask.fingerprint):
            raise PromiseBroken(f"request {request_id} asked {ask.fingerprint} and is answered {text!r}")
        if self.numbers[uid] <= ask.newer_than:
            raise PromiseBroken(f"request {request_id} wanted a fresh answer and got the older call {uid}")
        if ask.answered_by not in (None, uid):
            raise PromiseBroken(f"request {request_id} was answered by {ask.answered_by}, and now by {uid}")
        ask.answered_by = uid

    def _check_jobs(self) -> None:
        seen, policy = self.seen, self._policy
        asking: Counter[int] = Counter()
        for id_, row in seen.requests.items():
            asking[row.job_id] += not self.asks[id_].withdrawn if id_ in self.asks else row.withdrawn_ms is None
        alive: Counter[str] = Counter()
        for job in seen.jobs.values():
            if job.requests != asking[job.id]:
                raise PromiseBroken(f"job {job.id} counts {job.requests} requests, {asking[job.id]} ask")
            if job.state == "cancelled" and asking[job.id]:
                raise PromiseBroken(f"job {job.id} is cancelled and somebody asks for it")
            if job.leases_lost > policy.max_leases_lost:
                raise PromiseBroken(f"job {job.id} has lost {job.leases_lost} leases")
            if job.attempts_made > policy.max_attempts_per_job + job.attempts_granted:
                raise PromiseBroken(f"job {job.id} has made {job.attempts_made} attempts, above its lifetime cap")
            if job.state not in LIVE:
                continue
            alive[job.idempotency_key] += 1
            if not asking[job.id]:
                raise PromiseBroken(f"job {job.id} is {job.state} and nobody asks for it")
            if job.idempotency_key in seen.in_force:
                raise PromiseBroken(f"job {job.id} is {job.state} beside an artifact in force for its key")
            if job.state == "leased" and job.lease_owner not in seen.living:
                raise PromiseBroken(f"job {job.id} is leased by {job.lease_owner}, which was declared dead")
        _at_most_one(alive, "live jobs")
        counted = Counter(job.state for job in seen.jobs.values())
        counted["held"] = sum(job.wait_reason == "held" for job in seen.jobs.values())
        counted.update(row.disposition for row in seen.requests.values() if row.disposition != "new")
        for name in counted.keys() | seen.tally.keys() - {"granted"}:  # leases, of which no row remains
            if counted[name] != seen.tally.get(name, 0):
                raise PromiseBroken(f"{counted[name]} are {name}, the tally says {seen.tally.get(name, 0)}")

    def _check_ledger(self) -> None:
        seen = self.seen
        still_open = Counter(row.idempotency_key for row in seen.attempts.values() if row.outcome is None)
        _at_most_one(still_open, "open attempts")
        for uid in self.numbers:
            row = seen.attempts.get(uid)
            if row is None:
                raise PromiseBroken(f"attempt {uid} was recorded and is lost from the ledger")
            ended = self.outcomes.get(uid)
            if ended is None and row.outcome not in (None, "ambiguous"):
                raise PromiseBroken(f"attempt {uid} is {row.outcome}, and nobody delivered that")
            if ended is not None and row.outcome != ended:
                raise PromiseBroken(f"evidence was thrown away: {uid} ended {ended}, the ledger says {row.outcome}")
            if (row.outcome is None and row.owner not in seen.living) or row.listener not in {None, *seen.living}:
                whom = row.owner if row.outcome is None else row.listener
                raise PromiseBroken(f"attempt {uid} waits for {whom}, which was declared dead")
            self._check_bill(row)
        for uid, text in self.texts.items():
            if self.outcomes.get(uid) in ("ok", "unusable") and _text(seen.replies.get(uid, "{}")) != text:
                raise PromiseBroken(f"the reply of {uid} was delivered and is not stored")

    def _check_bill(self, row: Any) -> None:
        """Unknown is not zero: tokens and cost are those of the evidence, a marked worst case, or nothing at all."""
        used = self.used.get(row.uid, Usage())
        if (row.tokens_in, row.tokens_out) != (used.tokens_in, used.tokens_out):
            raise PromiseBroken(f"{row.uid} used {used}, the ledger says {row.tokens_in} and {row.tokens_out}")
        price = self._policy.lanes[row.lane].price
        may_be: set[tuple[int | None, int]] = {(None, 0)}
        if row.uid in self.outcomes:
            may_be = {(_bill(used, price) if self.outcomes[row.uid] in ("ok", "unusable") else 0, 0)}
        elif row.resolution is not None:  # the policy books the worst case; a person who retries books nothing
            may_be.add((0, 0) if price.kind == "free" else (row.cost or -1, 1))
        if (row.cost, row.cost_is_estimate) not in may_be:
            what = "an estimate" if row.cost_is_estimate else "no estimate"
            raise PromiseBroken(f"{row.uid} ended {row.outcome}/{row.resolution}, and its cost is {row.cost}, {what}")

    def _check_artifacts(self, before: Seen) -> None:
        _at_most_one(Counter(row.idempotency_key for row in self.seen.artifacts if row.retired_ms is None), "answers")
        gone = {row.id for row in before.artifacts if row.retired_ms is not None}
        for row in self.seen.artifacts:
            uid, key = row.attempt_uid, row.idempotency_key
            if row.id in gone and row.retired_ms is None:
                raise PromiseBroken(f"artifact {row.id} was retired and is in force again")
            if row.retired_ms is None and self._retired.get(key, 0) >= self.numbers[uid]:
                raise PromiseBroken(f"the reply of {uid} is in force for {key}, though newer ones were asked for")
            self._accepted.add(uid)
        twice = Counter(row.attempt_uid for row in self.seen.artifacts)
        _at_most_one(twice, "artifacts of one reply")
        if self.owed is not None:
            key = self.seen.attempts[self.owed].idempotency_key
            answer = self.seen.in_force.get(key)
            if answer is None or answer.attempt_uid != self.owed:
                raise PromiseBroken(f"the good reply of {self.owed} came first for {key} and is not in force")


def _bill(used: Usage, price: PriceRule) -> int | None:
    """Micro-dollars of a call, where a price is USD a million tokens; None if its tokens are not known."""
    if price.kind == "free":
        return 0
    tokens = (used.tokens_in, used.tokens_out)
    prices = (price.input_usd_per_mtok, price.output_usd_per_mtok)
    parts = [n * int(usd) for n, usd in zip(tokens, prices, strict=True) if n is not None and usd is not None]
    return sum(parts) if len(parts) == len(tokens) else None


def _at_most_one(counted: Counter[str], what: str) -> None:
    many = sorted(name for name, n in counted.items() if n > 1)
    if many:
        raise PromiseBroken(f"two {what}: {', '.join(many)}")
