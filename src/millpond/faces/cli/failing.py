"""How the command line fails: one line on stderr (what was found, wanted, to do next) and a stable exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import click

INTERRUPTED = 130
BROKEN_PIPE = 1
IO_REFUSED = 74
DEBUG = "MILLPOND_DEBUG"
COMPLETE = "_MILLPOND_COMPLETE"
"""Set by a shell that completes a line: our program is asked for candidates, and to say nothing else."""


class Guarded(click.Group):
    """A group whose `main` ends in an exit code, never in a traceback; MILLPOND_DEBUG=1 shows that too."""

    def main(self, args: Sequence[str] | None = None, prog_name: str | None = None, **extra: Any) -> NoReturn:  # type: ignore[override]
        """Run a command line, then exit."""
        extra["standalone_mode"] = False
        try:
            code = super().main(args, prog_name, **extra)
            sys.stdout.flush()
        except BrokenPipeError:
            from millpond.faces.cli import terminal

            terminal.discard(sys.stdout)
            sys.exit(BROKEN_PIPE)
        except BaseException as problem:
            if os.environ.get(COMPLETE):
                sys.exit(problem.code if isinstance(problem, SystemExit) else 1)
            sys.exit(fail(problem))
        sys.exit(code if isinstance(code, int) else 0)


def fail(problem: BaseException) -> int:
    """Say what went wrong, in one line a fault, and return the exit code."""
    from millpond.faces.cli import terminal
    from millpond.rules.errors import MillpondError

    if os.environ.get(DEBUG):
        import traceback

        terminal.warn("".join(traceback.format_exception(problem)), lines=True)
    match problem:
        case SystemExit():
            return problem.code if isinstance(problem.code, int) else 1
        case click.Abort() | KeyboardInterrupt():
            terminal.warn("millpond: interrupted")
            return INTERRUPTED
        case click.exceptions.NoArgsIsHelpError():
            problem.show()
            return 2
        case click.UsageError():
            verb = problem.ctx.command_path if problem.ctx else "millpond"
            terminal.warn(f"millpond: {_sentence(problem.format_message())}; see {verb} --help")
            return 2
        case click.ClickException():
            terminal.warn(f"millpond: {problem.format_message()}")
            return problem.exit_code
        case MillpondError():
            for line in str(problem).splitlines() or [type(problem).__name__]:
                terminal.warn(f"millpond: {line}")
            return problem.exit_code
        case OSError():
            name = f"{problem.filename}: " if problem.filename else ""
            terminal.warn(f"millpond: {name}{problem.strerror or problem}; make room or mend its permissions")
            return IO_REFUSED
        case _:
            words = f"{type(problem).__name__}: {problem}"
            terminal.warn(
                f"millpond: unexpected {words}; a fault of this program: please report it with what {DEBUG}=1 shows"
            )
            return 1


def _sentence(words: str) -> str:
    """click's words as the beginning of a line: no full stop, first letter small unless it is a name."""
    words = " ".join(words.split()).rstrip(".")
    return words[:1].lower() + words[1:] if words[:2].istitle() else words
