"""`millpond faultlane`: a server on loopback that speaks the OpenAI chat API and fails on purpose."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING

import click

from millpond.faces.cli import terminal
from millpond.faces.cli.given import Given, pass_given, shared
from millpond.faces.cli.seconds import Seconds
from millpond.faces.cli.signals import Signals, exit_code_of

if TYPE_CHECKING:
    from millpond.drill.faultlane import FaultLane


@click.command()
@click.option("--port", type=click.IntRange(0, 65_535), default=0, help="0, the default, takes any free one.")
@click.option("--mix", metavar="MIX", help="Faults by share: 503_proof=0.1,reset=5%; what is left of 1 is ok.")
@click.option(
    "--script", metavar="FILE", type=click.Path(path_type=Path), help="Faults one by one: JSON, or JSON lines."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Draws the faults of a mix.")
@click.option("--model", default="fault-1", show_default=True, help="The model it says it is.")
@click.option("--slow-s", type=Seconds(), metavar="S", default=2.0, show_default=True, help="How long `slow` takes.")
@click.option(
    "--latency-s", type=Seconds(), metavar="S", default=0.0, show_default=True, help="How long an answer takes."
)
@click.option("--hang-s", type=Seconds(), metavar="S", default=3600.0, show_default=True, help="How long `hang` lasts.")
@click.option(
    "--settling-s",
    type=Seconds(),
    metavar="S",
    default=0.0,
    show_default=True,
    help="How long until a stored answer is listed.",
)
@click.option("--retry-after", metavar="TEXT", help="The raw Retry-After of `429` and `503_proof`; 1 if not said.")
@shared()
@pass_given
@click.pass_context
def faultlane(
    ctx: click.Context,
    given: Given,
    port: int,
    mix: str | None,
    script: Path | None,
    seed: int,
    model: str,
    slow_s: float,
    latency_s: float,
    hang_s: float,
    settling_s: float,
    retry_after: str | None,
) -> None:
    """Serve until a signal comes. The first line is the base URL; at the end, what it counted."""
    from millpond.drill.faultlane import FaultLane
    from millpond.drill.script import read_mix, read_script

    lane = FaultLane(
        port=port,
        mix=read_mix(mix) if mix is not None else None,
        script=read_script(script) if script is not None else None,
        seed=seed,
        model=model,
        slow_s=slow_s,
        latency_s=latency_s,
        hang_s=hang_s,
        settling_s=settling_s,
        retry_after=retry_after,
    )
    with Signals() as signals:
        asyncio.run(_serve(lane, given, signals))
    if given.json:
        terminal.say_json(lane.summary())
    else:
        counted = lane.summary()
        faults = " ".join(f"{name}={n:,}" for name, n in counted["by_fault"].items())
        terminal.say(f"accepted {counted['posts']:,} · completed {counted['completed']:,} · {faults}".rstrip(" ·"))
    ctx.exit(exit_code_of(signals.ending[0]))


async def _serve(lane: FaultLane, given: Given, signals: Signals) -> None:
    serving = asyncio.create_task(lane.serve_forever(lambda url: _announce(url, given)))
    with signals.told(lambda _: serving.cancel()):
        try:
            await serving
        except asyncio.CancelledError:
            if not signals.ending:
                raise


def _announce(base_url: str, given: Given) -> None:
    if given.json:
        terminal.say_json({"base_url": base_url})
    else:
        terminal.say(base_url)
