"""`millpond doctor`: is everything in order?"""

from __future__ import annotations

import click

from millpond.faces.cli import terminal
from millpond.faces.cli.given import Given, pass_given, shared
from millpond.rules.errors import QueueUnavailable, SettingsError


@click.command()
@shared()
@pass_given
@click.pass_context
def doctor(ctx: click.Context, given: Given) -> None:
    """Check database, disk, locks, owners, lanes, keys and settings. Exits 1 on any fault. Keys are never shown."""
    from millpond.report.doctor import examine

    try:
        if given.has_queue():
            with given.open() as queue:
                checks = examine(given.settings, queue.store)
        else:
            checks = examine(given.settings, None)
    except (QueueUnavailable, SettingsError, OSError) as problem:
        checks = examine(given.settings, None, refused=str(problem))
    if given.json:
        terminal.say_json(checks, indent=2)
    else:
        width = max(len(one.name) for one in checks)
        for one in checks:
            mend = "" if one.is_ok else f"; next: {one.next}"
            terminal.say(f"{'ok   ' if one.is_ok else 'FAULT'}  {one.name:<{width}}  {one.words}{mend}")
    ctx.exit(0 if all(one.is_ok for one in checks) else 1)
