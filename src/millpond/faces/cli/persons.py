"""What a person does to jobs: `retry`, `cancel`, `unpin` and `decide`, by ids or by a filter."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from millpond.faces.cli import completion, terminal
from millpond.faces.cli.given import ID, Given, pass_given, shared
from millpond.rules.errors import UsageError

if TYPE_CHECKING:
    from millpond.rules.job import BulkReport
    from millpond.store.deciding import Choice

F = TypeVar("F", bound=Callable[..., Any])

IDS = click.argument("ids", metavar="[ID]...", type=ID, nargs=-1)
FILTER = click.option(
    "--filter",
    "filter_words",
    metavar="FILTER",
    help="Instead of ids: which jobs; see jobs --help.",
    shell_complete=completion.filter_words,
)
DRY_RUN = click.option("--dry-run", is_flag=True, help="Only say what would be done.")
YES = click.option("--yes", is_flag=True, help="Do it to more than one job that the filter admits.")


def of_jobs(command: F) -> F:
    """Ids or a filter, dry first or not."""
    for one in (YES, DRY_RUN, FILTER, IDS):
        command = one(command)
    return command


@click.command()
@of_jobs
@click.option("--lane", metavar="LANE", help="Ask this lane first.", shell_complete=completion.lane_names)
@shared()
@pass_given
@click.pass_context
def retry(
    ctx: click.Context,
    given: Given,
    ids: tuple[int, ...],
    filter_words: str | None,
    dry_run: bool,
    yes: bool,
    lane: str | None,
) -> None:
    """Ask again for failed, cancelled or undeliverable jobs, with the policy's attempts granted anew.

    A filter that admits more than one job is tried dry first; --yes then does it. Where it names a submission, what
    that one withdrew is taken back, and nothing that others withdrew.
    """
    with given.look() as queue:

        def verb(which: Any, dry_run: bool) -> BulkReport:
            return queue.retry(which, lane=lane, dry_run=dry_run)

        ctx.exit(_act("retried", given, verb, ids, filter_words, dry_run=dry_run, yes=yes))


@click.command()
@of_jobs
@shared()
@pass_given
@click.pass_context
def cancel(
    ctx: click.Context, given: Given, ids: tuple[int, ...], filter_words: str | None, dry_run: bool, yes: bool
) -> None:
    """Cancel jobs. A call in flight is listened to on, and its reply serves the next who asks.

    A filter that admits more than one job is tried dry first; --yes then does it. Where it names a submission, only
    what that one asks is withdrawn: a job that others ask for too goes on for them.
    """
    with given.look() as queue:

        def verb(which: Any, dry_run: bool) -> BulkReport:
            return queue.cancel(which, dry_run=dry_run)

        ctx.exit(_act("cancelled", given, verb, ids, filter_words, dry_run=dry_run, yes=yes))


@click.command()
@of_jobs
@shared()
@pass_given
@click.pass_context
def unpin(
    ctx: click.Context, given: Given, ids: tuple[int, ...], filter_words: str | None, dry_run: bool, yes: bool
) -> None:
    """Route jobs from their first lane again that an unknown outcome has pinned to a further one.

    A filter that admits more than one job is tried dry first; --yes then does it.
    """
    with given.look() as queue:

        def verb(which: Any, dry_run: bool) -> BulkReport:
            return queue.unpin(which, dry_run=dry_run)

        ctx.exit(_act("unpinned", given, verb, ids, filter_words, dry_run=dry_run, yes=yes))


@click.command()
@of_jobs
@click.argument("choice", type=click.Choice(["pin", "same", "fail"]))
@shared()
@pass_given
@click.pass_context
def decide(
    ctx: click.Context,
    given: Given,
    ids: tuple[int, ...],
    filter_words: str | None,
    dry_run: bool,
    yes: bool,
    choice: Choice,
) -> None:
    """Say what follows a call of jobs whose outcome is unknown: where you are asked, or before the policy does.

    pin: pay again, on the next lane. same: once more on the same lane. fail: do not pay again. A reply that comes all
    the same is received, and answers whoever asks for the same work. A filter that admits more than one job is tried
    dry first; --yes then does it.
    """
    with given.look() as queue:
        is_one = len(ids) == 1 and filter_words is None and not dry_run
        if is_one and queue.decide_many(ids, choice, dry_run=True).eligible:
            job = queue.decide(ids[0], choice)
            if given.json:
                terminal.say_json(job)
            else:
                following = f"; next: {given.command('drain')}" if job.state == "ready" and not queue.drainer() else ""
                terminal.say(f"job {job.id} is {job.state}{following}")
            return

        def verb(which: Any, dry_run: bool) -> BulkReport:
            return queue.decide_many(which, choice, dry_run=dry_run)

        ctx.exit(_act("decided", given, verb, ids, filter_words, dry_run=dry_run, yes=yes))


def _act(
    did: str,
    given: Given,
    verb: Callable[[Any, bool], BulkReport],
    ids: tuple[int, ...],
    filter_words: str | None,
    *,
    dry_run: bool,
    yes: bool,
) -> int:
    """Do it, or say what would be done; returns the exit code: 1 if a job that was named could not be moved."""
    if bool(ids) == (filter_words is not None):
        raise UsageError(
            "found " + ("ids and a filter" if ids else "neither ids nor a filter") + ", wanted one of the two"
        )
    which = ids if filter_words is None else filter_words
    if filter_words is not None and not yes and not dry_run:
        trial = verb(which, True)
        if trial.eligible > 1:
            _tell(trial, given, did)
            raise UsageError(f"nothing was done: the filter admits {trial.eligible:,} jobs; say --yes to go on")
    report = verb(which, dry_run)
    _tell(report, given, did)
    return 1 if ids and report.skipped else 0


def _tell(report: BulkReport, given: Given, did: str) -> None:
    if given.json:
        terminal.say_json(report)
        return
    moved = (report.eligible if report.dry_run else report.done) - report.goes_on
    said = f"would be {did}: {moved:,}" if report.dry_run else f"{did} {moved:,}"
    parts = [said, f"eligible {report.eligible:,}"]
    if report.goes_on:
        parts.append(f"{report.goes_on:,} {'goes' if report.goes_on == 1 else 'go'} on for others who ask")
    if report.skipped:
        why = ", ".join(f"{n:,} {reason}" for reason, n in sorted(report.reasons.items()))
        parts.append(f"skipped {report.skipped:,} ({why})")
    terminal.say(" · ".join(parts))
