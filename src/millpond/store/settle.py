"""How an attempt ends, and what its reply becomes. Ends are written by uid, artifacts by key; only moves are fenced."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from millpond.db.database import Transaction
from millpond.rules.effects import UNROUTED, Charge, Ending, EvidenceBy, Then
from millpond.rules.errors import UsageError
from millpond.rules.price import Cost, to_micro
from millpond.rules.recall import UNSTORABLE
from millpond.rules.verdict import Worst
from millpond.store.accounts import owed
from millpond.store.bodies import dump_reply, dump_seen, storable
from millpond.store.holds import blocking, hold_end_ms, left_at_ms, unheard_until_ms, wake_key
from millpond.store.lanes import close_lane
from millpond.store.moves import Fence, move, note


@dataclass(frozen=True, slots=True)
class Settled:
    """What a settlement did. `requests` is how many requests the accepted reply answered at once."""

    accepted: bool
    moved: bool
    requests: int = 0
    job_id: int | None = None
    charge: Charge | None = None
    """What is now to be posted of the attempt, if anything is."""
    is_news: bool = True
    """Whether it said of the attempt what the ledger did not: False where that had ended on evidence before."""


def settle(
    tx: Transaction,
    uid: str,
    ending: Ending,
    then: Then,
    *,
    lane: str,
    job: Fence | None,
    how: EvidenceBy = "late",
    now_ms: int,
) -> Settled:
    """End an attempt on evidence; may be repeated. `job` is the lease in hand, None once the call was detached.

    `lane` "" is the attempt's own, where nobody could ask for it. `how` the evidence came is kept of an attempt whose
    end was unknown before. A job that would go on after an end that is unknown still is held instead while the lane can
    be asked.

    In this order, in one transaction: the attempt's end and usage, the reply, the artifact, the job's own move, the
    lane's closing, the wake of whatever waited for this key. Raises UsageError for an attempt that the ledger does not
    have.
    """
    attempt = tx.one("attempt_by_uid", uid=uid)
    if attempt is None:
        raise UsageError(f"attempt {uid!r} is not in the ledger; attempts are named by what record returned")
    is_news = True
    if ending.outcome == "ambiguous":
        _end_unknown(tx, attempt, ending, now_ms)
    elif not (is_news := _end_known(tx, attempt, ending, how, now_ms)) and attempt.outcome != ending.outcome:
        # It ended otherwise, on evidence, and nothing replaces evidence. What came is kept, and decides nothing: a job
        # that still waits for it goes on by what the ledger says.
        if job is not None:
            _follow(tx, job, Then("release", next_lane=UNROUTED), now_ms)
        if ending.evidence.reply is not None:
            tx.all("insert_reply", uid=uid, body=dump_reply(ending.evidence.reply))
        return Settled(accepted=False, moved=False, charge=owed(tx, uid), is_news=False)
    evidence, lane = ending.evidence, lane or attempt.lane
    if evidence.reply is not None and ending.outcome in ("ok", "unusable"):
        tx.all("insert_reply", uid=uid, body=dump_reply(evidence.reply))
    settled = Settled(accepted=False, moved=False)
    if ending.outcome == "ok":
        settled = accept(tx, attempt, lane, now_ms)
    if ending.outcome == "ok" and job is not None and not settled.accepted:
        _follow(tx, job, Then("release"), now_ms)  # kept, not in force: whatever is in force answers the job at record
    if job is not None and ending.outcome == "ambiguous" and then.move in ("release", "back_off"):
        if blocked := blocking(tx, attempt.idempotency_key, now_ms):
            moved = move(tx, job, "hold", now_ms, not_before_ms=hold_end_ms(blocked))
        else:
            moved = _follow(tx, job, then, now_ms)
        settled = replace(settled, moved=moved)
    elif job is not None and then.move is not None:
        settled = replace(settled, moved=_follow(tx, job, then, now_ms))
    if ending.closing is not None:
        close_lane(tx, lane, ending.closing, now_ms)
    wake_key(tx, attempt.idempotency_key, now_ms, then.delay_ms)
    return replace(settled, charge=owed(tx, uid), is_news=is_news)


def settle_late(
    tx: Transaction,
    uid: str,
    ending: Ending,
    then: Then,
    *,
    lane: str,
    job: Fence | None,
    how: EvidenceBy = "late",
    now_ms: int,
) -> Settled | None:
    """Write an end that was kept elsewhere while the store took nothing. None: it is written already.

    It may have been written just before its process died, and a person may have opened since a lane that it closed:
    what is written is left as it is. Raises as `settle`.
    """
    attempt = tx.one("attempt_by_uid", uid=uid)
    if attempt is not None and attempt.outcome == ending.outcome:
        return None
    return settle(tx, uid, ending, then, lane=lane, job=job, how=how, now_ms=now_ms)


def accept(tx: Transaction, attempt: Any, lane: str, now_ms: int) -> Settled:
    """Put a reply in force for its key, unfenced: first in force wins, and the live job of the key becomes done.

    A loser, a reply whose attempt began before the key's last retirement (by seq, not clock), one that was in force
    before, and one of other work than the live job's are stored and never put in force.
    """
    key = attempt.idempotency_key
    seen = tx.one("accept_check", key=key, uid=attempt.uid, seq=attempt.seq)
    assert seen is not None
    job = tx.one("live_job", key=key)
    other_work = job is not None and job.fingerprint != attempt.fingerprint
    if seen.was_accepted:
        return Settled(accepted=False, moved=False)
    if seen.in_force is not None or seen.older_than_retirement or other_work:
        note(tx, now_ms, "reply_kept", job_id=attempt.job_id, data={"attempt": attempt.uid, "lane": lane})
        return Settled(accepted=False, moved=False)
    artifact = tx.one("insert_artifact", key=key, fingerprint=attempt.fingerprint, uid=attempt.uid, now_ms=now_ms)
    assert artifact is not None
    tx.all("mark_winner", uid=attempt.uid, artifact_id=artifact.id)
    if job is None:  # cancelled or failed stays so; the artifact serves the next request
        note(tx, now_ms, "accept", job_id=attempt.job_id, data={"attempt": attempt.uid, "artifact_id": artifact.id})
        return Settled(accepted=True, moved=False)
    data = {"attempt": attempt.uid, "lane": lane}
    move(tx, job, "answer", now_ms, artifact_id=artifact.id, by=lane, data=data)
    return Settled(accepted=True, moved=True, requests=job.requests, job_id=job.id)


def detach(tx: Transaction, uid: str, *, job: Fence, hold_ms: int, now_ms: int) -> bool:
    """Soft timeout: the attempt is ambiguous and its owner listens on; the job is held, or freed if there is no hold.

    An owner that was declared dead counts as no listener, so there is no hold either, unless the lane can be asked.
    Returns whether the job was still ours to move.
    """
    attempt = tx.one("attempt_by_uid", uid=uid)
    assert attempt is not None, f"attempt {uid} vanished while its call was in flight"
    listens = hold_ms > 0 and _lives(tx, attempt.owner)
    # A cancelled job's call has its hold already. One that is over may be being decided: it is not begun again.
    unheard_ms = left_at_ms(attempt, now_ms) if attempt.outcome == "ambiguous" else unheard_until_ms(attempt, now_ms)
    is_open = (attempt.outcome is None or not listens) and make_ambiguous(
        tx,
        uid,
        now_ms,
        hold_until_ms=now_ms + hold_ms if listens else unheard_ms,
        listener=attempt.owner if listens else None,
        code="soft_timeout",
    )
    if listens and is_open:  # an attempt that has ended meanwhile wakes nobody any more
        return move(tx, job, "hold", now_ms)
    if blocked := blocking(tx, attempt.idempotency_key, now_ms):
        return move(tx, job, "hold", now_ms, not_before_ms=hold_end_ms(blocked))
    moved = move(tx, job, "release", now_ms, next_lane="")
    wake_key(tx, attempt.idempotency_key, now_ms)
    return moved


def stop_listening(tx: Transaction, uid: str, now_ms: int) -> None:
    """The listener's own clock ended the hold: nothing more holds the key. Its lane may be asked a last time."""
    attempt = tx.one("attempt_by_uid", uid=uid)
    if attempt is not None and attempt.listener is not None:
        tx.all("stop_listening", uid=uid, listener=attempt.listener, hold_until_ms=now_ms, now_ms=now_ms)
        wake_key(tx, attempt.idempotency_key, now_ms)


Bill = Callable[[Any, str, int], Worst]
"""Work, the name of a lane, now -> the most that a call of it there can have cost."""


def unpriced(_work: Any, _lane: str, _now_ms: int) -> Worst:
    """The bill of somebody who knows no prices."""
    return Worst()


def resolve(tx: Transaction, uid: str, choice: str, *, worst: Cost | None, certain: bool, now_ms: int) -> Charge | None:
    """Policy or a person decides an ambiguous attempt; its worst case is booked as an estimate until evidence comes.

    `certain`: the lane's price is stated as 0, so the worst case is no estimate. Deciding twice changes nothing.
    Returns what is to be posted of it.
    """
    cost = to_micro(worst.usd) if worst is not None else None
    estimate = int(cost is not None and not certain)
    if tx.one("resolve_attempt", uid=uid, resolution=choice, cost=cost, is_estimate=estimate) is not None:
        attempt = tx.one("attempt_by_uid", uid=uid)
        assert attempt is not None
        note(tx, now_ms, "resolve", job_id=attempt.job_id, data={"attempt": uid, "choice": choice})
        wake_key(tx, attempt.idempotency_key, now_ms)
    return owed(tx, uid)


def give(tx: Transaction, job: Fence, then: Then, now_ms: int) -> bool:
    """Give a leased job back, or fail it, without a call. False: the fence held."""
    return _follow(tx, job, then, now_ms)


def make_ambiguous(
    tx: Transaction,
    uid: str,
    now_ms: int,
    *,
    hold_until_ms: int,
    listener: str | None = None,
    code: str | None,
    ending: Ending | None = None,
) -> bool:
    """An attempt's end is unknown: keep what was seen, and until when evidence may still come.

    False if it has ended on evidence, or was decided, before.
    """
    evidence = ending.evidence if ending else None
    usage = evidence.usage if evidence else None
    marked = tx.one(
        "make_ambiguous",
        uid=uid,
        now_ms=now_ms,
        hold_until_ms=hold_until_ms,
        listener=listener,
        code=code,
        message=storable(ending.classified.message) if ending else None,
        sent=evidence.sent if evidence else None,
        status=evidence.status if evidence else None,
        first_byte_ms=evidence.first_byte_ms if evidence else None,
        request_id=storable(evidence.request_id) if evidence else None,
        tokens_in=usage.tokens_in if usage else None,
        tokens_out=usage.tokens_out if usage else None,
        usage=dump_seen(usage.raw) if usage and usage.raw else None,
    )
    return marked is not None


def _end_unknown(tx: Transaction, attempt: Any, ending: Ending, now_ms: int) -> None:
    """Nobody reads the socket any more: the hold is over at once, unless the lane can be asked."""
    code = storable(ending.classified.code)
    if code == UNSTORABLE:
        tx.all("ask_no_more", uid=attempt.uid)
        attempt = attempt._replace(recall_hold_ms=None)
    hold_until_ms = unheard_until_ms(attempt, now_ms)
    if attempt.outcome == "ambiguous":  # a hold is begun once
        hold_until_ms = left_at_ms(attempt, now_ms)
    if make_ambiguous(tx, attempt.uid, now_ms, hold_until_ms=hold_until_ms, code=code, ending=ending):
        note(tx, now_ms, "ambiguous", job_id=attempt.job_id, data={"attempt": attempt.uid, "code": code})


def _end_known(tx: Transaction, attempt: Any, ending: Ending, how: EvidenceBy, now_ms: int) -> bool:
    """Write the end; False if the attempt had ended on evidence before."""
    evidence, classified, cost = ending.evidence, ending.classified, ending.cost
    usage = evidence.usage or (evidence.reply.usage if evidence.reply else None)
    ended = tx.one(
        "end_attempt",
        uid=attempt.uid,
        now_ms=now_ms,
        outcome=ending.outcome,
        resolution=how if attempt.outcome == "ambiguous" else None,
        code=storable(classified.code),
        message=storable(classified.message or classified.warning or None),
        sent=evidence.sent if how != "absent" else None,  # what was seen of it before stays
        status=evidence.status,
        retry_after=storable(evidence.headers.get("retry-after-ms") or evidence.headers.get("retry-after")),
        first_byte_ms=evidence.first_byte_ms,
        request_id=storable(evidence.request_id),
        model=storable(evidence.model),
        tokens_in=usage.tokens_in if usage else None,
        tokens_out=usage.tokens_out if usage else None,
        usage=dump_seen(usage.raw) if usage and usage.raw else None,
        cost=to_micro(cost.usd) if cost is not None else None,
        price_version=cost.version if cost is not None else None,
    )
    if ended is not None:
        data = {"attempt": attempt.uid, "outcome": ending.outcome, "code": classified.code}
        note(tx, now_ms, "end", job_id=attempt.job_id, data=data)
    return ended is not None


def _follow(tx: Transaction, job: Fence, then: Then, now_ms: int) -> bool:
    """Move a job as was decided. A person is asked only while something is undecided: it may have ended meanwhile."""
    if then.move == "ask" and tx.one("undecided_of_job", job_id=job.id) is None:
        then = Then("release", next_lane=UNROUTED)
    assert then.move is not None
    return move(
        tx,
        job,
        then.move,
        now_ms,
        not_before_ms=now_ms + then.delay_ms if then.delay_ms is not None else None,
        next_lane=then.next_lane,
        reason=then.reason,
        by="policy",
        uncounted=then.uncounted,
    )


def _lives(tx: Transaction, owner: str) -> bool:
    return tx.one("owner_lives", owner=owner) is not None
