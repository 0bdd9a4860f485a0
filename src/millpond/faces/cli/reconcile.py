"""`millpond reconcile`: one look at everything whose end is unknown."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from millpond.faces.cli import terminal
from millpond.faces.cli.given import Given, pass_given, shared

if TYPE_CHECKING:
    from collections.abc import Callable

    from millpond.engine.happening import Happening


@click.command()
@shared()
@pass_given
def reconcile(given: Given) -> None:
    """Ask lanes what became of calls that nobody heard, and take back what dead workers held.

    A drain does the same as it goes round. No call is made: replies that are found answer their jobs at no further
    cost, and what nobody waits for any more is decided once its hold is over.
    """
    from millpond.faces.cli.drain import tell_summary
    from millpond.report.left import why_left

    with given.look() as queue:
        summary = queue.reconcile(tell=_say(to_stderr=given.json))
        policy = queue.policy
        left = [] if given.json else list(why_left(queue.store, policy, policy.lanes, given.command, is_cut_short=True))
    tell_summary(given, summary, left)


def _say(*, to_stderr: bool) -> Callable[[Happening], None]:
    def say(happening: Happening) -> None:
        job = f"job {happening.job_id}" if happening.job_id is not None else ""
        where = " ".join(filter(None, (happening.kind, job, happening.lane)))
        click.echo(terminal.without_secrets(terminal.plain(f"{where}: {happening.words}")), err=to_stderr)

    return say
