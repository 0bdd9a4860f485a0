"""`millpond enqueue --dry-run`: what would be new and what it would cost, said before anything is taken in or made."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from millpond.faces.cli import terminal
from millpond.faces.cli.given import Given

if TYPE_CHECKING:
    from millpond.faces.cli.rows import Rows
    from millpond.queue import Queue


@contextmanager
def queue_as_it_is(given: Given) -> Generator[Queue]:
    """The queue that these settings name; where there is none yet, an empty one that nobody else sees."""
    if given.has_queue():
        with given.open() as queue:
            yield queue
        return
    from millpond.queue import Queue

    with TemporaryDirectory(prefix="millpond-") as folder:
        nowhere = replace(given.settings, home=Path(folder), queue=Path(folder) / "queue.db")
        with Queue.at(nowhere) as queue:
            yield queue


def estimate(queue: Queue, given: Given, files: Iterable[Rows], *, strict: bool) -> int:
    """Say what would become of all files together, and return the exit code that taking them in would have.

    Refused rows are said as they come.
    """
    from millpond.report.estimate import Estimate

    refused = 0
    with queue.dry_run() as dry_run:
        for rows in files:
            for _ in rows.taken(dry_run.answers(rows.asked())):
                pass  # the dry run counts
            rows.tell_hidden()
            refused += rows.count.refused
        would_refuse_all = strict and refused > 0
        found = Estimate.of_nothing(refused) if would_refuse_all else dry_run.estimate(refused)
    if given.json:
        terminal.say_json(found, indent=2)
    else:
        terminal.say(found.in_words())
    if would_refuse_all:
        terminal.warn("millpond: nothing would be taken in, since --strict wants all rows or none")
    return 1 if refused else 0
