"""An ending that is to be written: all that settle needs, as a value, and as bytes for whoever may have to write it."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from decimal import Decimal
from functools import partial
from typing import Any

from millpond.db.database import Transaction
from millpond.rules import recall
from millpond.rules.admission import Closing
from millpond.rules.effects import UNROUTED, Ending, EvidenceBy, Heard, Then
from millpond.rules.evidence import Evidence
from millpond.rules.job import Usage
from millpond.rules.outcome import Classified
from millpond.rules.policy import LanePolicy, Policy
from millpond.rules.price import Cost
from millpond.rules.verdict import end
from millpond.store import settle
from millpond.store.bodies import dump, dump_reply, dump_seen, load_reply
from millpond.store.moves import Fence

FORMAT = 1
"""Of the bytes. A version that does not know it leaves the entry for one that does."""

UNSTORABLE = (ValueError, TypeError, OverflowError, RecursionError)
"""What is raised for something that no column and no JSON can hold: only what a handler made up can be so."""


@dataclass(frozen=True, slots=True)
class Kept:
    """How an attempt ended and what becomes of its job. `job` is the lease in hand; None: only listened to, or late."""

    uid: str
    lane: str
    ending: Ending
    then: Then
    job: Fence | None
    at_ms: int
    """When the call ended."""
    how: EvidenceBy = "late"


def without_its_reply(kept: Kept, problem: Exception, lane: LanePolicy, policy: Policy) -> Kept:
    """The same where the store can never hold what the lane brought.

    The work was done, and nobody can have its answer: the attempt is ambiguous, and says why. Nothing more is to come
    of it, so it holds nobody.
    """
    words = f"its reply could not be stored: {type(problem).__name__}: {problem}"
    seen = Evidence(sent="yes", said="ambiguous", code=recall.UNSTORABLE, failure="exception", message=words)
    ending = end(Heard(seen, kept.at_ms, 0.0), lane, policy)
    then = Then("release", next_lane=UNROUTED) if kept.job is not None else kept.then
    return replace(kept, ending=ending, then=then)


async def settle_kept(
    kept: Kept,
    write: Callable[[Callable[[Transaction], settle.Settled]], Awaitable[settle.Settled]],
    policy: Policy,
    now_ms: int,
) -> tuple[Kept, settle.Settled]:
    """Settle it, without its reply where that cannot be stored; what was written. Raises what `write` refuses."""
    try:
        return kept, await write(_settling(kept, now_ms))
    except UNSTORABLE as problem:
        kept = without_its_reply(kept, problem, policy.lane(kept.lane), policy)
        return kept, await write(_settling(kept, now_ms))


def _settling(kept: Kept, now_ms: int) -> Callable[[Transaction], settle.Settled]:
    return partial(
        settle.settle,
        uid=kept.uid,
        ending=kept.ending,
        then=kept.then,
        lane=kept.lane,
        job=kept.job,
        how=kept.how,
        now_ms=now_ms,
    )


def dump_kept(kept: Kept) -> bytes:
    """As JSON: no NUL is in it, whatever was replied. Raises one of UNSTORABLE for what JSON cannot hold."""
    evidence, ending = kept.ending.evidence, kept.ending
    parts = {
        "format": FORMAT,
        "uid": kept.uid,
        "lane": kept.lane,
        "at_ms": kept.at_ms,
        "how": kept.how,
        "job": [kept.job.id, kept.job.lease_no] if kept.job is not None else None,
        "then": asdict(kept.then),
        "classified": asdict(ending.classified),
        "cost": [str(ending.cost.usd), ending.cost.version] if ending.cost is not None else None,
        "closing": asdict(ending.closing) if ending.closing is not None else None,
        "evidence": {name: value for name, value in _plain(evidence).items() if value is not None},
        "usage": _dump_usage(evidence.usage) if evidence.usage is not None else None,
        "reply": json.loads(dump_reply(evidence.reply)) if evidence.reply is not None else None,
    }
    return dump(parts).encode()


def load_kept(stored: bytes) -> Kept:
    """What `dump_kept` wrote. Raises ValueError for another format."""
    parts: dict[str, Any] = json.loads(stored)
    if parts.get("format") != FORMAT:
        raise ValueError(f"found format {parts.get('format')!r}, wanted {FORMAT}")
    reply, usage, cost, closing, job = (parts[name] for name in ("reply", "usage", "cost", "closing", "job"))
    evidence = Evidence(
        **parts["evidence"],
        reply=load_reply(dump(reply)) if reply is not None else None,
        usage=Usage(**usage) if usage is not None else None,
    )
    ending = Ending(
        Classified(**parts["classified"]),
        evidence,
        Cost(Decimal(cost[0]), cost[1]) if cost is not None else None,
        Closing(**closing) if closing is not None else None,
    )
    fence = Fence(job[0], job[1]) if job is not None else None
    return Kept(parts["uid"], parts["lane"], ending, Then(**parts["then"]), fence, parts["at_ms"], parts["how"])


def _plain(evidence: Evidence) -> Mapping[str, Any]:
    """What an Evidence has beside its reply and its usage."""
    plain = {one.name: getattr(evidence, one.name) for one in fields(evidence) if one.name not in ("reply", "usage")}
    return plain | {"headers": dict(evidence.headers)}


def _dump_usage(usage: Usage) -> dict[str, Any]:
    raw = json.loads(dump_seen(usage.raw)) if usage.raw else None
    return {"tokens_in": usage.tokens_in, "tokens_out": usage.tokens_out, "raw": raw}
