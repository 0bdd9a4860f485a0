"""The words of a journey: what it asks for, what comes back, and what is decided; its order stands in journey."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Literal

from millpond.rules.admission import NOTHING_YET, Closing, InARow
from millpond.rules.evidence import Evidence
from millpond.rules.job import Outcome
from millpond.rules.lifecycle import Move
from millpond.rules.outcome import Classified
from millpond.rules.price import Cost
from millpond.rules.router import Past

EvidenceBy = Literal["late", "recalled", "absent"]
"""How evidence of a call came after its end had been unknown: by itself, or out of its lane's memory."""

# --- what the journey asks for ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LookBack:
    """Read the earlier attempts of the key. Answer: Facts."""


@dataclass(frozen=True, slots=True)
class Recall:
    """Ask the lane of an ambiguous attempt what became of its call. Answer: Heard, Absent or Unknown.

    Absent proves that no work was done; a lane that may not have settled yet is Unknown. `age_ms` is how old the call
    was at the look back: a wall clock that is set anew before the question is asked makes it no older.
    """

    uid: str
    lane: str
    age_ms: int


@dataclass(frozen=True, slots=True)
class Resolve:
    """Decide an ambiguous attempt whose hold is over, by the lane's after_hold (`pin`, `same` or `fail`).

    Answer: its Charge, which is an estimate from here on; None if it was decided or ended before.
    """

    uid: str
    lane: str
    choice: str


@dataclass(frozen=True, slots=True)
class Admit:
    """Ask whether the lane takes a call now. Answer: Admitted or NotNow."""

    lane: str


@dataclass(frozen=True, slots=True)
class Reserve:
    """Put the most that the call can cost into the spend book, durably. Answer: Reserved."""

    lane: str


@dataclass(frozen=True, slots=True)
class Release:
    """Take a reservation back: its attempt was not recorded, so nothing leaves."""

    uid: str


@dataclass(frozen=True, slots=True)
class Record:
    """Write the ledger row, durably, under the fence. Answer: Recorded, or Instead; LeaseLost is thrown in."""

    lane: str
    uid: str


@dataclass(frozen=True, slots=True)
class Call:
    """Make the call. Answer: Heard, or Silence once `soft_timeout_ms` is over and the call still runs."""

    uid: str
    lane: str
    attempt_no: int
    soft_timeout_ms: int | None


@dataclass(frozen=True, slots=True)
class Detach:
    """Let the job go on without its call: the attempt is ambiguous, held for `hold_ms`, and still listened to."""

    uid: str
    hold_ms: int


@dataclass(frozen=True, slots=True)
class Listen:
    """Wait for a detached call, at most `for_ms` (None: until its own total deadline). Answer: Heard or Silence."""

    uid: str
    lane: str
    for_ms: int | None


@dataclass(frozen=True, slots=True)
class StopListening:
    """The hold is over: nobody waits for this call any more, though its reply is still received if it comes."""

    uid: str


@dataclass(frozen=True, slots=True)
class Settle:
    """End the attempt on evidence, store and accept its reply, move the job, close the lane: one transaction.

    `how` is how the evidence of an attempt came whose end was unknown before. Answer: the Charge that the ledger now
    says; None while the end is unknown and undecided.
    """

    uid: str
    lane: str
    ending: Ending
    then: Then
    how: EvidenceBy = "late"


@dataclass(frozen=True, slots=True)
class Post:
    """Put a charge into the spend book, in the place of its reservation, and mark it as posted in the ledger."""

    charge: Charge


@dataclass(frozen=True, slots=True)
class Give:
    """Give the leased job back without a call."""

    then: Then


Effect = (
    LookBack
    | Recall
    | Resolve
    | Admit
    | Reserve
    | Release
    | Record
    | Call
    | Detach
    | Listen
    | StopListening
    | Settle
    | Post
    | Give
)

# --- what comes back ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Facts:
    """What the store knows of a key's past, and of the job's budget."""

    past: Past
    attempts_made: int
    attempts_granted: int


@dataclass(frozen=True, slots=True)
class Reserved:
    """The spend book knows of the call; its attempt will have this uid."""

    uid: str


@dataclass(frozen=True, slots=True)
class Charge:
    """What the ledger says that an attempt costs. Evidence may still replace an estimate: the end is unknown then."""

    uid: str
    lane: str
    at_ms: int
    """When the attempt was recorded: its money is of that day, however late the bill comes."""
    usd: Decimal | None
    """None is unknown, and never 0."""
    is_estimate: bool


@dataclass(frozen=True, slots=True)
class Unheard:
    """A call whose end is unknown."""

    uid: str
    lane: str


@dataclass(frozen=True, slots=True)
class Recorded:
    """The open attempt. `after`: the call of the same work before it, if its end is unknown: that one is paid again."""

    uid: str
    attempt_no: int
    after: Unheard | None = None


@dataclass(frozen=True, slots=True)
class Instead:
    """No row was written and nothing may be sent: the job was answered by an artifact, is held, or was given back.

    `stopped`: a person has stopped its lane. `unasked`: a hold has ended since the look back; its lane is asked first.
    """

    by: Literal["answered", "held", "stopped", "unasked"]


@dataclass(frozen=True, slots=True)
class Heard:
    """The call ended. `now_ms` is when, on the wall clock; `chance` in [0, 1) was drawn for jitter.

    `in_a_row` is what the lane did just before: it decides how long a closing lasts.
    """

    evidence: Evidence
    now_ms: int
    chance: float
    in_a_row: InARow = NOTHING_YET


@dataclass(frozen=True, slots=True)
class Silence:
    """The time given is over and the call still runs."""

    now_ms: int


# --- what is decided ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Ending:
    """How an attempt ended: what the table said of the evidence, and the evidence itself."""

    classified: Classified
    evidence: Evidence
    cost: Cost | None = None
    """What the provider charges for it; None is unknown."""
    closing: Closing | None = None

    @property
    def outcome(self) -> Outcome:
        """The attempt's outcome."""
        return self.classified.outcome


@dataclass(frozen=True, slots=True)
class Then:
    """What the job does next. None: it waits for no move of ours (an accepted reply moves it, or its hold does)."""

    move: Move | None
    next_lane: str | None = None
    delay_ms: int | None = None
    """From now; the store adds its clock. Without a move: how long a job that was held for this call still pauses."""
    reason: str | None = None
    uncounted: bool = False


ACCEPT = Then(None)

UNROUTED = ""
"""The next lane of a job that must be routed by its history before it is leased again."""
