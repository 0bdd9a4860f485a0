"""What is told while work goes on."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Happening:
    """One thing that is told.

    `kind`: `ended` (an attempt), `recalled` (one that its lane was asked for), `unasked` (one that it could not be
    asked for), `decided` (one that nobody waits for), `late` (a reply for which no job waits any more), `done`,
    `failed`, `held` (a job whose call has not answered yet), `unheard` (one that no longer waits for it); of a lane
    `closed`, `stopped`, `resumed`; also `stopped`: a job that is given back, since its lane was stopped; of the queue
    `kept` (a reply that it does not take now), `written` (it has taken all of them).
    """

    kind: str
    job_id: int | None
    lane: str
    words: str
