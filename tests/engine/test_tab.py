"""The figures of a drain: what they say, and what is kept for them."""

from __future__ import annotations

import pickle
from decimal import Decimal

from millpond.engine.tab import LaneTab, Tab
from millpond.rules.effects import Ending, Heard
from millpond.rules.evidence import Evidence
from millpond.rules.job import Reply, Usage
from millpond.rules.policy import LanePolicy, Policy
from millpond.rules.price import PriceRule
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
