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
from millpond.rules.errors import KeyConflict

if TYPE_CHECKING:
    from millpond.faces.cli.rows import Rows
    from millpond.queue import Queue
    from millpond.report.dry_run import DryRun


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

    Refused rows are said as they come. `strict`: a file with one of them counts for nothing.
    """
    refused = 0
    with queue.door.dry_run() as dry_run:
        for rows in files:
            if strict:
                _look_strictly(dry_run, rows)
            else:
                _count(rows.taken(dry_run.answers(rows.asked())))
            rows.tell_hidden()
            if strict and rows.count.refused:
                words = "nothing would be taken in, since --strict wants all rows or none"
                terminal.warn(f"millpond: {rows.title}: {words}")
            refused += rows.count.refused
        found = dry_run.estimate(refused)
    if given.json:
        terminal.say_json(found, indent=2)
    else:
        terminal.say(found.in_words())
    return 1 if refused else 0


def _look_strictly(dry_run: DryRun, rows: Rows) -> None:
    """Look at a whole file, and count it unless a row of it is refused."""
    from millpond.db.tape import Tape
    from millpond.store.enqueue import Asked

    with Tape[tuple[int, Asked]]() as whole:
        for numbered in rows.numbered():
            whole.append(numbered)
        rows.check_end()
        if rows.count.refused:
            return
        for (line, _), answer in zip(whole, dry_run.trial(one for _, one in whole), strict=True):
            if isinstance(answer, KeyConflict):
                rows.refuse(line, str(answer))
        if not rows.count.refused:
            _count(dry_run.answers(one for _, one in whole))


def _count(answers: Iterable[object]) -> None:
    for _ in answers:
        pass  # the dry run counts
