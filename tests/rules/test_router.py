"""Which lane next: by the class of failure, forward along the user's order, within every budget."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.rules.evidence import Uncalled
from millpond.rules.job import Command, Image, Outcome, Prompt
from millpond.rules.policy import Backoff, LanePolicy, Policy
from millpond.rules.price import FREE as FREE_PRICE
from millpond.rules.router import (
    Exhausted,
    Past,
    Step,
    Tried,
    Undecided,
    backoff_ms,
    hold_ms,
    lanes_for,
    next_lane,
    route_work,
    why_none,
)

FREE = LanePolicy("free", max_attempts=2)
PAID = LanePolicy("paid", tier="paid", max_attempts=1)
BEST = LanePolicy("best", tier="paid", max_attempts=2)
POLICY = Policy(lanes={lane.name: lane for lane in (FREE, PAID, BEST)})
ORDER = ("free", "paid", "best")


def tried(*outcomes: str, lane: str = "free") -> list[Tried]:
    """Attempts on a lane; `ambiguous:pin` is one that was decided, `unusable:truncated` one with a code."""
    found: list[Tried] = []
    for outcome in outcomes:
        word, _, detail = outcome.partition(":")
        resolution: Any = detail if word == "ambiguous" else None
        found.append(Tried(lane, word, resolution, "" if word == "ambiguous" else detail))  # type: ignore[arg-type]
    return found


# --- by the class of failure ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("history", "step"),
    [
        (tried(), Step("free")),
        (tried("retryable"), Step("free", 1)),
        (tried("retryable", "retryable"), Step("paid")),
        (tried("ambiguous:pin"), Step("paid")),
        (tried("ambiguous:same"), Step("free", 1)),
        (tried("ambiguous:same", "ambiguous:same"), Step("paid")),
        (tried("unfit"), Step("paid")),
        (tried("saturated", "lane_down"), Step("free")),
        (tried("retryable", "saturated"), Step("free", 1)),
        (tried("unusable:empty"), Step("free")),
        (tried("retryable", "unusable:empty"), Step("free", 1)),
        (tried("ambiguous:pin") + tried("retryable", lane="paid"), Step("best")),
        (tried("ambiguous:pin") + tried("unfit", lane="paid") + tried("retryable", lane="best"), Step("best", 1)),
    ],
)
def test_the_class_of_failure_decides(history: list[Tried], step: Step) -> None:
    assert next_lane(history, POLICY, ORDER) == step


@pytest.mark.parametrize(
    ("history", "reason"),
    [
        (tried("permanent:refused"), "refused: refused for good by lane free"),
        (tried("retryable", "permanent:filtered"), "filtered: refused for good by lane free"),
        (tried("unusable:empty", "unusable:bad_output"), "bad_output: 2 replies not usable, none reused"),
        (
            tried("ambiguous:pin")
            + tried("retryable", lane="paid")
            + tried("retryable", "unfit:too_long", lane="best"),
            "too_long: lanes exhausted, last best after 2 attempts",
        ),
    ],
)
def test_when_nothing_is_left_it_says_why(history: list[Tried], reason: str) -> None:
    assert next_lane(history, POLICY, ORDER) == Exhausted(reason)


def test_o04_a_truncated_reply_is_not_asked_for_again_blindly() -> None:
    """The same cap would cut it again, at the same price."""
    after = next_lane(tried("unusable:truncated"), POLICY, ORDER)
    assert after == Exhausted("truncated: 1 reply not usable, none reused")


def test_unusable_replies_have_one_budget_over_all_lanes() -> None:
    history = tried("unusable:empty", "ambiguous:pin") + tried("unusable:empty", lane="paid")
    assert isinstance(next_lane(history, POLICY, ORDER), Exhausted)
    assert isinstance(next_lane(history, POLICY, ORDER, "paid"), Exhausted)


def test_permanent_crosses_only_where_the_lane_pins_on_it() -> None:
    pinning = replace(FREE, pin_on=frozenset({"ambiguous", "permanent"}))
    policy = replace(POLICY, lanes={**POLICY.lanes, "free": pinning})
    assert next_lane(tried("permanent"), policy, ORDER) == Step("paid")
    assert isinstance(next_lane(tried("permanent", lane="best"), policy, ORDER), Exhausted)


def test_after_a_call_that_was_decided_as_fail_there_is_no_other() -> None:
    """Also for who reads it later: the decision is written before the job's end, and a process may die between."""
    given_up = Exhausted("ambiguous: outcome unknown, and the policy does not pay again")
    assert next_lane(tried("ambiguous:fail"), POLICY, ORDER) == given_up
    assert next_lane(tried("ambiguous:fail", lane="gone"), POLICY, ORDER) == given_up


def test_without_a_lane_the_work_is_unfit() -> None:
    assert next_lane([], POLICY, ()) == Exhausted("unfit: no configured lane can serve this work")


def test_the_last_lane_is_tried_to_the_end_of_its_attempts() -> None:
    pins = tried("ambiguous:pin", lane="best")
    assert next_lane(pins, POLICY, ORDER, "best") == Step("best", 1)
    assert isinstance(next_lane(pins * 2, POLICY, ORDER, "best"), Exhausted)


def test_what_was_tried_before_the_start_does_not_use_up_later_lanes() -> None:
    assert next_lane(tried("retryable", "retryable"), POLICY, ORDER, "best") == Step("best")


def test_lanes_that_left_the_order_are_passed_over() -> None:
    assert next_lane(tried("retryable", "retryable", lane="gone"), POLICY, ORDER) == Step("free")


# --- properties -------------------------------------------------------------------------------------------------------

OUTCOMES = st.sampled_from(["retryable", "ambiguous", "unfit", "permanent", "unusable", "saturated", "lane_down"])
COUNTED = ("retryable", "ambiguous", "unfit", "permanent")


@st.composite
def policies(draw: st.DrawFn) -> Policy:
    lanes = {
        name: LanePolicy(
            name,
            max_attempts=draw(st.integers(1, 3)),
            pin_on=draw(st.frozensets(st.sampled_from(["ambiguous", "permanent", "retryable"]))),
        )
        for name in draw(st.lists(st.sampled_from(["a", "b", "c", "d"]), min_size=1, unique=True))
    }
    return Policy(lanes=lanes, max_unusable_per_job=draw(st.integers(1, 3)))


@st.composite
def walks(draw: st.DrawFn) -> tuple[Policy, list[Tried], Step | Exhausted]:
    """A policy, what was tried one after the other where the router said, and what it said last."""
    policy = draw(policies())
    order = tuple(policy.lanes)
    history: list[Tried] = []
    step = next_lane(history, policy, order)
    for outcome in draw(st.lists(OUTCOMES, max_size=30)):
        if isinstance(step, Exhausted):
            break
        resolution = draw(st.sampled_from(["pin", "same"])) if outcome == "ambiguous" else None
        code = draw(st.sampled_from(["empty", "truncated"])) if outcome == "unusable" else ""
        history.append(Tried(step.lane, outcome, resolution, code))  # type: ignore[arg-type]
        step = next_lane(history, policy, order, step.lane)
    return policy, history, step


@given(walks())
def test_a_walk_never_goes_back(walk: tuple[Policy, list[Tried], Step | Exhausted]) -> None:
    policy, history, step = walk
    order = list(policy.lanes)
    places = [order.index(one.lane) for one in history] + ([order.index(step.lane)] if isinstance(step, Step) else [])
    assert places == sorted(places)


@given(walks())
def test_no_lane_is_tried_beyond_its_attempts(walk: tuple[Policy, list[Tried], Step | Exhausted]) -> None:
    policy, history, _ = walk
    for name, lane in policy.lanes.items():
        counted = [one for one in history if one.lane == name and one.outcome in COUNTED]
        assert len(counted) <= lane.max_attempts
    unusable = [one for one in history if one.outcome == "unusable"]
    assert len(unusable) <= policy.max_unusable_per_job
    assert [one.code for one in unusable[:-1]].count("truncated") == 0


@given(walks())
def test_permanent_is_the_end_unless_its_lane_pins_on_it(walk: tuple[Policy, list[Tried], Step | Exhausted]) -> None:
    policy, history, step = walk
    for at, one in enumerate(history):
        if one.outcome == "permanent" and "permanent" not in policy.lanes[one.lane].pin_on:
            assert at == len(history) - 1
            assert isinstance(step, Exhausted)


@given(walks())
def test_the_past_alone_leads_to_the_same_lane_as_the_last_lease(
    walk: tuple[Policy, list[Tried], Step | Exhausted],
) -> None:
    """Routed anew from the history, or walked on from the lane that it was leased on: one answer."""
    policy, history, step = walk
    assert next_lane(history, policy, tuple(policy.lanes)) == step


@given(walks())
def test_what_uses_up_no_attempt_changes_nothing(walk: tuple[Policy, list[Tried], Step | Exhausted]) -> None:
    policy, history, step = walk
    order = tuple(policy.lanes)
    free: tuple[Outcome, ...] = ("saturated", "lane_down", "ok")
    padded = [more for one in history for more in (one, *(Tried(one.lane, word) for word in free))]
    assert next_lane(padded, policy, order) == step


# --- which lanes may serve --------------------------------------------------------------------------------------------


def lane(name: str, **what: Any) -> LanePolicy:
    return LanePolicy(name, **what)


@pytest.mark.parametrize(
    ("work", "names"),
    [
        (Prompt("x"), ("chat", "plain", "code")),
        (Prompt("x", model="m"), ("chat", "code")),
        (Prompt("x", model="alias"), ("chat", "code")),
        (Prompt("x", model="provider-name"), ("chat", "code")),
        (Prompt("x", model="other"), ("code",)),
        (Prompt("x", schema={"type": "object"}), ("chat", "code")),
        (Prompt("x", tools=[{"type": "function"}]), ("chat", "code")),
        (Prompt("x", images=(Image(b"x"),)), ("chat", "code")),
        (Command("mail", {}, "u"), ("code",)),
    ],
)
def test_only_lanes_that_can_may_serve(work: Any, names: tuple[str, ...]) -> None:
    lanes = [
        lane("chat", model="m", models={"alias": "provider-name"}),
        lane("plain", supports_schema=False, supports_tools=False, supports_images=False),
        lane("code", kind="callable"),
        lane("off", kind="callable", enabled=False),
    ]
    assert lanes_for(work, "", Policy(lanes={one.name: one for one in lanes})) == names


def test_where_no_lane_can_serve_each_says_what_it_lacks() -> None:
    lanes = [
        lane("chat", model="m", models={"alias": "provider-name"}),
        lane("plain", model="other", supports_schema=False),
        lane("nothing"),
    ]
    policy = Policy(lanes={one.name: one for one in lanes})
    assert route_work(Prompt("x", model="gpt-5-mini"), "", "", Past(), policy) == Exhausted(
        "unfit: no configured lane can serve this work: "
        "chat does not offer the model 'gpt-5-mini' (it offers m, alias; its `models` may name more); "
        "plain does not offer the model 'gpt-5-mini' (it offers other; its `models` may name more); "
        "nothing does not offer the model 'gpt-5-mini' (it offers none by name; its `models` may name more)"
    )
    assert "; plain takes no schema; " in why_none(Prompt("x", model="other", schema={"a": 1}), "", policy)
    assert "is of kind chat, and a command wants callable" in why_none(Command("mail", {}, "u"), "", policy)


def test_of_many_lanes_that_cannot_the_first_few_are_named() -> None:
    policy = Policy(lanes={f"l{n}": lane(f"l{n}", supports_tools=False) for n in range(9)})
    words = why_none(Prompt("x", tools=[{"type": "function"}]), "", policy)
    assert words.endswith("l4 takes no tools; and 4 more lanes")


def test_an_intent_has_its_own_order() -> None:
    policy = replace(POLICY, routing={"label": ("best", "free")})
    assert lanes_for(Prompt("x"), "label", policy) == ("best", "free")
    assert lanes_for(Prompt("x"), "other", policy) == ORDER


def test_a_wish_begins_the_order_there_or_is_all_of_it() -> None:
    assert lanes_for(Prompt("x"), "", POLICY, "paid") == ("paid", "best")
    policy = replace(POLICY, routing={"label": ("free",)})
    assert lanes_for(Prompt("x"), "label", policy, "best") == ("best",)


def test_a_wished_lane_that_a_drain_does_not_have_is_waited_for_as_long_as_it_is_its_turn() -> None:
    """Before its first attempt as after one: that somebody drains a dearer lane is no wish for it."""
    without = replace(POLICY, absent=frozenset({"free"}))
    retried = Past(tuple(tried("retryable")))
    spent = Past(tuple(tried("retryable", "retryable")))
    assert route_work(Prompt("x"), "", "free", Past(), without) == Step("free")
    assert route_work(Prompt("x"), "", "free", retried, without) == Step("free", 1)
    assert route_work(Prompt("x"), "", "free", spent, without) == Step("paid")
    assert route_work(Prompt("x"), "", "", Past(), without) == Step("paid")
    off = replace(POLICY, lanes={**POLICY.lanes, "free": replace(FREE, enabled=False)})
    assert route_work(Prompt("x"), "", "free", Past(), off) == Step("paid"), (
        "turned off, its backlog goes to the others"
    )


def test_a_lane_asked_for_by_name_is_waited_for_even_if_it_is_gone_or_disabled() -> None:
    off = replace(POLICY, lanes={**POLICY.lanes, "paid": replace(POLICY.lanes["paid"], enabled=False)})
    assert lanes_for(Prompt("x"), "", POLICY, "gone") == ("gone",)
    assert lanes_for(Prompt("x"), "", off, "paid")[0] != "free"


def test_work_waits_for_a_disabled_lane_only_where_no_other_may_serve() -> None:
    off = replace(POLICY, lanes={**POLICY.lanes, "free": replace(FREE, enabled=False)}, routing={"private": ("free",)})
    assert lanes_for(Prompt("x"), "", off)[0] == "paid"
    assert lanes_for(Prompt("x"), "private", off) == ("free",)


def without(*absent: str) -> Policy:
    return replace(POLICY, absent=frozenset(absent))


@pytest.mark.parametrize(
    ("absent", "history", "step"),
    [
        (["free"], [], Step("paid")),
        (["free"], ["retryable"], Step("paid")),
        (["free", "paid"], [], Step("best")),
        (["paid", "best"], ["retryable"], Step("free", 1)),
        (["paid", "best"], ["retryable", "retryable"], Step("paid")),
        (["paid", "best"], ["ambiguous:pin"], Step("paid")),
        (["paid"], ["ambiguous:pin"], Step("best")),
        (["free", "paid", "best"], ["retryable"], Step("free", 1)),
    ],
)
def test_a_lane_absent_from_a_drain_is_passed_over_for_one_further_on_and_waited_for_where_none_is(
    absent: list[str], history: list[str], step: Step
) -> None:
    """Never is a lane tried again, or the work given up, because the one whose turn it is is not there."""
    assert next_lane(tried(*history), without(*absent), ORDER) == step


def test_a_job_that_is_given_up_names_what_is_still_undecided_of_it() -> None:
    past = Past(tuple(tried("retryable", lane="best")), (Undecided("u", "best"), Undecided("v", "gone")))
    step = route_work(Prompt("x"), "", "best", past, POLICY)
    assert isinstance(step, Exhausted)
    assert [(one.uid, one.lane) for one in step.given_up] == [("u", POLICY.lanes["best"]), ("v", None)]
    nowhere = route_work(Prompt("x", model="m"), "", "", past, POLICY)
    assert isinstance(nowhere, Exhausted)
    assert [one.uid for one in nowhere.given_up] == ["u", "v"]


@pytest.mark.parametrize("after_hold", ["ask", "fail"])
def test_where_no_lane_is_left_a_person_is_asked_all_the_same_and_the_policy_gives_its_own_reason(
    after_hold: Any,
) -> None:
    policy = replace(POLICY, lanes={"free": replace(FREE, max_attempts=1, after_hold=after_hold)})
    past = Past(undecided=(Undecided("u", "free"),))
    assert route_work(Prompt("x"), "", "", past, policy) == Step("free"), "the journey that is leased there says so"


def test_undecided_attempts_are_routed_as_the_policy_would_decide_them() -> None:
    past = Past(undecided=(Undecided("u", "free"),))
    assert route_work(Prompt("x"), "", "", past, POLICY) == Step("paid")
    same = replace(POLICY, lanes={**POLICY.lanes, "free": replace(FREE, after_hold="same")})
    assert route_work(Prompt("x"), "", "", past, same) == Step("free", 1)


# --- pauses and holds -------------------------------------------------------------------------------------------------


def test_pauses_double_up_to_their_cap() -> None:
    backoff = Backoff(first_ms=500, cap_ms=3_000)
    assert [backoff_ms(tries, backoff, 0.0) for tries in (1, 2, 3, 4, 99)] == [500, 1_000, 2_000, 3_000, 3_000]


@given(st.integers(0, 10_000), st.floats(0, 1, exclude_max=True), st.floats(0, 2))
def test_jitter_only_adds(tries: int, chance: float, jitter: float) -> None:
    backoff = Backoff(jitter=jitter)
    plain = backoff_ms(tries, backoff, 0.0)
    assert plain <= backoff_ms(tries, backoff, chance) <= plain * (1 + jitter)


@pytest.mark.parametrize(
    ("service_class", "due_ms", "hold"),
    [
        ("realtime", None, 60_000),
        ("batch", None, 900_000),
        ("batch", 1_000 + 5_000, 5_000),
        ("batch", 1_000 + 10**9, 900_000),
        ("batch", 1_000, 900_000),
        ("batch", 1, 900_000),
    ],
)
def test_a_hold_ends_with_the_due_time_while_that_can_be_met(service_class: Any, due_ms: int | None, hold: int) -> None:
    """Past due there is nothing left to save, so the full window is waited for evidence."""
    assert hold_ms(LanePolicy("free"), Policy(), service_class, due_ms, now_ms=1_000) == hold


def test_no_hold_is_longer_than_the_late_window() -> None:
    assert hold_ms(LanePolicy("free"), Policy(late_completion_window_ms=7), "batch", None, now_ms=0) == 7


# --- what is not the job's fault (decision 007)


def test_calls_that_our_own_end_broke_off_use_up_no_attempt_of_a_lane_that_costs_nothing() -> None:
    free = replace(POLICY, lanes={"free": LanePolicy("free", price=FREE_PRICE, max_attempts=2, after_hold="same")})
    ours = [Tried("free", "ambiguous", "same", code) for code in ("died", "given_up", "died")]
    assert next_lane(ours, free, ("free",)) == Step("free", 0)
    assert isinstance(next_lane([Tried("free", "ambiguous", "same", "cut")] * 2, free, ("free",)), Exhausted)


def test_calls_that_were_never_made_use_up_no_attempt_of_any_lane() -> None:
    once = replace(POLICY, lanes={"paid": LanePolicy("paid", max_attempts=1)})
    ours = [Tried("paid", "retryable", None, code) for code in get_args(Uncalled)]
    assert next_lane(ours, once, ("paid",)) == Step("paid", 0)
    assert next_lane([*ours, Tried("paid", "retryable", "late", "lease_too_old")], once, ("paid",)) == Step("paid", 0)
    assert isinstance(next_lane([Tried("paid", "retryable", None, "overloaded")], once, ("paid",)), Exhausted)


def test_on_a_lane_that_costs_they_count() -> None:
    paid = replace(POLICY, lanes={"paid": LanePolicy("paid", max_attempts=2, after_hold="same")})
    assert isinstance(next_lane([Tried("paid", "ambiguous", "same", "died")] * 2, paid, ("paid",)), Exhausted)
