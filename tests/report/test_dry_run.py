"""Estimates from a ledger: what was measured is expected, what stands under a key decides what is new."""

from __future__ import annotations

from collections.abc import Iterable
from decimal import Decimal
from typing import Any

import pytest

from millpond.report.dry_run import DryRun
from millpond.report.estimate import Estimate
from millpond.rules.errors import KeyConflict
from millpond.rules.job import Reply, Usage
from millpond.rules.policy import LanePolicy, Policy
from millpond.rules.price import FREE, PriceRule
from millpond.rules.total import ENOUGH_CALLS
from millpond.store.enqueue import Asked
from millpond.testing.store_scene import Scene, asked

BY_TOKEN = PriceRule("stated", input_usd_per_mtok=Decimal(0), output_usd_per_mtok=Decimal(1_000_000))
"""A dollar for each token that comes out, so that dollars are tokens."""
POLICY = Policy({"free": LanePolicy("free", price=BY_TOKEN, max_output_tokens=1_000)})


def dry_run(scene: Scene, requests: Iterable[Asked], policy: Policy = POLICY) -> tuple[list[Any], Estimate]:
    """The answers and the estimate of a dry run now."""
    with DryRun(scene.store, policy) as run:
        answers = list(run.answers(requests))
        return answers, run.estimate()


def answered(scene: Scene, key: str, tokens_out: int | None, **wishes: Any) -> None:
    """A key that is answered by a reply of so many tokens."""
    lease, uid = scene.in_flight(key, **wishes)
    scene.settle(uid, Reply("yes", usage=Usage(3, tokens_out)), lease=lease)


def expected_usd(scene: Scene, **wishes: Any) -> Decimal | None:
    return dry_run(scene, [asked("new", **wishes)])[1].expected_usd


# --- what stands under a key -----------------------------------------------------------------------------------------


def test_a_stale_answer_is_asked_again_and_then_joined(scene: Scene) -> None:
    answered(scene, "old", 5)
    scene.clock.advance(2_000)
    answered(scene, "young", 5)
    policy = Policy(POLICY.lanes, artifact_max_age_ms=1_000)
    answers, _ = dry_run(scene, [asked("old"), asked("young"), asked("old")], policy)
    assert answers == ["new", "reused", "joined"]


def test_a_key_that_names_other_work_is_refused_also_by_work_of_the_same_run(scene: Scene) -> None:
    scene.ask("mine", work="a")
    requests = [asked("mine", work="b"), asked("mine", work="a"), asked("yours", work="a"), asked("yours", work="b")]
    requests[3:3] = [asked(f"between-{n}") for n in range(600)]  # the last stands in another chunk
    answers, found = dry_run(scene, requests)
    assert [type(one) is KeyConflict for one in answers] == [True, *[False] * 602, True]
    assert (found.new, found.joined) == (601, 1)


def test_a_key_that_is_held_gets_a_job_which_may_cost_a_call(scene: Scene) -> None:
    lease, uid = scene.in_flight("held")
    scene.store.detach(uid, lease, 60_000)
    scene.cancel(lease.job_id, hold_ms=60_000)
    assert dry_run(scene, [asked("held")])[0] == ["new"]


def test_a_dry_run_writes_nothing(scene: Scene) -> None:
    answered(scene, "old", 5)
    with scene.unchanged():
        dry_run(scene, [asked("old", fresh=True), asked("new"), asked("new")])


def test_a_fresh_answer_is_asked_for_once_in_many_chunks(scene: Scene) -> None:
    answered(scene, "old", 5)
    requests = [asked("old", fresh=True), *(asked(f"k{n}", fresh=True) for n in range(600)), asked("old", fresh=True)]
    answers, _ = dry_run(scene, requests)
    assert (answers[0], answers[-1]) == ("new", "joined")


# --- what is expected ------------------------------------------------------------------------------------------------


def test_without_an_answer_in_the_ledger_nothing_is_expected(scene: Scene) -> None:
    scene.failed("refused")
    answered(scene, "untold", None)
    [lane] = dry_run(scene, [asked("new")])[1].lanes
    assert (lane.expected_usd, lane.tokens_out.expected, lane.measured_calls) == (None, None, 0)
    assert lane.low_usd == 1
    assert lane.notes == ("expected is unknown: the ledger has no answer of this lane whose tokens were told",)


def test_what_was_measured_on_the_lane_is_expected(scene: Scene) -> None:
    answered(scene, "a", 10)
    answered(scene, "b", 30)
    [lane] = dry_run(scene, [asked("new"), asked("newer")])[1].lanes
    assert (lane.expected_usd, lane.measured_calls) == (Decimal(40), 2)
    assert lane.notes == ("expected as in 2 calls in the ledger",)


def test_work_of_the_same_intent_and_label_is_measured_by_itself_once_there_is_enough(scene: Scene) -> None:
    for n in range(ENOUGH_CALLS - 1):
        answered(scene, f"long-{n}", 100, route="essay", label="x")
    answered(scene, "short", 1, route="label")
    of_lane = (100 * (ENOUGH_CALLS - 1) + 1) / ENOUGH_CALLS
    assert expected_usd(scene, route="essay", label="x") == round(of_lane)
    answered(scene, "long-last", 100, route="essay", label="x")
    assert expected_usd(scene, route="essay", label="x") == 100
    for other in ({"route": "essay"}, {"route": "essay", "label": "y"}, {"route": "label"}):
        assert expected_usd(scene, **other) == 91  # (1,000 + 1) / 11


def test_other_lanes_measure_nothing_for_this_one(scene: Scene) -> None:
    answered(scene, "a", 10)
    policy = Policy({"other": LanePolicy("other", price=BY_TOKEN), **POLICY.lanes})
    first, second = dry_run(scene, [asked("new")], policy)[1].lanes
    assert (first.lane, first.expected_usd, second.expected_usd) == ("other", None, 10)


def test_only_the_newest_attempts_are_read(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("millpond.report.dry_run.MEASURED_ATTEMPTS", 2)
    for key, tokens in (("a", 1_000), ("b", 10), ("c", 20)):
        answered(scene, key, tokens)
    assert expected_usd(scene) == 15


def test_nothing_more_is_expected_than_the_limit_allows(scene: Scene) -> None:
    answered(scene, "a", 900)
    policy = Policy({"free": LanePolicy("free", price=BY_TOKEN, max_output_tokens=100, max_attempts=1)})
    found = dry_run(scene, [asked("new")], policy)[1]
    assert (found.low_usd, found.expected_usd, found.worst_usd) == (1, 100, 200)


def test_a_model_without_a_price_is_named_with_its_nearest(scene: Scene) -> None:
    address = "https://api.openai.com/v1"
    policy = Policy({"free": LanePolicy("free", price=PriceRule("auto"), base_url=address, model="gpt-5-mni")})
    [lane] = dry_run(scene, [asked("new")], policy)[1].lanes
    assert (lane.low_usd, lane.expected_usd, lane.worst_usd) == (None, None, None)
    assert lane.notes == ("no price is known for model gpt-5-mni at its address; the nearest known is gpt-5-mini",)


def test_a_price_list_bounds_an_answer(scene: Scene) -> None:
    answered(scene, "a", 100)
    lane = LanePolicy("free", price=PriceRule("auto"), base_url="https://api.openai.com/v1", model="gpt-5-mini",
                      max_output_tokens=4_096)  # fmt: skip
    found = dry_run(scene, [asked("new")], Policy({"free": lane}))[1]
    assert found.low_usd is not None
    assert found.expected_usd is not None
    assert found.worst_usd is not None
    assert 0 < found.low_usd < found.expected_usd < found.worst_usd


def test_a_free_lane_costs_nothing_whatever_is_unknown(scene: Scene) -> None:
    found = dry_run(scene, [asked("new")], Policy({"free": LanePolicy("free", price=FREE)}))[1]
    assert (found.low_usd, found.expected_usd, found.worst_usd) == (0, 0, 0)
    assert [lane.notes for lane in found.lanes] == [()]
