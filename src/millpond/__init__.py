"""A durable lane queue for LLM work: the public names, each loaded when it is first asked for (PEP 562)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millpond.lazily import names

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
    from millpond.version import __version__ as __version__

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

__getattr__, __dir__ = names(
    __name__,
    {
        "async_queue": "AsyncQueue",
        "batchfile": "batch_lines",
        "queue": "Queue",
        "report.estimate": "Estimate",
        "report.report": "Report",
        "report.status": "Status",
        "report.summary": "Summary",
        "rows": "read",
        "rules.errors": "Ambiguous BudgetClosed KeyConflict LeaseLost LockHeld MillpondError MissingKey Permanent "
        "QueueBusy QueueUnavailable Retryable Saturated SchemaTooNew SettingsError Undeliverable UnknownLane "
        "UsageError",
        "rules.job": "Attempt BulkReport Event Image Job Lease Prompt Receipt Reply Request Result Submission",
        "rules.policy": "Policy",
        "tables": "results_table",
        "version": "__version__",
    },
)
