"""The cases of a suite: read off the modules that define them, and run so that all that fail are raised together."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any

from millpond.rules.errors import UsageError


def cases_of(*modules: ModuleType) -> tuple[tuple[str, Callable[[Any], None]], ...]:
    """Every public function that a module defines is a case, named as it is."""
    return tuple(
        (name, case)
        for module in modules
        for name, case in vars(module).items()
        if inspect.isfunction(case) and case.__module__ == module.__name__ and not name.startswith("_")
    )


def run_all(cases: Iterable[tuple[str, Callable[[Any], None]]], run: Callable[[Any], object]) -> None:
    """Run every case and raise all that failed together (ExceptionGroup), each with its name."""
    count, failed = 0, list[Exception]()
    for name, case in cases:
        count += 1
        try:
            run(case)
        except Exception as error:
            error.add_note(f"in the case {name}")
            failed.append(error)
    if failed:
        raise ExceptionGroup(f"{len(failed)} of {count} cases failed", failed)


def refuse_without_assertions() -> None:
    """A suite that asserts nothing would pass everything. Raises UsageError under python -O."""
    if not __debug__:
        raise UsageError("found python -O, which leaves assertions out; run the suite without it")
