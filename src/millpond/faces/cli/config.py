"""`millpond config`: what is set, where it was said, and what can be set."""

from __future__ import annotations

import click

from millpond.faces.cli import terminal
from millpond.faces.cli.given import Given, pass_given, shared

PRIVATE = ("headers", "proxy")
"""Keys of a lane whose values may hold a credential that no pattern can tell."""


@click.group()
def config() -> None:
    """Settings: what is set and where, and the schema of millpond.yaml."""


@config.command()
@click.option("--origin", is_flag=True, help="Say where each value comes from.")
@shared()
@pass_given
def show(given: Given, origin: bool) -> None:
    """Every setting as it counts; credentials are left out."""
    from millpond.rules.redaction import REDACTED

    rows = [
        (key, REDACTED if any(part in PRIVATE for part in key.split(".")) and value else value, where)
        for key, value, where in given.settings.shown()
    ]
    rows.append(("home", str(given.settings.home), given.settings.home_origin))
    rows = [row for at, row in enumerate(rows) if row[0] not in {later[0] for later in rows[at + 1 :]}]
    if given.json:
        for key, value, where in rows:
            terminal.say_json({"key": key, "value": value, "origin": where} if origin else {"key": key, "value": value})
        return
    for key, value, where in rows:
        shown = value if isinstance(value, str) else terminal.as_json(value)
        terminal.say(f"{key} = {terminal.plain(shown)}" + (f"    # {where}" if origin else ""))


@config.command()
@shared()
def schema() -> None:
    """The JSON Schema of millpond.yaml, for editors."""
    from millpond.settings import schema as of_file

    terminal.say_json(of_file(), indent=2)
