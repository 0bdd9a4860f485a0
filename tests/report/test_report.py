"""The ledger added up: histories made by hand, and the published queries as they were printed beside them."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import apsw
import pytest
from published import DUPLICATES, TOKENS_AND_CROSSINGS

from millpond.report.report import LaneReport, Money, Report, build
from millpond.rules.effects import Then
from millpond.rules.job import Lease, Reply, Usage
from millpond.rules.policy import LanePolicy, Policy
from millpond.rules.price import FREE, Cost
from millpond.testing.store_scene import RELEASE, Scene, asked

POLICY = Policy({"free": LanePolicy("free", price=FREE), "paid": LanePolicy("paid", tier="paid")})
PRICED = Policy({"free": LanePolicy("free"), "paid": LanePolicy("paid", tier="paid")})
"""The same with no price said of `free`."""

A_CENT, HALF_A_CENT = Decimal("0.01"), Decimal("0.005")


def report(scene: Scene, policy: Policy = POLICY) -> Report:
    return build(scene.store, policy)


def call(scene: Scene, lease: Lease, *, lane: str = "paid", cost: Decimal | None = A_CENT, tokens: int = 100,
         ms: int = 10) -> None:  # fmt: skip
    """One more attempt of a lease, on that lane and its tier, which answers after so long."""
    uid = f"{lane}-{lease.job_id}-{lease.lease_no}"
    assert scene.store.record(lease, uid, lane, lane) is not None
    scene.clock.advance(ms)
    scene.settle(uid, Reply("yes", usage=Usage(tokens, tokens)), lease=lease, lane=lane, cost=cost)


def plain(scene: Scene, key: str, **how: object) -> None:
    """A key that `paid` answers at once."""
    scene.ask(key, lane="paid")
    [lease] = scene.lease(room={"paid": 1})
    call(scene, lease, **how)  # type: ignore[arg-type]


def crossed(scene: Scene, key: str) -> None:
    """A job that `free` refused, and that `paid` answered."""
    lease, uid = scene.in_flight(key)
    scene.settle(uid, "retryable", Then("release", next_lane="paid"), lease=lease, cost=Decimal(0))
    [lease] = scene.lease(room={"paid": 1})
    call(scene, lease)


def pinned(scene: Scene, key: str) -> str:
    """A job that was pinned to `paid` after an unknown end, and answered there. Returns the uid of the unknown one."""
    lease, uid = scene.in_flight(key)
    scene.settle(uid, "ambiguous", Then("release", next_lane="paid"), lease=lease)
    scene.store.resolve(uid, "pin", worst=Cost(HALF_A_CENT, "stated"))
    [lease] = scene.lease(room={"paid": 1})
    call(scene, lease)
    return uid


def printed(scene: Scene) -> tuple[tuple[float | None, float | None], dict[str, int]]:
    """What the published queries say, as they were printed."""
    path: Path = scene.store.db.path  # type: ignore[attr-defined]
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)
    try:
        [figures] = connection.execute(TOKENS_AND_CROSSINGS).fetchall()
        return figures, dict(connection.execute(DUPLICATES).fetchall())
    finally:
        connection.close()


def held_against_the_queries(scene: Scene) -> Report:
    """The report, once it was held against the queries as printed."""
    found = report(scene)
    said = found.published
    assert ((said.tokens_per_artifact, said.cross_lane_per_job), said.duplicates) == printed(scene)
    return found


# --- the published numbers beside the honest ones ---------------------------------------------------------------------


def test_an_empty_ledger_has_no_numbers(scene: Scene) -> None:
    found = held_against_the_queries(scene)
    assert (found.since_ms, found.attempts, found.tokens_per_artifact, found.executions_per_artifact) == (
        None,
        0,
        None,
        None,
    )
    assert (found.published.tokens_per_artifact, found.published.cross_lane_per_job) == (None, None)
    assert found.in_words() == "the ledger is empty: nothing was sent yet"


def test_jobs_that_were_each_asked_once(scene: Scene) -> None:
    began = scene.now_ms
    for key in ("a", "b", "c"):
        plain(scene, key)
    found = held_against_the_queries(scene)
    assert (found.jobs, found.attempts, found.artifacts_in_force, found.since_ms) == (3, 3, 3, began)
    assert (found.tokens_per_artifact, found.executions_per_artifact) == (200.0, 1.0)
    assert (found.published.tokens_per_artifact, found.published.cross_lane_per_job) == (200.0, 0.0)
    assert (found.spent, found.paid_twice, found.saved) == (
        Money(3, 3 * A_CENT, 0),
        Money(0, Decimal(0), 0),
        Money(0, Decimal(0), 0),
    )
    scene.in_flight("later, on another lane")
    assert report(scene).since_ms == began


def test_the_published_ratios_are_rounded_as_they_were(scene: Scene) -> None:
    for key, tokens in (("a", 1), ("b", 1), ("c", 2)):
        plain(scene, key, tokens=tokens)
    crossed(scene, "d")
    scene.failed("e")
    scene.failed("f")
    found = held_against_the_queries(scene)
    assert (found.published.tokens_per_artifact, found.published.cross_lane_per_job) == (52.0, 0.167)
    plain(scene, "g", tokens=3)
    plain(scene, "h", tokens=3)
    assert held_against_the_queries(scene).published.tokens_per_artifact == 36.7


def test_an_artifact_that_two_jobs_tried_for_counts_once_here_and_twice_as_published(scene: Scene) -> None:
    """A first job is cancelled while its call is out, a second one of the same key answers, and the first loses."""
    first, late = scene.in_flight("shared")
    scene.cancel(first.job_id)
    scene.settle(late, "ambiguous", RELEASE, lease=None)
    scene.ask("shared")
    scene.route()
    scene.store.resolve(late, "same")
    [lease] = scene.lease()
    call(scene, lease, lane="free", cost=Decimal(0))
    scene.settle(late, Reply("late", usage=Usage(50, 50)), lease=None, cost=Decimal(0))
    found = held_against_the_queries(scene)
    assert (found.jobs, found.artifacts_in_force, found.lost) == (2, 1, 1)
    assert found.published.tokens_per_artifact == 150.0  # 300 tokens over an artifact of each of two jobs
    assert found.tokens_per_artifact == 300.0
    assert found.executions_per_artifact == 2.0


def test_a_retired_answer_is_not_in_force_and_its_tokens_were_spent(scene: Scene) -> None:
    plain(scene, "a")
    scene.ask("a", fresh=True, lane="paid")
    [lease] = scene.lease(room={"paid": 1})
    call(scene, lease)
    found = held_against_the_queries(scene)
    assert (found.artifacts_in_force, found.artifacts_retired, found.duplicate_artifacts) == (1, 1, 0)
    assert (found.published.tokens_per_artifact, found.tokens_per_artifact) == (200.0, 400.0)


def test_a_call_that_told_no_tokens_is_said_and_not_taken_for_none(scene: Scene) -> None:
    plain(scene, "a")
    pinned(scene, "b")
    found = held_against_the_queries(scene)
    assert (found.published.tokens_per_artifact, found.tokens_per_artifact, found.untold) == (200.0, 200.0, 1)
    assert "tokens/artifact      at least 200.0" in found.in_words()


def test_tokens_that_nobody_told_at_all_are_unknown_in_words(scene: Scene) -> None:
    lease, uid = scene.in_flight("a")
    scene.settle(uid, Reply("yes"), lease=lease)
    found = report(scene)
    words = found.in_words()
    assert found.tokens_per_artifact is None
    assert "tokens/artifact      unknown" in words
    assert "\nfree  1         1   0      0.0%  0    unknown  " in words


def test_crossings_are_counted_and_not_only_whether_there_were_any(scene: Scene) -> None:
    """free, paid, free: the published query sees both tiers once, and cannot tell it from one that went over."""
    crossed(scene, "over")
    lease, uid = scene.in_flight("to and fro")
    scene.settle(uid, "retryable", Then("release", next_lane="paid"), lease=lease, cost=Decimal(0))
    [lease] = scene.lease(room={"paid": 1})
    uid = "paid-once"
    scene.store.record(lease, uid, "paid", "paid")
    scene.settle(uid, "saturated", Then("release", next_lane="free"), lease=lease, cost=Decimal(0), lane="paid")
    [lease] = scene.lease()
    call(scene, lease, lane="free", cost=Decimal(0))
    plain(scene, "at once")
    found = held_against_the_queries(scene)
    assert found.published.cross_lane_per_job == 0.667
    assert (found.crossings, found.crossed_jobs, found.crossings_per_job) == (3, 2, 1.0)


def test_a_crossing_between_lanes_of_one_tier_is_one_here_and_none_as_published(scene: Scene) -> None:
    lease, uid = scene.in_flight("a")
    scene.settle(uid, "retryable", Then("release", next_lane="other"), lease=lease, cost=Decimal(0))
    [lease] = scene.lease(room={"other": 1})
    scene.store.record(lease, "elsewhere", "other", "free")
    scene.settle("elsewhere", "ok", lease=lease, lane="other", cost=Decimal(0))
    found = held_against_the_queries(scene)
    assert (found.published.cross_lane_per_job, found.crossings) == (0.0, 1)


# --- paid twice, late, lost ------------------------------------------------------------------------------------------


def test_a_late_loser_was_paid_for_twice_and_leaves_no_duplicate(scene: Scene) -> None:
    uid = pinned(scene, "a")
    before = held_against_the_queries(scene)
    assert (before.paid_twice, before.estimated, before.spent.known_usd) == (
        Money(1, HALF_A_CENT, 0), Money(1, HALF_A_CENT, 0), A_CENT,
    )  # fmt: skip
    scene.clock.advance(5_000)
    scene.settle(uid, Reply("late", usage=Usage(10, 10)), cost=Decimal("0.002"))
    found = held_against_the_queries(scene)
    assert (found.paid_twice, found.estimated) == (Money(1, Decimal("0.002"), 0), Money(0, Decimal(0), 0))
    assert found.spent == Money(2, Decimal("0.012"), 0)
    assert (found.late, found.late_after_hold, found.lost, found.duplicate_artifacts) == (1, 1, 1, 0)
    assert found.published.duplicates == {}


def test_a_late_reply_that_answers_was_not_paid_for_twice(scene: Scene) -> None:
    lease, uid = scene.in_flight("a")
    scene.store.detach(uid, lease, 60_000)
    scene.clock.advance(1_000)
    scene.settle(uid, Reply("slow", usage=Usage(3, 5)), cost=A_CENT)
    found = held_against_the_queries(scene)
    assert (found.late, found.late_after_hold, found.lost, found.paid_twice.calls) == (1, 0, 0, 0)
    lane = found.by_lane["free"]
    assert (lane.ambiguous, lane.ambiguous_once, lane.ambiguous_rate) == (0, 1, 1.0)


def spent(found: Report) -> str:
    return (
        next(line for line in found.in_words().splitlines() if line.startswith("spent")).removeprefix("spent").strip()
    )


def test_calls_that_are_not_over_or_not_decided_stand_beside_what_was_spent(scene: Scene) -> None:
    """No price is missing: what they may cost is reserved."""
    lease, uid = scene.in_flight("a")
    assert " ".join(spent(report(scene, PRICED)).split()) == "$0.00 1 call not over yet, and only reserved"
    scene.settle(uid, "ambiguous", RELEASE, lease=lease)
    found = report(scene, PRICED)
    assert (found.paid_twice.calls, found.spent, found.undecided) == (0, Money(0, Decimal(0), 0), 1)
    assert spent(found).endswith("1 call of unknown end not decided yet, and only reserved")
    free = report(scene)
    assert (free.spent, free.undecided) == (Money(1, Decimal(0), 0), 0)  # where the lane is free, its call was


def test_a_person_who_asks_again_may_pay_twice_at_a_cost_that_nobody_knows(scene: Scene) -> None:
    lease, uid = scene.in_flight("a")
    scene.settle(uid, "ambiguous", Then("fail", reason="ambiguous: unknown"), lease=lease)
    scene.retry(lease.job_id)
    assert report(scene, PRICED).paid_twice.calls == 0, "nothing was called for again yet"
    scene.record(scene.lease()[0])
    found = report(scene, PRICED)
    assert (found.paid_twice, found.paid_twice.in_words()) == (Money(1, Decimal(0), 1), "unknown")
    assert report(scene).paid_twice.calls == 0


def test_a_refusal_that_says_what_it_used_is_unpriced_where_its_price_is_unknown(scene: Scene) -> None:
    scene.failed("refused, nothing used")
    assert report(scene, PRICED).spent.unpriced == 0
    lease, uid = scene.in_flight("refused, tokens used")
    scene.settle(uid, "permanent", Then("fail", reason="refused: no"), lease=lease)
    sql = apsw.Connection(str(scene.store.db.path))  # type: ignore[attr-defined]
    sql.execute("UPDATE attempt SET tokens_in = 7 WHERE uid = ?", (uid,)).fetchall()
    sql.close()
    assert report(scene, PRICED).spent.unpriced == 1


# --- saved -----------------------------------------------------------------------------------------------------------


def test_joined_and_reused_requests_saved_what_the_call_that_answered_cost(scene: Scene) -> None:
    scene.ask_many(*(asked("a", lane="paid") for _ in range(3)))
    assert report(scene).saved.calls == 0  # not before there is an answer
    [lease] = scene.lease(room={"paid": 1})
    call(scene, lease)
    scene.ask("a")
    found = report(scene)
    assert (found.joined, found.reused, found.saved) == (2, 1, Money(3, 3 * A_CENT, 0))


def test_what_an_unpriced_answer_saved_is_unknown(scene: Scene) -> None:
    scene.ask_many(asked("a"), asked("a"), asked("b", lane="paid"), asked("b"))
    [lease] = scene.lease()
    call(scene, lease, lane="free", cost=None)
    [lease] = scene.lease(room={"paid": 1})
    call(scene, lease)
    assert report(scene, PRICED).saved == Money(2, A_CENT, 1)
    assert report(scene, PRICED).saved.in_words() == "$0.0100 + 1 unpriced"
    assert report(scene).saved == Money(2, A_CENT, 0)


def test_a_request_that_was_withdrawn_saved_nothing(scene: Scene) -> None:
    scene.ask("a")
    second = scene.ask("a")
    scene.cancel(second.job_id, submissions=[second.submission_id])
    [lease] = scene.lease()
    call(scene, lease, lane="free")
    assert report(scene).saved.calls == 0


# --- by lane ---------------------------------------------------------------------------------------------------------


def test_each_lane_has_its_own_figures_in_the_users_order(scene: Scene) -> None:
    crossed(scene, "crossed")
    pinned(scene, "pinned")
    plain(scene, "dear", cost=None, tokens=7)
    lease, uid = scene.in_flight("turned away")
    scene.settle(uid, "saturated", RELEASE, lease=lease, cost=Decimal(0))
    scene.send(scene.take())
    found = report(scene, PRICED)
    assert list(found.by_lane) == ["free", "paid"]
    assert list(report(scene, Policy({"paid": PRICED.lanes["paid"]})).by_lane) == ["paid", "free"]
    free, paid = found.by_lane["free"], found.by_lane["paid"]
    assert (free.attempts, free.in_flight, free.ok, free.ambiguous_once, free.saturated) == (4, 1, 0, 1, 1)
    assert free.ambiguous_rate == 0.5  # of the two that count: saturated ones use up no attempt
    assert (free.spent, free.estimated, free.p50_ms) == (Money(1, Decimal(0), 0), Money(1, HALF_A_CENT, 0), None)
    assert (paid.attempts, paid.ok, paid.tokens_in, paid.tokens_out) == (3, 3, 207, 207)
    assert (paid.spent, paid.executions, paid.ambiguous_rate) == (Money(3, 2 * A_CENT, 1), 3, 0.0)
    assert found.spent == Money(4, 2 * A_CENT, 1)


@pytest.mark.parametrize(
    ("durations", "p50", "p95"), [([7], 7, 7), ([4, 2, 1, 3], 2, 4), (list(range(1, 101)), 50, 95)]
)
def test_durations_are_ranked(scene: Scene, durations: list[int], p50: int, p95: int) -> None:
    for at, ms in enumerate(durations):
        plain(scene, f"k{at}", ms=ms)
    lane: LaneReport = report(scene).by_lane["paid"]
    assert (lane.p50_ms, lane.p95_ms) == (p50, p95)


def test_the_words_hold_every_number_on_one_screen(scene: Scene) -> None:
    scene.ask_many(asked("a", lane="paid"), asked("a"))
    [lease] = scene.lease(room={"paid": 1})
    call(scene, lease, ms=1_500)
    crossed(scene, "b")
    pinned(scene, "c")
    words = report(scene).in_words().splitlines()
    assert words[0].startswith("3 jobs, 5 attempts since ")
    assert words[2:10] == [
        "tokens/artifact      at least 200.0  600 tokens, 1 execution told none",
        "executions/artifact  1.33            4 executions, 3 artifacts in force",
        "crossings/job        0.67            2 by 2 jobs",
        "duplicate artifacts  0               in force; a unique index keeps it 0",
        "paid twice           1               $0.0050",
        "late replies         0               0 after the hold; 0 good replies lost, late or not",
        "saved by dedup       1               $0.0100; 1 joined, 0 reused",
        "spent                $0.0300         and at most $0.0050 for 1 call of unknown end",
    ]
    assert words[11:14] == [
        "lane  attempts  ok  ambig  rate   sat  tokens   spent    p50    p95",
        "free  2         0   1      50.0%  0    unknown  $0.00    –      –",
        "paid  3         3   0      0.0%   0    600      $0.0300  10 ms  1.5 s",
    ]
    assert [line.split()[:2] for line in words[16:]] == [
        ["tokens_per_artifact", "200.0"], ["cross_lane_per_job", "0.667"], ["duplicates", "0"],
    ]  # fmt: skip
    assert max(map(len, words)) <= 100
