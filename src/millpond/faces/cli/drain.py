"""`millpond drain`: works the queue off in the foreground; the first signal finishes, the second releases."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import click

from millpond.faces.cli import terminal
from millpond.faces.cli.completion import lane_lists
from millpond.faces.cli.given import Given, pass_given, shared
from millpond.faces.cli.seconds import Seconds
from millpond.faces.cli.signals import Signals, exit_code_of, leave_now
from millpond.rules.errors import LockHeld, UsageError

if TYPE_CHECKING:
    from millpond.engine.drain import Drainer, Until
    from millpond.faces.cli.progress import Progress
    from millpond.lanes.given import Lanes
    from millpond.queue import Queue
    from millpond.report.summary import Summary
    from millpond.rules.policy import Policy


@click.command()
@click.option("--until-empty", is_flag=True, help="Wait for everything that the clock can bring: pauses, holds.")
@click.option("--daemon", is_flag=True, help="Wait for work for ever.")
@click.option(
    "--max-jobs",
    type=click.IntRange(1),
    metavar="N",
    help="End once so many jobs have ended, however many calls that takes.",
)
@click.option(
    "--max-iters",
    type=click.IntRange(1),
    metavar="N",
    help="End after so many rounds: each fills the lanes once and waits until all its calls have ended.",
)
@click.option(
    "--lanes",
    metavar="A,B",
    help="Only these lanes; work that only others may serve waits for them.",
    shell_complete=lane_lists,
)
@click.option("--grace", type=Seconds(86_400), metavar="S", help="How long a signal waits for calls in flight.")
@shared()
@pass_given
@click.pass_context
def drain(
    ctx: click.Context,
    given: Given,
    until_empty: bool,
    daemon: bool,
    max_jobs: int | None,
    max_iters: int | None,
    lanes: str | None,
    grace: float | None,
) -> None:
    """Work the queue off. Ends when nothing is ready, in flight or due within idle_exit_s.

    Ctrl-C once: no new call, those in flight may end within the grace. Twice: they are given up, and what became of
    them is unknown. SIGTERM and SIGHUP do the same; a daemon goes on after a SIGHUP. One process drains a queue; a
    second one exits 75. Events and summary go to stdout; with --json stdout has the summary alone, as JSON (money in
    USD, unknown is null), and events go to stderr.
    """
    if until_empty and daemon:
        raise UsageError("found --until-empty and --daemon, wanted at most one of the two")
    from millpond.engine.drain import Until
    from millpond.engine.draining import not_drained
    from millpond.faces.cli.progress import Progress
    from millpond.lanes.given import choose_lanes
    from millpond.report.left import why_left
    from millpond.report.standing import stalled

    names = [name.strip() for name in lanes.split(",") if name.strip()] if lanes is not None else None
    policy = given.settings.policy
    if grace is not None:
        policy = replace(policy, grace_ms=int(grace * 1000))
    _, chosen = choose_lanes(policy, names)  # what cannot be drained with is refused before a home is made
    if given.settings.unread:
        terminal.warn(f"not read by this version, and without effect: {', '.join(given.settings.unread)}")
    until = Until(until_empty=until_empty, daemon=daemon, max_jobs=max_jobs, max_iters=max_iters)
    with Signals(passing=[signal.SIGHUP] if daemon else ()) as signals:
        with given.open() as queue:
            try:
                progress = Progress(queue, to_stderr=given.json, is_of_a_daemon=daemon)
                summary = run(queue, policy, names, until, signals, progress)
            except LockHeld as held:
                if given.json:
                    terminal.say_json(not_drained(queue.store, held), indent=2)
                for one in stalled(queue.store):
                    terminal.warn(f"{one.in_words()}; next: {one.next}")
                raise
            left = []
            if not given.json:
                is_cut_short = summary.reason in ("signal", "max_jobs", "max_iters")
                left = list(why_left(queue.store, policy, chosen, given.command, is_cut_short=is_cut_short))
        with suppress(OSError) if signals.ending else nullcontext():  # the terminal may have gone with the signal
            progress.say(partial(tell_summary, given, summary, left), signals)
        if signals.ending:  # a handler's thread that cannot be stopped must not keep us until it returns
            leave_now(exit_code_of(signals.ending[0]))
    ctx.exit(progress.exit_code if not daemon else 0)


def run(queue: Queue, policy: Policy, lanes: Lanes, until: Until, signals: Signals, progress: Progress) -> Summary:
    """Drain, told of by `progress` and stopped by `signals`. Raises LockHeld."""
    try:
        with queue.draining(policy, lanes=lanes, tell=progress.tell) as drainer:
            return asyncio.run(_run(drainer, until, progress, signals, f"{queue.home}  pid {os.getpid()}"))
    finally:
        progress.wait_said(signals)  # nobody else waits with us for a reader who pauses


async def _run(drainer: Drainer, until: Until, progress: Progress, signals: Signals, title: str) -> Summary:
    heeded: list[int] = []

    def heed(number: int) -> None:
        if number not in signals.ending:
            progress.note("hung up: goes on; settings are not read again, for that end it and start it anew")
            return
        heeded.append(number)
        drainer.stop()
        if len(heeded) == 1:
            progress.note(f"stopping: {drainer.tab.in_flight} in flight may finish; once more gives them up")
        elif len(heeded) == 2:
            progress.note("giving up what is in flight")

    with signals.told(heed), progress.of(drainer, title):  # before the first line is shown: who reads it may send one
        return await drainer.run(until)


def tell_summary(given: Given, summary: Summary, left: Sequence[str] = ()) -> None:
    """The summary in words, with why work is left and the next commands; or as JSON."""
    if given.json:
        terminal.say_json(summary, indent=2)
        return
    terminal.say(summary.in_words())
    for line in left:
        terminal.say(f"why left: {line}")
    ahead = ["results -o out.jsonl"] if summary.done else []
    ahead += ["results --failed"] if summary.failed else []
    ahead += ["resume"] if summary.reason == "stopped" else []
    ahead += ["status"] if summary.ready or summary.waiting else []
    ahead += ["report"] if summary.paid_twice or summary.unpriced else []
    if ahead:
        terminal.say("next: " + " · ".join(given.command(verb) for verb in ahead))
