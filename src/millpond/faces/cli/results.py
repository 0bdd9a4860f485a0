"""`millpond results`: answers in the order in which they were asked, with the columns that were carried."""

from __future__ import annotations

import csv
import os
import sys
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Literal

import click

from millpond.faces.cli import terminal
from millpond.faces.cli.completion import submission_names
from millpond.faces.cli.given import Given, pass_given, shared
from millpond.rules.errors import QueueUnavailable, UsageError

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

Form = Literal["t", "b"]
"""How a file is opened: as text, or as bytes."""


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
    own names, then the properties of answers that were asked with a schema.
    As openai-batch, a submission's answers are an output file, and what failed or was cancelled an error file.
    """
    _check_batch(format_, submission, failed=failed, since=since, output=output, errors=errors)
    kind = format_ or _format_of(output)
    if kind == "parquet" and not _is_file(output):
        raise UsageError("--format parquet: found no -o FILE, wanted one; Parquet is no text, and is read from its end")
    with given.look() as queue:
        if kind == BATCH:
            assert submission is not None, "checked above"
            _write_batch(given, queue, submission, failed, output, errors)
            return
        found = queue.results(submission, failed=failed, since=since)
        write, form = _WRITERS[kind]
        with _to(output, form) as file:
            n = write(queue, found, file)
        if _is_file(output):
            terminal.warn(f"wrote {_counted(n, 'result')} to {output}")
            if lacks := _lacks(queue, submission, failed=failed, is_since=since is not None):
                terminal.warn(f"not in it: {', '.join(lacks)}")
        if n == 0:
            left = queue.counts()
            pending = sum(left[state] for state in ("waiting", "ready", "leased", "offloaded"))
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
        out = files.enter_context(_to(output))
        err = out if failed else files.enter_context(_whole(errors)) if errors is not None else None
        for line in batch_lines(queue, asked.id):
            is_error = line["error"] is not None
            answers, refusals = answers + (not is_error), refusals + is_error
            if is_error and err is not None:
                err.write(terminal.as_json(line) + "\n")
            elif not is_error and not failed:
                out.write(terminal.as_json(line) + "\n")
    if _is_file(output):
        written = _counted(refusals, "error") if failed else _counted(answers, "result")
        terminal.warn(f"wrote {written} to {output}")
    if errors is not None:
        terminal.warn(f"wrote {_counted(refusals, 'error')} to {errors}")
    elif refusals and not failed:
        terminal.warn(f"{refusals:,} failed or cancelled, and are left out; --errors FILE writes them")
    if pending := asked.requests - answers - refusals:
        terminal.warn(f"{_counted(pending, 'request')} pending, in neither file: {given.command('drain')}")


def _counted(n: int, noun: str) -> str:
    return f"{n:,} {noun if n == 1 else noun + 's'}"


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
        pending = sum(counts[state] for state in ("waiting", "ready", "leased", "offloaded"))
    else:
        one = queue.submission(which)
        counts, pending = {"done": one.done, "failed": one.failed, "cancelled": one.cancelled}, one.pending
    if is_since:  # what settled before is left out on purpose
        counts = dict.fromkeys(counts, 0)
    parts = [(counts["done"], "done (without --failed)")] if failed else [(counts["failed"], "failed (--failed)")]
    parts += [(counts["cancelled"], "cancelled"), (pending, "pending")]
    return [f"{n:,} {what}" for n, what in parts if n]


def _write_jsonl(queue: Queue, found: Iterable[Result], file: IO[str]) -> int:
    n = 0
    for result in found:
        file.write(terminal.as_json(result) + "\n")
        n += 1
    return n


def _write_csv(queue: Queue, found: Iterable[Result], file: IO[str]) -> int:
    from millpond.tables import spooled

    with spooled(queue, found) as table:
        lines = csv.writer(file)
        lines.writerow(column.name for column in table.columns)
        lines.writerows([_cell(value) for value in row] for row in table.rows())
        return table.rows_count


def _write_parquet(queue: Queue, found: Iterable[Result], file: IO[bytes]) -> int:
    from millpond.tables import spooled, write_parquet

    with spooled(queue, found) as table:
        write_parquet(table, file)
        return table.rows_count


def _cell(value: Any) -> str:
    """A cell: text as it is, nothing for unknown, anything else as JSON."""
    if value is None:
        return ""
    return value if isinstance(value, str) else terminal.as_json(value)


_WRITERS: Mapping[str, tuple[Callable[[Queue, Iterable[Result], Any], int], Form]] = {
    "jsonl": (_write_jsonl, "t"),
    "csv": (_write_csv, "t"),
    "parquet": (_write_parquet, "b"),
}
"""Format -> what writes it and says how many results there were, and how its file is opened."""


class _Hiding:
    """Stdout without the values of key variables and, on a terminal, without what a terminal would obey."""

    def write(self, text: str) -> int:
        text = terminal.without_secrets(text)
        sys.stdout.write(terminal.plain(text, lines=True) if terminal.is_terminal() else text)
        return len(text)


def _is_file(path: Path | None) -> bool:
    return path is not None and str(path) != "-"


def _to(path: Path | None, form: Form = "t") -> AbstractContextManager[Any]:
    """Where results go: a file that appears whole, or stdout."""
    return _stdout() if path is None or str(path) == "-" else _whole(path, form)


@contextmanager
def _stdout() -> Generator[Any]:
    yield _Hiding()
    sys.stdout.flush()


@contextmanager
def _whole(path: Path, form: Form = "t") -> Generator[IO[Any]]:
    """A file that appears whole or not at all: written beside it, made durable, renamed over it.

    What is no regular file (a pipe, a device) is written to as it stands. Raises QueueUnavailable naming the file.
    """
    target = Path(os.path.realpath(path))
    text: dict[str, Any] = {"encoding": "utf-8", "newline": ""} if form == "t" else {}
    beside = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        if target.exists() and not target.is_file():
            with target.open(f"w{form}", **text) as file:
                yield file
            return
        try:
            with beside.open(f"x{form}", **text) as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            beside.replace(target)
        finally:
            beside.unlink(missing_ok=True)
    except OSError as problem:
        words = problem.strerror or str(problem)
        raise QueueUnavailable(f"{path}: cannot be written ({words}); name another file with -o") from problem
