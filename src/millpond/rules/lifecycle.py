"""The states of a job and every move between them. This table is the only source of a state: the store asks `advance`.

The diagram in docs/lifecycle.md is drawn from TRANSITIONS by `diagram`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, get_args

from millpond.rules.job import State, WaitReason

Move = Literal[
    "enqueue", "schedule", "enqueue_held", "enqueue_answered",
    "lease", "release", "back_off", "park", "hold", "ask", "shelve", "wake", "offload",
    "answer", "fail", "cancel", "retry", "retry_held", "retry_answered",
]  # fmt: skip

EventKind = Literal[
    Move,
    "record", "end", "ambiguous", "resolve", "reply_kept", "accept", "retire",
    "retry_joined", "unpin", "withdraw", "take_back", "close_lane", "stop", "resume",
]  # fmt: skip
"""What an event can tell of: a move, or a change that moves no job."""

STATES: tuple[State, ...] = get_args(State)
MOVES: tuple[Move, ...] = get_args(Move)
EVENT_KINDS: tuple[EventKind, ...] = get_args(EventKind)
LIVE: frozenset[State] = frozenset({"waiting", "ready", "leased", "offloaded"})
"""States in which a job is alive: at most one such job per idempotency key."""

UNBORN = "·"
"""Stands where a job does not exist yet."""

TRANSITIONS: dict[tuple[str, Move], State] = {
    # born: what enqueue finds decides the first state
    (UNBORN, "enqueue"): "ready",
    (UNBORN, "schedule"): "waiting",
    (UNBORN, "enqueue_held"): "waiting",  # the key still has an open attempt or an unexpired hold
    (UNBORN, "enqueue_answered"): "done",  # an artifact is in force, and no done job bears it any more
    # taken, and given back under the lease
    ("ready", "lease"): "leased",
    ("ready", "fail"): "failed",  # no lane of the policy can serve it
    ("leased", "release"): "ready",
    ("leased", "back_off"): "waiting",
    ("leased", "park"): "waiting",  # no cap parks yet; a lane without room keeps its jobs ready
    ("leased", "hold"): "waiting",
    ("leased", "ask"): "waiting",
    ("leased", "shelve"): "waiting",
    ("leased", "fail"): "failed",
    # woken by the clock, by the end of an attempt, by a person
    ("waiting", "wake"): "ready",
    ("waiting", "back_off"): "waiting",  # held no more: the call it waited for has ended, and its lane is owed a pause
    ("waiting", "fail"): "failed",
    # handed to a batch, and back (no lane is a batch yet)
    ("ready", "offload"): "offloaded",
    ("offloaded", "release"): "ready",
    ("offloaded", "fail"): "failed",
    # an artifact for its key answers a live job wherever it stands
    ("waiting", "answer"): "done",
    ("ready", "answer"): "done",
    ("leased", "answer"): "done",
    ("offloaded", "answer"): "done",
    # nobody asks any more
    ("waiting", "cancel"): "cancelled",
    ("ready", "cancel"): "cancelled",
    ("leased", "cancel"): "cancelled",
    ("offloaded", "cancel"): "cancelled",
    # a person asks again; done is final
    ("failed", "retry"): "ready",
    ("failed", "retry_held"): "waiting",
    ("failed", "retry_answered"): "done",
    ("cancelled", "retry"): "ready",
    ("cancelled", "retry_held"): "waiting",
    ("cancelled", "retry_answered"): "done",
}

WAIT_REASON: dict[Move, WaitReason] = {
    "schedule": "scheduled",
    "enqueue_held": "held",
    "retry_held": "held",
    "back_off": "backoff",
    "park": "parked",
    "hold": "held",
    "ask": "asked",
    "shelve": "undeliverable",
}
"""Why a job waits after a move that ends in `waiting`."""


def may(state: str, move: Move) -> bool:
    """Whether the table has this move from this state."""
    return (state, move) in TRANSITIONS


def pending(counts: Mapping[str, int]) -> int:
    """How many of the jobs counted by state are alive: their requests still wait for an answer."""
    return sum(counts[state] for state in LIVE)


def advance(state: str, move: Move) -> State:
    """The state after a move. A move that the table does not have is a broken invariant: AssertionError."""
    after = TRANSITIONS.get((state, move))
    if after is None:
        raise AssertionError(f"no move {move!r} from state {state!r}")
    return after


def diagram() -> str:
    """The state diagram as Mermaid text, one arrow for each pair of states, labelled with its moves."""
    arrows: dict[tuple[str, str], list[str]] = {}
    for (before, move), after in TRANSITIONS.items():
        arrows.setdefault(("[*]" if before == UNBORN else before, after), []).append(move)
    lines = [f"    {before} --> {after}: {', '.join(moves)}" for (before, after), moves in arrows.items()]
    return "\n".join(["stateDiagram-v2", *lines, *(f"    {state} --> [*]" for state in STATES if state not in LIVE)])
