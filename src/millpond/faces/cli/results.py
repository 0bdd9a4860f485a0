"""`millpond results`: answers in the order in which they were asked, with the columns that were carried."""

from __future__ import annotations

import csv
import os
import sys
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING, Any

import click

from millpond.faces.cli import terminal
from millpond.faces.cli.given import Given, pass_given, shared
from millpond.rules.errors import QueueUnavailable, UsageError

if TYPE_CHECKING:
    from millpond.queue import Queue
    from millpond.rules.job import Result

FORMATS = ("jsonl", "csv")
SUFFIXES = {"": "jsonl", ".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".csv": "csv"}


@click.command()
@click.argument("submission", required=False)
@click.option("--format", "format_", type=click.Choice(FORMATS), help="Else by the suffix of -o; else jsonl.")
@click.option("--failed", is_flag=True, help="Those that failed, with their errors, instead of those that are done.")
@click.option("--since", metavar="TIME", help='Settled since: "2h" (ago), or a moment with its zone.')
@click.option(
    "-o", "--output", metavar="FILE", type=click.Path(path_type=Path), help="Write here, whole or not at all."
)
@shared()
@pass_given
def results(
    given: Given, submission: str | None, format_: str | None, failed: bool, since: str | None, output: Path | None
) -> None:
    """Answers of a submission (its name, or its number), or of all, in the order in which they were asked.

    Tokens and cost stand only on the request that paid. In CSV the carried columns stand first, under their own names.
    """
    kind = format_ or _format_of(output)
    with given.look() as queue:
        which = int(submission) if submission is not None and submission.isdecimal() else submission
        found = queue.results(which, failed=failed, since=since)
        write = _write_csv if kind == "csv" else _write_jsonl
        if output is None or str(output) == "-":
            with _stdout() as file:
                n = write(found, file)
        else:
            with _whole(output) as file:
                n = write(found, file)
            terminal.warn(f"wrote {n:,} {'result' if n == 1 else 'results'} to {output}")
            if lacks := _lacks(queue, which, failed=failed, is_since=since is not None):
                terminal.warn(f"not in it: {', '.join(lacks)}")
        if n == 0:
            left = queue.counts()
            pending = sum(left[state] for state in ("waiting", "ready", "leased", "offloaded"))
            hint = f"; {pending:,} jobs are pending: {given.command('drain')}" if pending else ""
            terminal.warn(f"no results{hint}")


def _format_of(output: Path | None) -> str:
    """The format that a file's name says; without a suffix it is jsonl. Raises UsageError for any other suffix."""
    suffix = output.suffix.lower() if output is not None else ""
    if suffix not in SUFFIXES:
        raise UsageError(f"{output}: unknown suffix {suffix!r}; wanted {' '.join(filter(None, SUFFIXES))}, or --format")
    return SUFFIXES[suffix]


def _lacks(queue: Queue, which: int | str | None, *, failed: bool, is_since: bool) -> list[str]:
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


def _write_jsonl(found: Iterable[Result], file: IO[str]) -> int:
    n = 0
    for result in found:
        file.write(terminal.as_json(result) + "\n")
        n += 1
    return n


def _write_csv(found: Iterable[Result], file: IO[str]) -> int:
    """Spool first: which columns there are is known after the last result."""
    import json

    own = [field for one in _columns() for field in one]
    carried: dict[str, None] = {}
    with TemporaryFile("w+", encoding="utf-8", prefix="millpond-") as spool:
        n = 0
        for result in found:
            carried.update(dict.fromkeys(result.carried or {}))
            spool.write(terminal.as_json(result) + "\n")
            n += 1
        spool.seek(0)
        # A carried column may bear the name of one of ours; both are kept.
        names = {name: f"carried.{name}" if name in own else name for name in carried}
        table = csv.writer(file)
        table.writerow([*names.values(), *own])
        for line in spool:
            row: dict[str, Any] = json.loads(line)
            given: dict[str, Any] = row["carried"] or {}
            table.writerow([*(_cell(given.get(name)) for name in names), *(_own_cell(row, name) for name in own)])
    return n


def _columns() -> Iterator[tuple[str, ...]]:
    from millpond.rules.job import Result

    for field in fields(Result):
        if field.name != "carried":
            yield ("error_code", "error_message") if field.name == "error" else (field.name,)


def _own_cell(row: dict[str, Any], name: str) -> str:
    if name in ("error_code", "error_message"):
        error: dict[str, Any] = row["error"] or {}
        return _cell(error.get(name.removeprefix("error_")))
    return _cell(row[name])


def _cell(value: Any) -> str:
    """A cell: text as it is, nothing for unknown, anything else as JSON."""
    if value is None:
        return ""
    return value if isinstance(value, str) else terminal.as_json(value)


class _Hiding:
    """Stdout without the values of key variables and, on a terminal, without what a terminal would obey."""

    def write(self, text: str) -> int:
        text = terminal.without_secrets(text)
        sys.stdout.write(terminal.plain(text, lines=True) if terminal.is_terminal() else text)
        return len(text)


@contextmanager
def _stdout() -> Generator[Any]:
    yield _Hiding()
    sys.stdout.flush()


@contextmanager
def _whole(path: Path) -> Generator[IO[str]]:
    """A file that appears whole or not at all: written beside it, made durable, renamed over it.

    What is no regular file (a pipe, a device) is written to as it stands. Raises QueueUnavailable naming the file.
    """
    target = Path(os.path.realpath(path))
    beside = target.with_name(f".{target.name}.{os.getpid()}.part")
    try:
        if target.exists() and not target.is_file():
            with target.open("w", encoding="utf-8", newline="") as file:
                yield file
            return
        try:
            with beside.open("x", encoding="utf-8", newline="") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            beside.replace(target)
        finally:
            beside.unlink(missing_ok=True)
    except OSError as problem:
        words = problem.strerror or str(problem)
        raise QueueUnavailable(f"{path}: cannot be written ({words}); name another file with -o") from problem
