"""One behavioural suite that every store must pass: the sentences of DESIGN §5, case by case."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import ModuleType

from millpond.rules.errors import UsageError
from millpond.testing.promises import check_promises
from millpond.testing.scene import MakeStore, Scene
from millpond.testing.store_cases import accept, ambiguous, door, fence, leasing, looking, persons, reclaim

Case = Callable[[Scene], None]


def _cases_of(*modules: ModuleType) -> tuple[tuple[str, Case], ...]:
    """Every public function that a module defines is a case, named as it is."""
    return tuple(
        (name, case)
        for module in modules
        for name, case in vars(module).items()
        if inspect.isfunction(case) and case.__module__ == module.__name__ and not name.startswith("_")
    )


STORE_CASES = _cases_of(door, leasing, fence, accept, ambiguous, reclaim, persons, looking)
"""Name and function of every case; a function takes a Scene and asserts."""


def run_store_case(case: Case, make_store: MakeStore) -> None:
    """Run one case on a new store, then check what must hold of any store. Raises AssertionError."""
    if not __debug__:
        raise UsageError("found python -O, which leaves assertions out; run the suite without it")
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
    failed: list[Exception] = []
    for name, case in STORE_CASES:
        try:
            run_store_case(case, make_store)
        except Exception as error:
            error.add_note(f"in the case {name}")
            failed.append(error)
    if failed:
        raise ExceptionGroup(f"{len(failed)} of {len(STORE_CASES)} cases failed", failed)
