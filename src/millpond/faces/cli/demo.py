"""`millpond demo`: a queue at work against two lanes that fail on purpose. No key, no network, the same every time."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from contextlib import ExitStack
from decimal import Decimal
from pathlib import Path
from tempfile import mkdtemp
from typing import TYPE_CHECKING, Any

import click

from millpond.faces.cli import terminal
from millpond.faces.cli.given import Given, pass_given, shared
from millpond.faces.cli.signals import Signals, exit_code_of
from millpond.rules.errors import UsageError

if TYPE_CHECKING:
    from millpond.drill.faultlane import FaultLane
    from millpond.queue import Queue
    from millpond.rules.job import Prompt
    from millpond.rules.policy import Policy

REQUESTS = 300
DISTINCT = 260
FREE_FAULTS = {"503_proof": 0.10, "reset": 0.05, "slow": 0.05, "429": 0.02}
LATENCY_S = 0.02
SLOW_S = 1.0
SOFT_TIMEOUT_MS = 500
"""The slow answers come after it: the jobs no longer wait, and their late replies are taken all the same."""
HOLD_MS = 5_000
EVENTS_A_LINE = 50
"""Off a terminal: enough to see that it works, and nothing that anybody reads."""
CALL_USD = Decimal("0.002")


@click.command()
@click.option("--seed", type=int, default=7, show_default=True, help="Draws the questions and the faults.")
@shared()
@pass_given
@click.pass_context
def demo(ctx: click.Context, given: Given, seed: int) -> None:
    """Ask 300 questions of two lanes on loopback, one free and flaky, one paid, and say what became of them.

    A tenth of the free lane's answers is refused, some connections break after the work was done, some answers come too
    late. Settings are not read; the home is a new folder unless --home names one that holds no queue.
    """
    from millpond.engine.drain import Until
    from millpond.faces.cli.drain import run, tell_summary
    from millpond.faces.cli.progress import Progress

    home = _home(given)
    with ExitStack() as stack:
        signals = stack.enter_context(Signals())
        free, paid = (stack.enter_context(lane) for lane in _servers(seed))
        policy = _policy(free.base_url, paid.base_url)
        queue = stack.enter_context(_queue(home, policy))
        terminal.warn(
            f"home {home}; free lane {free.base_url}: {_in_words(FREE_FAULTS)}; paid lane {paid.base_url}: clean"
        )
        receipts = queue.enqueue_many(_questions(seed), submission="demo", source="demo")
        new = sum(receipt.disposition == "new" for receipt in receipts)
        terminal.warn(f"enqueued {len(receipts)} requests: {new} new, {len(receipts) - new} joined")
        until = Until(until_empty=True)
        progress = Progress(queue, to_stderr=given.json, every=EVENTS_A_LINE)
        summary = run(queue, policy, None, until, signals, progress)
        rows = sum(1 for _ in queue.ledger())
        seen = free.accepted() + paid.accepted()
        counts = queue.counts()
    tell_summary(Given(home=str(home), json=given.json), summary) if given.json else terminal.say(summary.in_words())
    same = "the same" if rows == seen else "NOT THE SAME: please report it"
    terminal.warn(f"the ledger has {rows} rows, the lanes counted {seen} requests: {same}")
    if signals.ending:
        ctx.exit(exit_code_of(signals.ending[0]))
    if not given.json:
        at = Given(home=str(home))
        ahead = ("status", "results demo -o answers.csv", f"explain {_worth_explaining(home, policy)}")
        terminal.say("next:")
        terminal.say("\n".join(f"  {at.command(verb)}" for verb in ahead))
        terminal.say(f"the folder {home} is kept; delete it when you have seen enough")
    ctx.exit(0 if rows == seen and counts["done"] == new else 1)


def _home(given: Given) -> Path:
    """A folder for this demo alone: lanes that answer nonsense must never answer somebody's work."""
    if given.home is None:
        return Path(mkdtemp(prefix="millpond-demo-"))
    home = Path(given.home).absolute()
    if (home / "queue.db").exists():
        raise UsageError(f"home {home}: holds a queue already, whose jobs the demo would answer; name an empty folder")
    return home


def _servers(seed: int) -> Iterator[FaultLane]:
    from millpond.drill.faultlane import FaultLane

    yield FaultLane(
        mix=FREE_FAULTS,
        seed=seed,
        slow_s=SLOW_S,
        latency_s=LATENCY_S,
        retry_after="0.2",
        model="free-1",
        answer=_product,
    )
    yield FaultLane(seed=seed, latency_s=LATENCY_S, model="paid-1", answer=_product)


def _product(body: dict[str, Any]) -> str:
    """What both lanes answer: the question's product."""
    numbers = [int(word) for word in re.findall("[0-9]+", body["messages"][-1]["content"])]
    return str(numbers[-2] * numbers[-1])


def _policy(free_url: str, paid_url: str) -> Policy:
    from millpond.rules.policy import Backoff, LanePolicy, Policy
    from millpond.rules.price import FREE, PriceRule

    hold = {"realtime": HOLD_MS, "batch": HOLD_MS}
    free = LanePolicy(
        "free",
        price=FREE,
        base_url=free_url,
        model="free-1",
        max_attempts=4,
        max_in_flight=8,
        soft_timeout_ms=SOFT_TIMEOUT_MS,
        hold_ms=hold,  # type: ignore[arg-type]
        after_hold="pin",
    )
    paid = LanePolicy(
        "paid",
        tier="paid",
        price=PriceRule("stated", call_usd=CALL_USD),
        base_url=paid_url,
        model="paid-1",
        max_in_flight=8,
    )
    return Policy(lanes={"free": free, "paid": paid}, backoff=Backoff(first_ms=50, cap_ms=1_000))


def _queue(home: Path, policy: Policy) -> Queue:
    """A queue that reads no settings: a demo shows the same whatever stands in this folder."""
    from millpond.engine.clock import boot, wall_ms
    from millpond.queue import Queue
    from millpond.settings import make_home
    from millpond.store.store import Store, open_sqlite

    make_home(home)
    database = open_sqlite(home / "queue.db")
    return Queue(Store(database, wall_ms, boot), database.lock_folder, policy, home=home)


def _questions(seed: int) -> list[Prompt]:
    """300 questions, 260 of them different, in a drawn order."""
    from millpond.rules.job import Prompt

    draw = random.Random(seed)
    numbers = list(range(DISTINCT))
    asked = numbers + draw.sample(numbers, REQUESTS - DISTINCT)
    draw.shuffle(asked)
    return [Prompt(f"Question {n}: what is {n % 20 + 2} times {n // 20 + 3}?", intent="demo") for n in asked]


def _worth_explaining(home: Path, policy: Policy) -> int:
    """The job with the most to tell."""
    with _queue(home, policy) as queue:
        return max(queue.jobs(limit=DISTINCT), key=lambda job: (job.attempts_made, -job.id)).id


def _in_words(faults: dict[str, float]) -> str:
    return ", ".join(f"{share:.0%} {name}" for name, share in faults.items())
