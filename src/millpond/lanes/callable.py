"""Lanes that call a function of this process: one given in code, or one that an importable module holds.

Nothing goes over a wire, so what was sent is simple: `no` if the function never began, else `yes`. Of the deadlines
only the total one counts: a function neither says a first byte nor falls silent in a way that means anything.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from functools import partial
from typing import Any

from millpond.lanes.deadline import Deadline
from millpond.lanes.fit import refusal
from millpond.lanes.handler import raised, ran_out, returned
from millpond.lanes.imported import load_target
from millpond.lanes.lane import Call
from millpond.rules.errors import SettingsError, UsageError
from millpond.rules.evidence import Evidence
from millpond.rules.policy import LanePolicy
from millpond.rules.price import FREE, UNKNOWN_PRICE, PriceRule

_KEYWORDS = ("idempotency_key", "attempt_no", "deadline_ms")


class CallableLane:
    """Calls a function for each job: `fn(work, *, idempotency_key, attempt_no, deadline_ms)`.

    `fn` may take fewer of the keywords. An async function runs on the caller's loop, any other on a pool of
    `max_in_flight` threads with the caller's context variables. It returns text, JSON-able data or a Reply, and raises
    Retryable, Saturated, Ambiguous or Permanent to say how the call ended; any other exception is ambiguous if
    `effects`, else retryable. SystemExit and KeyboardInterrupt are among those where they end a thread of the pool; on
    the caller's loop they go through, and end what they always end.

    A thread cannot be stopped: when a call is cancelled or its total deadline passes, a function that runs in one goes
    on to its end and holds its thread until then, and what it returns is lost. It is told the deadline to keep it.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        *,
        max_in_flight: int = 8,
        effects: bool = False,
        tier: str = "free",
        price: Decimal | float | str | PriceRule | None = 0,
        serial: bool = False,
        name: str = "callable",
    ) -> None:
        """`price` is USD a call: 0 is free, None unknown. Raises UsageError for what cannot be called with work."""
        if max_in_flight < 1:
            raise UsageError(f"max_in_flight: found {max_in_flight}, wanted 1 or more")
        policy = LanePolicy(
            name=name,
            kind="callable",
            tier=tier,
            price=_price_a_call(price),
            max_in_flight=1 if serial else max_in_flight,
            serial=serial,
            effects=effects,
        )
        self._set_up(fn, policy)

    def _set_up(self, fn: Callable[..., Any], policy: LanePolicy, secrets: tuple[str, ...] = ()) -> None:
        self.policy = policy
        self._fn = fn
        self._takes = _keywords_taken(fn)
        self._is_async = is_async(fn)
        self._secrets = secrets
        self._pool: ThreadPoolExecutor | None = None

    async def call(self, call: Call) -> Evidence:
        """Call the function and say how it ended."""
        if refused := refusal(self.policy, call.work):
            return refused
        given = {
            "idempotency_key": call.idempotency_key,
            "attempt_no": call.attempt_no,
            "deadline_ms": call.deadline_ms,
        }
        run = partial(self._fn, call.work, **{name: given[name] for name in self._takes})
        total_ms = self.policy.deadlines.total_ms
        thread: Future[_Ended] | None = None
        deadline = Deadline(total_ms / 1000)
        try:
            async with deadline:
                if self._is_async:
                    gave = await run()
                else:
                    thread = self._submit(run)
                    ended = await asyncio.wrap_future(thread)
                    if isinstance(ended.error, SystemExit | KeyboardInterrupt):
                        return raised(ended.error, secrets=self._secrets)  # its word: it ends no more than its thread
                    gave = ended.result()
                    if inspect.isawaitable(gave):
                        gave = await gave
        except TimeoutError as error:
            if not deadline.expired():
                return raised(error, secrets=self._secrets)
            if thread is not None and thread.cancelled():
                return Evidence(sent="no", failure="pool_timeout", message="no thread of the lane came free")
            return ran_out(total_ms)
        except asyncio.CancelledError as error:
            if _is_cancelled():
                raise
            return raised(error, secrets=self._secrets)
        except Exception as error:  # The user's code: all it raises is its word, but for what ends the program.
            return raised(error, secrets=self._secrets)
        return returned(gave, call.work)

    async def close(self) -> None:
        """Let the threads go; a function that still runs ends in its own time."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)

    def _submit(self, run: Callable[[], Any]) -> Future[_Ended]:
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.policy.max_in_flight, thread_name_prefix=f"lane-{self.policy.name}")
        return self._pool.submit(_ended, partial(contextvars.copy_context().run, run))


class PythonLane(CallableLane):
    """The lane of kind `python`: calls what its policy's `target`, `module:callable`, names."""

    def __init__(self, policy: LanePolicy, key: str = "") -> None:
        """Import the callable. Raises SettingsError where there is none."""
        try:
            self._set_up(load_target(policy.target, f"lanes.{policy.name}.target"), policy, (key,) if key else ())
        except UsageError as error:
            raise SettingsError(f"lanes.{policy.name}.target: {error}") from None


@dataclass(frozen=True, slots=True)
class _Ended:
    """How a function ended in its thread. Carried as a value: a loop's future refuses StopIteration and would hang."""

    value: Any = None
    error: BaseException | None = None

    def result(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.value


def _ended(run: Callable[[], Any]) -> _Ended:
    try:
        return _Ended(run())
    except BaseException as error:  # Told in `call`: a thread of the pool has nobody else to tell.
        return _Ended(error=error)


def _is_cancelled() -> bool:
    """Whether somebody cancelled this task, rather than the function something of its own."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def is_async(fn: Callable[..., Any]) -> bool:
    """Whether calling it gives something to await."""
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(getattr(fn, "__call__", None))  # noqa: B004


def _keywords_taken(fn: Callable[..., Any]) -> tuple[str, ...]:
    """Which of the keywords a callable takes. Raises UsageError if it cannot be called with the work alone."""
    if not callable(fn):
        raise UsageError(f"found {fn!r}, wanted a callable: fn(work, *, idempotency_key, attempt_no, deadline_ms)")
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):  # some builtins have none
        return ()
    kinds = {parameter.kind for parameter in signature.parameters.values()}
    by_name = {
        name
        for name, parameter in signature.parameters.items()
        if parameter.kind in (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    }
    takes = tuple(name for name in _KEYWORDS if name in by_name or inspect.Parameter.VAR_KEYWORD in kinds)
    try:
        signature.bind(None, **dict.fromkeys(takes))
    except TypeError as error:
        raise UsageError(
            f"{getattr(fn, '__name__', fn)}{signature} cannot be called ({error});"
            " wanted fn(work, *, idempotency_key, attempt_no, deadline_ms)"
        ) from None
    return takes


def _price_a_call(price: Any) -> PriceRule:
    if isinstance(price, PriceRule):
        return price
    if price is None:
        return UNKNOWN_PRICE
    try:
        usd = Decimal(str(price))
    except InvalidOperation:
        usd = Decimal(-1)
    if not usd.is_finite() or usd < 0:
        raise UsageError(f"price: found {price!r}, wanted USD a call, 0 or more, or None for unknown")
    return PriceRule("stated", call_usd=usd) if usd else FREE
