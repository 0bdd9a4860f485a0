"""What a lane is to the engine: something that makes one call and tells what it saw."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from millpond.rules.evidence import Absent, Evidence, Recalled, Recollection, Unknown
from millpond.rules.job import Work
from millpond.rules.policy import LanePolicy


@dataclass(frozen=True, slots=True)
class Call:
    """One call to make: one attempt, one request on the wire.

    `uid` is the attempt's, `deadline_ms` the wall-clock end of its total deadline (for handlers that want to know).
    """

    uid: str
    work: Any
    """The Prompt, or the registered model of a Command (the Command itself where nobody registered its type)."""
    idempotency_key: str
    attempt_no: int
    deadline_ms: int
    stored: Work | None = None
    """The work as it is stored: a Prompt or a Command."""


@runtime_checkable
class Lane(Protocol):
    """An executor. `call` never raises for what the far side does: every ending is Evidence.

    A lane makes exactly one request per call and retries nothing itself. Cancelling the task that awaits `call` closes
    the connection; the engine does so only when nobody may wait for the reply any more.
    """

    policy: LanePolicy

    async def call(self, call: Call) -> Evidence:
        """Make the call and say what was seen."""
        ...

    async def close(self) -> None:
        """Give back connections. May be called twice."""
        ...


@dataclass(frozen=True, slots=True)
class Question:
    """What became of an earlier call: its attempt, and its work as it is stored, by which a reply is judged."""

    uid: str
    work: Work


@runtime_checkable
class CanRecall(Protocol):
    """A lane that can be asked what became of a call. Whether it is, `recall` of its policy says."""

    policy: LanePolicy

    async def recall(self, question: Question) -> Recollection:
        """Ask. Never raises for what the far side does; makes no call, and costs nothing."""
        ...


def is_asked(lane: Lane | None) -> bool:
    """Whether a lane is asked what became of its calls: it can be, and its policy wants it."""
    return lane is not None and lane.policy.can_recall and isinstance(lane, CanRecall)


LaneFactory = Callable[[LanePolicy], Lane]
"""What an entry point of the group `millpond.lanes` gives: policy in, lane out."""

__all__ = ["Absent", "Call", "CanRecall", "Lane", "LaneFactory", "Question", "Recalled", "Unknown", "is_asked"]
