"""`millpond results`: answers in the order in which they were asked, with the columns that were carried."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from millpond.faces.cli import terminal
from millpond.faces.cli.completion import submission_names
from millpond.faces.cli.given import Given, pass_given, shared
from millpond.faces.cli.output import is_file, remove_parts, to, whole
from millpond.faces.cli.signals import ended_by_signals
from millpond.report.words import counted
from millpond.rules import lifecycle
from millpond.rules.errors import UsageError

if TYPE_CHECKING:
    from millpond.queue import Queue
    from millpond.rules.job import Result

BATCH = "openai-batch"
FORMATS = ("jsonl", "csv", "parquet", BATCH)
SUFFIXES = {
    "": "jsonl",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
    ".parquet": "parquet",
}


@click.command()
@click.argument("submission", required=False, shell_complete=submission_names)
@click.option("--format", "format_", type=click.Choice(FORMATS), help="Else by the suffix of -o; else jsonl.")
@click.option("--failed", is_flag=True, help="Those that failed, with their errors, instead of those that are done.")
@click.option("--since", metavar="TIME", help='Settled since: "2h" (ago), or a moment with its zone.')
@click.option(
    "-o", "--output", metavar="FILE", type=click.Path(path_type=Path), help="Write here, whole or not at all."
)
@click.option(
    "--errors", metavar="FILE", type=click.Path(path_type=Path), help=f"The error file, beside {BATCH} in -o or stdout."
)
@shared()
@pass_given
def results(
    given: Given,
    submission: str | None,
    format_: str | None,
    failed: bool,
    since: str | None,
    output: Path | None,
    errors: Path | None,
) -> None:
    """Answers of a submission (its name, or its number), or of all, in the order in which they were asked.

    Tokens and cost stand only on the request that paid. In CSV and Parquet the carried columns stand first, under their
    own names, then the properties of answers that were asked with a schema. Exit 130 or 143 after a signal.
    As openai-batch, a submission's answers are an output file, and what failed or was cancelled an error file.
    """
    _check_batch(format_, submission, failed=failed, since=since, output=output, errors=errors)
    kind = format_ or _format_of(output)
    if kind == "parquet" and not is_file(output):
        raise UsageError("--format parquet: found no -o FILE, wanted one; Parquet is no text, and is read from its end")
    with given.look() as queue, ended_by_signals(remove_parts):
        if kind == BATCH:
            assert submission is not None, "checked above"
            _write_batch(given, queue, submission, failed, output, errors)
            return
        found = queue.results(submission, failed=failed, since=since)
        with to(output, "b" if kind == "parquet" else "t") as file:
            n = _write(kind, queue, found, file)
        if is_file(output):
            terminal.warn(f"wrote {counted(n, 'result')} to {output}")
            if lacks := _lacks(queue, submission, failed=failed, is_since=since is not None):
                terminal.warn(f"not in it: {', '.join(lacks)}")
        if n == 0:
            pending = lifecycle.pending(queue.counts())
            hint = f"; {pending:,} jobs are pending: {given.command('drain')}" if pending else ""
            terminal.warn(f"no results{hint}")


def _check_batch(
    format_: str | None,
    submission: str | None,
    *,
    failed: bool,
    since: str | None,
    output: Path | None,
    errors: Path | None,
) -> None:
    """Refuse what the two files of a batch cannot be, and an error file where there is no batch."""
    if format_ != BATCH:
        if errors is not None:
            raise UsageError(f"--errors: found without --format {BATCH}, wanted both; --failed tells what failed")
        return
    if submission is None:
        raise UsageError(f"--format {BATCH}: found no SUBMISSION, wanted its name or number; custom_ids are its own")
    if since is not None:
        raise UsageError(f"--since: found with --format {BATCH}, wanted one of them; a batch is told whole")
    if errors is not None and failed:
        raise UsageError("--errors: found with --failed, which writes the error file where -o says; wanted one of them")
    if errors is not None and output is not None and os.path.realpath(errors) == os.path.realpath(output):
        raise UsageError(f"--errors: found the file of -o, {str(errors)!r}, wanted another")


def _write_batch(
    given: Given, queue: Queue, submission: str, failed: bool, output: Path | None, errors: Path | None
) -> None:
    """Write the output file, the error file, or both in one pass, so that no request can change sides in between."""
    from millpond.batchfile import batch_lines

    asked = queue.submission(submission)
    answers = refusals = 0
    with ExitStack() as files:
        out = files.enter_context(to(output))
        err = out if failed else files.enter_context(whole(errors)) if errors is not None else None
        for line in batch_lines(queue, asked.id):
            is_error = line["error"] is not None
            answers, refusals = answers + (not is_error), refusals + is_error
            if is_error and err is not None:
                err.write(terminal.as_json(line) + "\n")
            elif not is_error and not failed:
                out.write(terminal.as_json(line) + "\n")
    if is_file(output):
        written = counted(refusals, "error") if failed else counted(answers, "result")
        terminal.warn(f"wrote {written} to {output}")
    if errors is not None:
        terminal.warn(f"wrote {counted(refusals, 'error')} to {errors}")
    elif refusals and not failed:
        terminal.warn(f"{refusals:,} failed or cancelled, and are left out; --errors FILE writes them")
    if pending := asked.requests - answers - refusals:
        terminal.warn(f"{counted(pending, 'request')} pending, in neither file: {given.command('drain')}")


def _format_of(output: Path | None) -> str:
    """The format that a file's name says; without a suffix it is jsonl. Raises UsageError for any other suffix."""
    suffix = output.suffix.lower() if output is not None else ""
    if suffix not in SUFFIXES:
        raise UsageError(f"{output}: unknown suffix {suffix!r}; wanted {' '.join(filter(None, SUFFIXES))}, or --format")
    return SUFFIXES[suffix]


def _lacks(queue: Queue, which: str | None, *, failed: bool, is_since: bool) -> list[str]:
    """What was asked for and is not in the file, and how to get it: requests of a submission, else jobs."""
    if which is None:
        counts = queue.counts()
        pending = lifecycle.pending(counts)
    else:
        one = queue.submission(which)
        counts, pending = {"done": one.done, "failed": one.failed, "cancelled": one.cancelled}, one.pending
    if is_since:  # what settled before is left out on purpose
        counts = dict.fromkeys(counts, 0)
    parts = [(counts["done"], "done (without --failed)")] if failed else [(counts["failed"], "failed (--failed)")]
    parts += [(counts["cancelled"], "cancelled"), (pending, "pending")]
    return [f"{n:,} {what}" for n, what in parts if n]


def _write(kind: str, queue: Queue, found: Iterable[Result], file: Any) -> int:
    """Write results in a format that is not a batch's, and say how many there were."""
    if kind == "jsonl":
        n = 0
        for result in found:
            file.write(terminal.as_json(result) + "\n")
            n += 1
        return n
    from millpond.tables import as_table, write_csv, write_parquet

    write = {"csv": write_csv, "parquet": write_parquet}[kind]
    with as_table(queue.store, found) as table:
        write(table, file)
        return table.rows_count
