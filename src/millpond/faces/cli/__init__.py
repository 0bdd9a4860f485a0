"""The command line: `millpond VERB`. Of others' packages only click is loaded; a verb's module when it is called."""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn

import click

from millpond.faces.cli.failing import COMPLETE, Guarded
from millpond.faces.cli.given import shared

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

VERBS = {
    "init": ("init", "Write a commented millpond.yaml, and make the home."),
    "enqueue": ("enqueue", "Put the rows of files into the queue."),
    "drain": ("drain", "Work the queue off, and say what was done."),
    "status": ("submissions", "Counts, lanes, what is late, what needs you."),
    "wait": ("submissions", "Wait until all that was asked has its end."),
    "watch": ("feed", "Show each change as it happens."),
    "jobs": ("looking", "List jobs that a filter admits, newest first."),
    "show": ("looking", "One job: its fields, its work, its answer."),
    "explain": ("looking", "Why a job is not running, its attempts, what is next."),
    "submissions": ("submissions", "List submissions, newest first, or show one."),
    "ledger": ("ledger", "The last calls that were made, in order."),
    "events": ("feed", "What happened, since a cursor."),
    "results": ("results", "Answers in the order in which they were asked."),
    "report": ("report", "What the ledger adds up to: tokens, money, rework."),
    "retry": ("persons", "Ask again for failed or cancelled jobs."),
    "cancel": ("persons", "Cancel jobs."),
    "unpin": ("persons", "Route jobs from their first lane again."),
    "decide": ("persons", "Say what follows a call whose outcome is unknown."),
    "reconcile": ("reconcile", "Ask lanes what became of calls that nobody heard."),
    "stop": ("stopping", "Let nothing more be sent: on all lanes, those that may cost, or some."),
    "resume": ("stopping", "End a stop: lanes take work again."),
    "lanes": ("lanes", "Lanes and their state; open one that is down."),
    "doctor": ("doctor", "Check that everything is in order."),
    "config": ("config", "Show the settings and where they come from."),
    "completion": ("completion", "Let your shell complete verbs, options and names."),
    "faultlane": ("faultlane", "A server that fails on purpose, for trying things out."),
    "demo": ("demo", "See a queue at work: no key, no network, 20 seconds."),
}
"""Verb -> its module here, and the line that `--help` shows without loading it."""


class Verbs(Guarded):
    """The group of all verbs, each loaded when it is called."""

    def main(self, *args: Any, **extra: Any) -> NoReturn:
        """Run a command line, or answer the shell that completes one."""
        if os.environ.get(COMPLETE):
            import_module("millpond.faces.cli.completion")
        super().main(*args, **extra)

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All verbs, in the order in which they are needed."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load one verb."""
        if cmd_name not in VERBS:
            return None
        module = import_module(f"millpond.faces.cli.{VERBS[cmd_name][0]}")
        return getattr(module, cmd_name)  # a command is named as its verb

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the verb; an unknown one is refused with the nearest that is known."""
        if args and args[0] not in VERBS and not ctx.resilient_parsing:
            from difflib import get_close_matches

            meant = next(iter(get_close_matches(args[0], VERBS, n=1)), "")
            hint = f"did you mean {meant}?" if meant else f"known verbs: {', '.join(VERBS)}"
            raise click.UsageError(f"unknown verb {args[0][:40]!r}; {hint}", ctx)
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Verbs and our own options, without loading any verb."""
        from click.shell_completion import CompletionItem

        verbs = [CompletionItem(verb, help=words) for verb, (_, words) in VERBS.items() if verb.startswith(incomplete)]
        return [*verbs, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the verbs without loading any of them."""
        with formatter.section("Verbs"):
            formatter.write_dl([(verb, words) for verb, (_, words) in VERBS.items()])


@click.command(
    cls=Verbs,
    context_settings={"help_option_names": ["-h", "--help"]},
    no_args_is_help=True,
    subcommand_metavar="VERB [ARGS]...",
)
@click.version_option(package_name="millpond", message="millpond %(version)s")
@shared(hidden=False)
def cli() -> None:
    """A durable lane queue for LLM work: nothing lost, nothing answered twice, every attempt explained.

    Exit codes: 0 ok, 1 failure, 2 usage, 4 key or permission missing, 74 disk or I/O, 75 lock held or busy, 78 settings
    or schema refused, 130 interrupted, 143 terminated, 129 hung up; with --exit-status also 3 some jobs failed, 8 some
    are pending.
    """


def main() -> None:
    """The entry point of the program."""
    cli.main(prog_name="millpond")


__all__ = ["cli", "main"]
