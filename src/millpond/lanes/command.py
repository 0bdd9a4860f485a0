"""The lane of kind `command`: a program that reads the work on standard input and prints the answer.

Nothing goes over a wire, so what was sent is simple: `no` if the program never began, else `yes`. Of the deadlines only
the total one counts: a program neither says a first byte nor falls silent in a way that means anything.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
from contextlib import suppress

from millpond.lanes.deadline import Deadline
from millpond.lanes.fit import cannot, refusal
from millpond.lanes.handler import ran_out, returned
from millpond.lanes.lane import Call
from millpond.rules.errors import SettingsError
from millpond.rules.evidence import Evidence
from millpond.rules.job import Command, Work
from millpond.rules.policy import LanePolicy
from millpond.rules.redaction import KEPT_CHARS, redact

OUTPUT_LIMIT_BYTES = 64 * 1024 * 1024
"""Longest answer that a program may print; it is killed then."""


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
        if refused := refusal(self.policy, call.work, text_only=True):
            return refused
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
            return cannot("permanent", "bad_work", f"cannot be handed to a program: {error}")
        return await self._attend(process, call)

    async def close(self) -> None:
        """Nothing is kept."""

    async def _attend(self, process: asyncio.subprocess.Process, call: Call) -> Evidence:
        """Write, read and wait; whatever ends this early kills the program's whole process group."""
        total_ms = self.policy.deadlines.total_ms
        is_over = False
        try:
            async with Deadline(total_ms / 1000):
                _, printed, complained = await asyncio.gather(
                    _write(process, _input_of(call.stored or call.work)), _read_output(process), _read_tail(process)
                )
                status = await process.wait()
            is_over = True
        except TimeoutError:
            return ran_out(total_ms)
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
        if tail := redact(complained.decode(errors="replace").strip(), self._secrets)[-KEPT_CHARS:]:
            words = f"{words}: {tail}"
        return Evidence(failure="exit_status", message=words)

    def _variables(self, call: Call) -> dict[str, str]:
        model = self.policy.model_for(call.work)
        return {
            "MILLPOND_IDEMPOTENCY_KEY": call.idempotency_key,
            "MILLPOND_ATTEMPT_NO": str(call.attempt_no),
            "MILLPOND_DEADLINE_MS": str(call.deadline_ms),
            **({"MILLPOND_MODEL": model} if model else {}),
        }


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
        tail = (tail + chunk)[-4 * KEPT_CHARS :]
    return tail
