"""A span of time on the command line, in seconds."""

from __future__ import annotations

from math import isfinite
from typing import Any

import click


class Seconds(click.FloatRange):
    """Seconds, from 0 to `most`. A range alone lets nan in, which is neither below nor above any bound."""

    name = "number of seconds"

    def __init__(self, most: float | None = None) -> None:
        super().__init__(0, most)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number in `value`. Raises click.BadParameter (exit 2) for what is none, and for what is out of range."""
        seconds = float(super().convert(value, param, ctx))
        if not isfinite(seconds):
            self.fail(f"{value!r} is not a valid {self.name}.", param, ctx)
        return seconds
