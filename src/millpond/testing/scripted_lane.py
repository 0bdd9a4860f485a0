"""A lane that answers by a script, for tests of whatever makes calls: no network, no waiting, every call remembered."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, get_args

from millpond.drill.least import least
from millpond.lanes.deadline import Deadline
from millpond.lanes.handler import raised, ran_out, returned
from millpond.lanes.lane import Call
from millpond.rules.errors import HandlerSignal, UsageError
from millpond.rules.evidence import Evidence
from millpond.rules.job import Outcome, Prompt, Reply, Usage
from millpond.rules.policy import LanePolicy
from millpond.rules.price import FREE

Answer = Evidence | Outcome | Reply | BaseException
"""One line of a script: what was seen, the outcome that it shall have, the reply, or what `call` raises."""

OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)


@dataclass(frozen=True, slots=True)
class Held:
    """A line of a script that is kept back until `let_go`."""

    answer: Answer = "ok"


class ScriptedLane:
    """Answers its n-th call by the n-th line of its script, and by `then` after the last.

    `calls` are all that began, `cancelled` those that were given up by whoever awaited them. After `hold()`, and for a
    line wrapped in `Held`, a call stays open until `let_go`, which may be called from any thread, at most to its total
    deadline. Retryable, Saturated, Ambiguous and Permanent are answered as a handler would say them; any other
    exception is raised: a lane that breaks its promise.
    """

    def __init__(self, policy: LanePolicy | str = "scripted", script: Iterable[Answer | Held] = (), *,
                 then: Answer | Held = "ok") -> None:  # fmt: skip
        """`policy` may be just a name: a free lane of kind `callable`. Raises UsageError for a line nobody can read."""
        self.policy = LanePolicy(policy, kind="callable", price=FREE) if isinstance(policy, str) else policy
        self.calls: list[Call] = []
        self.cancelled: list[Call] = []
        self.closed = 0
        self._script = deque(_checked(line) for line in script)
        self._then = _checked(then)
        self._holding = False
        self._open: dict[str, tuple[asyncio.AbstractEventLoop, asyncio.Event]] = {}
        self._began: list[tuple[int, asyncio.Event]] = []

    async def call(self, call: Call) -> Evidence:
        """Answer by the script."""
        self.calls.append(call)
        for wanted, event in self._began:
            if len(self.calls) >= wanted:
                event.set()
        line = self._script.popleft() if self._script else self._then
        answer = line.answer if isinstance(line, Held) else line
        if self._holding or isinstance(line, Held):
            gate = asyncio.Event()
            self._open[call.uid] = (asyncio.get_running_loop(), gate)
            try:
                async with Deadline(self.policy.deadlines.total_ms / 1000):
                    await gate.wait()
            except TimeoutError:
                return ran_out(self.policy.deadlines.total_ms)
            except asyncio.CancelledError:
                self.cancelled.append(call)
                raise
            finally:
                self._open.pop(call.uid, None)
        if isinstance(answer, HandlerSignal):  # what a handler says is no broken promise
            return raised(answer)
        if isinstance(answer, BaseException):
            raise answer
        return evidence_of(answer, call.work)  # pyright: ignore[reportArgumentType]  # _checked: a text is an outcome

    async def close(self) -> None:
        """Counted in `closed`."""
        self.closed += 1

    def say(self, *lines: Answer | Held) -> None:
        """Add lines to the end of the script. Raises UsageError for one that nobody can read."""
        self._script.extend([_checked(line) for line in lines])

    def hold(self) -> None:
        """Keep every call from now on open."""
        self._holding = True

    def let_go(self, uid: str | None = None) -> None:
        """Let the held call of that attempt answer; without `uid` all of them, and hold none from now on."""
        if uid is None:
            self._holding = False
        for name, (loop, gate) in list(self._open.items()):
            if uid in (None, name):
                loop.call_soon_threadsafe(gate.set)

    @property
    def held(self) -> list[str]:
        """The attempts whose calls are held open now, in the order in which they began."""
        return list(self._open)

    async def began(self, calls: int = 1) -> None:
        """Wait, on the loop that calls the lane, until so many calls have begun in all."""
        if len(self.calls) < calls:
            event = asyncio.Event()
            self._began.append((calls, event))
            await event.wait()
        await asyncio.sleep(0)  # the call that woke us goes on to where it is held


def evidence_of(answer: Answer, work: Any = None) -> Evidence:
    """The evidence that `rules.outcome.classify` reads as this answer; a reply is a complete one.

    Work with a schema is answered as it asks: `ok` by the least data that satisfies it, a reply as its text or data do.
    """
    if isinstance(answer, Evidence):
        return answer
    if isinstance(answer, Reply):
        return replace(returned(answer, work), status=200)
    assert isinstance(answer, str)
    if answer == "ok":
        words = f"answer to {getattr(work, 'task', '')}".rstrip()
        schema = work.schema if isinstance(work, Prompt) else None
        text = words if schema is None else json.dumps(least(schema, words), ensure_ascii=False)
        return evidence_of(Reply(text, usage=Usage(3, 5)), work)
    return Evidence(sent="no" if answer == "retryable" else "yes", said=answer, message=f"scripted: {answer}")


def _checked(line: Answer | Held) -> Answer | Held:
    answer = line.answer if isinstance(line, Held) else line
    if isinstance(answer, str) and answer not in OUTCOMES:
        raise UsageError(f"script: found {answer!r}, wanted Evidence, a Reply, an exception or one of {OUTCOMES}")
    return line
