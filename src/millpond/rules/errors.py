"""The few exceptions, for misuse and for what a handler wants to say. Expected endings of calls are values instead.

MillpondError
├── UsageError            the caller asked for something that cannot be (exit 2)
│   ├── UnknownLane       a lane that no policy names (exit 78)
│   └── KeyConflict       a caller's key that already names other work (exit 2)
├── SettingsError         configuration refused (exit 78)
│   └── SchemaTooNew      the database was written by a newer program (exit 78)
├── MissingKey            a key variable or a permission is missing (exit 4)
├── LeaseLost             the job is no longer held under this lease; `.accepted` says whether the reply counted
├── LockHeld              another process drains or migrates; `.holder` names it (exit 75)
├── QueueBusy             the database stayed locked past the busy wait; nothing was written (exit 75)
├── QueueUnavailable      disk or I/O refused; nothing was acknowledged (exit 74)
│   ├── MayBeWritten      and what was to be written may be there all the same
│   └── FileGone          and will go on refusing: the file was deleted or replaced under this program
├── BudgetClosed          a cap does not allow the call
├── Undeliverable         a stored command cannot be loaded by this program
└── HandlerSignal         raised by a lane's callable to say how its call ended
    ├── Retryable         provably no work was done
    ├── Saturated         no room now
    ├── Ambiguous         the work may exist
    └── Permanent         no lane will do this job
"""

from __future__ import annotations


class MillpondError(Exception):
    """Base of everything that Millpond raises on purpose. `exit_code` is what the command line returns for it."""

    exit_code = 1


class UsageError(MillpondError):
    """The caller asked for something that cannot be; the message says what was found, what was wanted, what to do."""

    exit_code = 2


class SettingsError(MillpondError):
    """A setting was refused: an unknown key, a wrong type, an unreadable file."""

    exit_code = 78


class UnknownLane(UsageError):
    """A lane was named that the policy does not have."""

    exit_code = 78


class KeyConflict(UsageError):
    """A caller's key already names other work: a live job, an artifact in force, or an open or held attempt."""


class SchemaTooNew(SettingsError):
    """The database was written by a newer program; nothing was touched."""


class MissingKey(MillpondError):
    """A lane's key variable is not set, or a permission is missing."""

    exit_code = 4


class LeaseLost(MillpondError):
    """The job is no longer held under this lease. `accepted` is True if the reply became the artifact all the same."""

    def __init__(self, message: str, *, accepted: bool = False) -> None:
        super().__init__(message)
        self.accepted = accepted


class LockHeld(MillpondError):
    """Another process holds a lock that only one may hold. `holder` says which: `pid 4242 on host since …`."""

    exit_code = 75

    def __init__(self, message: str, *, holder: str = "") -> None:
        super().__init__(message)
        self.holder = holder


class QueueBusy(MillpondError):
    """The database stayed locked past the busy wait. Nothing was written and no id was given."""

    exit_code = 75


class QueueUnavailable(MillpondError):
    """The disk or the database refused. Nothing was acknowledged."""

    exit_code = 74


class MayBeWritten(QueueUnavailable):
    """What was committed is not acknowledged, as it may be lost again: who does it once more may do it twice."""


class FileGone(QueueUnavailable):
    """The file was deleted, moved away or replaced while this program had it open; only a new start opens another."""


REFUSED = (QueueBusy, QueueUnavailable)
"""What a write raises that was not made now and may be made later: nothing is wrong with what was to be written."""


class BudgetClosed(MillpondError):
    """A cap does not allow the call."""


class Undeliverable(MillpondError):
    """A stored command cannot be loaded by this program: unknown type, or a payload that no longer validates."""


class HandlerSignal(MillpondError):
    """A lane's callable says how its call ended. `after_s` asks for a pause of that many seconds before the next."""

    def __init__(self, message: str = "", *, after_s: float | None = None) -> None:
        super().__init__(message)
        self.after_s = after_s


class Retryable(HandlerSignal):
    """Provably no work was done; try again."""


class Saturated(HandlerSignal):
    """The lane has no room now; the job waits and no attempt is counted."""


class Ambiguous(HandlerSignal):
    """The work may exist; it must not be repeated blindly."""


class Permanent(HandlerSignal):
    """No lane will do this job."""
