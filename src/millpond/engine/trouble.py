"""Says of a trouble that it is there: once, however often it is met, until it is over or another."""

from __future__ import annotations

import logging

log = logging.getLogger("millpond.engine")


class Trouble:
    """One kind of trouble, of something that is tried again and again."""

    def __init__(self, what: str) -> None:
        """`what` cannot be done while it lasts."""
        self._what = what
        self._said = ""

    def met(self, problem: Exception) -> None:
        """It is there, or still there."""
        if (words := str(problem)) != self._said:
            self._said = words
            log.warning("%s: %s", self._what, words)

    def over(self) -> None:
        """What was tried has been done."""
        self._said = ""
