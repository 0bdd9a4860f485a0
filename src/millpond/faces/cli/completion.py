"""Completion: the script that a shell reads (`millpond completion SHELL`), and what it is then offered, word by word.

What must be looked up is looked up cheaply: nothing is made, and what cannot be read offers nothing, without a word.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from typing import Any

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    FishComplete,
    ShellComplete,
    ZshComplete,
    add_completion_class,
)

from millpond.faces.cli.failing import COMPLETE
from millpond.faces.cli.given import Given, pass_given, shared

NAMES_OFFERED = 100

Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


class Bash(BashComplete):
    """Bash breaks words at a colon, and inserts what it is offered as it is."""

    _kept = 0

    def source(self) -> str:
        """click's script, which keeps what is quoted, and leaves no blank after a field that wants its value.

        No bash is run to learn its version first.
        """
        script = ShellComplete.source(self).replace("read type value", "read -r type value")
        added = "COMPREPLY+=($value)"
        return script.replace(added, f"{added}\n            [[ $value == *: ]] && compopt -o nospace")

    def get_completion_args(self) -> tuple[list[str], str]:
        """The words before the one that is completed, and that one: `state`, `:`, `fa` are one word."""
        args, incomplete = super().get_completion_args()
        words: list[str] = []
        for word in [*args, incomplete]:
            if words and (word.startswith(":") or words[-1].endswith(":")):
                words[-1] += word
            else:
                words.append(word)
        self._kept = words[-1].rfind(":") + 1
        return words[:-1], words[-1]

    def format_completion(self, item: CompletionItem) -> str:
        """What stands after the last colon, quoted as bash would have it typed."""
        if item.type != "plain":
            return super().format_completion(item)
        value = re.sub(r"([^\w@%+=:,./-])", r"\\\1", item.value[self._kept :])
        return f"{item.type},{value}"


add_completion_class(Bash)
SHELLS: dict[str, type[ShellComplete]] = {"bash": Bash, "zsh": ZshComplete, "fish": FishComplete}


@click.command(no_args_is_help=True)
@click.argument("shell", type=click.Choice(list(SHELLS)))
@shared()
@pass_given
@click.pass_context
def completion(ctx: click.Context, given: Given, shell: str) -> None:
    """Print the script that lets a shell complete verbs, options, and names of submissions and lanes.

    \b
    bash, in ~/.bashrc:  eval "$(millpond completion bash)"
    zsh, in ~/.zshrc:    eval "$(millpond completion zsh)"   (after compinit)
    fish:                millpond completion fish > ~/.config/fish/completions/millpond.fish
    """
    click.echo(SHELLS[shell](ctx.find_root().command, {}, "millpond", COMPLETE).source())


def _silent(find: Callable[[Given, str], Iterable[str]]) -> Completer:
    """A completer that offers what is found and begins with what was typed; nothing where finding it fails."""

    @wraps(find)
    def complete(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[CompletionItem]:
        given = ctx.find_object(Given) or Given()
        try:
            return [CompletionItem(one) for one in find(given, incomplete) if one.startswith(incomplete)]
        except Exception:  # whoever presses TAB asked for no report: no queue, no settings, a locked file
            return []

    return complete


def file_names(_: click.Context, __: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Files, which the shell itself finds."""
    return [CompletionItem(incomplete, type="file")]


@_silent
def submission_names(given: Given, incomplete: str) -> Iterable[str]:
    """Names of the newest submissions."""
    return (name for name in _submissions(given) if _is_typed(name))


@_silent
def lane_names(given: Given, incomplete: str) -> Iterable[str]:
    """Lanes of the settings."""
    return given.settings.policy.lanes


@_silent
def lane_lists(given: Given, incomplete: str) -> Iterable[str]:
    """Lanes of the settings, after those that stand before the last comma."""
    before = incomplete[: incomplete.rfind(",") + 1]
    return (before + lane for lane in given.settings.policy.lanes if lane not in before.split(","))


@_silent
def filter_words(given: Given, incomplete: str) -> Iterable[str]:
    """Fields of a filter, and the values of those that have few. Only the last word is completed."""
    before = incomplete[: incomplete.rfind(" ") + 1]
    return (before + word for word in _words(given, incomplete[len(before) :]))


def _words(given: Given, word: str) -> Iterator[str]:
    from millpond.rules.filters import FIELDS, STATES, WAIT_REASONS

    sign = "-" if word.startswith("-") else ""
    field, colon, _ = word.removeprefix("-").partition(":")
    if not colon:
        yield from (f"{sign}{name}:" for name in FIELDS)
        return
    values: dict[str, Callable[[], Iterable[str]]] = {
        "state": lambda: [*STATES, *WAIT_REASONS],
        "lane": lambda: given.settings.policy.lanes,
        "submission": lambda: (_in_filter(name) for name in _submissions(given) if _is_typed(name)),
    }
    if field in values:
        yield from (f"{sign}{field}:{value}" for value in values[field]())


def _in_filter(name: str) -> str:
    """A name as one word of a filter."""
    return '"' + name.replace("\\", "\\\\").replace('"', '\\"') + '"' if re.search(r'[\s"]', name) else name


def _is_typed(name: str) -> bool:
    """Whether a name is one that a person could have typed: a terminal shows it as it is (O10)."""
    from millpond.faces.cli.terminal import plain

    return name == plain(name) and name != ""


def _submissions(given: Given) -> list[str]:
    """Read the store alone: a queue would load the lanes as well."""
    from millpond.engine.clock import wall_ms
    from millpond.store.store import Store, open_sqlite

    path: Any = given.settings.queue
    given.require_queue()
    store = Store(open_sqlite(path), wall_ms)
    try:
        return store.submission_names(NAMES_OFFERED)
    finally:
        store.close()
