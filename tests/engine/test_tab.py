"""The figures of a drain: what they say, and what is kept for them."""

from __future__ import annotations

import pickle
from decimal import Decimal

import pytest

from millpond.engine import tab as tabs
from millpond.engine.tab import LaneTab, Tab
from millpond.rules.effects import Ending, Heard
from millpond.rules.evidence import Evidence
from millpond.rules.job import Reply, Usage
from millpond.rules.policy import LanePolicy, Policy
from millpond.rules.price import Cost, PriceRule
from millpond.rules.verdict import end

LANE = LanePolicy("paid", price=PriceRule("stated", call_usd=Decimal("0.01")))
LONG = Reply("an answer that broke off " * 40_000, usage=Usage(3, 5))


def ending(evidence: Evidence) -> Ending:
    return end(Heard(evidence, 0, 0.0), LANE, Policy(lanes={"paid": LANE}))


def test_of_a_call_whose_end_is_unknown_its_figures_are_kept_and_not_its_reply() -> None:
    tab = Tab({"paid": LaneTab()})
    tab.ended("paid", "u", ending(Evidence(failure="stream_cut", reply=LONG)))
    assert (tab.lanes["paid"].attempts, tab.lanes["paid"].tokens_out, tab.lanes["paid"].unpriced) == (1, 5, 1)
    assert len(pickle.dumps(tab.unknown)) < 1_000
    tab.ended("paid", "u", ending(Evidence(status=200, terminal=True, has_content=True, reply=Reply("all of it"))))
    assert (tab.lanes["paid"].attempts, tab.lanes["paid"].tokens_out, tab.lanes["paid"].unpriced) == (1, 0, 0)
    assert tab.unknown == {}


def test_of_ever_so_many_unknown_ends_the_last_are_remembered_and_all_are_counted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An outage of a week, to a daemon: what is kept of it has a bound, and its figures have none."""
    monkeypatch.setattr(tabs, "KEPT", 10)
    tab = Tab({"paid": LaneTab()})
    costs = [Cost(Decimal("0.01"), "v")] * 2_000
    for n, cost in enumerate(costs):
        tab.ended("paid", f"u{n}", ending(Evidence(failure="stream_cut")))
        tab.paid_again(f"u{n}", cost)
        while page := tab.oldest_again():
            tab.count_again(page, {uid for uid in page if uid != "u7"})  # it answered, as the ledger knows
    assert len(tab.unknown) <= 10
    assert len(tab.again) <= 10
    summary = tab.summary("idle", {"waiting": 0, "held": 0, "ready": 0, "leased": 0, "offloaded": 0}, None)
    assert (summary.attempts, summary.by_lane["paid"].ambiguous) == (2_000, 2_000)
    assert (summary.paid_twice, summary.paid_twice_usd) == (1_999, Decimal("19.99"))
    tab.paid_again("unpriced", None)
    tab.count_again(["unpriced"], {"unpriced"})
    tab.paid_again("u1999", costs[0])
    summary = tab.summary("idle", {"waiting": 0, "held": 0, "ready": 0, "leased": 0, "offloaded": 0}, None)
    assert (summary.paid_twice, summary.paid_twice_usd) == (2_000, None)
