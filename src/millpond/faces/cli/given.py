"""What was given on the command line for any verb: which home, which queue, which settings, words or JSON."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from millpond.rules.job import MAX_ID

if TYPE_CHECKING:
    from millpond.queue import Queue
    from millpond.settings import Settings

F = TypeVar("F", bound=Callable[..., Any])


class JobId(click.IntRange):
    """The id of a job, refused in words that say so."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """The id as a number."""
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            shown = str(value)[:40]
            raise click.UsageError(f"found {shown!r}, wanted the id of a job, a whole number from 1", ctx) from None


ID = JobId(1, MAX_ID)
"""An id of the queue."""

LIMIT = click.IntRange(1, MAX_ID)
"""At most so many of something."""


@dataclass(slots=True)
class Given:
    """The options that every verb shares. Settings are read once, when a verb first asks for them."""

    home: str | None = None
    queue: str | None = None
    config: str | None = None
    json: bool = False
    _settings: Settings | None = None

    @property
    def settings(self) -> Settings:
        """The settings that count. Raises SettingsError. From here on, values of key variables are never printed."""
        if self._settings is None:
            from millpond.faces.cli import terminal
            from millpond.settings import load

            config = Path(self.config) if self.config is not None else None
            self._settings = load(home=self.home, config=config, flags={"queue.path": self.queue})
            terminal.keep_secret(os.environ.get(name, "") for name in self._settings.keys.values())
        return self._settings

    def open(self) -> Queue:
        """Open the queue, making what is not there: for verbs that bring work in or out."""
        settings = self.settings
        from millpond.queue import Queue

        return Queue.at(settings)

    def look(self) -> Queue:
        """Open a queue that exists. Looking at one never makes it: raises UsageError if there is none."""
        self.require_queue()
        return self.open()

    def require_queue(self) -> None:
        """Raises UsageError if there is no queue to look at."""
        if not self.has_queue():
            from millpond.rules.errors import UsageError

            make = self.command("enqueue FILE")
            raise UsageError(f"no queue at {self.settings.queue}; `{make}` makes one, --home names another")

    def has_queue(self) -> bool:
        """Whether the queue's file is there. An address is left to whoever opens it."""
        where = self.settings.queue
        return not isinstance(where, Path) or where.is_file()

    def command(self, verb: str) -> str:
        """A command to type next, with what was given here."""
        parts = ["millpond"]
        for name in ("home", "queue", "config"):
            value = getattr(self, name)
            parts += [f"--{name}", shlex.quote(value)] if value is not None else []
        return " ".join([*parts, verb])


pass_given = click.make_pass_decorator(Given, ensure=True)


def shared(*, hidden: bool = True) -> Callable[[F], F]:
    """The options of `Given`: before the verb, and (`hidden`) after it too, where people type them as often."""

    def keep(ctx: click.Context, parameter: click.Parameter, value: Any) -> None:
        given = ctx.ensure_object(Given)
        if value not in (None, False):
            assert parameter.name is not None
            setattr(given, parameter.name, value)

    def option(name: str, help: str, **how: Any) -> Callable[[F], F]:  # noqa: A002
        return click.option(name, help=help, hidden=hidden, expose_value=False, callback=keep, **how)

    options = [
        option(
            "--home", "Folder of the queue. Default: MILLPOND_HOME, the nearest .millpond, ./.millpond.", metavar="DIR"
        ),
        option("--queue", "The queue's database, instead of the one in the home.", metavar="URL"),
        option("--config", "Settings file, instead of ./millpond.yaml.", metavar="FILE"),
        option("--json", "Answer in JSON.", is_flag=True),
    ]

    def decorate(command: F) -> F:
        for one in reversed(options):
            command = one(command)
        return command

    return decorate
