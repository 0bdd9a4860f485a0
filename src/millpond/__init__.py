"""A durable lane queue for LLM work: the public names, each loaded when it is first asked for (PEP 562)."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from millpond.async_queue import AsyncQueue
    from millpond.batchfile import batch_lines
    from millpond.queue import Queue
    from millpond.report.estimate import Estimate
    from millpond.report.report import Report
    from millpond.report.status import Status
    from millpond.report.summary import Summary
    from millpond.rows import read
    from millpond.rules.errors import (
        Ambiguous,
        BudgetClosed,
        KeyConflict,
        LeaseLost,
        LockHeld,
        MillpondError,
        MissingKey,
        Permanent,
        QueueBusy,
        QueueUnavailable,
        Retryable,
        Saturated,
        SchemaTooNew,
        SettingsError,
        Undeliverable,
        UnknownLane,
        UsageError,
    )
    from millpond.rules.job import (
        Attempt,
        BulkReport,
        Event,
        Image,
        Job,
        Lease,
        Prompt,
        Receipt,
        Reply,
        Request,
        Result,
        Submission,
    )
    from millpond.rules.policy import Policy
    from millpond.tables import results_table

    __version__: str

__all__ = [
    "Ambiguous",
    "AsyncQueue",
    "Attempt",
    "BudgetClosed",
    "BulkReport",
    "Estimate",
    "Event",
    "Image",
    "Job",
    "KeyConflict",
    "Lease",
    "LeaseLost",
    "LockHeld",
    "MillpondError",
    "MissingKey",
    "Permanent",
    "Policy",
    "Prompt",
    "Queue",
    "QueueBusy",
    "QueueUnavailable",
    "Receipt",
    "Reply",
    "Report",
    "Request",
    "Result",
    "Retryable",
    "Saturated",
    "SchemaTooNew",
    "SettingsError",
    "Status",
    "Submission",
    "Summary",
    "Undeliverable",
    "UnknownLane",
    "UsageError",
    "batch_lines",
    "read",
    "results_table",
]

_ROOMS = {
    "millpond.async_queue": "AsyncQueue",
    "millpond.batchfile": "batch_lines",
    "millpond.queue": "Queue",
    "millpond.report.estimate": "Estimate",
    "millpond.report.report": "Report",
    "millpond.report.status": "Status",
    "millpond.report.summary": "Summary",
    "millpond.rows": "read",
    "millpond.rules.errors": "Ambiguous BudgetClosed KeyConflict LeaseLost LockHeld MillpondError MissingKey Permanent"
    " QueueBusy QueueUnavailable Retryable Saturated SchemaTooNew SettingsError Undeliverable UnknownLane UsageError",
    "millpond.rules.job": "Attempt BulkReport Event Image Job Lease Prompt Receipt Reply Request Result Submission",
    "millpond.rules.policy": "Policy",
    "millpond.tables": "results_table",
}
_ROOM_OF = {name: room for room, names in _ROOMS.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    """Load a public name from its room, or the version from the installed package."""
    if name == "__version__":
        from importlib.metadata import version

        value: Any = version("millpond")
    elif name in _ROOM_OF:
        value = getattr(import_module(_ROOM_OF[name]), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
