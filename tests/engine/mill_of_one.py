"""The queue of one test, its lanes that answer by a script, and a drain with something that happens beside it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

from millpond.engine.clock import boot_ms, wall_ms
from millpond.engine.drain import Drainer, Until
from millpond.engine.perform import Happening
from millpond.engine.spool import Spool
from millpond.engine.tenure import Tenure
from millpond.report.summary import Summary
from millpond.rules.identity import fingerprint
from millpond.rules.job import Prompt
from millpond.rules.policy import Backoff, LanePolicy, Policy
from millpond.rules.price import FREE, PriceRule
from millpond.spend.book import SpendBook
from millpond.store.bodies import dump_work
from millpond.store.enqueue import Asked
from millpond.store.reclaim import Reclaimed
from millpond.store.store import Store, open_sqlite
from millpond.testing import ScriptedLane

PAID = PriceRule("stated", call_usd=Decimal("0.01"))


class Mill:
    """A queue of one test, its lanes in order of preference, and a drainer on demand."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "queue.db.d"
        self.store = Store(open_sqlite(folder / "queue.db"), wall_ms)
        self.book = SpendBook(folder / "spend.db", self.store.uuid, wall_ms)
        self.told: list[Happening] = []
        self._waiting: list[tuple[str, asyncio.Event]] = []

    def tell(self, happening: Happening) -> None:
        self.told.append(happening)
        for kind, event in self._waiting:
            if kind == happening.kind:
                event.set()

    async def hears(self, kind: str) -> None:
        """Wait until the drainer has told of something of this kind."""
        if kind not in [happening.kind for happening in self.told]:
            event = asyncio.Event()
            self._waiting.append((kind, event))
            await event.wait()

    def ask(self, *tasks: str | Prompt, **wishes: Any) -> list[int]:
        works = [task if isinstance(task, Prompt) else Prompt(task) for task in tasks]
        names = [fingerprint(work) for work in works]
        asked = [
            Asked(at, "prompt", work.intent, name, name, dump_work(work), **wishes)
            for at, (work, name) in enumerate(zip(works, names, strict=True))
        ]
        return [receipt.job_id for receipt in self.store.enqueue_all(asked, name=None, source="test")]

    def drainer(
        self,
        *lanes: ScriptedLane,
        boot_ms: Callable[[], int] = boot_ms,
        beat_ms: Callable[[], int] = boot_ms,
        tend: Callable[[], Reclaimed] = Reclaimed,
        may_lease: Callable[[], bool] = lambda: True,
        **policy: Any,
    ) -> Drainer:
        policy.setdefault("backoff", Backoff(1, 5))
        policy.setdefault("idle_exit_ms", 200)
        names = {lane.policy.name: lane for lane in lanes}
        made = Policy(lanes={name: lane.policy for name, lane in names.items()}, **policy)
        self.owner = Tenure(self.store, self.folder, "drainer", lease_ms=made.lease_ms, boot_ms=beat_ms)
        self.spool = Spool(self.folder, self.owner.uuid, 8)
        self.spool.prepare()
        return Drainer(
            self.store,
            made,
            names,
            self.owner,
            self.spool,
            book=self.book,
            tend=tend,
            may_lease=may_lease,
            is_undecided=lambda: False,
            tell=self.tell,
            boot_ms=boot_ms,
        )

    def drain(self, *lanes: ScriptedLane, until: Until | None = None, **policy: Any) -> Summary:
        return asyncio.run(self.drainer(*lanes, **policy).run(until))

    def state(self, job_id: int) -> str:
        job = self.store.job(job_id)
        assert job is not None
        return f"{job.state}/{job.wait_reason}" if job.wait_reason else job.state

    def ledger(self) -> list[tuple[str, str | None, str | None]]:
        return [(row.lane, row.outcome, row.resolution) for row in self.store.attempts()]


def free(script: Sequence[Any] = (), **policy: Any) -> ScriptedLane:
    return ScriptedLane(LanePolicy("free", kind="callable", price=FREE, **policy), script)


def paid(script: Sequence[Any] = (), **policy: Any) -> ScriptedLane:
    return ScriptedLane(LanePolicy("paid", kind="callable", tier="paid", price=PAID, **policy), script)


async def during(run: Awaitable[Summary], act: Callable[[], Awaitable[None]]) -> Summary:
    """Run a drain and, beside it, something that happens to it."""
    summary, _ = await asyncio.gather(run, act())
    return summary
