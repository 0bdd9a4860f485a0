"""One item at the way in: taken, stored or refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from pydantic import BaseModel

from millpond.intake import Defaults, take
from millpond.rules.errors import UsageError
from millpond.store.bodies import load_work
from millpond.store.enqueue import Asked

NOW = 1_796_112_000_000  # 2026-12-01T08:00Z


class Resize(BaseModel):
    """A typed command with one field of each kind that the cases name."""

    path: str = "a.png"
    ratio: float = 1.0
    width: int = 1
    extra: Any = None


REGISTRY: Mapping[str, type[BaseModel]] = {"Resize": Resize}


def taken(item: Any, registry: Mapping[str, type[BaseModel]] | None = REGISTRY, **defaults: Any) -> Asked:
    return take(item, position=0, registry=registry, defaults=Defaults(**defaults), now_ms=NOW)


def stored(item: Any) -> Any:
    return load_work(taken(item).body)


def refusal(item: Any, registry: Mapping[str, type[BaseModel]] | None = REGISTRY, **defaults: Any) -> str:
    with pytest.raises(UsageError) as caught:
        taken(item, registry, **defaults)
    return str(caught.value)
