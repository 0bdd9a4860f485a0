"""What a person has stopped: every lane, those that may cost, or lanes by name; and whether that is so of a lane."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias, cast

from millpond.rules.errors import UsageError

Scope: TypeAlias = Literal["all", "paid", "lane"]

Whole = Literal["all", "paid"]
"""What is stopped by one word. Lanes are named in a list, since one of them may be called so too."""

Wanted: TypeAlias = tuple[Scope, str | None]
"""A scope, and the lane where it is one lane."""


@dataclass(frozen=True, slots=True)
class Stop:
    """One stop that stands until a person ends it. `lane` is None unless the scope is `lane`; `origin`: who said it."""

    scope: Scope
    lane: str | None
    since_ms: int
    origin: str

    def is_of(self, lane: str, free_lanes: Collection[str]) -> bool:
        """Whether it keeps this lane from being called. A lane that is not known to be free may cost."""
        match self.scope:
            case "all":
                return True
            case "paid":
                return lane not in free_lanes
            case "lane":
                return lane == self.lane

    @property
    def argument(self) -> str:
        """How `stop` and `resume` name it: ``, ` --paid`, ` dear`."""
        return {"all": "", "paid": " --paid", "lane": f" {self.lane}"}[self.scope]

    @property
    def words(self) -> str:
        """What it stops."""
        match self.scope:
            case "all":
                return "all lanes"
            case "paid":
                return "lanes that may cost"
            case "lane":
                return f"lane {self.lane}"


@dataclass(frozen=True, slots=True)
class Stops:
    """What `stop` or `resume` did: the stops that it began or ended just now, and all that stand after it."""

    changed: tuple[Stop, ...]
    standing: tuple[Stop, ...]


def stop_of(stops: Iterable[Stop], lane: str, free_lanes: Collection[str]) -> Stop | None:
    """The first stop that keeps a lane from being called; None: nobody has stopped it."""
    return next((stop for stop in stops if stop.is_of(lane, free_lanes)), None)


def wanted(which: Whole | Iterable[str]) -> list[Wanted]:
    """What a caller means. Raises UsageError for a bare name, for what is none, and for no name at all."""
    if which == "all":
        return [("all", None)]
    if which == "paid":
        return [("paid", None)]
    if isinstance(which, str):
        raise UsageError(f"found {which!r:.80}, wanted 'all', 'paid' or a list of lanes: [{which!r:.80}]")
    given = cast("object", which)
    lanes = list(cast("Iterable[object]", which)) if isinstance(given, Iterable) else [given]
    names = list(dict.fromkeys(lane for lane in lanes if isinstance(lane, str) and lane))
    if strange := [lane for lane in lanes if lane not in names]:
        raise UsageError(f"found {strange[0]!r:.80}, wanted 'all', 'paid' or a list of lanes' names")
    if not names:
        raise UsageError("found no lane, wanted 'all', 'paid' or a list of lanes")
    return [("lane", lane) for lane in names]
