"""The rows of a file as requests, and what became of them: refused by line and reason, taken in, joined, reused."""

from __future__ import annotations

import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias, TypeVar

from millpond.faces.cli import terminal
from millpond.faces.cli.sources import Source
from millpond.rules.errors import KeyConflict, UsageError
from millpond.rules.times import age_words

if TYPE_CHECKING:
    from millpond.intake import Defaults
    from millpond.rows import Refused, Row
    from millpond.rules.job import Receipt
    from millpond.store.enqueue import Asked

    Taking: TypeAlias = Callable[..., Asked]
    """`intake.take` with what a queue knows."""

Answer = TypeVar("Answer")

SHOWN_REFUSALS = 20
"""So many lines of refused rows stand on a terminal; a file (2> FILE) gets them all."""


@dataclass(slots=True)
class Count:
    """What became of a file's rows."""

    dispositions: Counter[str] = field(default_factory=Counter[str])
    refused: int = 0
    answered_by: Counter[str] = field(default_factory=Counter[str])
    oldest_answer_ms: int | None = None

    def take(self, receipt: Receipt) -> None:
        self.dispositions[receipt.disposition] += 1
        if receipt.disposition == "reused" and receipt.answered_ms is not None:
            self.answered_by[receipt.answered_by or "unknown"] += 1
            self.oldest_answer_ms = min(receipt.answered_ms, self.oldest_answer_ms or receipt.answered_ms)

    def in_words(self, now_ms: int) -> str:
        kinds = [f"{self.dispositions[name]:,} {name}" for name in ("new", "joined", "reused")]
        words = " · ".join([*kinds, f"{self.refused:,} refused"])
        if self.oldest_answer_ms is not None:
            by = ", ".join(f"{n:,} by {name}" for name, n in self.answered_by.most_common(3))
            words += (
                f"\nreused: answered {by}, up to {age_words(now_ms - self.oldest_answer_ms)} ago; --fresh asks again"
            )
        return words


class Rows:
    """The rows of one file as requests: those that cannot be are named by line and reason, and counted."""

    def __init__(self, source: Source, take: Taking, *, defaults: Defaults, each: bool) -> None:
        self.title = source.title
        self.count = Count()
        self._source = source
        self._take = take
        self._defaults = defaults
        self._each = each
        self._hidden = 0
        """Refusals that were counted and not shown."""
        self._lines: deque[int] = deque()
        """Lines of what was asked and not answered yet, in order."""
        self._spoiled: UsageError | None = None
        """Why the rest of the file was not read."""

    def asked(self) -> Iterator[Asked]:
        """The requests that the rows are. They are read once."""
        from millpond.intake import each_samples

        return each_samples(self._asked()) if self._each else self._asked()

    def numbered(self) -> Iterator[tuple[int, Asked]]:
        """The requests with their lines, for whoever does not hand the answers to `taken`. They are read once."""
        return ((self._lines.popleft(), one) for one in self.asked())

    def taken(self, answers: Iterable[Answer | KeyConflict]) -> Iterator[Answer]:
        """What was answered to the requests, in their order, without the conflicts, which are refused.

        Raises UsageError at the end for what spoiled the file before its end.
        """
        for chunk in self.taken_by_chunks([answer] for answer in answers):
            yield from chunk

    def taken_by_chunks(self, chunks: Iterable[Iterable[Answer | KeyConflict]]) -> Iterator[list[Answer]]:
        """The same, a chunk of answers at a time."""
        for chunk in chunks:
            yield list(self._taken(chunk))
        self.check_end()

    def check_end(self) -> None:
        """Raise UsageError for what spoiled the file, once its rows were read."""
        if self._spoiled is not None:
            raise self._spoiled

    def refuse(self, line: int, reason: str) -> None:
        """Name a row that is refused, and count it."""
        self.count.refused += 1
        if self.count.refused > SHOWN_REFUSALS and terminal.is_terminal(sys.stderr):
            self._hidden += 1
            return
        terminal.warn(f"{self.title} line {line}: {reason}")

    def tell_hidden(self) -> None:
        """Say how many refusals were not shown."""
        if self._hidden:
            terminal.warn(f"and {self._hidden:,} more; 2> FILE keeps them all")

    def _asked(self) -> Iterator[Asked]:
        from millpond.engine.clock import wall_ms
        from millpond.rows import Refused

        base = self._source.folder
        for position, row in enumerate(self._read()):
            if isinstance(row, Refused):
                self.refuse(row.line, row.reason)
                continue
            try:
                asked = self._take(row, position=position, defaults=self._defaults, now_ms=wall_ms(), base=base)
            except UsageError as refusal:
                self.refuse(row.line, str(refusal))
                continue
            self._lines.append(row.line)
            yield asked

    def _read(self) -> Iterator[Row | Refused]:
        """The rows up to what spoils the file: those before it count, and what it is waits for `check_end`."""
        line = 0
        try:
            for row in self._source.rows:
                line = row.line
                yield row
        except UsageError as problem:
            end = f"; nothing after line {line:,} was read" if line else ""
            self._spoiled = UsageError(f"{problem}{end}")

    def _taken(self, answers: Iterable[Answer | KeyConflict]) -> Iterator[Answer]:
        for answer in answers:
            line = self._lines.popleft()
            if isinstance(answer, KeyConflict):
                self.refuse(line, str(answer))
            else:
                yield answer
