"""The completions that a server was asked to keep (`store: true`), and the listing that clients may ask for.

As the public API has it: `GET /chat/completions` with `metadata[NAME]=VALUE`, `model`, `limit`, `order` and `after`,
the id of the last completion of the page before. A completion is listed once it has settled; until then nobody sees it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl

from millpond.drill.chatrequest import Json, Refused, metadata_of

LIMIT: Final = 20
"""Completions a page where nothing is said."""
MOST: Final = 100
"""Completions a page at most. The API says so of its other listings, and nothing of this one."""


@dataclass(frozen=True, slots=True)
class Stored:
    """One completion: its body, with the caller's metadata in it, and from when it is listed."""

    body: Json
    listed_at_s: float


class StoredCompletions:
    """What was kept, oldest first. `clock` and `settling_s` say when a completion can be listed."""

    def __init__(self, settling_s: float, clock: Callable[[], float]) -> None:
        self._settling_s = settling_s
        self._clock = clock
        self._all: list[Stored] = []

    def keep(self, request: Json, completion: Json) -> None:
        """Keep what a request brought, if it asked for that."""
        if request.get("store") is True:
            body = {**completion, "request_id": f"req_{completion['id']}", "metadata": metadata_of(request)}
            self._all.append(Stored(body, self._clock() + self._settling_s))

    def page(self, query: str) -> Json:
        """The page that a query asks for. Raises Refused, in the words of a 400."""
        asked = dict(parse_qsl(query, keep_blank_values=True))
        wanted = {name[9:-1]: value for name, value in asked.items() if name.startswith("metadata[")}
        found = [
            one.body
            for one in self._all
            if one.listed_at_s <= self._clock()
            and wanted.items() <= one.body["metadata"].items()
            and asked.get("model") in (None, one.body["model"])
        ]
        if asked.get("order", "asc") not in ("asc", "desc"):
            raise Refused("'order' must be asc or desc.", "order")
        if asked.get("order") == "desc":
            found.reverse()
        if (after := asked.get("after")) is not None:
            ids = [body["id"] for body in found]
            if after not in ids:
                raise Refused(f"No completion found with id {after!r}.", "after")
            found = found[ids.index(after) + 1 :]
        limit = asked.get("limit", str(LIMIT))
        if not limit.isdecimal() or not 1 <= int(limit) <= MOST:
            raise Refused(f"'limit' must be 1 to {MOST}.", "limit")
        page = found[: int(limit)]
        return {
            "object": "list",
            "data": page,
            "first_id": page[0]["id"] if page else None,
            "last_id": page[-1]["id"] if page else None,
            "has_more": len(found) > len(page),
        }
