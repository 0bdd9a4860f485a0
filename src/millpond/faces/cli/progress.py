"""What a drain shows while it runs: a live screen on a terminal, one line an event elsewhere."""

from __future__ import annotations

import logging
import sys
import time
from collections import deque
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from millpond.faces.cli import terminal
from millpond.faces.cli.failing import BROKEN_PIPE, IO_REFUSED
from millpond.faces.cli.signals import Signals, exit_code_of, leave_now
from millpond.faces.cli.speaker import Speaker
from millpond.report.words import usd
from millpond.rules.lifecycle import pending
from millpond.rules.stops import stop_of

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live

    from millpond.engine.drain import Drainer
    from millpond.engine.happening import Happening
    from millpond.queue import Queue

LAST_EVENTS = 6
PARTING_S = 0.5
"""How long a drain that a signal has ended waits for a reader who pauses."""
EVERY_S = 10.0
"""How often a summary line stands between the events of a drain that nobody watches live."""


class Progress:
    """Tells what happens in a drain. `tell` and `note` may be called from any thread.

    A drain whose events cannot be told any more is stopped, as by a first signal; a daemon's goes on untold. Where the
    reader only pauses, the drain does not wait for him: what he is told waits, and is left out where it is too much.
    """

    def __init__(self, queue: Queue, *, to_stderr: bool = False, every: int = 1, is_of_a_daemon: bool = False) -> None:
        """`every` above 1 shows, off a terminal, that share of the events, and a lane's closing once."""
        self.exit_code = 0
        """Not 0 once the events cannot be told: their reader has left, or what they are written to is full."""
        self._is_of_a_daemon = is_of_a_daemon
        self._queue = queue
        self._to_stderr = to_stderr
        self._every = every
        self._n_events = 0
        self._closed: set[str] = set()
        self._is_live = terminal.is_terminal() and not to_stderr
        self._events: deque[str] = deque(maxlen=LAST_EVENTS)
        self._drainer: Drainer | None = None
        self._speaker = Speaker(lambda lines: self._print(f"… {lines:,} lines are left out"))
        self._last_screen: RenderableType | None = None
        self._title = ""
        self._began_s = self._told_s = time.monotonic()
        self._settled_before = 0

    def tell(self, happening: Happening) -> None:
        """One thing happened. An attempt that went well is told by the job that it answered."""
        if happening.kind == "ended" and happening.words == "ok":
            return
        if self._every > 1 and not self._is_worth_a_line(happening):
            return
        job = f"job {happening.job_id}" if happening.job_id is not None else "lane"
        where = " ".join(filter(None, (happening.kind, job, happening.lane)))
        self.note(f"{where}: {happening.words}".rstrip(": "))
        if not self._is_live and time.monotonic() - self._told_s >= EVERY_S:
            self._told_s = time.monotonic()
            self._line(self._counts_in_words(self._queue.counts()))

    def _is_worth_a_line(self, happening: Happening) -> bool:
        if happening.kind == "closed":
            is_first = happening.lane not in self._closed
            self._closed.add(happening.lane)
            return is_first
        if happening.kind in ("kept", "written"):
            return True
        self._n_events += 1
        return self._is_live or self._n_events % self._every == 0

    def note(self, words: str) -> None:
        """Show one line."""
        line = f"{datetime.now():%H:%M:%S} {terminal.plain(words)}"
        if self._is_live:
            self._events.append(line)
        else:
            self._line(line)

    @contextmanager
    def of(self, drainer: Drainer, title: str) -> Generator[None]:
        """Show the progress of this drainer while the block runs."""
        self._drainer, self._title = drainer, terminal.plain(title)
        self._settled_before = _settled(self._queue.counts())
        with _warnings_said(self._speaker):
            if not self._is_live:
                lanes = ", ".join(drainer.tab.lanes)
                self._line(f"draining {self._title}  lanes {terminal.plain(lanes)}")
                yield
                return
            from rich.live import Live

            live = Live(get_renderable=self._screen, refresh_per_second=4, redirect_stdout=False, redirect_stderr=False)
            self._speaker.say(live.start)
            try:
                yield
            finally:
                self._last_screen = self._screen()  # it may be shown when the queue is closed
                self._speaker.say(partial(_stop, live))

    def wait_said(self, signals: Signals) -> None:
        """Wait until all is said, as long as the reader may pause. After a signal that ends us, for PARTING_S only."""
        while not self._speaker.wait_said(PARTING_S):
            if signals.ending:
                leave_now(exit_code_of(signals.ending[0]))

    def say(self, speak: Callable[[], None], signals: Signals) -> None:
        """Say something else after all that, and wait for it in the same way."""
        self._speaker.say(speak)
        self.wait_said(signals)

    def _line(self, text: str) -> None:
        self._speaker.say(partial(self._print, text))

    def _print(self, text: str) -> None:
        try:
            click.echo(terminal.without_secrets(text), err=self._to_stderr)
        except OSError as problem:
            stream = sys.stderr if self._to_stderr else sys.stdout
            has_left = isinstance(problem, BrokenPipeError) or stream.isatty()
            terminal.discard(stream)
            if self.exit_code:
                return
            self.exit_code = BROKEN_PIPE if has_left else IO_REFUSED
            if not has_left:
                with suppress(OSError):
                    terminal.warn(f"millpond: {stream.name}: {problem.strerror}; events are told no more; make room")
            if self._drainer is not None and not self._is_of_a_daemon:
                self._drainer.stop()

    def _screen(self) -> RenderableType:
        if self._last_screen is not None:
            return self._last_screen
        from rich.console import Group
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        assert self._drainer is not None
        tab, counts = self._drainer.tab, self._queue.counts()
        settled = _settled(counts) - self._settled_before
        total = settled + pending(counts)
        elapsed_s = int(time.monotonic() - self._began_s)
        clock = f"{elapsed_s // 3600:02}:{elapsed_s // 60 % 60:02}:{elapsed_s % 60:02}"
        bar = Table.grid(padding=(0, 1), expand=True)
        bar.add_column(ratio=1)
        bar.add_column()
        bar.add_row(ProgressBar(total=max(total, 1), completed=settled), f"{settled:,}/{total:,}")
        twice = f"paid twice {tab.paid_twice:,}"
        saved = f"saved by dedup {tab.saved:,} ({usd(tab.saved_usd)})"
        closed, stops = self._queue.store.closed_lanes(), self._queue.store.stops()
        free_lanes = self._queue.policy.free_lanes
        table = Table(box=None, pad_edge=False, header_style="bold")
        for heading, side in (("lane", "left"), ("slots", "right"), ("ok", "right"), ("ambig", "right"),
                              ("sat", "right"), ("spend", "right"), ("state", "left")):  # fmt: skip
            table.add_column(heading, justify="left" if side == "left" else "right", no_wrap=True)
        for name, lane in tab.lanes.items():
            policy = self._queue.policy.lanes.get(name)
            width = f"/{policy.width}" if policy else ""
            state = closed[name].closed_by if name in closed else "open"
            state = "stopped" if stop_of(stops, name, free_lanes) else state
            cells: list[Any] = [name, f"{lane.in_flight}{width}", f"{lane.outcomes['ok']:,}"]
            cells += [f"{lane.outcomes['ambiguous']:,}", f"{lane.outcomes['saturated']:,}", usd(lane.spent), state]
            table.add_row(*(Text(terminal.plain(str(cell))) for cell in cells))
        head = Text(f"millpond drain  {self._title}  {clock}", style="bold")
        figures = Text(f"{self._counts_in_words(counts)}   {saved}   {twice}")
        events = Text(terminal.without_secrets("\n".join(self._events)), style="dim", overflow="ellipsis", no_wrap=True)
        return Group(head, bar, figures, table, events)

    @staticmethod
    def _counts_in_words(counts: dict[str, int]) -> str:
        names = ("ready", "leased", "held", "done", "failed")
        return "  ".join(f"{name} {counts[name]:,}" for name in names)


def _stop(live: Live) -> None:
    with suppress(OSError):  # the terminal is gone
        live.stop()


@contextmanager
def _warnings_said(speaker: Speaker) -> Generator[None]:
    """Let what is logged while the block runs be said in turn: it goes to the same terminal, whose reader may pause."""
    log, handler = logging.getLogger("millpond"), _Saying(speaker)
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)


class _Saying(logging.Handler):
    """Takes the place of the handler of last resort; where a lane's code has set up others, these speak for us."""

    def __init__(self, speaker: Speaker) -> None:
        super().__init__(logging.WARNING)
        self._speaker = speaker

    def emit(self, record: logging.LogRecord) -> None:
        """Hand over one line."""
        if not logging.getLogger().handlers:
            self._speaker.say(partial(_warn, terminal.plain(self.format(record), lines=True)))


def _warn(text: str) -> None:
    with suppress(OSError):  # nobody reads it
        terminal.warn(text, lines=True)


def _settled(counts: dict[str, int]) -> int:
    return counts["done"] + counts["failed"] + counts["cancelled"]
