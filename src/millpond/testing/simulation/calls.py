"""The truth of each call: what the lane really does with it, when, and whether anybody still listens."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from millpond.rules.evidence import Evidence
from millpond.rules.job import Reply, Usage
from millpond.testing.scripted_lane import evidence_of

SOFT_MS = 10_000
"""The soft timeout of lanes that have one."""

TOTAL_MS = 60_000
"""No call lasts longer: its own total deadline."""

Kind = Literal[
    "ok", "slow", "late", "lost", "never", "retryable", "saturated", "lane_down", "unfit", "permanent", "empty",
    "truncated",
]  # fmt: skip
"""What becomes of a call. `slow` answers after the soft timeout, `late` when its hold may be over too; of a `lost` one
the connection breaks, a `never` one is silent to its total deadline."""

WEIGHTS: dict[Kind, float] = {
    "ok": 24, "slow": 12, "late": 10, "lost": 9, "never": 4, "retryable": 12, "saturated": 6, "lane_down": 1,
    "unfit": 2, "permanent": 2, "empty": 3, "truncated": 1,
}  # fmt: skip
CALM_WEIGHTS: dict[Kind, float] = {"ok": 30, "slow": 3, "late": 1, "retryable": 3}
"""After the storm lanes are kind, so that everything must come to an end."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What becomes of one call, and after how long."""

    kind: Kind
    takes_ms: int


@dataclass(frozen=True, slots=True)
class Call:
    """One call that left, what its listener will see, and when."""

    uid: str
    lane: str
    evidence: Evidence
    ends_ms: int
    memory: Evidence | None = None
    """What its lane remembers of it once it has settled; None: no work was done."""
    listed_ms: int | None = None
    """From when the lane can tell."""


def memory(plan: Plan, seen: Evidence, uid: str, fingerprint: str, rng: random.Random) -> Evidence | None:
    """What the lane has of a call when it is over: the work may be done though nobody heard of it."""
    if plan.kind == "lost":
        return evidence_of(Reply(reply_text(uid, fingerprint), usage=Usage(3, 5))) if rng.random() < 0.6 else None
    return seen if plan.kind in ("ok", "slow", "late", "empty", "truncated") else None


def draw(rng: random.Random, weights: Mapping[Kind, float]) -> Plan:
    """Choose what becomes of a call."""
    [kind] = rng.choices(list(weights), list(weights.values()))
    return Plan(kind, takes_ms(kind, rng))


def takes_ms(kind: Kind, rng: random.Random) -> int:
    """How long such a call takes."""
    match kind:
        case "slow":
            return rng.randrange(SOFT_MS, SOFT_MS + 9_000)
        case "late":
            return rng.randrange(SOFT_MS + 5_000, TOTAL_MS)
        case "never":
            return TOTAL_MS
        case "lost":
            return rng.randrange(100, SOFT_MS + 9_000)
        case _:
            return rng.randrange(100, 4_000)


def evidence(plan: Plan, uid: str, fingerprint: str, rng: random.Random) -> Evidence:
    """What its listener sees in the end. A reply says whose it is, so that a mix-up shows, and mostly what it used."""
    usage = rng.choice([Usage(3, 5), Usage(3, 5), Usage()])
    match plan.kind:
        case "ok" | "slow" | "late":
            return evidence_of(Reply(reply_text(uid, fingerprint), usage=usage))
        case "empty":
            return Evidence(status=200, terminal=True, finish_reason="stop", reply=Reply(""), usage=usage)
        case "truncated":
            return evidence_of(Reply(reply_text(uid, fingerprint), finish_reason="length", usage=usage))
        case "lost":
            return Evidence(sent="yes", failure="reset")
        case "never":
            return Evidence(sent="yes", failure="total_timeout")
        case "saturated":
            return Evidence(said="saturated", retry_info_ms=rng.choice([200, 3_000, 20_000]))
        case "retryable":
            return Evidence(sent="no", said="retryable")
        case said:
            return Evidence(said=said)


def reply_text(uid: str, fingerprint: str) -> str:
    """The text of a good reply. The NUL and the lone surrogate are odd characters that must not lose it."""
    return f"{fingerprint} by {uid} \0\ud83d"
