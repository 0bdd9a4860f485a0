"""What the spend book says of today, for whoever asks how a queue stands. A book that nobody has made is not made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal

from millpond.report.words import counted, usd
from millpond.rules.errors import MillpondError
from millpond.spend.book import Reserved, SpendBook, Spent

DAY_MS = 86_400_000


@dataclass(frozen=True, slots=True)
class Spending:
    """Charges of a day (UTC) by lane, and what is reserved now, of all queues that share the book."""

    book: str
    """Its file, which need not exist."""
    since_ms: int
    lanes: Mapping[str, Spent] | None
    """Lanes without a charge today are left out. None is unknown."""
    reserved: Reserved | None
    problem: str | None = None
    """Why the book cannot be read, if so."""

    def in_words(self) -> str | None:
        """One line; None if nothing was spent and nothing is reserved."""
        if self.lanes is None or self.reserved is None:
            return f"spend today unknown: {self.problem}"
        calls = sum(lane.charges for lane in self.lanes.values())
        known = sum((lane.actual_usd for lane in self.lanes.values()), Decimal(0))
        at_most = sum((lane.estimated_usd for lane in self.lanes.values()), Decimal(0))
        unknown = sum(lane.unknown for lane in self.lanes.values())
        if not calls and not self.reserved.calls:
            return None
        worst = f" and at most {usd(at_most)} for those of unknown end" if at_most else ""
        line = f"spend today {_money(known, unknown)}{worst} in {counted(calls, 'call')} of all queues on this book"
        if self.reserved.calls:
            held = _money(self.reserved.worst_usd, self.reserved.unknown)
            line += f"  reserved {held} for {counted(self.reserved.calls, 'call')}"
        return line


def _money(known: Decimal, unknown: int) -> str:
    return usd(known) + (f" + {unknown:,} unpriced" if unknown else "")


def today(book: SpendBook, now_ms: int) -> Spending:
    """Read the book, in the same few rows however much was spent."""
    since_ms = now_ms - now_ms % DAY_MS
    try:
        return Spending(str(book.path), since_ms, book.spent(since_ms), book.reserved())
    except MillpondError as problem:
        return Spending(str(book.path), since_ms, None, None, str(problem))
