"""`millpond enqueue`: rows of files become requests. Ids on stdout as they are durable, what was refused on stderr."""

from __future__ import annotations

import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from millpond.faces.cli import terminal
from millpond.faces.cli.completion import file_names, lane_names
from millpond.faces.cli.given import Given, pass_given, shared
from millpond.rules.errors import KeyConflict, UsageError
from millpond.rules.times import age_words

if TYPE_CHECKING:
    from millpond.intake import Defaults
    from millpond.queue import Queue
    from millpond.rows import Row
    from millpond.rules.job import Receipt
    from millpond.store.enqueue import Asked

    Taking = Callable[..., Asked]
    """`intake.take` with what a queue knows."""

Answer = TypeVar("Answer")

STDIN = "-"
FORMATS = ("jsonl", "csv", "text", "parquet", "openai-batch")
SHOWN_REFUSALS = 20
"""So many lines of refused rows stand on a terminal; a file (2> FILE) gets them all."""


@dataclass(slots=True)
class _Count:
    """What became of a file's rows."""

    dispositions: Counter[str] = field(default_factory=Counter[str])
    refused: int = 0
    answered_by: Counter[str] = field(default_factory=Counter[str])
    oldest_answer_ms: int | None = None

    def take(self, receipt: Receipt) -> None:
        self.dispositions[receipt.disposition] += 1
        if receipt.disposition == "reused" and receipt.answered_ms is not None:
            self.answered_by[receipt.answered_by or "unknown"] += 1
            self.oldest_answer_ms = min(receipt.answered_ms, self.oldest_answer_ms or receipt.answered_ms)

    def in_words(self, now_ms: int) -> str:
        kinds = [f"{self.dispositions[name]:,} {name}" for name in ("new", "joined", "reused")]
        words = " · ".join([*kinds, f"{self.refused:,} refused"])
        if self.oldest_answer_ms is not None:
            by = ", ".join(f"{n:,} by {name}" for name, n in self.answered_by.most_common(3))
            words += (
                f"\nreused: answered {by}, up to {age_words(now_ms - self.oldest_answer_ms)} ago; --fresh asks again"
            )
        return words


@click.command()
@click.argument("files", metavar="FILE... | -", nargs=-1, shell_complete=file_names)
@click.option("--name", metavar="NAME", help="Name of the submission; else the file's.")
@click.option("--map", "maps", metavar="FIELD=COLUMN", multiple=True, help="Take a field from a column; repeatable.")
@click.option("--task", metavar="TEMPLATE", help='The task over columns: "Classify: {text}".')
@click.option("--system", metavar="TEMPLATE", help="The system message, over columns too.")
@click.option("--schema", metavar="FILE", type=click.Path(path_type=Path), help="JSON Schema of the answers.")
@click.option("--param", "params", metavar="NAME=VALUE", multiple=True, help="Sampling parameter; repeatable.")
@click.option("--model", metavar="NAME", help="Only this model may answer.")
@click.option("--intent", metavar="INTENT", help="What routing goes by, where a row does not say.")
@click.option("--format", "format_", type=click.Choice(FORMATS), help="Else by the file's suffix and its first line.")
@click.option("--priority", type=int, default=0, help="Larger first.")
@click.option("--class", "service_class", type=click.Choice(["realtime", "batch"]), default="batch", show_default=True)
@click.option("--due", metavar="TIME", help='When it is wanted: "2h", or a moment with its zone.')
@click.option("--lane", metavar="LANE", help="Ask this lane first.", shell_complete=lane_names)
@click.option("--key", metavar="KEY", help="Idempotency key of your own, for a single row.")
@click.option("--sample", type=click.IntRange(0), metavar="N", help="Ask for the N-th sample of the same work.")
@click.option("--each", is_flag=True, help="The k-th identical row of a file is its k-th sample.")
@click.option("--separate", is_flag=True, help="Every row is a call of its own: nothing is joined or reused.")
@click.option("--fresh", is_flag=True, help="Retire answers in force and ask again.")
@click.option("--strict", is_flag=True, help="All rows of a file or none.")
@click.option("--dry-run", is_flag=True, help="Take nothing in; say what would be new, and what it would cost by lane.")
@shared()
@pass_given
@click.pass_context
def enqueue(
    ctx: click.Context,
    given: Given,
    files: tuple[str, ...],
    name: str | None,
    maps: tuple[str, ...],
    task: str | None,
    system: str | None,
    schema: Path | None,
    params: tuple[str, ...],
    model: str | None,
    intent: str | None,
    format_: Any,
    priority: int,
    service_class: Any,
    due: str | None,
    lane: str | None,
    key: str | None,
    sample: int | None,
    each: bool,
    separate: bool,
    fresh: bool,
    strict: bool,
    dry_run: bool,
) -> None:
    """Put the rows of JSONL, CSV, text, Parquet or OpenAI batch files into the queue; - or a pipe is standard input.

    Prints one job id a row, in the order of the file, as soon as it is durable. Rows that are refused are named by line
    and reason, and the others go in all the same (exit 1). Columns that are neither mapped nor used in a template are
    carried into the results. Without --map and --task the keys of a row are Prompt's. With --dry-run nothing is taken
    in and no queue is made: docs/money.md says what each figure means.
    """
    from millpond.intake import Defaults
    from millpond.rows import read_rows

    sources = files or ((STDIN,) if not sys.stdin.isatty() else ())
    if not sources:
        raise UsageError("found no FILE, wanted one or more, or - for standard input")
    read = partial(
        read_rows,
        format=format_,
        map=_pairs(maps, "map") if maps else None,
        task=task,
        system=system,
        schema=schema,
        params={name: _json_or_text(value) for name, value in _pairs(params, "param").items()},
    )
    defaults = Defaults(
        priority=priority,
        service_class=service_class,
        due=due,
        lane=lane,
        key=key,
        sample=sample,
        dedup=not separate,
        fresh=fresh,
        origin="cli",
    )
    _check(given, defaults)
    if key is not None and len(sources) > 1:
        raise _one_row_only(f"{len(sources)} files")
    begun: dict[str, Iterator[Any]] = {}
    for source in sources:  # what cannot be read at all is refused before anything is made or taken in
        if key is not None:
            begun[source] = _single(read(source))
        elif _is_stream(source):
            begun[source] = read(source)
        else:
            next(read(source))

    def rows_of(source: str) -> Iterator[Any]:
        return (_fill(row, model, intent) for row in begun.pop(source, None) or read(source))

    code = 0
    if dry_run:
        from millpond.faces.cli.foretell import foretell

        with foretell(given, strict=strict) as foresight:
            for source in sources:
                rows = Rows(source, defaults, foresight.take, each=each)
                foresight.look(rows, rows_of(source))
            ctx.exit(foresight.tell())
    with given.open() as queue:
        for source in sources:
            rows = Rows(source, defaults, _taking(queue), each=each)
            enter = _Entry(queue, given, rows, name or _name(source), strict=strict)
            code = max(code, enter.all(rows_of(source)))
    ctx.exit(code)


def _taking(queue: Queue) -> Taking:
    from millpond.intake import take

    return partial(take, registry=queue.registry, first_lane=queue.first_lane)


class Rows:
    """The rows of one file as requests: those that cannot be are named by line and reason, and counted."""

    def __init__(self, source: str, defaults: Defaults, take: Taking, *, each: bool) -> None:
        self.title = "stdin" if source == STDIN else source
        self.count = _Count()
        self._base = None if source == STDIN else Path(source).absolute().parent
        self._defaults = defaults
        self._take = take
        self._each = each
        self._hidden = 0
        """Refusals that were counted and not shown."""
        self._lines: deque[int] = deque()
        """Lines of what was asked and not answered yet, in order."""

    def asked(self, rows: Iterable[Any]) -> Iterator[Asked]:
        """The requests that the rows are."""
        from millpond.intake import each_samples

        asked = self._asked(rows)
        return each_samples(asked) if self._each else asked

    def taken(self, answers: Iterable[Answer | KeyConflict]) -> Iterator[Answer]:
        """What was answered to the requests, in their order, without the conflicts, which are refused."""
        for answer in answers:
            line = self._lines.popleft()
            if isinstance(answer, KeyConflict):
                self._refuse(line, str(answer))
            else:
                yield answer

    def tell_hidden(self) -> None:
        """Say how many refusals were not shown."""
        if self._hidden:
            terminal.warn(f"and {self._hidden:,} more; 2> FILE keeps them all")

    def _asked(self, rows: Iterable[Any]) -> Iterator[Asked]:
        from millpond.engine.clock import wall_ms
        from millpond.rows import Refused

        for position, row in enumerate(rows):
            if isinstance(row, Refused):
                self._refuse(row.line, row.reason)
                continue
            try:
                asked = self._take(row, position=position, defaults=self._defaults, now_ms=wall_ms(), base=self._base)
            except UsageError as refusal:
                self._refuse(row.line, str(refusal))
                continue
            self._lines.append(row.line)
            yield asked

    def _refuse(self, line: int, reason: str) -> None:
        self.count.refused += 1
        if self.count.refused > SHOWN_REFUSALS and terminal.is_terminal(sys.stderr):
            self._hidden += 1
            return
        terminal.warn(f"{self.title} line {line}: {reason}")


class _Entry:
    """One file on its way in, as one submission."""

    def __init__(self, queue: Queue, given: Given, rows: Rows, name: str, *, strict: bool) -> None:
        self.queue = queue
        self.given = given
        self.rows = rows
        self.name = name
        self.strict = strict
        self.count = rows.count

    def all(self, rows: Iterable[Any]) -> int:
        """Take every row in, say what became of them, and return the exit code."""
        try:
            for receipt in self.rows.taken(self._answers(self.rows.asked(rows))):
                self.count.take(receipt)
                terminal.say_json(receipt) if self.given.json else click.echo(receipt.job_id)
        finally:
            self.rows.tell_hidden()
            terminal.warn(self.count.in_words(self.queue.store.now_ms()), lines=True)
        if self.count.refused and self.strict:
            terminal.warn(f"millpond: {self.rows.title}: nothing was taken in, since --strict wants all rows or none")
        return 1 if self.count.refused else 0

    def _answers(self, asked: Iterable[Asked]) -> Iterator[Receipt | KeyConflict]:
        if not self.strict:
            yield from self.queue.enqueue_stream(asked, submission=self.name, source="cli")
            return
        whole = list(asked)
        if not self.count.refused:
            max_age_ms = self.queue.policy.artifact_max_age_ms
            yield from self.queue.store.enqueue_all(whole, name=self.name, source="cli", max_age_ms=max_age_ms)


def _check(given: Given, defaults: Defaults) -> None:
    """Refuse once, before anything is made, what would be refused for every row."""
    from millpond.engine.clock import wall_ms
    from millpond.rules.times import instant_ms

    if defaults.lane is not None:
        given.settings.policy.lane(defaults.lane)
    if defaults.due is not None:
        instant_ms(defaults.due, wall_ms(), field="due")


def _single(rows: Iterator[Any]) -> Iterator[Any]:
    """The one row there is, read already. Raises UsageError if there are more: they cannot share a key."""
    first = list(islice(rows, 2))
    if len(first) > 1:
        raise _one_row_only("more than one row")
    return iter(first)


def _one_row_only(found: str) -> UsageError:
    return UsageError(f"--key: found {found}, wanted a single row; --map key=COLUMN gives each row its own")


def _is_stream(source: str) -> bool:
    """Whether it can be read only once: standard input, a pipe, a device."""
    if source == STDIN:
        return True
    path = Path(source)
    return path.exists() and not (path.is_file() or path.is_dir())


def _fill(row: Any, model: str | None, intent: str | None) -> Row:
    """A row with the command line's model and intent where it has none of its own."""
    work = getattr(row, "work", None)
    if work is None or not (model or intent):
        return row
    return replace(row, work=replace(work, model=work.model or model, intent=work.intent or intent or ""))


def _pairs(given: tuple[str, ...], option: str) -> Mapping[str, str]:
    pairs: dict[str, str] = {}
    for one in given:
        left, equals, right = one.partition("=")
        if not (left and equals and right):
            raise UsageError(f"--{option}: found {one[:40]!r}, wanted NAME=VALUE")
        pairs[left] = right
    return pairs


def _json_or_text(value: str) -> Any:
    import json

    try:
        return json.loads(value)
    except ValueError:
        return value


def _name(source: str) -> str:
    return "stdin" if source == STDIN else Path(source).name
