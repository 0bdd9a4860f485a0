"""The rules of DESIGN's protocol in small (`protocol/millsim.py` names 28) and what stands for each of them here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class NamedRule:
    """One of the 28: what it says, the removals that take it out, or why there is none."""

    says: str
    removals: tuple[str, ...] = ()
    why_none: str = ""


NAMED: dict[str, NamedRule] = {
    # What the text had to say more clearly.
    "owner_on_attempt": NamedRule(
        "Reclaim ends open attempts by owner, not only those of leased jobs",
        (
            "Reclaim ends every open attempt of its owner",
            "So it does when another call answered the job meanwhile",
        ),
    ),
    "durable_death": NamedRule(
        "Reclaim writes the death; lease and record require a living owner; a zombie takes a new name",
        (
            "Reclaim declares its owner dead",
            "Only a living owner leases",
            "Only a living owner records",
            "A new name inherits the calls under way",
            "A new name inherits the leases of these calls",
            "A new name inherits what is listened to",
        ),
    ),
    "age_before_send": NamedRule(
        "The age of a lease is looked at before the first byte",
        (
            "A call leaves within its lease, or not at all",
            "Before the first byte the lease is looked at once more",
        ),
    ),
    "beat_before_lease": NamedRule(
        "Whose last beat is old leases and sends nothing",
        (
            "Who slept for a lease goes on under a new name",
            "What was leased under an old name is not sent",
        ),
    ),
    "owner_releases": NamedRule(
        "A living owner drops its own reservation when record refuses",
        ("The owner takes back what `record` refused",),
    ),
    "reclaim_then_drop": NamedRule(
        "Only owners whose reclaim is committed lose their reservations",
        (
            "What a dead owner never recorded is dropped",
            "Only what belongs to the dead is dropped, once their reclaim is committed",
            "What a dead owner did record stays reserved",
        ),
    ),
    "accept_once": NamedRule(
        "A replayed reply cannot come into force again",
        ("A reply comes into force once, by the schema",),
    ),
    "newer_than_retired": NamedRule(
        "A reply older than the last retirement of its key is stored, never in force",
        ("A reply older than the last retirement is never in force (`retired_seq`)",),
    ),
    "estimate_replaced": NamedRule(
        "An actual replaces an estimate, nothing replaces an actual",
        (
            "An actual replaces an estimate",
            "Nothing replaces an actual",
            "Evidence replaces an estimate",
        ),
    ),
    "posted_cas": NamedRule(
        "`posted` is set only while the cost is still the one that was posted",
        (
            "`posted` is set only while cost and estimate are still those posted",
            "What changes a cost makes it unposted",
        ),
    ),
    "end_by_uid": NamedRule(
        "An attempt's end is written by its uid; the fence guards the job's move",
        (
            "The end of a call is written by its uid, whoever holds the job",
            "A good reply counts by its key, whoever holds the job",
        ),
    ),
    "move_by_key": NamedRule(
        "What ends an attempt moves the live job of its key, whichever job made it",
        ("Whatever ends an attempt wakes its key's held job",),
    ),
    "born_done": NamedRule(
        "Who is answered by an artifact gets a job that is done by it",
        ("Who is answered by what is in force gets a job that is done",),
    ),
    "key_owned": NamedRule(
        "KeyConflict looks at open and held attempts too; accept compares fingerprints",
        (
            "A key belongs to the work of a call that may still answer it",
            "A reply answers only the work it was asked for",
        ),
    ),
    "listener_column": NamedRule(
        "Only the listener or reclaim ends a hold",
        (
            "What is still listened to is not decided",
            "Reclaim ends what its owner listened to",
            "A hold ends by the clock of its listener, not by the wall's",
        ),
    ),
    "absent_from_end": NamedRule(
        "Absent counts only after started + total deadline + settling",
        (
            "A lane's silence proves something only once the call has ended and settled",
            "A call may have left as late as its lease allowed",
            "The age of a call is told by a clock that nobody sets",
        ),
    ),
    "retry_empty": NamedRule(
        "Retry refuses a job whose requests have all moved",
        ("A job whose requests have moved is not retried",),
    ),
    "unwithdraw": NamedRule(
        "Retry of a cancelled job takes its withdrawals back",
        (
            "A retry takes back withdrawals",
            "A submission takes back only what it withdrew",
        ),
    ),
    "trim_keeps_held": NamedRule(
        "Trimming never removes open, undecided or estimated attempts",
        why_none="nothing is trimmed yet; it comes with purge",
    ),
    "orphan_holds": NamedRule(
        "Expired holds of keys without a live job are decided too",
        ("What nobody waits for is decided when its hold is over",),
    ),
    # What the text had.
    "g_fence": NamedRule(
        "Moves say the lease number",
        (
            "A job moves only under its present `lease_no`",
            "`record` writes only under the present `lease_no`",
        ),
    ),
    "g_key_at_record": NamedRule(
        "Record asks for an artifact, an open attempt, a hold",
        (
            "`record` looks for an artifact in force",
            "`record` looks for open and held attempts of the key",
            "One open attempt a key, by the schema",
        ),
    ),
    "g_record_first": NamedRule("Record comes before the call", ("A ledger row stands before its call leaves",)),
    "g_spool": NamedRule(
        "A reply is spooled before it is settled",
        ("What an owner could not write is written before it is reclaimed",),
    ),
    "g_hold": NamedRule(
        "What is ambiguous is held",
        (
            "What is silent at its soft timeout is held while it is listened to",
            "A call that its lane can be asked for is held though nobody listens",
            "Such a hold outlives its listener",
        ),
    ),
    "g_reserve_queue": NamedRule(
        "Only the own queue's reservations are dropped", ("A queue drops only its own reservations",)
    ),
    "g_recall": NamedRule(
        "The lane is asked",
        (
            "The lane is asked before the policy decides",
            "The lane is asked before its job fails for want of another lane",
        ),
    ),
    "g_reserve_check": NamedRule(
        "A cap is checked in the statement that reserves",
        why_none="there are no caps yet",
    ),
}
