"""Reconcile: one look, without a drain, at everything whose end is unknown: the dead, recall, holds that ended.

Whatever it does a running drain does as well, as it goes round; both may do it at once.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from millpond.engine.bookkeeping import keep_book
from millpond.engine.happening import Happening
from millpond.engine.recall import Recaller, ask
from millpond.engine.scribe import Scribe
from millpond.engine.tab import LaneTab, Tab
from millpond.engine.taking_back import reclaim_dead
from millpond.lanes.build import build_lane
from millpond.lanes.lane import Lane
from millpond.report.summary import Summary
from millpond.report.words import counted
from millpond.rules.effects import Heard, Recall
from millpond.rules.evidence import Absent, Unknown
from millpond.rules.job import Lease
from millpond.rules.policy import Policy
from millpond.spend.book import SpendBook
from millpond.store.store import Store

T = TypeVar("T")

BuildLane = Callable[[str], Lane]


def reconcile(
    store: Store,
    book: SpendBook,
    folder: Path,
    policy: Policy,
    *,
    tell: Callable[[Happening], None] = lambda _: None,
) -> Summary:
    """Take back what the dead held, ask for every call that can be asked for, decide what nobody waits for.

    Raises MissingKey where a lane that is to be asked has none. No call is made and no job leased.
    """
    reclaimed = reclaim_dead(store, folder, max_leases_lost=policy.max_leases_lost)
    names = [name for name in store.lanes_to_ask() if name in policy.lanes and policy.lanes[name].can_recall]
    lanes = {name: build_lane(policy.lanes[name]) for name in names}
    tab = Tab({name: LaneTab() for name in lanes})
    tab.failed = reclaimed.failed
    for n, words in (
        (reclaimed.released, "given back by the dead, with nothing sent"),
        (reclaimed.failed, "failed, since it was lost by too many workers"),
    ):
        if n:
            tell(Happening("reclaimed", None, "", f"{counted(n, 'job')} {words}"))
    if n := reclaimed.ambiguous:
        tell(Happening("reclaimed", None, "", f"{counted(n, 'call')} of the dead: the end is unknown"))
    anew(lambda: _ask_all(store, policy, lanes, tab, tell))
    keep_book(store, book)
    return tab.summary("idle", store.counts(), store.next_due_ms())


def ask_now(store: Store, policy: Policy, question: Recall, lease: Lease) -> Heard | Absent | Unknown:
    """Ask the lane of a policy for one call, from a thread that has no event loop of its own to do it on."""
    named = policy.lanes.get(question.lane)
    if named is None or not named.can_recall or lease.stored is None:
        return Unknown("nobody here can ask its lane")
    lane, work = build_lane(named), lease.stored

    async def asked() -> Heard | Absent | Unknown:
        try:
            age_ms = question.age_ms
            return await ask(lane, policy, question.uid, work, age_ms=age_ms, now_ms=store.now_ms, chance=0.0)
        finally:
            await lane.close()

    return anew(asked)


async def _ask_all(
    store: Store, policy: Policy, lanes: Mapping[str, Lane], tab: Tab, tell: Callable[[Happening], None]
) -> None:
    scribe = Scribe(store.db)
    recaller = Recaller(store, scribe, policy, lanes, tab, rng=random.Random(), tell=tell)
    try:
        await recaller.ask_all()
        await recaller.forget_all()
    finally:
        scribe.close()
        for lane in lanes.values():
            await lane.close()


def anew(course: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run something on an event loop of its own, whether or not one runs on this thread."""
    with ThreadPoolExecutor(1, thread_name_prefix="millpond-ask") as thread:
        return thread.submit(lambda: asyncio.run(course())).result()
