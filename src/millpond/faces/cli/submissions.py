"""What was handed in at once: `submissions`, and how the queue or one of them stands: `status`, `wait`."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import click

from millpond.faces.cli import terminal
from millpond.faces.cli.completion import submission_names
from millpond.faces.cli.given import LIMIT, Given, pass_given, shared
from millpond.faces.cli.signals import ended_from_outside

if TYPE_CHECKING:
    from collections.abc import Mapping

    from millpond.queue import Queue
    from millpond.rules.job import Submission

ALERT, FAILED, PENDING = 1, 3, 8
"""Exit codes of --exit-status, the gravest first; `wait` ends with the last one where its timeout has passed."""

NAME = click.argument("name", metavar="[SUBMISSION]", required=False, shell_complete=submission_names)


@click.command()
@NAME
@click.option("--limit", type=LIMIT, default=20, show_default=True, help="At most so many.")
@shared()
@pass_given
def submissions(given: Given, name: str | None, limit: int) -> None:
    """List the newest submissions and how their requests stand; or show one, by its name or number."""
    with given.look() as queue:
        if name is not None:
            _show(given, queue, queue.submission(name))
            return
        found = queue.submissions(limit=limit)
    if not found:
        terminal.warn("no submissions")
    if given.json:
        for one in found:
            terminal.say_json(one)
    elif found:
        terminal.say(_table(found))
    if len(found) == limit:
        terminal.warn(f"the newest {limit:,}; --limit shows more")


@click.command()
@NAME
@click.option(
    "--exit-status",
    is_flag=True,
    help="Exit 1 on an alert, 3 if jobs failed, 8 if some are pending; of a submission 3 and 8 alone.",
)
@shared()
@pass_given
@click.pass_context
def status(ctx: click.Context, given: Given, name: str | None, exit_status: bool) -> None:
    """How the queue stands: counts, lanes, what is late, what needs you. Or how a submission stands."""
    with given.look() as queue:
        if name is not None:
            one = queue.submission(name)
            _show(given, queue, one)
            ctx.exit(_code(one.failed, one.pending) if exit_status else 0)
        found = queue.status()
    if given.json:
        terminal.say_json(found, indent=2)
    else:
        terminal.say(f"{given.settings.home}  {found.in_words()}")
    if exit_status:
        ctx.exit(ALERT if found.alerts else _code(found.counts["failed"], found.pending))


@click.command()
@NAME
@click.option("--timeout", metavar="TIME", help='How long at most: "10m". Exit 8 where it passes.')
@click.option("--exit-status", is_flag=True, help="Exit 3 if some failed.")
@shared()
@pass_given
@click.pass_context
def wait(ctx: click.Context, given: Given, name: str | None, timeout: str | None, exit_status: bool) -> None:
    """Wait until every request of a submission, or of the queue, is answered, failed or cancelled.

    Exit 130 or 143 after a signal.
    """
    from millpond.rules.times import duration_ms
    from millpond.waiters import EVERYTHING

    span_s = duration_ms(timeout, field="--timeout") / 1000 if timeout is not None else None
    with given.look() as queue, ended_from_outside():
        one = queue.submission(name) if name is not None else None
        what = one or EVERYTHING
        if not queue.wait(what, 0) and queue.drainer() is None:
            terminal.warn(f"nobody drains this queue; next: {given.command('drain')}")
        is_over = queue.wait(what, span_s)
        if one is not None:
            one = queue.submission(one.id)
            _show(given, queue, one)
            failed = one.failed
        else:
            counts = queue.counts()
            terminal.say_json(counts, indent=2) if given.json else terminal.say(_listed(counts, but="held"))
            failed = counts["failed"]
    if not is_over:
        terminal.warn(f"still pending after {timeout}")
        ctx.exit(PENDING)
    ctx.exit(FAILED if exit_status and failed else 0)


def _code(failed: int, pending: int) -> int:
    return FAILED if failed else PENDING if pending else 0


def _show(given: Given, queue: Queue, one: Submission) -> None:
    if given.json:
        terminal.say_json(one, indent=2)
        return
    from millpond.rules.times import age_words, show_ms

    age = age_words(queue.store.now_ms() - one.created_ms)
    lines = [
        f"submission  {one.id}  {one.name}",
        f"made        {show_ms(one.created_ms)}, {age} ago, by {one.source}",
        f"requests    {one.requests:,}: {_listed(one.dispositions)}",
        f"states      {_listed(one.states)}",
    ]
    terminal.say("\n".join([*map(terminal.plain, lines), *_next(given, queue, one)]))


def _next(given: Given, queue: Queue, one: Submission) -> list[str]:
    """The commands that go on with it: by its name where no other can be meant, else by its number."""
    from millpond.rules.filters import Term

    is_alone = queue.store.submissions_of([Term("submission", one.name)]) == [one.id]
    name = shlex.quote(one.name) if is_alone and not one.name.isdecimal() else str(one.id)
    ahead = [f"results {name}"] if one.done else []
    ahead += [f"results {name} --failed"] if one.failed else []
    if one.pending:
        ahead.append(f"wait {name}" if queue.drainer() is not None else "drain")
    return [f"next: {' · '.join(map(given.command, ahead))}"] if ahead else []


def _listed(counts: Mapping[str, int], *, but: str = "") -> str:
    return "  ".join(f"{name} {n:,}" for name, n in counts.items() if name != but)


def _table(found: list[Submission]) -> str:
    from millpond.rules.times import show_ms

    heading = ("id", "name", "made", "requests", "pending", "done", "failed", "cancelled")
    rows = [
        (one.id, one.name, show_ms(one.created_ms), one.requests, one.pending, one.done, one.failed, one.cancelled)
        for one in found
    ]
    return terminal.table([heading, *(tuple(map(str, row)) for row in rows)])
