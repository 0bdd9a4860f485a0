"""Looking at jobs: `jobs`, `show`, `explain`. None of them makes a queue."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

import click

from millpond.faces.cli import completion, terminal
from millpond.faces.cli.given import ID, LIMIT, Given, pass_given, shared
from millpond.rules.times import age_words, show_ms

if TYPE_CHECKING:
    from millpond.rules.job import Job, Result
    from millpond.store.store import Store

ANSWER_CHARS = 10_000
WORK_CHARS = 40


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument(
    "filter_words", metavar="[FILTER]", nargs=-1, type=click.UNPROCESSED, shell_complete=completion.filter_words
)
@click.option("--limit", type=LIMIT, default=100, show_default=True, help="At most so many.")
@shared()
@pass_given
def jobs(given: Given, filter_words: tuple[str, ...], limit: int) -> None:
    """List the jobs that a filter admits, newest first.

    FILTER: state:failed lane:free intent:label code:truncated tag:x submission:s3 id:10..20 age:>2h text:"duck"; all
    words must be true, - before one negates it. Quote what the shell would read: 'age:>2h'.
    """
    with given.look() as queue:
        found = queue.jobs(" ".join(filter_words), limit=limit)
        now_ms = queue.store.now_ms()
        rows = [] if given.json else [_row(job, queue.store, now_ms) for job in found]
    if not found:
        terminal.warn("no job matches")
    if given.json:
        for job in found:
            terminal.say_json(job)
        return
    if found:
        heading = ("id", "state", "lane", "tries", "age", "label or work", "")
        terminal.say(terminal.table([heading, *rows]))
    if len(found) == limit:
        terminal.warn(f"the newest {limit:,}; --limit shows more")


def _row(job: Job, store: Store, now_ms: int) -> tuple[str, ...]:
    state = f"{job.state} ({job.wait_reason})" if job.wait_reason else job.state
    age, why = age_words(now_ms - job.created_ms), terminal.short(job.reason or "", 60)
    what = terminal.short(job.label or _work_in_words(store.payload(job.id)), WORK_CHARS)
    return (str(job.id), state, job.next_lane or "-", str(job.attempts_made), age, what, why)


def _work_in_words(body: str | None) -> str:
    """What stored work asks: its task, else its last message, else its system message; of a command its type."""
    from millpond.rules.job import Command
    from millpond.store.bodies import load_work

    if body is None:
        return "-"
    work = load_work(body)
    if isinstance(work, Command):
        return work.type
    said = [message.get("content") for message in work.messages or ()]
    return " ".join((work.task or next((one for one in reversed(said) if isinstance(one, str)), work.system)).split())


@click.command()
@click.argument("job_id", metavar="ID", type=ID)
@shared()
@pass_given
def show(given: Given, job_id: int) -> None:
    """One job: its fields, its work, its answer."""
    with given.look() as queue:
        job = queue.job(job_id)
        if given.json:
            terminal.say_json(job, indent=2)
            return
        body = queue.store.payload(job_id) or "no longer kept"
        requests = queue.store.requests(job_id, 1)
        result = queue.store.result(requests[0].id) if requests else None
    lines = [f"{field.name:<16} {_field(field.name, getattr(job, field.name))}" for field in fields(job)]
    lines += ["", f"work             {body}"]
    if result is not None and result.state == "done":
        lines += [f"answered by      {result.model or result.lane}", f"answer           {_answer(result)}"]
    lines += ["", f"next: {given.command(f'explain {job_id}')}"]
    terminal.say_work("\n".join(lines))


def _field(name: str, value: Any) -> str:
    if value in (None, "", ()):
        return "unknown" if name == "cost" else "-"
    if name.endswith("_ms"):
        return show_ms(value)
    if name == "tags":
        return ", ".join(value)
    return f"${value:f}" if name == "cost" else str(value)


def _answer(result: Result) -> str:
    text = result.text or terminal.as_json(result.data)
    return text if len(text) <= ANSWER_CHARS else f"{text[:ANSWER_CHARS]}… ({len(text):,} characters; see results)"


@click.command()
@click.argument("job_id", metavar="ID", type=ID)
@shared()
@pass_given
def explain(given: Given, job_id: int) -> None:
    """Why a job is not running, or what became of it; its attempts with their evidence; what comes next."""
    with given.look() as queue:
        words = queue.explain(job_id)
        if given.json:
            attempts = list(queue.ledger(job_id))
            terminal.say_json(
                {"why": words.partition("\n")[0], "job": queue.job(job_id), "attempts": attempts}, indent=2
            )
            return
    terminal.say(words)
