"""Says things on a thread of its own, so that no reader who pauses holds up who has something to say.

A terminal that was stopped with Ctrl-S, and a pager that nobody scrolls, take no more words for as long as they like.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable

KEPT = 10_000
"""As many things wait for a reader who pauses; then the oldest are left out, and counted."""

Speak = Callable[[], object]


class Speaker:
    """Says in order what it is handed. May be used from any thread.

    Where saying something fails, what is said afterwards is told of it: whoever hands over the next thing, or waits.
    """

    def __init__(self, left_out: Callable[[int], object]) -> None:
        """`left_out` says, in the place of what was left out, how many things that were."""
        self._left_out = left_out
        self._changed = threading.Condition()
        self._waiting: deque[Speak] = deque()
        self._dropped = 0
        self._is_speaking = False
        self._problem: Exception | None = None
        self._thread: threading.Thread | None = None

    def say(self, speak: Speak) -> None:
        """Hand over something to be said. Raises what saying something before it has raised."""
        with self._changed:
            self._raise_problem()
            if len(self._waiting) >= KEPT:
                self._waiting.popleft()
                self._dropped += 1
            self._waiting.append(speak)
            self._changed.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="millpond-speaker", daemon=True)
                self._thread.start()

    def wait_said(self, timeout_s: float) -> bool:
        """Wait until all is said; False if some of it still is not. Raises what saying it has raised."""
        with self._changed:
            is_said = self._changed.wait_for(lambda: not self._waiting and not self._is_speaking, timeout_s)
            self._raise_problem()
            return is_said

    def _raise_problem(self) -> None:
        problem, self._problem = self._problem, None
        if problem is not None:
            raise problem

    def _run(self) -> None:
        while True:
            with self._changed:
                self._is_speaking = False
                self._changed.notify_all()
                self._changed.wait_for(lambda: self._waiting)
                speak = self._waiting.popleft()
                dropped, self._dropped = self._dropped, 0
                self._is_speaking = True
            try:
                if dropped:
                    self._left_out(dropped)
                speak()
            except Exception as problem:  # told to who has something to say: he knows what it means
                with self._changed:
                    self._problem = self._problem or problem
