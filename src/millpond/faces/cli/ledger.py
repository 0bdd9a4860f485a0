"""`millpond ledger`: the calls that were made, one line each, in order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from millpond.faces.cli import terminal
from millpond.faces.cli.given import ID, LIMIT, Given, pass_given, shared

if TYPE_CHECKING:
    from millpond.rules.job import Attempt

HEADING = ("seq", "job", "lane", "outcome", "code", "started", "took", "tokens", "cost", "answers")


@click.command()
@click.argument("job_id", metavar="[ID]", type=ID, required=False)
@click.option("--limit", type=LIMIT, default=100, show_default=True, help="The last so many.")
@shared()
@pass_given
def ledger(given: Given, job_id: int | None, limit: int) -> None:
    """List the last calls that were made, in order: of all jobs, or of one and of its key.

    `outcome/resolution`: how a call ended, and what was decided where nobody knows. Tokens are in + out.
    """
    with given.look() as queue:
        if job_id is not None:
            queue.job(job_id)
        now_ms = queue.store.now_ms()
        rows: list[tuple[str, ...]] = []
        seen = 0
        for attempt in queue.ledger(job_id, last=limit):
            seen += 1
            if given.json:
                terminal.say_json(attempt)
            else:
                rows.append(_row(attempt, now_ms))
    if rows:
        terminal.say(terminal.table([HEADING, *rows]))
    if seen == 0:
        terminal.warn("no call was made" + (f" for job {job_id}" if job_id is not None else ""))
    if seen == limit:
        terminal.warn(f"the last {limit:,}; --limit shows more")


def _row(one: Attempt, now_ms: int) -> tuple[str, ...]:
    from millpond.report.words import number, usd
    from millpond.rules.outcome import MAY_BE_BILLED
    from millpond.rules.times import show_ms, took_words

    owed = one.outcome is None or one.outcome in MAY_BE_BILLED
    outcome = f"{one.outcome or 'open'}" + (f"/{one.resolution}" if one.resolution else "")
    took = took_words((one.ended_ms if one.ended_ms is not None else now_ms) - one.started_ms)
    cost = usd(one.cost) + (" at most" if one.cost_is_estimate else "")
    return (
        str(one.seq),
        str(one.job_id),
        one.lane,
        outcome,
        terminal.short(one.code, 40) if one.code and one.code != one.outcome else "-",
        show_ms(one.started_ms),
        f"{took} so far" if one.outcome is None else took,
        f"{number(one.tokens_in)} + {number(one.tokens_out)}" if _has_tokens(one) else "unknown" if owed else "-",
        cost if owed or one.cost is not None else "-",
        "yes" if one.artifact_id is not None else "-",
    )


def _has_tokens(one: Attempt) -> bool:
    return one.tokens_in is not None or one.tokens_out is not None
