"""`millpond enqueue --dry-run`: what would be new and what it would cost, said before anything is taken in or made."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from millpond.faces.cli import terminal
from millpond.faces.cli.given import Given
from millpond.rules.errors import UsageError

if TYPE_CHECKING:
    from millpond.faces.cli.rows import Rows, Taking
    from millpond.report.estimate import Foresight


@contextmanager
def foretell(given: Given, *, strict: bool) -> Generator[Look]:
    """A look at the queue that these settings name, or at none where there is none yet."""
    from millpond.engine.clock import wall_ms
    from millpond.intake import take
    from millpond.lanes.imported import load_target
    from millpond.report.estimate import Foresight
    from millpond.store.store import Store, open_sqlite

    settings = given.settings
    if not isinstance(settings.queue, Path):
        raise UsageError(f"queue {settings.queue!r}: PostgreSQL comes with a later version; wanted a path")
    settings.policy.check()
    registry = load_target(settings.commands, "commands") if settings.commands else None
    # Not by Queue: that one makes the home.
    store = Store(open_sqlite(settings.queue), wall_ms) if given.has_queue() else None
    try:
        with Foresight(store, settings.policy, wall_ms) as foresight:
            yield Look(given, foresight, partial(take, registry=registry), strict=strict)
    finally:
        if store is not None:
            store.close()


class Look:
    """The files of one dry run, looked at one after another: what is new in one is known in the next."""

    def __init__(self, given: Given, foresight: Foresight, take: Taking, *, strict: bool) -> None:
        self.take = take
        self._given = given
        self._foresight = foresight
        self._strict = strict
        self._refused = 0

    def look(self, rows: Rows) -> None:
        """Look at one file; refusals are said as they come."""
        for _ in rows.taken(self._foresight.stream(rows.asked())):
            pass  # the foresight counts
        rows.tell_hidden()
        self._refused += rows.count.refused

    def tell(self) -> int:
        """Say what was seen, and return the exit code that taking it in would have."""
        from millpond.report.estimate import nothing

        would_refuse_all = self._strict and self._refused > 0
        found = nothing(self._refused) if would_refuse_all else self._foresight.estimate(self._refused)
        if self._given.json:
            terminal.say_json(found, indent=2)
        else:
            terminal.say(found.counts_in_words())
            if found.lanes:
                terminal.say(terminal.table(found.rows()))
            for note in found.notes():
                terminal.say(note)
        if would_refuse_all:
            terminal.warn("millpond: nothing would be taken in, since --strict wants all rows or none")
        return 1 if self._refused else 0
