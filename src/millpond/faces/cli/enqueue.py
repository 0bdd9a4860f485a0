"""`millpond enqueue`: rows of files become requests. Ids on stdout as they are durable, what was refused on stderr."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from millpond.faces.cli import terminal
from millpond.faces.cli.completion import file_names, lane_names
from millpond.faces.cli.given import Given, pass_given, shared
from millpond.faces.cli.rows import Rows
from millpond.faces.cli.sources import sources_of
from millpond.rules.errors import KeyConflict, UsageError
from millpond.rules.job import Request

if TYPE_CHECKING:
    from millpond.faces.cli.rows import Taking
    from millpond.intake import Defaults
    from millpond.queue import Queue
    from millpond.rows import Refused, Row
    from millpond.rules.job import Receipt

FORMATS = ("jsonl", "csv", "text", "parquet", "openai-batch")
"""Those of `rows`, which is loaded when there is something to read: it takes as long as all else here."""


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
@click.option("--delimiter", metavar="CHAR", help="What parts the columns of CSV, if no comma; tab is a tab.")
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
    delimiter: str | None,
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
    and reason, and the others go in all the same (exit 1). Columns that are not mapped are carried into the results,
    also those that a template writes. Without --map and --task the keys of a row are Prompt's. With --dry-run nothing
    is taken in and no queue is made: docs/money.md says what each figure means.
    """
    from millpond.intake import Defaults
    from millpond.rows.shape import schema_of

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
    read = partial(
        _read,
        model=model,
        intent=intent,
        format=format_,
        delimiter=_delimiter(delimiter),
        map=_pairs(maps, "map") if maps else None,
        task=task,
        system=system,
        schema=None if schema is None else schema_of(schema),  # once: it may be a pipe
        params={name: _json_or_text(name, value) for name, value in _pairs(params, "param").items()},
    )
    sources = sources_of(files, read, is_single=key is not None)
    rows_of = partial(Rows, defaults=defaults, each=each)
    if dry_run:
        from millpond.faces.cli.dry_run import estimate, queue_as_it_is

        with queue_as_it_is(given) as queue:
            take = _taking(queue)
            ctx.exit(estimate(queue, given, (rows_of(source, take) for source in sources), strict=strict))
    with given.open() as queue:
        take = _taking(queue)
        code = 0
        for source in sources:
            rows = rows_of(source, take)
            code = max(code, _enter(queue, given, rows, name or source.name, strict=strict))
    ctx.exit(code)


def _read(file: str, *, model: str | None, intent: str | None, **how: Any) -> Iterator[Row | Refused]:
    """The rows of a file, with the command line's model and intent where they have none of their own."""
    from millpond.rows import read_rows

    rows = read_rows(file, **how)
    return (_fill(row, model, intent or "") for row in rows) if model or intent else rows


def _fill(row: Row | Refused, model: str | None, intent: str) -> Row | Refused:
    if not isinstance(row, Request):
        return row
    return replace(row, work=replace(row.work, model=row.work.model or model, intent=row.work.intent or intent))


def _taking(queue: Queue) -> Taking:
    from millpond.intake import take

    return partial(take, registry=queue.registry, first_lane=queue.door.first_lane)


def _enter(queue: Queue, given: Given, rows: Rows, name: str, *, strict: bool) -> int:
    """Take every row of a file in as one submission, say what became of them, and return the exit code."""
    count = rows.count
    try:
        for receipts in (_all_or_none if strict else _by_chunks)(queue, rows, name):
            for receipt in receipts:  # all of them before any is printed: stdout may be closed, and they are in
                count.take(receipt)
            for receipt in receipts:
                terminal.say_json(receipt) if given.json else click.echo(receipt.job_id)
    finally:
        rows.tell_hidden()
        terminal.warn(count.in_words(queue.store.now_ms()), lines=True)
    if count.refused and strict:
        terminal.warn(f"millpond: {rows.title}: nothing was taken in, since --strict wants all rows or none")
    return 1 if count.refused else 0


def _by_chunks(queue: Queue, rows: Rows, name: str) -> Iterator[Iterable[Receipt]]:
    """The receipts of each transaction, once it is committed."""
    return rows.taken_by_chunks(queue.door.enqueue_stream(rows.asked(), submission=name, source="cli"))


def _all_or_none(queue: Queue, rows: Rows, name: str) -> Iterator[Iterable[Receipt]]:
    """The receipts of one transaction, once it is committed. It and they are on disk, whatever the file's size."""
    from millpond.db.tape import Tape
    from millpond.store.enqueue import Asked

    with Tape[tuple[int, Asked]]() as whole, Tape[Any]() as answers:
        for numbered in rows.numbered():
            whole.append(numbered)
        rows.check_end()
        if rows.count.refused:
            return
        asked, max_age_ms = (one for _, one in whole), queue.policy.artifact_max_age_ms
        if queue.store.enqueue_whole(asked, answers.append, name=name, source="cli", max_age_ms=max_age_ms):
            yield answers
            return
        for (line, _), answer in zip(whole, answers, strict=True):
            if isinstance(answer, KeyConflict):
                rows.refuse(line, str(answer))


def _check(given: Given, defaults: Defaults) -> None:
    """Refuse once, before anything is made, what would be refused for every row."""
    from millpond.engine.clock import wall_ms
    from millpond.rules.times import instant_ms

    if defaults.lane is not None:
        given.settings.policy.lane(defaults.lane)
    if defaults.due is not None:
        instant_ms(defaults.due, wall_ms(), field="due")


def _pairs(given: tuple[str, ...], option: str) -> Mapping[str, str]:
    pairs: dict[str, str] = {}
    for one in given:
        left, equals, right = one.partition("=")
        if not (left and equals and right):
            raise UsageError(f"--{option}: found {one[:40]!r}, wanted NAME=VALUE")
        if left in pairs:
            raise UsageError(f"--{option}: found {left[:40]!r} twice, wanted each name once")
        pairs[left] = right
    return pairs


def _json_or_text(name: str, value: str) -> Any:
    from json import JSONDecodeError

    from millpond.rows.shape import json_of

    try:
        return json_of(value)
    except JSONDecodeError:
        return value
    except UsageError as refusal:
        raise UsageError(f"--param {name[:40]}: {refusal}") from None


def _delimiter(said: str | None) -> str | None:
    """Tabs have a name, since a shell makes them hard to say."""
    return "\t" if said in ("tab", "\\t") else said
