"""Asking lanes what became of calls whose end is unknown: of one before the policy decides, and of all that are due.

A question makes no call and costs nothing. Nothing depends on who asks or how often: evidence is written by the
attempt's uid, and the first good reply of a key is accepted whoever brings it.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Collection, Mapping
from functools import partial
from itertools import islice
from typing import cast

from millpond.engine.happening import Happening
from millpond.engine.kept import Kept, settle_kept
from millpond.engine.scribe import Scribe
from millpond.engine.steadfast import keep_calling
from millpond.engine.tab import Tab
from millpond.lanes.deadline import until_done
from millpond.lanes.lane import CanRecall, Lane, Question, is_asked
from millpond.report.words import counted, usd
from millpond.rules.effects import Ending, Heard, Then
from millpond.rules.errors import MillpondError
from millpond.rules.evidence import Absent, Recalled, Unknown
from millpond.rules.job import Work
from millpond.rules.policy import Policy
from millpond.rules.recall import Proof, next_ask_ms, proven, proves_absence
from millpond.rules.times import MAX_MS
from millpond.rules.verdict import worst_of
from millpond.store import asking, settle
from millpond.store.asking import ToAsk
from millpond.store.store import Store

AT_ONCE = 8
"""Questions under way at the same time on one lane: as many as a lane has calls by default (`max_in_flight`)."""

PAGE_CALLS = 4 * AT_ONCE
"""Calls looked at in one go. Each comes with its work, and a work may be some megabytes of pictures."""

QUESTION_MS = 60_000
"""How long one question may take, over all pages of a listing; then it is unknown. It costs nothing and is asked again,
so it need not be given as long as a call; a stop waits for it, as for a call that was cut."""

NOT_LISTED_YET = Unknown("not listed yet")
"""The lane was asked and understood, and its answer proves nothing so far."""

WHY_CHARS = 300
"""How much is kept of why a lane could not be asked."""

log = logging.getLogger("millpond.engine")


async def ask(
    lane: Lane | None,
    policy: Policy,
    uid: str,
    work: Work,
    *,
    age_ms: int,
    now_ms: Callable[[], int],
    chance: float,
) -> Heard | Absent | Unknown:
    """Ask a lane for one call, and say what its answer proves. `age_ms`: how old the call was at some time before."""
    if lane is None or not is_asked(lane):
        return Unknown("nobody here can ask its lane")
    assert isinstance(lane, CanRecall)
    question = keep_calling(lane.recall(Question(uid, work)), f"ask {uid}")
    try:
        if not await until_done({question}, QUESTION_MS / 1000):
            return Unknown("its lane did not answer in time")
        said = cast("object", question.result())
        if not isinstance(said, Recalled | Absent | Unknown):
            raise TypeError(f"found a {type(said).__name__}, wanted Recalled, Absent or Unknown")
    except Exception as problem:  # a lane that raises has a bug; it has told us nothing
        log.warning("lane %s could not be asked: %s: %s", lane.policy.name, type(problem).__name__, problem)
        return Unknown(f"{type(problem).__name__}: {problem}")
    finally:
        question.cut()
    if isinstance(said, Recalled):
        return Heard(said.evidence, now_ms(), chance)
    if isinstance(said, Absent) and not proves_absence(policy, lane.policy, age_ms):
        return NOT_LISTED_YET
    return said


def why_unasked(said: Heard | Absent | Unknown) -> str | None:
    """Why a lane could not be asked, or not understood, in words that any store can hold; None: it answered."""
    if not isinstance(said, Unknown) or said == NOT_LISTED_YET:
        return None
    return said.why[:WHY_CHARS].encode(errors="backslashreplace").decode().replace("\0", "") or "it did not say why"


def tell_unasked(
    tab: Tab, tell: Callable[[Happening], None], lane: str, job_id: int, said: Heard | Absent | Unknown
) -> None:
    """Tell that a lane cannot be asked: once, until it answers or there is another reason."""
    why = why_unasked(said)
    if why is None:
        tab.unasked.pop(lane, None)
    elif tab.unasked.get(lane) != why:
        tab.unasked[lane] = why
        tell(Happening("unasked", job_id, lane, f"could not be asked what became of a call: {why}"))


class Recaller:
    """Asks for all calls that are due to be asked for, and decides what nobody waits for any more, page by page."""

    def __init__(
        self,
        store: Store,
        scribe: Scribe,
        policy: Policy,
        lanes: Mapping[str, Lane],
        tab: Tab,
        *,
        rng: random.Random,
        tell: Callable[[Happening], None],
    ) -> None:
        """`lanes` are those that can be asked here; others' calls are left to who has them."""
        self._store = store
        self._scribe = scribe
        self._policy = policy
        self._lanes = {name: lane for name, lane in lanes.items() if is_asked(lane)}
        self._tab = tab
        self._rng = rng
        self._tell = tell
        self._page = ""
        self.under_way = 0
        """Questions that are not answered yet."""

    async def round(self) -> int:
        """One page of each: ask for what is due, decide what nobody waits for. How many calls were asked for."""
        asked = await self.ask_due() if self._lanes else 0
        await self.forget_page()
        return asked

    async def ask_due(self) -> int:
        """Ask for one page of the calls that are due; how many were asked for."""
        now_ms = self._store.now_ms()
        due = await self._scribe.look(partial(self._store.to_ask, list(self._lanes), until_ms=now_ms, limit=PAGE_CALLS))
        if not due:
            return 0
        next_ms = {one.uid: self._next_ms(one, now_ms) for one in due}
        ours = await self._scribe.write(partial(asking.ask_again, next_ms=next_ms, now_ms=now_ms), full=False)
        return await self._ask_each([one for one in due if one.uid in ours])

    async def ask_all(self) -> int:
        """Ask for all calls that can be asked for, whether or not they are due; how many that were."""
        asked, after = 0, (0, 0)
        look = partial(self._store.to_ask, list(self._lanes), until_ms=MAX_MS, limit=PAGE_CALLS)
        while page := await self._scribe.look(partial(look, after=after)):
            asked, after = asked + await self._ask_each(page), page[-1].mark
        return asked

    async def _ask_each(self, calls: list[ToAsk]) -> int:
        gates = {one.lane: asyncio.Semaphore(AT_ONCE) for one in calls}
        questions = [keep_calling(self._ask(one, gates[one.lane]), f"ask {one.uid}") for one in calls]
        self.under_way += len(questions)
        try:
            for question in questions:
                await question
        finally:
            self.under_way -= len(questions)
            for question in questions:
                question.cut()
        return len(questions)

    async def forget_page(self) -> int:
        """Look at one page of what nobody has decided; how many of it nobody waited for."""
        page = await self._scribe.look(partial(self._store.forgotten, self._page, self._asked_first))
        self._page = page.next_key
        return sum([await self._forget(uid) for uid in page.uids])

    async def forget_ours(self) -> int:
        """Decide of the calls of this drain what nobody waits for, before it leaves; how many that were."""
        forgotten, left = 0, iter(list(self._tab.unknown))
        while page := list(islice(left, PAGE_CALLS)):
            uids = await self._scribe.look(partial(self._store.unwaited_of, page))
            forgotten += sum([await self._forget(uid, self._asked_first) for uid in uids])
        return forgotten

    def next_ms(self) -> int | None:
        """When a call is next due to be asked for, if that can be done here."""
        return self._store.next_ask_ms(list(self._lanes)) if self._lanes else None

    async def forget_all(self) -> int:
        """Decide all that nobody waits for; how many that were."""
        self._page = ""
        forgotten = await self.forget_page()
        while self._page:
            forgotten += await self.forget_page()
        return forgotten

    def _next_ms(self, one: ToAsk, now_ms: int) -> int:
        return next_ask_ms(
            self._policy,
            self._policy.lane(one.lane),
            age_ms=one.age_ms,
            ended_ms=one.ended_ms,
            hold_until_ms=one.hold_until_ms,
            now_ms=now_ms,
        )

    async def _ask(self, one: ToAsk, gate: asyncio.Semaphore) -> None:
        async with gate:
            said = await self._question(one)
        tell_unasked(self._tab, self._tell, one.lane, one.job_id, said)
        if isinstance(said, Unknown):
            await self._scribe.write(partial(asking.note_unasked, uid=one.uid, why=why_unasked(said)), full=False)
        if (proof := proven(said, self._policy, self._policy.lane(one.lane), one.code)) is not None:
            await self._settle(one, proof)
        elif one.hold_until_ms is None or one.hold_until_ms <= self._store.now_ms():
            await self._forget(one.uid)

    async def _question(self, one: ToAsk) -> Heard | Absent | Unknown:
        if one.work is None:
            log.warning(
                "lane %s is not asked for attempt %s: the work of job %s, by which its reply would be judged, is gone",
                one.lane, one.uid, one.job_id,
            )  # fmt: skip
            return Unknown("its work is gone")
        return await ask(
            self._lanes[one.lane],
            self._policy,
            one.uid,
            one.work,
            age_ms=one.age_ms,
            now_ms=self._store.now_ms,
            chance=self._rng.random(),
        )

    @property
    def _asked_first(self) -> list[str]:
        """The lanes that can be asked what became of a call, here or by who has them."""
        return [name for name, lane in self._policy.lanes.items() if lane.can_recall]

    async def _forget(self, uid: str, asked_lanes: Collection[str] = ()) -> bool:
        bill = partial(worst_of, policy=self._policy)
        now = {"now_ms": self._store.now_ms(), "boot": self._store.boot()}
        forget = partial(asking.forget, uid=uid, bill=bill, asked_lanes=asked_lanes, **now)
        forgotten = await self._scribe.write(forget)
        if forgotten is None:
            return False
        self._tab.given_up += 1
        at_most = f"it may have cost {usd(forgotten.cost_usd)}"
        words = f"its hold is over and nobody waits for it: not paid again, and {at_most}"
        self._tell(Happening("decided", forgotten.job_id, forgotten.lane, words))
        return True

    async def _settle(self, one: ToAsk, proof: Proof) -> None:
        now_ms = self._store.now_ms()
        kept = Kept(one.uid, one.lane, proof.ending, Then(None), None, now_ms, proof.how)
        kept, settled = await settle_kept(kept, self._scribe.write, self._policy, now_ms)
        recalled(self._tab, self._tell, one.lane, one.uid, one.job_id, kept.ending, settled)


def recalled(
    tab: Tab,
    tell: Callable[[Happening], None],
    lane: str,
    uid: str,
    job_id: int,
    ending: Ending,
    settled: settle.Settled,
) -> None:
    """Count what a lane remembered of a call, and tell of it, unless somebody else had asked before."""
    if not settled.is_news:
        return
    tab.ended(lane, uid, ending)
    words = {
        "retryable": "its lane never had the call",
        "ambiguous": ending.classified.message,
    }.get(ending.outcome, f"{ending.outcome}, as its lane recalls")
    tell(Happening("recalled", job_id, lane, words))
    if settled.accepted:
        tab.recalled += 1
        tab.in_force(uid)
    if settled.moved and ending.outcome == "ok":
        tab.answered(settled.requests, ending.cost)
        tell(Happening("done", settled.job_id, lane, f"answers {counted(settled.requests, 'request')}"))


async def patiently(round_: Awaitable[int]) -> int:
    """How many questions a round asked. If the store is busy or full just now, the next round is not far away."""
    try:
        return await round_
    except (MillpondError, OSError) as problem:
        log.warning("could not ask lanes what became of calls: %s", problem)
        return 0
