"""`millpond stop` and `millpond resume`: a person's word that nothing is sent, and that it may be again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from millpond.faces.cli import terminal
from millpond.faces.cli.completion import lane_names
from millpond.faces.cli.given import Given, pass_given, shared
from millpond.rules.errors import UsageError
from millpond.rules.times import age_words

if TYPE_CHECKING:
    from collections.abc import Iterable

    from millpond.rules.stops import Stop, Stops, Whole

LANES = click.argument("lanes", metavar="[LANE]...", nargs=-1, shell_complete=lane_names)
ORIGIN = "cli"


@click.command()
@LANES
@click.option("--paid", is_flag=True, help="Only lanes that may cost, of whatever name; an unknown price may.")
@shared()
@pass_given
def stop(given: Given, lanes: tuple[str, ...], paid: bool) -> None:
    """Let nothing more be sent until `resume`: on all lanes, on those that may cost, or on some by name.

    Every drain obeys within a second, also those to come; calls in flight go on to their end. Nothing is lost, and no
    attempt is used.
    """
    with given.look() as queue:
        done = queue.stop(_which(lanes, paid), origin=ORIGIN)
        now_ms = queue.store.now_ms()
    if given.json:
        terminal.say_json(done, indent=2)
        return
    for one in done.standing:
        if one in done.changed:
            terminal.say(f"stopped {one.words}: nothing more is sent there, calls in flight go on to their end")
        else:
            terminal.say(f"{one.words} stopped already, {_since(one, now_ms)}")
    terminal.say(f"next: {given.command('resume')}")


@click.command()
@LANES
@click.option("--paid", is_flag=True, help="Only the stop of lanes that may cost.")
@shared()
@pass_given
def resume(given: Given, lanes: tuple[str, ...], paid: bool) -> None:
    """End stops: all that stand, that of the lanes that may cost, or those of some lanes by name."""
    with given.look() as queue:
        done = queue.resume(_which(lanes, paid), origin=ORIGIN)
        now_ms, drainer = queue.store.now_ms(), queue.drainer()
    if given.json:
        terminal.say_json(done, indent=2)
        return
    _tell_resumed(done, now_ms)
    if done.changed and drainer is None:
        terminal.say(f"next: {given.command('drain')}")


def _tell_resumed(done: Stops, now_ms: int) -> None:
    for one in done.changed:
        terminal.say(f"resumed {one.words}, stopped {_since(one, now_ms)}")
    if not done.changed:
        terminal.say("nothing was resumed: that was not stopped" if done.standing else "nothing was stopped")
    for one in done.standing:
        terminal.say(f"{one.words} still stopped, {_since(one, now_ms)}")


def _since(one: Stop, now_ms: int) -> str:
    return f"{age_words(max(now_ms - one.since_ms, 0))} ago by a person ({one.origin})"


def _which(lanes: tuple[str, ...], paid: bool) -> Whole | Iterable[str]:
    if lanes and paid:
        raise UsageError("found --paid and lanes by name, wanted one of the two")
    return lanes or ("paid" if paid else "all")
