"""Lanes of this machine: a callable in this process, and a program that reads the prompt and prints the answer.

Neither is asked over a wire, so what was sent is simple: `no` if the callable or the program never began, else `yes`.
Of the deadlines only the total one counts; neither says a first byte or falls silent in a way that means anything.
"""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import errno
import importlib
import inspect
import json
import math
import os
import signal
import sys
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from functools import partial
from typing import Any

from millpond.lanes.answer import judge_answer, read_answer, refuse_schema
from millpond.lanes.lane import Call
from millpond.rules.errors import HandlerSignal, Permanent, Retryable, Saturated, SettingsError, UsageError
from millpond.rules.job import Command, Outcome, Prompt, Reply, Usage, Work
from millpond.rules.outcome import Evidence
from millpond.rules.policy import LanePolicy
from millpond.rules.price import FREE, UNKNOWN_PRICE, PriceRule
from millpond.rules.redaction import redact

MESSAGE_CHARS = 2000
"""As much of an exception's words, or of the end of stderr, is kept."""

OUTPUT_LIMIT_BYTES = 64 * 1024 * 1024
"""Longest answer that a program may print; it is killed then."""

_KEYWORDS = ("idempotency_key", "attempt_no", "deadline_ms")


class CallableLane:
    """Calls a function for each job: `fn(work, *, idempotency_key, attempt_no, deadline_ms)`.

    `fn` may take fewer of the keywords. An async function runs on the caller's loop, any other on a pool of
    `max_in_flight` threads with the caller's context variables. It returns text, JSON-able data or a Reply, and raises
    Retryable, Saturated, Ambiguous or Permanent to say how the call ended; any other exception is ambiguous if
    `effects`, else retryable.

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
        self._is_async = _is_async(fn)
        self._secrets = secrets
        self._pool: ThreadPoolExecutor | None = None

    async def call(self, call: Call) -> Evidence:
        """Call the function and say how it ended."""
        if refusal := _refuse_work(self.policy, call.work):
            return refusal
        given = {
            "idempotency_key": call.idempotency_key,
            "attempt_no": call.attempt_no,
            "deadline_ms": call.deadline_ms,
        }
        run = partial(self._fn, call.work, **{name: given[name] for name in self._takes})
        total_ms = self.policy.deadlines.total_ms
        thread: Future[_Ended] | None = None
        timer = asyncio.timeout(total_ms / 1000)
        try:
            async with timer:
                if self._is_async:
                    gave = await run()
                else:
                    thread = self._submit(run)
                    gave = (await asyncio.wrap_future(thread)).result()
                    if inspect.isawaitable(gave):
                        gave = await gave
        except TimeoutError as error:
            if not timer.expired():
                return raised(error, effects=self.policy.effects, secrets=self._secrets)
            if thread is not None and thread.cancelled():
                return Evidence(sent="no", failure="pool_timeout", message="no thread of the lane came free")
            return _ran_out(total_ms)
        except asyncio.CancelledError as error:
            if _is_cancelled():
                raise
            return raised(error, effects=self.policy.effects, secrets=self._secrets)
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            return raised(error, effects=self.policy.effects, secrets=self._secrets)
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
            self._set_up(_imported(policy), policy, (key,) if key else ())
        except UsageError as error:
            raise SettingsError(f"lanes.{policy.name}.target: {error}") from None


class CommandLane:
    """The lane of kind `command`: starts a program for each job, writes the work to it, takes what it prints.

    Standard input is UTF-8 and nothing else: of a Prompt the system text and an empty line, if there is one, then the
    task, without a line end of its own; of a Command one JSON object with `type`, `version`, `uid` and `payload`. Full
    chats, tools and images are unfit; `params` and `reasoning` are not handed over. In its environment stand
    MILLPOND_IDEMPOTENCY_KEY, MILLPOND_ATTEMPT_NO, MILLPOND_DEADLINE_MS, and MILLPOND_MODEL where a model is named.

    Exit status 0 means that standard output is the answer, less one line end at its end, as shells take it; bytes that
    are no UTF-8 are replaced. Any other status is ambiguous if `effects`, else retryable, with the end of standard
    error as its words. A program that cannot be started closes the lane. It runs in a process group of its own, which
    is killed when its total deadline passes or the call is cancelled.
    """

    def __init__(self, policy: LanePolicy, key: str = "") -> None:
        """Raises SettingsError without a `command`."""
        if not policy.command:
            raise SettingsError(
                f"lanes.{policy.name}.command: found none, wanted a program: command: [my-program, --flag]"
            )
        self.policy = policy
        self._secrets = (key,) if key else ()

    async def call(self, call: Call) -> Evidence:
        """Run the program once and say how it ended."""
        if refusal := _refuse_work(self.policy, call.work, text_only=True):
            return refusal
        try:
            process = await asyncio.create_subprocess_exec(
                *self.policy.command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                start_new_session=True,
                env={**os.environ, **self._variables(call)},
            )
        except OSError as error:
            is_crowded = error.errno in (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
            return Evidence(
                sent="no",
                said="saturated" if is_crowded else "lane_down",
                code="not_started",
                message=f"cannot start {self.policy.command[0]!r}: {error.strerror}",
            )
        except ValueError as error:
            return _cannot("permanent", "bad_work", f"cannot be handed to a program: {error}")
        return await self._attend(process, call)

    async def close(self) -> None:
        """Nothing is kept."""

    async def _attend(self, process: asyncio.subprocess.Process, call: Call) -> Evidence:
        """Write, read and wait; whatever ends this early kills the program's whole process group."""
        total_ms = self.policy.deadlines.total_ms
        is_over = False
        try:
            async with asyncio.timeout(total_ms / 1000):
                _, printed, complained = await asyncio.gather(
                    _write(process, _input_of(call.stored or call.work)), _read_output(process), _read_tail(process)
                )
                status = await process.wait()
            is_over = True
        except TimeoutError:
            return _ran_out(total_ms)
        except _TooLong:
            return Evidence(failure="body_cut", message=f"printed more than {OUTPUT_LIMIT_BYTES} bytes; killed")
        finally:
            if not is_over:
                await _kill(process)
        if status != 0:
            return self._failed(status, complained)
        text = printed.decode(errors="replace")
        return returned(text.removesuffix("\n").removesuffix("\r"), call.work)

    def _failed(self, status: int, complained: bytes) -> Evidence:
        words = f"exit status {status}" if status > 0 else f"ended by signal {-status}"
        if tail := redact(complained.decode(errors="replace").strip(), self._secrets)[-MESSAGE_CHARS:]:
            words = f"{words}: {tail}"
        said: Outcome = "ambiguous" if self.policy.effects else "retryable"
        return Evidence(failure="exit_status", said=said, message=words)

    def _variables(self, call: Call) -> dict[str, str]:
        model = self.policy.model
        if isinstance(call.work, Prompt) and call.work.model is not None:
            model = call.work.model
        model = self.policy.models.get(model, model)
        return {
            "MILLPOND_IDEMPOTENCY_KEY": call.idempotency_key,
            "MILLPOND_ATTEMPT_NO": str(call.attempt_no),
            "MILLPOND_DEADLINE_MS": str(call.deadline_ms),
            **({"MILLPOND_MODEL": model} if model else {}),
        }


# ---------------------------------------------------------------- work and answers


def _refuse_work(policy: LanePolicy, work: Work, *, text_only: bool = False) -> Evidence | None:
    """Say why a local lane cannot do some work, before anything is called; None if it can."""
    if not isinstance(work, Prompt):
        return None
    is_silent = not policy.model and not policy.models  # a callable that declares no models chooses for itself
    if work.model is not None and not policy.offers(work.model) and (text_only or not is_silent):
        return _cannot("unfit", "unfit_model", f"lane {policy.name!r} does not offer the model {work.model!r}")
    if work.tools and (text_only or not policy.supports_tools):
        return _cannot("unfit", "unfit_tools", f"lane {policy.name!r} does not support tools")
    if work.images and (text_only or not policy.supports_images):
        return _cannot("unfit", "unfit_images", f"lane {policy.name!r} does not support images")
    if work.messages is not None and text_only:
        return _cannot("unfit", "unfit_messages", f"lane {policy.name!r} takes a text, not a full chat")
    if work.schema is not None and not policy.supports_schema:
        return _cannot("unfit", "unfit_schema", f"lane {policy.name!r} does not support an output schema")
    if work.schema is not None and (wrong := refuse_schema(work.schema)):
        return _cannot("permanent", "bad_schema", f"schema: {wrong}")
    return None


def _cannot(said: Outcome, code: str, message: str) -> Evidence:
    return Evidence(sent="no", said=said, code=code, message=message)


def raised(error: BaseException, *, effects: bool, secrets: Iterable[str] = ()) -> Evidence:
    """What an exception of a handler says. Its traceback is left out: it may show the work and the key."""
    said: Outcome = "ambiguous" if effects else "retryable"
    after_ms: int | None = None
    if isinstance(error, HandlerSignal):
        said, after_ms = "ambiguous", _ms(error.after_s)
        for kind, word in _SAID:
            said = word if isinstance(error, kind) else said
    message = redact(str(error)[: 4 * MESSAGE_CHARS], secrets)[:MESSAGE_CHARS]
    return Evidence(failure="exception", said=said, type=type(error).__name__, message=message, retry_info_ms=after_ms)


def returned(value: Any, work: Any) -> Evidence:
    """What a call that ended well brought. The work is done, so a value of no use is unusable, not retryable."""
    if isinstance(value, Reply):
        reply = value
    elif isinstance(value, str):
        reply = Reply(text=value)
    else:
        reply = _reply_of(value)
    if reply is not None:
        reply = _sound(reply)
    if reply is None:
        found = "None" if value is None else type(value).__name__
        words = f"the callable returned {found}, wanted text, JSON-able data or a Reply"
        return Evidence(said="unusable", code="bad_output", message=words, terminal=True)
    schema_error = ""
    if isinstance(work, Prompt) and work.schema is not None and (reply.data is not None or reply.text.strip()):
        data = reply.data
        if isinstance(value, Reply | str) and data is None:
            data, schema_error = read_answer(reply.text, work.schema)
        else:
            schema_error = judge_answer(data, work.schema)
        reply = dataclasses.replace(reply, data=None if schema_error else data)
    return Evidence(
        terminal=True,
        body_bytes=len(reply.text.encode(errors="replace")),
        has_content=bool(reply.text.strip()) or reply.data is not None or reply.finish_reason in _CALLS,
        finish_reason=reply.finish_reason or "stop",
        schema_error=schema_error,
        reply=reply,
        usage=reply.usage if reply.usage != Usage() else None,
        request_id=reply.request_id,
        model=reply.model,
    )


def _sound(reply: Reply) -> Reply | None:
    """A handler's Reply with nothing in it that cannot be stored; None if its text is none."""
    text: Any = reply.text
    usage: Any = reply.usage
    if not isinstance(text, str):
        return None
    if not isinstance(usage, Usage):
        usage = Usage()
    return dataclasses.replace(
        reply,
        finish_reason=_word(reply.finish_reason),
        model=_word(reply.model),
        request_id=_word(reply.request_id),
        usage=dataclasses.replace(usage, tokens_in=_count(usage.tokens_in), tokens_out=_count(usage.tokens_out)),
    )


def _word(value: Any) -> str | None:
    return value if value is None or isinstance(value, str) else str(value)


def _count(value: Any) -> int | None:
    """A number of tokens; anything else is unknown, never guessed at."""
    return value if type(value) is int and 0 <= value < MAX_COUNT else None


MAX_COUNT = 2**63
"""What a column of whole numbers holds."""

_CALLS = ("tool_calls", "tool_use")
"""Finish reasons of a reply that calls tools, which stand in `raw`."""


def _reply_of(value: Any) -> Reply | None:
    """JSON-able data as a reply, in the form in which it will be read back; None for anything else."""
    if value is None:
        return None
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return None
    return Reply(text=text, data=json.loads(text))


def _ran_out(total_ms: int) -> Evidence:
    return Evidence(failure="total_timeout", message=f"total timeout after {total_ms} ms")


# ---------------------------------------------------------------- callables


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
    except BaseException as error:
        return _Ended(error=error)


_SAID: tuple[tuple[type[HandlerSignal], Outcome], ...] = (
    (Retryable, "retryable"),
    (Saturated, "saturated"),
    (Permanent, "permanent"),
)


def _is_cancelled() -> bool:
    """Whether somebody cancelled this task, rather than the function something of its own."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _ms(after_s: float | None) -> int | None:
    """Seconds as a callable says them, in ms, rounded up; below 0 is 0, and what is no number is not said."""
    if after_s is None or math.isnan(after_s) or math.isinf(after_s):
        return None
    return max(0, math.ceil(after_s * 1000))


def _is_async(fn: Callable[..., Any]) -> bool:
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


def _imported(policy: LanePolicy) -> Callable[..., Any]:
    """The callable of a `module:callable`. The working directory is looked in last, so it shadows nothing."""
    where = f"lanes.{policy.name}.target"
    module_name, _, path = policy.target.partition(":")
    if not module_name or not path:
        raise SettingsError(f"{where}: found {policy.target!r}, wanted module:callable")
    if (here := os.getcwd()) not in sys.path:
        sys.path.append(here)
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise SettingsError(
            f"{where}: no module {error.name!r}, wanted by {policy.target!r}; install it or mend the name"
        ) from None
    except Exception as error:
        raise SettingsError(f"{where}: importing {module_name!r} failed: {type(error).__name__}: {error}") from error
    for name in path.split("."):
        if not hasattr(found, name):
            raise SettingsError(f"{where}: {module_name!r} has no {path!r}")
        found = getattr(found, name)
    return found


# ---------------------------------------------------------------- programs


class _TooLong(Exception):
    """The program prints without end."""


async def _kill(process: asyncio.subprocess.Process) -> None:
    """Kill the program with its process group, and wait until it is gone."""
    with suppress(ProcessLookupError, PermissionError):  # macOS: a group of zombies may not be signalled
        os.killpg(process.pid, signal.SIGKILL)
    # Its end is reported only once its pipes are closed, which what is left unread, or a descendant that has left the
    # group, could put off for ever. There is no public way to close them.
    process._transport.close()  # pyright: ignore[reportPrivateUsage, reportUnknownMemberType, reportAttributeAccessIssue]
    await process.wait()


def _input_of(work: Work) -> bytes:
    if isinstance(work, Command):
        parts = {"type": work.type, "version": work.version, "uid": work.uid, "payload": work.payload}
        return json.dumps(parts, ensure_ascii=False).encode(errors="replace")
    text = f"{work.system}\n\n{work.task}" if work.system else work.task
    return text.encode(errors="replace")


async def _write(process: asyncio.subprocess.Process, given: bytes) -> None:
    """Write all of it and close; a program may stop reading when it has enough."""
    assert process.stdin is not None, "opened as a pipe"
    with suppress(BrokenPipeError, ConnectionResetError):
        process.stdin.write(given)
        await process.stdin.drain()
        process.stdin.close()
        await process.stdin.wait_closed()


async def _read_output(process: asyncio.subprocess.Process) -> bytes:
    assert process.stdout is not None, "opened as a pipe"
    output = bytearray()
    while chunk := await process.stdout.read(65536):
        output += chunk
        if len(output) > OUTPUT_LIMIT_BYTES:
            raise _TooLong
    return bytes(output)


async def _read_tail(process: asyncio.subprocess.Process) -> bytes:
    """The end of standard error: enough for the words that are kept, however much comes."""
    assert process.stderr is not None, "opened as a pipe"
    tail = b""
    while chunk := await process.stderr.read(65536):
        tail = (tail + chunk)[-4 * MESSAGE_CHARS :]
    return tail
