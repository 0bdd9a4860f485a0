"""Why a job is where it is: one sentence, then its attempts with their evidence, its key, its twins, what is next."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from millpond.engine.drain_lock import Holder
from millpond.report.spooled import keeper
from millpond.report.standing import abandoned, elsewhere, stalled, unheard
from millpond.report.status import one_line, stopped_words
from millpond.report.words import number, usd
from millpond.rules.errors import UsageError
from millpond.rules.job import Attempt, Job, OwnerRow
from millpond.rules.outcome import TABLE, TABLE_VERSION, WORKED
from millpond.rules.policy import Policy
from millpond.rules.router import Exhausted, pinned, route_work
from millpond.rules.times import age_words, show_ms, took_words
from millpond.store.bodies import load_work
from millpond.store.lanes import LaneRow
from millpond.store.store import Store

RANK_LIMIT = 10_000
SHOWN_REQUESTS = 10
IF_UNKNOWN = "if its call"


def explain(store: Store, policy: Policy, job_id: int, now_ms: int, drainer: Holder | None) -> str:
    """All that is known about one job, in words. Raises UsageError if there is none of this id."""
    job = store.job(job_id)
    if job is None:
        raise UsageError(f"no job {job_id} in this queue; `millpond jobs` lists them")
    attempts = list(store.attempts(job_id))
    lines = [why(job, attempts, store, policy, now_ms, drainer), ""]
    lines += list(_attempts(job, attempts, now_ms))
    lines += ["", f"key          {job.idempotency_key}", f"fingerprint  {job.fingerprint}"]
    lines += list(_twins(job, store))
    if ahead := _next(job, store, policy):
        lines.append(f"next         {ahead}")
    return "\n".join(lines)


def why(
    job: Job, attempts: Sequence[Attempt], store: Store, policy: Policy, now_ms: int, drainer: Holder | None
) -> str:
    """One sentence: why the job is not running, or what became of it."""
    name = f"job {job.id}"
    match job.state:
        case "done":
            return f"{name} is done: {_answer(job, attempts)}, {show_ms(job.settled_ms or 0)}"
        case "failed":
            return f"{name} failed, {show_ms(job.settled_ms or 0)}: {one_line(job.reason or '')}"
        case "cancelled":
            return f"{name} was cancelled, {show_ms(job.settled_ms or 0)}, by a {job.settled_by or 'person'}"
        case "leased" if (call := _open(attempts)) is not None and (kept := keeper(store, call.uid)) is not None:
            return (
                f"{name} is leased, and attempt {call.attempt_no} on lane {call.lane} is over: how it ended is kept in "
                f"{kept}, and written as soon as the queue takes it"
            )
        case "leased" if job.id in (dead := abandoned(store)):
            return f"{name} is leased, but its worker has died; {_taken_back(dead[job.id], drainer)}"
        case "leased" if (still := next((one for one in stalled(store) if job.id in one.jobs), None)) is not None:
            return f"{name} is leased, but {still.in_words()}: {_under_way(job, attempts, now_ms)}; {still.next}"
        case "leased" if drainer is None and (owner := elsewhere(store).get(job.id)) is not None:
            return (
                f"{name} is leased by pid {owner.pid} on {owner.host}, another machine: "
                f"{_under_way(job, attempts, now_ms)}; if that is gone, a drain takes it back once it has watched for "
                "a lease: millpond drain --until-empty"
            )
        case "leased":
            return f"{name} is being worked on: {_under_way(job, attempts, now_ms)}"
        case "offloaded":
            return f"{name} is in a batch at its provider"
        case "waiting":
            return f"{name} waits: {_waiting(job, attempts, store, now_ms, drainer)}"
        case "ready":
            return f"{name} is ready: {_ready(job, store, policy, now_ms, drainer)}"


def _answer(job: Job, attempts: Sequence[Attempt]) -> str:
    winner = next((one for one in reversed(attempts) if one.artifact_id is not None and one.outcome == "ok"), None)
    if winner is None:
        return "answered by an artifact whose attempt is no longer kept"
    by = f"lane {winner.lane}" + (f" (model {winner.model})" if winner.model else "")
    if winner.job_id != job.id:
        return f"answered by the artifact of job {winner.job_id}, from {by}, without a call of its own"
    return f"answered by {by}, attempt {winner.attempt_no}"


def _open(attempts: Sequence[Attempt]) -> Attempt | None:
    return next((one for one in attempts if one.outcome is None), None)


def _under_way(job: Job, attempts: Sequence[Attempt], now_ms: int) -> str:
    call = _open(attempts)
    if call is None:
        return "leased, and about to be sent" + (f" to lane {job.next_lane}" if job.next_lane else "")
    return f"attempt {call.attempt_no} has been with lane {call.lane} for {age_words(now_ms - call.started_ms)}"


def _taken_back(dead: OwnerRow, drainer: Holder | None) -> str:
    if drainer is not None:
        return f"{drainer} drains and takes it back"
    return f"the next drain takes it back: run `millpond drain` (it was pid {dead.pid})"


def _waiting(job: Job, attempts: Sequence[Attempt], store: Store, now_ms: int, drainer: Holder | None) -> str:
    until = f"until {show_ms(job.not_before_ms)}" if job.not_before_ms is not None else ""
    if job.not_before_ms is not None:
        left = job.not_before_ms - now_ms
        until += f" (in {age_words(left)})" if left > 0 else " (due; the next lease takes it up)"
    match job.wait_reason:
        case "scheduled":
            return f"it was not to start before its time, {until}"
        case "backoff":
            return f"a pause before it is tried again, {until}"
        case "parked":
            return f"parked {until}"
        case "held":
            why = "since the outcome of an earlier call is unknown"
            by = until or _held_by(attempts, store, drainer)
            return f"held {by}".rstrip() + f", {why}{_asked(attempts, now_ms)}"
        case "asked":
            return (
                f"the outcome of a call is unknown and your word is wanted: pay again, or not{_asked(attempts, now_ms)}"
            )
        case "undeliverable":
            return "this program cannot load its command; `millpond retry` once it can"
        case None:
            return until


def _asked(attempts: Sequence[Attempt], now_ms: int) -> str:
    """When the lane of its call is asked what became of it."""
    asked = min((one for one in attempts if one.ask_ms is not None), key=lambda one: one.ask_ms or 0, default=None)
    if asked is None or asked.ask_ms is None:
        return ""
    left = asked.ask_ms - now_ms
    when = f"in {age_words(left)}" if left > 0 else "at the next look"
    return f"; lane {asked.lane} is asked {when} what became of it"


def _held_by(attempts: Sequence[Attempt], store: Store, drainer: Holder | None) -> str:
    listened = next((one for one in attempts if one.listener is not None), None)
    if listened is None:
        return "until the open call of its key ends"
    if (dead := unheard(store).get(listened.uid)) is not None:
        call = f"attempt {listened.attempt_no} on lane {listened.lane}"
        return f"for {call}, but its listener has died; {_taken_back(dead, drainer)}"
    until = f", at most until {show_ms(listened.hold_until_ms)}" if listened.hold_until_ms is not None else ""
    who = next(
        (f" by pid {one.pid} on {one.host}" for one in store.living_owners() if one.uuid == listened.listener), ""
    )
    return f"while attempt {listened.attempt_no} on lane {listened.lane} is still listened to{who}{until}"


def _ready(job: Job, store: Store, policy: Policy, now_ms: int, drainer: Holder | None) -> str:
    lane, free = job.next_lane, policy.free_lanes
    nobody = _stalled(store) if drainer else "; nobody drains this queue: run `millpond drain`"
    is_chosen = lane in policy.lanes  # else only a stop of all lanes says something of it
    stop = next((one for one in store.stops() if one.scope == "all" or (is_chosen and one.is_of(lane, free))), None)
    if stop is not None:  # a drain would do nothing for it
        nobody = f"; {stopped_words(stop)}: `millpond resume{stop.argument}` ends that"
    if not lane:
        return f"its lane is chosen when it is next looked at{nobody}"
    if lane not in policy.lanes:
        return f"the settings have no lane {lane} any more; the next drain routes it again{nobody}"
    rank = store.rank(job, RANK_LIMIT)
    place = (
        f"{_ordinal(rank + 1)} of lane {lane}" if rank < RANK_LIMIT else f"behind {RANK_LIMIT:,} others of lane {lane}"
    )
    if stop is not None:
        return f"{place}{nobody}"
    closed = store.closed_lanes().get(lane)
    if closed is not None:
        if closed.closed_until_ms is None:  # a drain would do nothing for it
            nobody = ""
        elif drainer is None:
            nobody = "; nobody drains this queue: `millpond drain --until-empty` waits for the lane"
        return f"{place}, which is {_closing(closed, now_ms)}{nobody}"
    if not policy.lanes[lane].enabled:
        return f"{place}, which the settings turn off{nobody}"
    if (calls := store.calls_in_flight().get(lane, 0)) >= policy.lanes[lane].width:
        return f"{place}, which has no slot free: {calls:,} of {policy.lanes[lane].width:,} calls are under way{nobody}"
    return f"{place}, which is open{nobody}"


def _stalled(store: Store) -> str:
    """That who drains does nothing, if so."""
    return "".join(f"; {one.in_words()}: {one.next}" for one in stalled(store) if one.standing.owner.role == "drainer")


def _closing(closed: LaneRow, now_ms: int) -> str:
    if closed.closed_until_ms is None:
        return f"closed until a person opens it ({one_line(closed.reason)}): `millpond lanes {closed.lane} resume`"
    left = age_words(closed.closed_until_ms - now_ms)
    return f"closed until {show_ms(closed.closed_until_ms)}, {left} from now ({one_line(closed.reason)})"


def _attempts(job: Job, attempts: Sequence[Attempt], now_ms: int) -> Iterator[str]:
    if not attempts:
        yield "no attempts yet" if job.settled_ms is None else "no attempts: no call was made for it"
        return
    yield f"attempts (outcomes by version {TABLE_VERSION} of the table of outcomes)"
    for one in attempts:
        yield from _attempt(job, one, now_ms)


_BY_EVIDENCE = {"late": "came late", "recalled": "recalled from its lane", "absent": "not known to its lane"}
"""Resolutions that are no decision."""


def _attempt(job: Job, one: Attempt, now_ms: int) -> Iterator[str]:
    took = took_words((one.ended_ms if one.ended_ms is not None else now_ms) - one.started_ms)
    whose = f" (job {one.job_id})" if one.job_id != job.id else ""
    ended = one.outcome or "open"
    code = f" ({one.code})" if one.code and one.code != one.outcome else ""
    decided = f", {_BY_EVIDENCE.get(one.resolution, f'decided: {one.resolution}')}" if one.resolution else ""
    yield f"  {one.attempt_no}{whose}  {one.lane}  {ended}{code}{decided}  {show_ms(one.started_ms)}, {took}"
    evidence = [
        f"sent {one.sent}" if one.sent else "",
        f"status {one.status}" if one.status is not None else "",
        f"retry-after {one.retry_after}" if one.retry_after else "",
        f"request {one.request_id}" if one.request_id else "",
        f"model {one.model}" if one.model else "",
        f"tokens {number(one.tokens_in)} in, {number(one.tokens_out)} out" if one.outcome in WORKED else "",
        _cost(one),
    ]
    yield "     " + "  ".join(part for part in evidence if part)
    if one.message:
        yield f"     {one_line(one.message)}"
    if one.unasked:
        yield f"     lane {one.lane} could not be asked what became of it: {one_line(one.unasked)}"
    if rule := _rule(one):
        yield f"     {rule}"


def _cost(one: Attempt) -> str:
    if one.outcome is None:
        return "cost not known yet"
    return f"cost {usd(one.cost)}" + (" (estimated, the worst case)" if one.cost_is_estimate else "")


def _rule(one: Attempt) -> str:
    """The words of the row that decided; of all that may have, where the code alone does not tell them apart."""
    rows = [row for row in TABLE if row.code == one.code and row.outcome == one.outcome]
    if one.outcome in (None, "ok") or not rows:
        return ""
    if len(rows) > 1:
        return "table row: one of " + ", ".join(row.name for row in rows)
    return f"table row {rows[0].name}: {rows[0].when}: {rows[0].why}"


def _twins(job: Job, store: Store) -> Iterator[str]:
    requests = store.requests(job.id, SHOWN_REQUESTS)
    total = store.requests_of_job(job.id) if len(requests) == SHOWN_REQUESTS else len(requests)
    yield f"requests     {total:,} {_whose(job, total)}"
    for one in requests:
        custom = f" custom_id {one.custom_id}" if one.custom_id else ""
        withdrawn = ", withdrawn" if one.withdrawn_ms is not None else ""
        where = f"submission {one.submission_id}, position {one.position}"
        yield f"  request {one.id}: {where}{custom}, {one.disposition}{withdrawn}"
    if total > len(requests):
        yield f"  and {total - len(requests):,} more"


def _whose(job: Job, requests: int) -> str:
    match job.state:
        case "done":
            return "answered by this job"
        case "failed" | "cancelled":
            return f"{job.state} with this job"
        case _:
            return f"{'waits' if requests == 1 else 'wait'} for this job"


def _next(job: Job, store: Store, policy: Policy) -> str:
    match job.state:
        case "done":
            return "nothing; the same work asked again is answered by this artifact"
        case "failed" if (job.reason or "").startswith("unfit:"):
            return f"nothing; once a lane can serve it, ask again: millpond retry {job.id}"
        case "failed" | "cancelled" if _answer_in_force(job, store):
            return f"its key has an answer by now: `millpond retry {job.id}` takes it, without a call"
        case "failed" | "cancelled" if store.is_undecided(job.id):
            return (
                "its call may still be heard of; once that is over, a drain or `millpond reconcile` decides what it "
                f"may have cost. To ask again: millpond retry {job.id}"
            )
        case "failed" | "cancelled":
            return f"nothing, unless you ask again: millpond retry {job.id}"
        case "leased" if job.id in abandoned(store):
            return "the next drain takes it back; a call that was open then is of unknown outcome"
        case "leased" | "offloaded":
            return "its call ends, and the outcome decides"
        case "waiting" if job.wait_reason == "asked":
            choices, pays = _choices(job, store, policy)
            return f"nothing without you: `millpond decide {job.id} {choices}`: {pays}"
        case "waiting" if job.wait_reason == "undeliverable":
            return f"nothing without you: `millpond retry {job.id}` once a program can load its command"
        case _:
            pass
    ahead = _ahead(job, store, policy)
    if job.wait_reason == "held" and not ahead.startswith(IF_UNKNOWN):
        ahead = f"{IF_UNKNOWN} stays unknown, {ahead}"
    if job.wait_reason != "held":
        return ahead
    return f"{ahead}; `millpond decide {job.id} {_choices(job, store, policy)[0]}` decides now"


def _choices(job: Job, store: Store, policy: Policy) -> tuple[str, str]:
    """What a person may decide of a job's unknown calls, and what each means. A pin that leads nowhere is refused."""
    body = store.payload(job.id)
    route, wish, past = store.routing(job.id)
    step = route_work(load_work(body), route, wish, pinned(past), policy) if body is not None else Exhausted("")
    rest = "same on the same lane, fail does not"
    if isinstance(step, Exhausted):
        return "same|fail", f"same pays again {rest.removeprefix('same ')}; no lane is left to pin it to"
    return "pin|same|fail", f"pin pays again on lane {step.lane}, {rest}"


def _answer_in_force(job: Job, store: Store) -> bool:
    """Whether a reply that came late, or another job's, answers whoever asks for this job again."""
    artifact = store.artifact(job.idempotency_key)
    return artifact is not None and artifact.fingerprint == job.fingerprint


def _ahead(job: Job, store: Store, policy: Policy) -> str:
    """What the policy has in mind for a job that is not over."""
    body = store.payload(job.id)
    if body is None:
        return "its work is no longer kept"
    route, wish, past = store.routing(job.id)
    for one in past.undecided:
        if policy.after_hold(one.lane) == "ask":
            return f"{IF_UNKNOWN} on lane {one.lane} stays unknown, you are asked whether to pay again"
        if policy.after_hold(one.lane) == "fail":
            return f"{IF_UNKNOWN} on lane {one.lane} stays unknown, it fails: the policy does not pay again"
    step = route_work(load_work(body), route, wish, past, policy)
    if isinstance(step, Exhausted):
        return f"it fails: {step.reason}"
    lane = policy.lanes.get(step.lane)
    if lane is None or not lane.enabled:
        return f"it waits for lane {step.lane}, which the settings {'do not have' if lane is None else 'turn off'}"
    return f"attempt {step.tries + 1} of {lane.max_attempts} on lane {step.lane}"


def _ordinal(n: int) -> str:
    ending = "th" if n % 100 in (11, 12, 13) else {1: "st", 2: "nd", 3: "rd"}.get(n % 10, "th")
    return f"{n:,}{ending}"
