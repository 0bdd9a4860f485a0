"""`millpond report`: what the ledger adds up to."""

from __future__ import annotations

import click

from millpond.faces.cli import terminal
from millpond.faces.cli.given import Given, pass_given, shared


@click.command()
@shared()
@pass_given
def report(given: Given) -> None:
    """What the ledger adds up to: tokens and executions an artifact, crossings, what was paid twice, what was saved.

    Reads the ledger whole: seconds for a million attempts. docs/money.md says what each figure means.
    """
    with given.look() as queue:
        found = queue.report()
    if given.json:
        terminal.say_json(found, indent=2)
    else:
        terminal.say(found.in_words())
