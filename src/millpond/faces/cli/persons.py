"""What a person does to jobs: `retry` and `cancel`, by ids or by a filter."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from millpond.faces.cli import terminal
from millpond.faces.cli.given import ID, Given, pass_given, shared
from millpond.rules.errors import UsageError

if TYPE_CHECKING:
    from millpond.rules.job import BulkReport

IDS = click.argument("ids", metavar="[ID]...", type=ID, nargs=-1)
FILTER = click.option("--filter", "filter_words", metavar="FILTER", help="Instead of ids: which jobs; see jobs --help.")
YES = click.option("--yes", is_flag=True, help="Do it to more than one job that the filter admits.")


@click.command()
@IDS
@FILTER
@YES
@click.option("--lane", metavar="LANE", help="Ask this lane first.")
@shared()
@pass_given
@click.pass_context
def retry(
    ctx: click.Context, given: Given, ids: tuple[int, ...], filter_words: str | None, yes: bool, lane: str | None
) -> None:
    """Ask again for failed, cancelled or undeliverable jobs, with the policy's attempts granted anew.

    A filter that admits more than one job is tried dry first; --yes then does it.
    """
    with given.look() as queue:

        def verb(which: Any, dry_run: bool) -> BulkReport:
            return queue.retry(which, lane=lane, dry_run=dry_run)

        ctx.exit(_act("retried", given, verb, ids, filter_words, yes))


@click.command()
@IDS
@FILTER
@YES
@shared()
@pass_given
@click.pass_context
def cancel(ctx: click.Context, given: Given, ids: tuple[int, ...], filter_words: str | None, yes: bool) -> None:
    """Cancel jobs. A call in flight is listened to on, and its reply serves the next who asks.

    A filter that admits more than one job is tried dry first; --yes then does it.
    """
    with given.look() as queue:

        def verb(which: Any, dry_run: bool) -> BulkReport:
            return queue.cancel(which, dry_run=dry_run)

        ctx.exit(_act("cancelled", given, verb, ids, filter_words, yes))


def _act(
    done: str,
    given: Given,
    verb: Callable[[Any, bool], BulkReport],
    ids: tuple[int, ...],
    filter_words: str | None,
    yes: bool,
) -> int:
    """Do it, or say what would be done; returns the exit code: 1 if a job that was named could not be moved."""
    if bool(ids) == (filter_words is not None):
        raise UsageError(
            "found " + ("ids and a filter" if ids else "neither ids nor a filter") + ", wanted one of the two"
        )
    if filter_words is None:
        report = verb(ids, False)
        _tell(report, given, f"{done} {report.done:,}")
        return 1 if report.skipped else 0
    if not filter_words.strip():
        raise UsageError("filter: found an empty one, wanted words; `id:1..` admits every job")
    if not yes:
        trial = verb(filter_words, True)
        if trial.eligible > 1:
            _tell(trial, given, f"would be {done}: {trial.eligible:,}")
            raise UsageError(f"nothing was done: the filter admits {trial.eligible:,} jobs; say --yes to go on")
    report = verb(filter_words, False)
    _tell(report, given, f"{done} {report.done:,}")
    return 0


def _tell(report: BulkReport, given: Given, did: str) -> None:
    if given.json:
        terminal.say_json(report)
        return
    skipped = f" · skipped {report.skipped:,}" if report.skipped else ""
    why = ", ".join(f"{n:,} {reason}" for reason, n in sorted(report.reasons.items()))
    terminal.say(f"{did} · eligible {report.eligible:,}{skipped}" + (f" ({why})" if why else ""))
