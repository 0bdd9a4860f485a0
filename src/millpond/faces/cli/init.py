"""`millpond init`: a settings file to begin with, and the home."""

from __future__ import annotations

from pathlib import Path

import click

from millpond.faces.cli.given import Given, pass_given, shared


@click.command()
@shared()
@pass_given
def init(given: Given) -> None:
    """Write a commented millpond.yaml here, and make the home. A file that is there already is left alone."""
    from millpond.faces.cli.terminal import say
    from millpond.rules.errors import UsageError
    from millpond.settings import make_home, template

    path = Path(given.config or "millpond.yaml")
    try:
        with path.open("x", encoding="utf-8") as file:
            file.write(template())
    except FileExistsError:
        raise UsageError(
            f"{path}: is there already; nothing was written, edit it or name another with --config"
        ) from None
    home = make_home(given.settings.home)
    say(f"wrote {path}, made {home}")
    say(f"next: edit {path}, then {given.command('doctor')} and {given.command('enqueue FILE')}")
