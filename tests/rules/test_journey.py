"""One lease from grant to settlement, driven by hand: the order of effects, and what each ending leads to."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.rules.admission import Admitted, Closing, NotNow
from millpond.rules.effects import (
    ACCEPT,
    Admit,
    Call,
    Charge,
    Detach,
    Effect,
    Facts,
    Give,
    Heard,
    Instead,
    Listen,
    LookBack,
    Post,
    Recall,
    Record,
    Recorded,
    Release,
    Reserve,
    Reserved,
    Resolve,
    Settle,
    Silence,
    StopListening,
    Then,
)
from millpond.rules.errors import LeaseLost
from millpond.rules.evidence import Absent, Evidence, Unknown
from millpond.rules.job import Lease, Prompt, Reply, Usage
from millpond.rules.journey import journey
from millpond.rules.policy import Backoff, LanePolicy, Policy
from millpond.rules.price import FREE, Cost, PriceRule
from millpond.rules.router import Past, Tried, Undecided
from millpond.rules.verdict import end, worst_bill
from millpond.testing import evidence_of

NOW_MS = 1_000_000
STATED = PriceRule("stated", input_usd_per_mtok=Decimal(1), output_usd_per_mtok=Decimal(2))
LANES = {
    "free": LanePolicy("free", max_attempts=2, price=FREE, soft_timeout_ms=5_000, after_hold="pin"),
    "paid": LanePolicy("paid", tier="paid", max_attempts=1, price=STATED, max_output_tokens=100),
}
POLICY = Policy(lanes=LANES, backoff=Backoff(first_ms=500, cap_ms=4_000, jitter=0.5), max_attempts_per_job=4)
ORDER = ("free", "paid")
LEASE = Lease(
    job_id=7,
    lease_no=1,
    work=Prompt("x"),
    idempotency_key="k",
    attempt_no=1,
    due_ms=None,
    fingerprint="f",
    owner="worker",
    lane="free",
    service_class="batch",
    route="",
    wished_lane="",
    has_history=False,
)
RECORDED = Recorded("uid", 1)
CHARGE = Charge("uid", "free", NOW_MS, Decimal("0.01"), is_estimate=False)
GOOD = "ok"


def heard(answer: Any = GOOD, chance: float = 0.0) -> Heard:
    return Heard(evidence_of(answer), NOW_MS, chance)


def drive(*answers: Any, lease: Lease = LEASE, policy: Policy = POLICY, order: Sequence[str] = ORDER) -> list[Effect]:
    """Answer the journey's effects one by one, the last with None if it needs no answer; all that it asked for.

    What it reserves is granted.
    """
    course = journey(lease, policy, order)
    effects = [next(course)]
    left = [*answers]
    try:
        while True:
            is_reserving = isinstance(effects[-1], Reserve)
            effects.append(course.send(Reserved("uid") if is_reserving else left.pop(0) if left else None))
    except StopIteration:
        assert left == [], f"it was over before it was told {left}"
        return effects


def kinds(effects: Sequence[Effect]) -> list[str]:
    return [type(effect).__name__ for effect in effects]


def past(*tried: Tried, undecided: Sequence[Undecided] = (), made: int = 1, granted: int = 0) -> Facts:
    return Facts(Past(tried, tuple(undecided)), attempts_made=made, attempts_granted=granted)


LATER = replace(LEASE, has_history=True)


# --- the order of effects ---------------------------------------------------------------------------------------------


def test_a_first_call_is_admitted_recorded_called_and_settled() -> None:
    effects = drive(Admitted(), RECORDED, heard())
    assert effects[:4] == [Admit("free"), Reserve("free"), Record("free", "uid"), Call("uid", "free", 1, 5_000)]
    [settle] = effects[4:]
    assert isinstance(settle, Settle)
    assert (settle.uid, settle.lane, settle.ending.outcome, settle.then) == ("uid", "free", "ok", ACCEPT)


def test_a_key_with_a_past_is_looked_back_on_first() -> None:
    effects = drive(past(Tried("free", "retryable")), Admitted(), RECORDED, heard(), lease=LATER)
    assert kinds(effects) == ["LookBack", "Admit", "Reserve", "Record", "Call", "Settle"]


def test_without_a_ledger_row_there_is_no_call() -> None:
    assert drive(Admitted(), Instead("held")) == [
        Admit("free"), Reserve("free"), Record("free", "uid"), Release("uid"),
    ]  # fmt: skip


def test_whoever_has_lost_the_lease_takes_its_reservation_back() -> None:
    course = journey(LEASE, POLICY, ORDER)
    assert [next(course), course.send(Admitted()), course.send(Reserved("uid"))][-1] == Record("free", "uid")
    assert course.throw(LeaseLost("cancelled meanwhile")) == Release("uid")
    with pytest.raises(LeaseLost, match="cancelled meanwhile"):
        course.send(None)


def test_what_the_ledger_says_of_a_call_is_posted() -> None:
    assert drive(Admitted(), RECORDED, heard(), CHARGE)[-1] == Post(CHARGE)
    assert kinds(drive(Admitted(), RECORDED, Silence(NOW_MS), None, heard(), CHARGE))[-2:] == ["Settle", "Post"]


def test_what_policy_decides_is_posted_before_the_next_call() -> None:
    estimate = replace(CHARGE, uid="earlier", is_estimate=True)
    effects = drive(past(undecided=OPEN), estimate, None, Admitted(), RECORDED, heard(), lease=LATER,
                    policy=policy_that_says("same"))  # fmt: skip
    assert effects[1:4] == [Resolve("earlier", "free", "same"), Post(estimate), Admit("free")]


def test_a_lane_that_closed_meanwhile_gets_its_job_back_without_a_row() -> None:
    assert drive(NotNow()) == [Admit("free"), Give(Then("release"))]


def test_a_job_that_must_go_to_another_lane_is_given_back_to_be_leased_there() -> None:
    spent = past(Tried("free", "retryable"), Tried("free", "retryable"))
    assert drive(spent, lease=LATER) == [LookBack(), Give(Then("release", next_lane="paid"))]


def test_a_job_with_no_lane_left_fails_with_the_reason() -> None:
    effects = drive(past(Tried("free", "permanent", code="refused")), lease=LATER)
    assert effects == [LookBack(), Give(Then("fail", reason="refused: refused for good by lane free"))]


def test_the_attempts_of_a_jobs_life_are_bounded() -> None:
    assert drive(past(made=4), lease=LATER) == [
        LookBack(), Give(Then("fail", reason="attempts: lifetime cap of 4 attempts reached"))]  # fmt: skip
    assert kinds(drive(past(made=3), Admitted(), RECORDED, heard(), lease=LATER))[-1] == "Settle"
    assert kinds(drive(past(made=4, granted=1), Admitted(), RECORDED, heard(), lease=LATER))[-1] == "Settle"


def test_what_an_earlier_drain_passed_over_gets_its_turn() -> None:
    """Routing is by the history, not by where the job happens to stand."""
    assert drive(lease=replace(LEASE, lane="paid")) == [Give(Then("release", next_lane="free"))]
    absent = replace(POLICY, absent=frozenset({"free"}))
    assert kinds(drive(Admitted(), RECORDED, heard(), lease=replace(LEASE, lane="paid"), policy=absent))[-1] == "Settle"


def test_a_job_whose_next_lane_this_drain_does_not_have_is_released_to_wait_for_it() -> None:
    absent = replace(POLICY, absent=frozenset({"paid"}))
    effects = drive(past(undecided=OPEN), None, lease=LATER, policy=absent)
    assert effects[1:] == [Resolve("earlier", "free", "pin"), Give(Then("release", next_lane="paid"))]
    spent = drive(past(Tried("free", "retryable")), Admitted(), RECORDED, heard("retryable"), lease=LATER,
                  policy=absent)[-1]  # fmt: skip
    assert isinstance(spent, Settle)
    assert spent.then == Then("release", next_lane="paid")


# --- a lane that can be asked is asked first --------------------------------------------------------------------------

ASKABLE = [Undecided("earlier", "free", askable_age_ms=7)]


def test_a_lane_is_asked_before_the_policy_decides() -> None:
    effects = drive(past(undecided=ASKABLE), Unknown(), None, lease=LATER)
    assert effects == [
        LookBack(), Recall("earlier", "free", 7), Resolve("earlier", "free", "pin"),
        Give(Then("release", next_lane="paid"))]  # fmt: skip


def test_a_recalled_reply_ends_the_journey() -> None:
    *_, settle = drive(past(undecided=ASKABLE), heard(), lease=LATER)
    assert isinstance(settle, Settle)
    assert (settle.uid, settle.ending.outcome, settle.then, settle.how) == ("earlier", "ok", Then(None), "recalled")


def test_a_recalled_answer_of_no_use_sends_the_job_to_be_routed_by_it() -> None:
    *_, settle = drive(past(undecided=ASKABLE), heard("unusable"), lease=LATER)
    assert isinstance(settle, Settle)
    assert (settle.ending.outcome, settle.then) == ("unusable", Then("release", next_lane=""))


def test_what_is_recalled_and_says_nothing_is_unknown_still() -> None:
    assert kinds(drive(past(undecided=ASKABLE), heard("ambiguous"), None, lease=LATER))[1:3] == ["Recall", "Resolve"]


@pytest.mark.parametrize(("code", "kept"), [("died", "died"), ("given_up", "given_up"), ("cut", "absent")])
def test_an_absence_costs_nothing_and_what_our_own_end_broke_off_stays_ours(code: str, kept: str) -> None:
    *_, settle = drive(past(undecided=[replace(ASKABLE[0], code=code)]), Absent(), lease=LATER)
    assert isinstance(settle, Settle)
    assert (settle.ending.outcome, settle.ending.classified.code, settle.how) == ("retryable", kept, "absent")
    assert settle.ending.cost is not None
    assert settle.ending.cost.usd == 0


# --- what is undecided is decided first -------------------------------------------------------------------------------

OPEN = [Undecided("earlier", "free")]


def policy_that_says(after_hold: Any) -> Policy:
    return replace(POLICY, lanes={**LANES, "free": replace(LANES["free"], after_hold=after_hold)})


def test_pin_resolves_and_sends_the_job_to_the_next_lane() -> None:
    effects = drive(past(undecided=OPEN), None, lease=LATER)
    assert effects == [LookBack(), Resolve("earlier", "free", "pin"), Give(Then("release", next_lane="paid"))]


def test_same_resolves_and_calls_the_same_lane_again() -> None:
    effects = drive(past(undecided=OPEN), None, Admitted(), RECORDED, heard(), lease=LATER,
                    policy=policy_that_says("same"))  # fmt: skip
    assert effects[1] == Resolve("earlier", "free", "same")
    assert kinds(effects) == ["LookBack", "Resolve", "Admit", "Reserve", "Record", "Call", "Settle"]


def test_ask_leaves_it_undecided_for_a_person() -> None:
    effects = drive(past(undecided=OPEN), lease=LATER, policy=policy_that_says("ask"))
    assert effects == [LookBack(), Give(Then("ask"))]


def test_fail_resolves_and_fails_the_job() -> None:
    effects = drive(past(undecided=OPEN), None, lease=LATER, policy=policy_that_says("fail"))
    assert effects[1] == Resolve("earlier", "free", "fail")
    assert isinstance(effects[2], Give)
    assert (effects[2].then.move, (effects[2].then.reason or "").split(":")[0]) == ("fail", "ambiguous")


@pytest.mark.parametrize("after_hold", ["pin", "same"])
def test_nothing_is_paid_again_for_a_job_that_fails(after_hold: Any) -> None:
    policy = policy_that_says(after_hold)
    for facts in (past(undecided=OPEN, made=4), past(Tried("free", "retryable"), undecided=OPEN, made=2)):
        effects = drive(facts, None, lease=LATER, policy=policy, order=("free",))
        assert effects[1] == Resolve("earlier", "free", "fail")
        assert isinstance(effects[2], Give)
        assert effects[2].then.move == "fail"


def test_an_attempt_on_a_lane_that_has_left_the_policy_is_pinned() -> None:
    effects = drive(past(undecided=[Undecided("earlier", "gone")]), None, Admitted(), RECORDED, heard(), lease=LATER)
    assert effects[1] == Resolve("earlier", "gone", "pin")


# --- the soft timeout -------------------------------------------------------------------------------------------------


def test_a_soft_timeout_detaches_and_listens_on() -> None:
    effects = drive(Admitted(), RECORDED, Silence(NOW_MS), None, heard())
    assert effects[4:6] == [Detach("uid", 900_000), Listen("uid", "free", 900_000)]
    settle = effects[6]
    assert isinstance(settle, Settle)
    assert (settle.ending.outcome, settle.then) == ("ok", ACCEPT), "the job's next move is not this call's any more"


@pytest.mark.parametrize(
    ("answer", "after_hold", "pause"),
    [
        ("retryable", "pin", 500),
        (Evidence(said="retryable", retry_info_ms=9_000), "pin", 9_000),
        ("ambiguous", "same", 500),
        (Evidence(status=504, headers={"retry-after": "9"}), "same", 9_000),
        ("ambiguous", "pin", None),
        ("saturated", "same", None),
        ("permanent", "same", None),
    ],
)
def test_a_lane_is_given_its_pause_after_a_call_that_was_only_listened_to(
    answer: Any, after_hold: Any, pause: int | None
) -> None:
    """Decision 008 holds whether or not a soft timeout came first."""
    settle = drive(Admitted(), RECORDED, Silence(NOW_MS), None, heard(answer), policy=policy_that_says(after_hold))[-1]
    assert isinstance(settle, Settle)
    assert settle.then == Then(None, delay_ms=pause)


def test_when_the_hold_is_over_it_stops_the_hold_but_not_the_listening() -> None:
    effects = drive(Admitted(), RECORDED, Silence(NOW_MS), None, Silence(NOW_MS), None, heard("ambiguous"))
    assert kinds(effects[4:]) == ["Detach", "Listen", "StopListening", "Listen", "Settle"]
    assert (effects[6], effects[7]) == (StopListening("uid"), Listen("uid", "free", None))
    assert isinstance(effects[8], Settle)
    assert effects[8].then == ACCEPT


def test_without_a_hold_the_call_is_only_listened_to() -> None:
    policy = replace(POLICY, late_completion_window_ms=0)
    effects = drive(Admitted(), RECORDED, Silence(NOW_MS), None, heard(), policy=policy)
    assert effects[4:6] == [Detach("uid", 0), Listen("uid", "free", None)]


def test_a_due_time_shortens_the_hold() -> None:
    effects = drive(Admitted(), RECORDED, Silence(NOW_MS), None, heard(), lease=replace(LEASE, due_ms=NOW_MS + 70))
    assert effects[4] == Detach("uid", 70)


# --- what follows an ending -------------------------------------------------------------------------------------------


def after(answer: Any, *tried: Tried, chance: float = 0.0, lane: str = "free", policy: Policy = POLICY) -> Then:
    lease = replace(LEASE, has_history=bool(tried), lane=lane)
    look_back = [past(*tried)] if tried else []
    order = ORDER[ORDER.index(lane) :]
    settle = drive(*look_back, Admitted(), RECORDED, heard(answer, chance), lease=lease, policy=policy, order=order)[-1]
    assert isinstance(settle, Settle)
    return settle.then


def test_a_retryable_end_backs_off_and_the_second_goes_on() -> None:
    assert after("retryable") == Then("back_off", delay_ms=500)
    assert after("retryable", chance=0.5) == Then("back_off", delay_ms=625)
    assert after("retryable", Tried("free", "retryable")) == Then("release", next_lane="paid")


def test_a_stated_delay_is_kept_where_it_is_longer() -> None:
    stated = Evidence(said="retryable", retry_info_ms=9_000)
    assert after(stated) == Then("back_off", delay_ms=9_000)
    assert after(replace(stated, retry_info_ms=1)) == Then("back_off", delay_ms=500)


@pytest.mark.parametrize("answer", ["saturated", "lane_down"])
def test_a_lane_that_cannot_now_uses_up_no_attempt(answer: str) -> None:
    assert after(answer) == Then("release", uncounted=True)


def test_an_ambiguous_end_without_a_listener_frees_the_job_to_be_decided() -> None:
    assert after("ambiguous") == Then("release", next_lane="")
    for choice in ("ask", "fail"):
        assert after("ambiguous", policy=policy_that_says(choice)) == Then("release", next_lane="")


def test_a_lane_that_is_asked_again_after_an_ambiguous_end_is_given_a_pause() -> None:
    same, cut = policy_that_says("same"), Evidence(failure="reset")
    assert after(cut, policy=same) == Then("back_off", delay_ms=500)
    assert after(cut, chance=0.5, policy=same) == Then("back_off", delay_ms=625)
    assert after(cut, Tried("free", "ambiguous", "same"), policy=same) == Then("release", next_lane=""), (
        "spent: goes on"
    )
    patient = replace(LANES["paid"], max_attempts=3)
    last = replace(POLICY, lanes={**LANES, "paid": patient})
    assert after(cut, lane="paid", policy=last) == Then("back_off", delay_ms=500), "no lane is left to pin to"
    assert after(cut, Tried("paid", "ambiguous", "pin"), lane="paid", policy=last) == Then("back_off", delay_ms=1_000)


def test_a_stated_delay_is_kept_though_the_end_is_ambiguous() -> None:
    broken = Evidence(status=504, headers={"retry-after": "9"})
    assert after(broken, policy=policy_that_says("same")) == Then("back_off", delay_ms=9_000)
    assert after(broken) == Then("release", next_lane=""), "the delay is the lane's, and the job goes to another"


def test_what_our_own_end_broke_off_needs_no_pause_and_a_lane_that_closes_no_other() -> None:
    same = policy_that_says("same")
    assert after(Evidence(failure="cancelled"), policy=same) == Then("release", next_lane="")
    assert after(Evidence(failure="not_http"), policy=same) == Then("release", next_lane="")


def test_an_unfit_end_goes_to_the_next_lane_and_fails_on_the_last() -> None:
    assert after("unfit") == Then("release", next_lane="paid")
    then = after("unfit", lane="paid")
    assert (then.move, "lanes exhausted, last paid" in (then.reason or "")) == ("fail", True)


def test_a_permanent_end_fails_and_keeps_the_providers_words() -> None:
    then = after(Evidence(said="permanent", code="filtered", message="not in this house"))
    assert then.move == "fail"
    assert (then.reason or "").startswith("filtered: ")
    assert "not in this house" in (then.reason or "")


def test_o04_a_truncated_end_fails_at_once_and_an_empty_one_is_tried_once_more() -> None:
    cut = Evidence(status=200, terminal=True, has_content=True, finish_reason="length", reply=Reply("half"))
    empty = Evidence(status=200, terminal=True, finish_reason="stop", reply=Reply(""))
    assert (after(cut).move, (after(cut).reason or "").split(":")[0]) == ("fail", "truncated")
    assert after(empty) == Then("back_off", delay_ms=500)
    then = after(empty, Tried("free", "unusable", code="empty"))
    assert (then.move, (then.reason or "").split(":")[0]) == ("fail", "empty")


# --- lanes that close, and money --------------------------------------------------------------------------------------


def test_a_saturated_lane_closes_for_the_stated_time_and_jitter_only_adds() -> None:
    evidence = Evidence(status=429, code="rate_limit", headers={"retry-after": "3"})
    plain = end(heard(evidence), LANES["free"], POLICY).closing
    assert plain is not None
    assert (plain.until_ms, plain.by) == (NOW_MS + 3_000, "saturated")
    jittered = end(heard(evidence, chance=0.999), LANES["free"], POLICY).closing
    assert jittered is not None
    assert plain.until_ms <= (jittered.until_ms or 0) <= NOW_MS + 3_000 * 1.5  # type: ignore[operator]


def test_a_lane_without_money_closes_until_a_person_opens_it() -> None:
    ending = end(heard(Evidence(status=429, code="insufficient_quota")), LANES["paid"], POLICY)
    assert isinstance(ending.closing, Closing)
    assert (ending.outcome, ending.closing.until_ms, ending.closing.by) == ("lane_down", None, "down")


@pytest.mark.parametrize(
    ("answer", "cost"),
    [
        (Reply("x", usage=Usage(1_000_000, 500_000)), Cost(Decimal(2), "stated")),
        (Reply("x"), None),
        ("ambiguous", None),
        ("retryable", Cost(Decimal(0), "refused")),
        ("saturated", Cost(Decimal(0), "refused")),
    ],
)
def test_a_call_is_billed_by_its_usage_or_not_at_all_or_unknown(answer: Any, cost: Cost | None) -> None:
    assert end(heard(answer), LANES["paid"], POLICY).cost == cost


def test_an_unusable_reply_is_paid_for() -> None:
    cut = Evidence(status=200, terminal=True, has_content=True, finish_reason="length",
                   reply=Reply("half", usage=Usage(0, 1_000_000)))  # fmt: skip
    assert end(heard(cut), LANES["paid"], POLICY).cost == Cost(Decimal(2), "stated")


def test_the_worst_case_bounds_the_prompt_by_its_bytes_and_the_answer_by_its_limit() -> None:
    worst = worst_bill(Prompt("x" * 1_000), LANES["paid"], NOW_MS)
    assert worst is not None
    assert worst.usd >= (1_000 * Decimal(1) + 100 * Decimal(2)) / 1_000_000
    assert worst_bill(Prompt("x"), replace(LANES["paid"], max_output_tokens=None), NOW_MS) is None
    assert worst_bill(Prompt("x", images=(b"",)), LANES["paid"], NOW_MS) is None


# --- whatever is answered ---------------------------------------------------------------------------------------------

ORDER_OF_EFFECTS = re.compile(
    r"(LookBack (Resolve (Post )?)*)?"
    r"(Give |Admit (Give |Reserve Record (Release |Call (Detach Listen (StopListening Listen )?)?Settle (Post )?)))"
)
"""The docstring of `journey`, as a pattern; Give stands for "without a call"."""

ANSWERS = st.sampled_from(["ok", "retryable", "saturated", "lane_down", "ambiguous", "unfit", "permanent", "unusable"])


@given(st.data())
def test_whatever_is_answered_the_effects_come_in_their_order(data: st.DataObject) -> None:
    policy = replace(
        policy_that_says(data.draw(st.sampled_from(["pin", "same", "ask", "fail"]))),
        late_completion_window_ms=data.draw(st.sampled_from([0, 1_000])),
    )
    lease = replace(LEASE, has_history=data.draw(st.booleans()), lane=data.draw(st.sampled_from(ORDER)))
    course = journey(lease, policy, data.draw(st.sampled_from([ORDER, ("free",), ()])))
    effects = [next(course)]
    with contextlib.suppress(StopIteration, LeaseLost):
        while True:
            answer = answer_to(effects[-1], data)
            effects.append(course.throw(answer) if isinstance(answer, LeaseLost) else course.send(answer))
    names = " ".join(kinds(effects)) + " "
    assert ORDER_OF_EFFECTS.fullmatch(names), names
    called = [effect.uid for effect in effects if isinstance(effect, Call)]
    settled = [effect.uid for effect in effects if isinstance(effect, Settle)]
    assert called == settled, "every call is settled, under its own uid, and nothing else is"


def answer_to(effect: Effect, data: st.DataObject) -> Any:
    """Any answer that a performer may give."""
    match effect:
        case LookBack():
            tried = data.draw(st.lists(st.builds(Tried, st.sampled_from(ORDER), ANSWERS), max_size=3))
            undecided = data.draw(st.lists(st.builds(Undecided, st.just("u"), st.sampled_from(ORDER)), max_size=2))
            return past(*tried, undecided=undecided, made=data.draw(st.integers(0, 5)))
        case Admit():
            return data.draw(st.sampled_from([Admitted(), NotNow()]))
        case Record():
            return data.draw(st.sampled_from([RECORDED, Instead("held"), Instead("answered"), LeaseLost("gone")]))
        case Reserve():
            return Reserved("uid")
        case Resolve() | Settle():
            return data.draw(st.sampled_from([None, CHARGE]))
        case Listen(for_ms=None):
            return heard(data.draw(ANSWERS))
        case Call() | Listen():
            return data.draw(st.sampled_from([Silence(NOW_MS), heard(data.draw(ANSWERS))]))
        case _:
            return None
