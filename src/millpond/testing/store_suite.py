"""One behavioural suite that every store must pass: the sentences of DESIGN §5, case by case."""

from __future__ import annotations

from collections.abc import Callable

from millpond.testing.cases import cases_of, refuse_without_assertions, run_all
from millpond.testing.promises import check_promises
from millpond.testing.store_cases import (
    accept,
    ambiguous,
    door,
    fence,
    leasing,
    looking,
    persons,
    recall,
    reclaim,
    stopping,
    succession,
)
from millpond.testing.store_scene import MakeStore, Scene

Case = Callable[[Scene], None]

STORE_CASES: tuple[tuple[str, Case], ...] = cases_of(
    door, leasing, fence, accept, ambiguous, recall, reclaim, succession, stopping, persons, looking
)  # fmt: skip
"""Name and function of every case; a function takes a Scene and asserts."""


def run_store_case(case: Case, make_store: MakeStore) -> None:
    """Run one case on a new store, then check what must hold of any store. Raises AssertionError."""
    refuse_without_assertions()
    scene = Scene(make_store)
    try:
        case(scene)
        check_promises(scene.store)
    finally:
        scene.store.close()


def exercise_store(make_store: MakeStore) -> None:
    """Run every case on a store of its own, and raise all that failed together (ExceptionGroup), each with its name.

    `make_store(now_ms)` makes a new, empty store that reads its time from `now_ms`.
    """
    run_all(STORE_CASES, lambda case: run_store_case(case, make_store))
