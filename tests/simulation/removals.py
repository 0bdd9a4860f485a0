"""Rules of the product that can be taken out, one at a time, to see whether the simulation notices."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import apsw
import pytest

from millpond.db.database import Transaction
from millpond.engine import taking_back
from millpond.engine.listening import Listening
from millpond.rules import effects as steps
from millpond.rules import journey, recall, router, verdict
from millpond.spend import book
from millpond.store import accounts, asking, enqueue, holds, ledger, persons, reclaim, settle, store
from millpond.store import lease as leasing
from millpond.store.settle import Settled
from millpond.testing.simulation import world
from millpond.testing.simulation.drainer import PERFORM, Drainer, Flight
from millpond.testing.simulation.world import World

Remove = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Removal:
    """One rule: what it is in words, how it is taken out, and the history that shows it; "": chance does, soon."""

    rule: str
    take_out: Remove
    history: str = ""


def without_sql(*cuts: tuple[str, str, str], of: Any = store) -> Remove:
    """Cut or replace words in named statements: (statement, words, other words), of the store or the spend book."""

    def take_out(monkeypatch: pytest.MonkeyPatch) -> None:
        load = of.load

        def lamed(text: str) -> dict[str, str]:
            statements = load(text)
            for name, words, other in cuts:
                assert words in statements[name], f"{name} no longer says {words!r}"
                statements[name] = statements[name].replace(words, other)
            return statements

        monkeypatch.setattr(of, "load", lamed)

    return take_out


def without_index(name: str) -> Remove:
    """Drop an index as soon as a world has made its file."""

    def take_out(monkeypatch: pytest.MonkeyPatch) -> None:
        init = World.__init__

        def lamed(self: World, *args: Any, **kwargs: Any) -> None:
            init(self, *args, **kwargs)
            connection = apsw.Connection(str(self.path))
            connection.execute(f"DROP INDEX {name}").fetchall()
            connection.close()

        monkeypatch.setattr(World, "__init__", lamed)

    return take_out


class Unwritten:
    """A transaction that leaves one statement out."""

    def __init__(self, tx: Transaction, name: str) -> None:
        self._tx = tx
        self._name = name

    def all(self, name: str, /, **params: Any) -> list[Any]:
        return [] if name == self._name else self._tx.all(name, **params)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tx, name)


def record_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    record = ledger.record

    def lamed(tx: Transaction, *args: Any, **kwargs: Any) -> Any:
        return record(Unwritten(tx, "insert_attempt"), *args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(ledger, "record", lamed)


def accept_under_the_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    accept = settle.accept

    def lamed(tx: Transaction, attempt: Any, lane: str, now_ms: int) -> Settled:
        if attempt.job_id not in [job.id for job in tx.all("leased_by", owner=attempt.owner)]:
            return Settled(accepted=False, moved=False)
        return accept(tx, attempt, lane, now_ms)

    monkeypatch.setattr(settle, "accept", lamed)


def accept_other_work(monkeypatch: pytest.MonkeyPatch) -> None:
    accept = settle.accept

    def lamed(tx: Transaction, attempt: Any, lane: str, now_ms: int) -> Settled:
        job = tx.one("live_job", key=attempt.idempotency_key)
        return accept(tx, attempt._replace(fingerprint=job.fingerprint) if job else attempt, lane, now_ms)

    monkeypatch.setattr(settle, "accept", lamed)


def end_under_the_fence(monkeypatch: pytest.MonkeyPatch) -> None:
    end = settle._end_known  # pyright: ignore[reportPrivateUsage]

    def lamed(tx: Transaction, attempt: Any, ending: Any, how: Any, now_ms: int) -> bool:
        is_held = attempt.job_id in [job.id for job in tx.all("leased_by", owner=attempt.owner)]
        return (ending.outcome == "ok" or is_held) and end(tx, attempt, ending, how, now_ms)

    monkeypatch.setattr(settle, "_end_known", lamed)


def forget_whose_key_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only artifacts and live jobs are asked what work a key names."""
    look_up = enqueue._look_up  # pyright: ignore[reportPrivateUsage]

    def lamed(*args: Any) -> Any:
        found = look_up(*args)
        for key in found.values():
            if key.artifact is None and key.job is None:
                key.fingerprint = None
        return found

    monkeypatch.setattr(enqueue, "_look_up", lamed)


def retry_what_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    can = persons._can_retry  # pyright: ignore[reportPrivateUsage]

    def lamed(*args: Any) -> Any:
        found = can(*args)
        return persons.Moved(True) if "have moved" in found.why else found

    monkeypatch.setattr(persons, "_can_retry", lamed)


def hold_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    detach = settle.detach
    monkeypatch.setattr(settle, "detach", lambda *args, hold_ms, **more: detach(*args, hold_ms=0 * hold_ms, **more))


def send_however_late(monkeypatch: pytest.MonkeyPatch) -> None:
    init = Flight.__init__

    def lamed(self: Flight, *args: Any) -> None:
        init(self, *args)
        self.taken_ms = 10**15

    monkeypatch.setattr(Flight, "__init__", lamed)


def count_what_was_never_called(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (router, verdict):
        monkeypatch.setattr(module, "UNCALLED", frozenset())


def without_schema(words: str, other: str) -> Remove:
    """Cut words from the queue's schema, for who writes and who looks alike."""

    def take_out(monkeypatch: pytest.MonkeyPatch) -> None:
        for module in (store, world):
            read_folder = module.read_folder

            def lamed(folder: Any, read_folder: Any = read_folder) -> Any:
                found = read_folder(folder)
                return [
                    replace(one, statements=tuple(text.replace(words, other) for text in one.statements))
                    for one in found
                ]

            monkeypatch.setattr(module, "read_folder", lamed)

    return take_out


def no_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (holds, ledger, reclaim, settle):
        monkeypatch.setattr(module, "blocking", lambda *_: [])


def wake_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (holds, settle, reclaim):
        monkeypatch.setattr(module, "wake_key", lambda *_: None)


def lose_leases_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    take_back = store.Store.reclaim

    def lamed(self: store.Store, owner: str, *, max_leases_lost: int, died: bool = True) -> Any:
        return take_back(self, owner, max_leases_lost=max_leases_lost * 1000, died=died)

    monkeypatch.setattr(store.Store, "reclaim", lamed)


def both_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    first = "a.idempotency_key = :key AND a.retired_ms IS NULL"
    without_sql(("accept_check", first, f"{first} AND 0"))(monkeypatch)
    without_index("one_in_force")(monkeypatch)


def keep_what_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PERFORM, steps.Release, lambda *_: None)


def drop_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounts, "never_recorded", lambda *_, **__: [])


def drop_what_others_reserved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice guarded: by the queue's name, and since copies share that, by who is known to have owned."""
    never_recorded = accounts.never_recorded

    def and_of_strangers(tx: Transaction, owners: Mapping[str, str]) -> list[str]:
        return [*never_recorded(tx, owners), *accounts.of_strangers(tx, owners)]

    monkeypatch.setattr(accounts, "never_recorded", and_of_strangers)
    without_sql(
        ("reservations", "queue = :queue AND", "(queue = :queue OR 1) AND"),
        ("release", "AND queue = :queue", "AND :queue <> ''"),
        of=book,
    )(monkeypatch)


def hold_no_recallable(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (settle, reclaim):
        monkeypatch.setattr(module, "unheard_until_ms", lambda _, now_ms: now_ms)


def end_holds_with_their_listener(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (settle, reclaim):
        monkeypatch.setattr(module, "left_at_ms", lambda _, now_ms: now_ms)


def ask_no_lane(monkeypatch: pytest.MonkeyPatch) -> None:
    def recall(*_: Any) -> Iterator[Any]:
        yield from ()
        return False

    monkeypatch.setattr(journey, "recall", recall)


def fail_before_a_lane_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    past = ledger.read_past

    def lamed(*args: Any) -> Any:
        found = past(*args)
        return replace(found, undecided=tuple(replace(one, askable_age_ms=None) for one in found.undecided))

    monkeypatch.setattr(leasing, "read_past", lamed)


def look_back_at_what_blocks(verb: Any) -> Remove:
    """A verb that lets go of a call with its hold, whatever its lane may have to say."""

    def take_out(monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(verb, "may_speak", holds.is_blocking)

    return take_out


def take_silence_for_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recall, "settled_after_ms", lambda _policy, _lane: 0)


def forget_the_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = recall.settled_after_ms
    monkeypatch.setattr(recall, "settled_after_ms", lambda policy, lane: whole(replace(policy, lease_ms=0), lane))


def tell_age_by_the_wall(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (ledger, asking):
        monkeypatch.setattr(module, "age", lambda row, now_ms, _: now_ms - row.started_ms)


def decide_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "forget", lambda *_, **__: False)
    monkeypatch.setattr(store.asking, "forget", lambda *_, **__: False)


def look_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store.Store, "holds", lambda *_: True)


def find_no_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "is_blocking", lambda *_: False)


def reclaim_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """The work of a dead owner is given away, and what it kept stays where it is."""
    monkeypatch.setattr(taking_back, "take_back", lambda store, _, owner, **how: store.reclaim(owner, **how))
    monkeypatch.setattr(taking_back, "replay", lambda *_, **__: None)


def send_under_any_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Drainer, "may_send", lambda *_: True)


def keep_the_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Drainer, "stands", lambda _: True)


def hold_by_the_wall(monkeypatch: pytest.MonkeyPatch) -> None:
    def lamed(self: Listening, *owners: str) -> list[str]:
        rows = self._store.attempts()
        now_ms = self._store.now_ms()
        over = [row.uid for row in rows if row.listener in owners and (row.hold_until_ms or 0) <= now_ms]
        for uid in over:
            self._store.stop_listening(uid)
        return over

    monkeypatch.setattr(Listening, "end_holds", lamed)


def end_by_the_wall(verb: Any) -> Remove:
    """A verb that takes the wall's word for the end of a hold."""

    def take_out(monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(verb, "is_blocking", lambda attempt, now_ms, *_: holds.is_blocking(attempt, now_ms))

    return take_out


def hold_from_the_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only as long from a call's row as it was to be held from its end."""
    ends_ms = holds._ends_ms  # pyright: ignore[reportPrivateUsage]
    monkeypatch.setattr(holds, "_ends_ms", lambda row, *now: ends_ms(row._replace(started_ms=row.ended_ms), *now))


def let_nothing_lapse(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store.Store, "lapse", lambda *_, **__: reclaim.Reclaimed())


def stop_no(verb: Any) -> Remove:
    """A verb that does not look for stops."""

    def take_out(monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(verb, "standing", lambda _: ())

    return take_out


LOOK = "AND lease_no = :lease_no", "AND :lease_no >= 0"
STORED = "VALUES (:uid, :body)", "SELECT :uid, :body WHERE length(:body) < 0"
DECIDED = "AND (outcome <> 'ambiguous' OR resolution IS NOT NULL)", ""
STILL = (
    "AND cost IS NOT DISTINCT FROM :cost AND CASE WHEN outcome = 'ambiguous' THEN 1 ELSE 0 END = :is_estimate",
    "AND (:cost IS NULL OR :is_estimate >= 0)",
)
ONCE = "(outcome IS NULL OR outcome = 'ambiguous')", "1"

REMOVALS: dict[str, Removal] = {
    one.rule: one
    for one in [
        Removal(
            "A job moves only under its present `lease_no`",
            without_sql(("move", *LOOK)),
            "a_lease_that_is_over_fails_nothing",
        ),
        Removal(
            "`record` writes only under the present `lease_no`",
            without_sql(("record_check", "AND j.lease_no = :lease_no", "AND :lease_no >= 0")),
            "a_lease_that_is_over_records_nothing",
        ),
        Removal("A ledger row stands before its call leaves", record_nothing),
        Removal(
            "A call leaves within its lease, or not at all",
            send_however_late,
            "a_call_that_would_leave_after_its_lease_does_not",
        ),
        Removal(
            "A call that was never made uses up no attempt",
            count_what_was_never_called,
            "a_job_whose_call_was_never_made_has_its_attempt_still",
        ),
        Removal("What is silent at its soft timeout is held while it is listened to", hold_nothing),
        Removal(
            "One open attempt a key, by the schema",
            without_index("one_open_attempt"),
            "the_schema_refuses_a_second_open_attempt",
        ),
        Removal(
            "`record` looks for open and held attempts of the key",
            no_holds,
            "a_job_that_is_due_within_a_hold_pays_no_second_time",
        ),
        Removal("A good reply counts by its key, whoever holds the job", accept_under_the_fence),
        Removal("The end of a call is written by its uid, whoever holds the job", end_under_the_fence),
        Removal(
            "A reply comes into force once, by the schema",
            without_schema("attempt_uid     TEXT NOT NULL UNIQUE", "attempt_uid     TEXT NOT NULL"),
            "the_schema_refuses_a_reply_that_was_in_force",
        ),
        Removal(
            "A reply older than the last retirement is never in force (`retired_seq`)",
            without_sql(("accept_check", "a.retired_seq >= :seq", "a.retired_seq < 0 AND :seq >= 0")),
            "a_reply_older_than_the_fresh_wish_answers_nothing",
        ),
        Removal(
            "`record` looks for an artifact in force",
            without_sql(("record_check", "a.idempotency_key = j.idempotency_key AND", "0 AND")),
            "record_heeds_an_answer_that_nobody_told_it_of",
        ),
        Removal("One answer in force a key: the first one stays", both_answers),
        Removal(
            "A reply answers only the work it was asked for", accept_other_work, "a_reply_of_other_work_answers_nothing"
        ),
        Removal(
            "What is still listened to is not decided",
            find_no_holds,
            "a_job_that_is_due_within_a_hold_pays_no_second_time",
        ),
        Removal("Nothing replaces evidence", without_sql(("end_attempt", *ONCE)), "evidence_is_not_replaced"),
        Removal("Whatever leaves a state is counted", without_sql(("tally_add", "excluded.n", "max(excluded.n, 0)"))),
        Removal("A reply is stored with its end", without_sql(("insert_reply", *STORED))),
        Removal(
            "Tokens that are not known are not 0",
            without_sql(("end_attempt", "tokens_in = :tokens_in", "tokens_in = coalesce(:tokens_in, 0)")),
        ),
        Removal(
            "A cost that is not known is not 0",
            without_sql(("end_attempt", "cost = :cost", "cost = coalesce(:cost, 0)")),
        ),
        Removal(
            "What the policy decides is booked as an estimate",
            without_sql(("resolve_attempt", "cost_is_estimate = :is_estimate", "cost_is_estimate = 0 * :is_estimate")),
            "a_late_reply_replaces_an_estimate",
        ),
        Removal(
            "Evidence replaces an estimate",
            without_sql(("end_attempt", "cost_is_estimate = 0", "cost_is_estimate = cost_is_estimate")),
            "a_late_reply_replaces_an_estimate",
        ),
        Removal(
            "Reclaim declares its owner dead",
            without_sql(("bury_owner", "SET dead = 1", "SET dead = 0")),
            "a_drainer_that_was_given_up_leases_under_a_new_name",
        ),
        Removal(
            "Only a living owner records",
            without_sql(("record_check", "AND o.dead = 0", "")),
            "record_heeds_a_death_that_moved_nothing",
        ),
        Removal(
            "Only a living owner leases",
            without_sql(("owner_lives", "AND dead = 0", "")),
            "a_drainer_that_was_given_up_leases_under_a_new_name",
        ),
        Removal(
            "Who slept for a lease goes on under a new name",
            keep_the_name,
            "a_drainer_that_slept_is_not_known_by_its_old_name",
        ),
        Removal(
            "What was leased under an old name is not sent",
            send_under_any_name,
            "a_drainer_whose_beat_is_old_sends_nothing",
        ),
        Removal(
            "A new name inherits the calls under way",
            without_sql(("inherit_attempts", "AND outcome IS NULL", "AND 0")),
            "a_drainer_that_slept_unseen_keeps_its_calls",
        ),
        Removal(
            "A new name inherits the leases of these calls",
            without_sql(("inherit_leases", "AND lease_owner = :old", "AND 0 AND lease_owner = :old")),
            "a_drainer_that_slept_unseen_keeps_its_calls",
        ),
        Removal(
            "A new name inherits what is listened to",
            without_sql(("inherit_listening", "listener = :old", "listener = :old AND 0")),
            "a_drainer_that_slept_unseen_keeps_its_calls",
        ),
        Removal(
            "A hold ends by the clock of its listener, not by the wall's",
            hold_by_the_wall,
            "a_clock_that_is_set_forward_ends_no_hold",
        ),
        Removal(
            "Nor does a hold for which a lane can be asked: it lasts by the age of its call",
            end_by_the_wall(ledger),
            "a_clock_that_is_set_forward_ends_no_hold_for_a_lane_to_be_asked",
        ),
        Removal(
            "What nobody waits for is not decided sooner either",
            end_by_the_wall(asking),
            "a_clock_that_is_set_forward_forgets_no_call_for_which_a_lane_is_asked",
        ),
        Removal(
            "An owner takes back its own leases that nobody renews",
            let_nothing_lapse,
            "a_lease_whose_task_died_is_taken_back_by_its_owner",
        ),
        Removal(
            "Who is answered by what is in force gets a job that is done",
            without_sql(
                ("artifacts_in_force", "(SELECT min(j.id) FROM job j WHERE j.artifact_id = a.id) AS job_id", "t.job_id")
            ),
            "a_cancelled_call_that_nobody_waited_for_answers_the_next",
        ),
        Removal(
            "A key belongs to the work of a call that may still answer it",
            forget_whose_key_it_is,
            "a_key_is_not_taken_from_a_call_under_way",
        ),
        Removal("Enqueue looks for a live job of the key", without_sql(("live_jobs", "AND live = 1", "AND 0"))),
        Removal(
            "Whatever ends an attempt wakes its key's held job",
            wake_nobody,
            "a_call_that_breaks_wakes_who_waits_for_it",
        ),
        Removal(
            "Reclaim ends every open attempt of its owner",
            without_sql(("open_attempts_by", "AND outcome IS NULL", "AND 0")),
        ),
        Removal(
            "So it does when another call answered the job meanwhile",
            without_sql(
                (
                    "open_attempts_by",
                    "AND outcome IS NULL",
                    "AND outcome IS NULL AND job_id IN (SELECT id FROM job WHERE lease_owner = :owner)",
                )
            ),
            "a_call_for_which_no_job_waits_ends_with_its_owner",
        ),
        Removal(
            "Reclaim ends what its owner listened to",
            without_sql(("listened_by", "listener = :owner", "listener = :owner AND 0")),
        ),
        Removal("`lease` gives nothing to a lane that a person has stopped", stop_no(leasing)),
        Removal(
            "`record` looks for stops", stop_no(ledger), "what_is_leased_and_not_sent_when_a_person_stops_it_goes_back"
        ),
        Removal("Lost leases have a cap", lose_leases_for_ever, "what_kills_its_worker_again_and_again_fails"),
        Removal(
            "A retry takes back withdrawals",
            without_sql(("take_back_requests", "AND withdrawn_ms IS NOT NULL", "AND 0")),
        ),
        Removal(
            "A job whose requests have moved is not retried",
            retry_what_is_empty,
            "a_job_that_nobody_asks_for_is_not_retried",
        ),
        Removal(
            "A submission withdraws only what it asked",
            without_sql(("withdraw_requests", "OR :ids IS NULL", "OR 1")),
        ),
        Removal(
            "A submission takes back only what it withdrew",
            without_sql(("take_back_requests", "OR :ids IS NULL", "OR 1")),
        ),
        Removal("Before the first byte the lease is looked at once more", look_no_more),
        Removal(
            "A call that its lane can be asked for is held though nobody listens",
            hold_no_recallable,
            "a_call_of_the_dead_is_held_where_the_lane_remembers",
        ),
        Removal(
            "Such a hold outlives its listener",
            end_holds_with_their_listener,
            "a_hold_outlives_its_listener_where_the_lane_remembers",
        ),
        Removal("The lane is asked before the policy decides", ask_no_lane),
        Removal(
            "The lane is asked before its job fails for want of another lane",
            fail_before_a_lane_is_asked,
            "a_lane_is_asked_before_its_job_fails_for_want_of_another",
        ),
        Removal(
            "Who asks anew looks back at what a lane can still be asked for",
            look_back_at_what_blocks(enqueue),
            "a_lane_is_asked_before_who_asks_anew_pays_again",
        ),
        Removal(
            "A retry decides nothing that a lane can still be asked for",
            look_back_at_what_blocks(persons),
            "a_lane_is_asked_before_a_retry_pays_again",
        ),
        Removal("A lane's silence proves something only once the call has ended and settled", take_silence_for_proof),
        Removal(
            "A call may have left as late as its lease allowed",
            forget_the_lease,
            "a_call_that_left_late_is_not_taken_for_absent",
        ),
        Removal(
            "The age of a call is told by a clock that nobody sets",
            tell_age_by_the_wall,
            "a_clock_that_was_set_anew_proves_nothing",
        ),
        Removal(
            "A hold that a due time shortens ends at the age that the call was to have then",
            hold_from_the_row,
            "a_clock_set_forward_ends_no_hold_that_a_due_time_shortens",
        ),
        Removal(
            "`record` looks for a hold that has ended since the look back",
            without_sql(("record_check", "j.fingerprint, j.floor_seq", "j.fingerprint, 1 << 60 AS floor_seq")),
            "a_hold_that_ends_after_the_look_lets_no_call_leave_unasked",
        ),
        Removal(
            "A person is asked only about what is unknown still",
            without_sql(("undecided_of_job", "SELECT 1 FROM attempt", "SELECT 1 UNION SELECT 1 FROM attempt")),
            "nobody_is_asked_about_what_has_ended",
        ),
        Removal("What nobody waits for is decided when its hold is over", decide_for_nobody),
        Removal(
            "After a call that was decided as `fail` there is no other",
            without_sql(("history", "outcome, resolution,", "outcome, nullif(resolution, 'fail') AS resolution,")),
            "who_dies_when_policy_has_given_a_call_up_pays_no_second_time",
        ),
        Removal(
            "What an owner could not write is written before it is reclaimed",
            reclaim_first,
            "what_a_dead_drainer_could_not_write_is_written_before_its_work_is_given_away",
        ),
        Removal("Every call is reserved before it", without_sql(("reserve", ":worst\n", ":worst WHERE 0\n"), of=book)),
        Removal("The owner takes back what `record` refused", keep_what_is_refused),
        Removal("What a dead owner never recorded is dropped", drop_nothing),
        Removal(
            "Only what belongs to the dead is dropped, once their reclaim is committed",
            without_sql(("owners_named", "dead FROM", "1 AS dead FROM")),
        ),
        Removal(
            "What a dead owner did record stays reserved",
            without_sql(("recorded", "WHERE uid IN", "WHERE uid = '' AND uid IN")),
        ),
        Removal(
            "A queue drops only its own reservations",
            drop_what_others_reserved,
            "two_queues_on_one_book_leave_each_other_alone",
        ),
        Removal("What is undecided keeps its reservation", without_sql(("owed", *DECIDED), ("unposted", *DECIDED))),
        Removal("What was settled and not posted is posted", without_sql(("unposted", "posted = 0", "posted = 2"))),
        Removal("An actual replaces an estimate", without_sql(("replace_charge", "is_estimate = 1", "0"), of=book)),
        Removal(
            "Nothing replaces an actual",
            without_sql(("replace_charge", "AND is_estimate = 1", ""), of=book),
            "who_is_slow_to_post_an_estimate_undoes_no_actual",
        ),
        Removal(
            "`posted` is set only while cost and estimate are still those posted",
            without_sql(("mark_posted", *STILL)),
            "evidence_that_comes_between_post_and_mark_is_posted",
        ),
        Removal(
            "What changes a cost makes it unposted",
            without_sql(("end_attempt", "posted = 0", "posted = posted")),
        ),
        Removal(
            "A charge that is not known is not 0",
            without_sql(("insert_charge", ":cost", "coalesce(:cost, 0)"), of=book),
        ),
    ]
}
