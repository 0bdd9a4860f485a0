"""`millpond lanes`: how the lanes stand, and opening one that is down."""

from __future__ import annotations

import click

from millpond.faces.cli import terminal
from millpond.faces.cli.completion import lane_names
from millpond.faces.cli.given import Given, pass_given, shared


@click.command()
@click.argument("name", required=False, shell_complete=lane_names)
@click.argument("verb", required=False, type=click.Choice(["resume"]))
@shared()
@pass_given
def lanes(given: Given, name: str | None, verb: str | None) -> None:
    """List the lanes; `lanes NAME resume` opens one that closed until a person says so."""
    with given.look() as queue:
        if verb is not None:
            assert name is not None
            queue.resume_lane(name)
            terminal.say(f"lane {name} is open; next: {given.command('drain')}")
            return
        found = [lane for lane in queue.status().lanes if name in (None, lane.name)]
        if name is not None and not found:
            queue.policy.lane(name)
    if given.json:
        for lane in found:
            terminal.say_json(lane)
        return
    heading = ("lane", "state", "calls", "ready", "why")
    rows = [
        (one.name, one.state, f"{one.in_flight}/{one.max_in_flight}", f"{one.ready:,}", one.reason or "")
        for one in found
    ]
    terminal.say(terminal.table([heading, *rows]))
