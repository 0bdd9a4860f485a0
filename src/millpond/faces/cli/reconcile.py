"""`millpond reconcile`: one look at everything whose end is unknown."""

from __future__ import annotations

import click

from millpond.faces.cli import terminal
from millpond.faces.cli.given import Given, pass_given, shared


@click.command()
@shared()
@pass_given
def reconcile(given: Given) -> None:
    """Ask lanes what became of calls that nobody heard, and take back what dead workers held.

    A drain does the same as it goes round. No call is made: replies that are found answer their jobs at no further
    cost, and what nobody waits for any more is decided once its hold is over.
    """
    with given.look() as queue:
        summary = queue.reconcile()
    if given.json:
        terminal.say_json(summary)
    else:
        terminal.say(summary.in_words())
