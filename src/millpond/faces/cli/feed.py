"""The feed on the command line: `events` since a cursor, `watch` from now on. One line a change, or one object."""

from __future__ import annotations

from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING

import click

from millpond.faces.cli import completion, terminal
from millpond.faces.cli.given import LIMIT, Given, pass_given, shared
from millpond.faces.cli.signals import ended_from_outside

if TYPE_CHECKING:
    from millpond.rules.job import Event

PAGE_LINES = 100
"""Events that are shown where neither a limit nor --follow is given."""


@click.command()
@click.option("--after", metavar="CURSOR", help="Only what came after it: the number that stands before an event.")
@click.option("--limit", type=LIMIT, help=f"At most so many.  [default: {PAGE_LINES}, or all that follow]")
@click.option("--follow", is_flag=True, help="Go on with each change as it happens, until Ctrl-C.")
@shared()
@pass_given
def events(given: Given, after: str | None, limit: int | None, follow: bool) -> None:
    """List what happened, from the first event on, or since a cursor.

    Each line begins with its cursor; the last one, given as --after, goes on from there. Exit 130 or 143 where a signal
    ends --follow.
    """
    with given.look() as queue, ended_from_outside():
        cursor = after or "0"
        for event in islice(queue.feed(after, follow=follow), limit or (None if follow else PAGE_LINES)):
            cursor = event.cursor
            _show(given, event, f"{event.cursor:>5}  {_moment(event)}")
        if not follow:
            rest = "more" if int(cursor) < queue.store.last_event() else "that is all for now; next"
            terminal.warn(f"{rest}: {given.command(f'events --after {cursor}')}")


@click.command()
@click.option(
    "--filter",
    "filter_words",
    metavar="FILTER",
    help="Only changes of jobs that it admits; see jobs --help.",
    shell_complete=completion.filter_words,
)
@shared()
@pass_given
def watch(given: Given, filter_words: str | None) -> None:
    """Show each change as it happens, from now on, until Ctrl-C: one line a change.

    A filter is asked about the job as it stands when its change is shown. Exit 130 or 143 after a signal.
    """
    from millpond.rules.filters import matches, parse

    with given.look() as queue, ended_from_outside():
        terms = parse(filter_words or "", queue.store.now_ms())
        start = str(queue.store.last_event())
        terminal.warn(f"watching {given.settings.home} from now on; Ctrl-C ends it")
        for event in queue.feed(start, follow=True):
            job = queue.store.job(event.job_id) if terms and event.job_id is not None else None
            if not terms or (job is not None and matches(terms, job, queue.store.look_into)):
                _show(given, event, f"{datetime.fromtimestamp(event.at_ms / 1000):%H:%M:%S}")


def _show(given: Given, event: Event, before: str) -> None:
    from millpond.report.happened import in_words, whose

    if given.json:
        terminal.say_json(event)
    else:
        terminal.say(terminal.plain(f"{before} {event.kind} {whose(event)}: {in_words(event)}"))


def _moment(event: Event) -> str:
    from millpond.rules.times import show_ms

    return show_ms(event.at_ms)
