"""From columns to a request: which column is which field, what is written around them, what applies to all."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from itertools import chain
from pathlib import Path
from typing import Any, NoReturn, cast

from millpond.rows.lines import why
from millpond.rows.template import Template, require, value_of
from millpond.rules.errors import UsageError
from millpond.rules.identity import found
from millpond.rules.job import Prompt, Request
from millpond.rules.openai_body import request_of_line
from millpond.rules.prompt import (
    PROMPT_FIELDS,
    REQUEST_FIELDS,
    mapping_of,
    prompt_of,
    short_name,
    tag_names,
    unknown_key,
)
from millpond.rules.schema import refuse_schema

TEXT_COLUMN = "text"
"""The one column that each line of a text file has, for maps and templates."""

ROW_KEYS = (*PROMPT_FIELDS, *REQUEST_FIELDS)
"""What a row may be made of: the fields of a Prompt and those of its Request."""

_REASON_CHARS = 400

TOO_DEEP = "found deeper nesting than can be read"


@dataclass(frozen=True, slots=True)
class Row(Request):
    """A Request that knows the line of the file on which it began, from 1."""

    line: int = 0


@dataclass(frozen=True, slots=True)
class Refused:
    """A row that is no request: the line on which it began, from 1, and why."""

    line: int
    reason: str


@dataclass(frozen=True, slots=True)
class Shape:
    """How a row becomes a request: which column is which field, what is written around them, what applies to all."""

    by_columns: bool
    map: Mapping[str, str]
    task: Template | None
    system: Template | None
    schema: Mapping[str, Any] | None
    params: Mapping[str, Any]
    fields: frozenset[str] = field(init=False)
    """Columns that are fields of the request; all others are carried."""
    written: frozenset[str] = field(init=False)
    """Columns that a template writes."""

    def __post_init__(self) -> None:
        templates = [template for template in (self.task, self.system) if template is not None]
        object.__setattr__(self, "fields", frozenset(self.map.values() if self.by_columns else ROW_KEYS))
        object.__setattr__(self, "written", frozenset(chain(*(template.columns for template in templates))))

    def for_text(self) -> Shape:
        """A line of text is its task unless a map or template says otherwise."""
        if self.by_columns:
            return self
        return Shape(True, {"task": TEXT_COLUMN}, None, self.system, self.schema, self.params)

    def check_batch(self, title: str = "format openai-batch") -> None:
        """Refuse what says again, or says otherwise, what the lines of a batch file say themselves."""
        for argument, said in (("map", self.map), ("task", self.task), ("system", self.system)):
            if said:
                raise UsageError(
                    f"{title}: found {argument}, wanted none; the lines of a batch file have bodies of their own"
                )

    def check(self, header: Collection[str], title: str) -> None:
        """Refuse the whole file where every row would be refused for its columns."""
        for template in (self.task, self.system):
            for name in template.columns if template else ():
                require(header, name, f"{title}: {cast(Template, template).argument}")
        for target, name in self.map.items():
            require(header, name, f"{title}: {target}")
        for name in () if self.by_columns else header:
            if name not in ROW_KEYS and name not in self.written:
                raise UsageError(f"{title}: {_not_a_key(name)}")

    def row(self, columns: Mapping[str, Any], line: int, *, are_cells: bool = False) -> Row:
        """The request that these columns ask. `are_cells` says that the values are cells of a table.

        A cell cannot be left out, so an empty text is no value; and fields that are no text may be written as one.
        """
        said = self._mapped(columns) if self.by_columns else self._keyed(columns)
        if are_cells:
            said = {name: _from_cell(name, value) for name, value in said.items() if value != ""}
        if self.task is not None:
            said["task"] = self.task.fill(columns)
        if self.system is not None and said.get("system") is None:
            said["system"] = self.system.fill(columns)
        if self.schema is not None and said.get("schema") is None:
            said["schema"] = self.schema
        if self.params:
            said["params"] = {**self.params, **(mapping_of(said.get("params"), "params") or {})}
        rest = {name: value for name, value in columns.items() if name not in self.fields}
        carried = mapping_of({**rest, **(mapping_of(said.get("carried"), "carried") or {})}, "carried")
        return Row(
            work=prompt_of({name: value for name, value in said.items() if name in PROMPT_FIELDS}),
            custom_id=_name(said, "custom_id"),
            carried=carried,
            key=_name(said, "key"),
            label=_name(said, "label"),
            tags=tag_names(said.get("tags")),
            line=line,
        )

    def _mapped(self, columns: Mapping[str, Any]) -> dict[str, Any]:
        said = {target: value_of(columns, name, target) for target, name in self.map.items()}
        task = said.get("task")
        if "task" in said and not isinstance(task, str):
            name = self.map["task"]
            raise UsageError(
                f"task: found {found(task)} in column {name[:40]!r}, wanted text; "
                f"the template {{{name[:40]}}} writes numbers as text"
            )
        return said

    def _keyed(self, columns: Mapping[str, Any]) -> dict[str, Any]:
        said: dict[str, Any] = {}
        if "body" in columns and "body" not in self.written:
            raise UsageError(unknown_key("body"))
        for name, value in columns.items():
            if name in ROW_KEYS:
                said[name] = value
            elif name not in self.written:
                raise UsageError(_not_a_key(name))
        return said


@dataclass(frozen=True, slots=True)
class BatchShape:
    """How the lines of an OpenAI batch file become requests: they say everything but what applies to all."""

    schema: Mapping[str, Any] | None
    params: Mapping[str, Any]
    first_line_of: dict[str, int] = field(default_factory=dict[str, int])
    """custom_id -> the line that had it first."""

    def row(self, columns: Mapping[str, Any], line: int, *, are_cells: bool = False) -> Row:
        """The request of one line. A custom_id counts as met even where its line is refused for something else."""
        if "body" not in columns:
            raise UsageError('found no body, wanted {"custom_id": …, "method": "POST", "url": …, "body": {…}}')
        custom_id = short_name(columns.get("custom_id"), "custom_id")
        if custom_id is None:
            raise UsageError("custom_id: found none, wanted a name that no other line has")
        if (first := self.first_line_of.setdefault(custom_id, line)) != line:
            raise UsageError(f"custom_id: found {custom_id[:40]!r} again, which names line {first}; wanted each once")
        work: Prompt = request_of_line(columns).work
        schema = self.schema if work.schema is None and "response_format" not in work.params else work.schema
        work = replace(work, schema=schema, params={**self.params, **work.params})
        return Row(work, custom_id=custom_id, line=line)


def row_or_refusal(
    shape: Shape | BatchShape,
    line: int,
    columns_of: Callable[[Any], Mapping[str, Any]],
    raw: object,
    *,
    are_cells: bool = False,
) -> Row | Refused:
    """The row, or why there is none."""
    try:
        return shape.row(columns_of(raw), line, are_cells=are_cells)
    except UsageError as problem:
        reason = str(problem)
    except RecursionError:
        reason = TOO_DEEP
    return Refused(line, reason if len(reason) <= _REASON_CHARS else f"{reason[:_REASON_CHARS]}…")


def _not_a_key(name: str) -> str:
    return f"{unknown_key(name, ROW_KEYS)}; a column of your own needs a map or a template"


def checked_map(given: Mapping[str, str], task: str | None, system: str | None) -> dict[str, str]:
    """A map of fields to columns; UsageError for one that cannot be, or that says again what a template says."""
    if not isinstance(cast(Any, given), Mapping):
        raise UsageError(f"map: found {found(given)}, wanted a mapping of fields to columns such as task=question")
    for target, column in cast(Mapping[Any, Any], given).items():
        if target not in ROW_KEYS:
            close = get_close_matches(str(target)[:40], ROW_KEYS, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else f"; fields: {', '.join(ROW_KEYS)}"
            raise UsageError(f"map: unknown field {str(target)[:40]!r}{hint}")
        if not isinstance(column, str):
            raise UsageError(f"map: found {found(column)} for {target}, wanted the name of a column")
        if (task is not None and target == "task") or (system is not None and target == "system"):
            raise UsageError(f"map: found {target} both mapped and as a template, wanted one of them")
    return dict(given)


def schema_of(given: object) -> dict[str, Any] | None:
    """A schema that is given as a mapping or as the path of a JSON file; UsageError for one that cannot be asked."""
    if not isinstance(given, (str, os.PathLike)):
        return _checked_schema(mapping_of(given, "schema"), "schema")
    path = Path(cast("str | os.PathLike[str]", given))
    try:
        value = json_of(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, UsageError) as problem:
        raise UsageError(f"schema: cannot read {str(path)[-80:]!r}: {why(problem)}; wanted a JSON file") from problem
    where = f"schema: {str(path)[-80:]!r}"
    if not isinstance(value, dict):
        raise UsageError(f'{where}: found {found(value)}, wanted an object such as {{"type": "object", …}}')
    return _checked_schema(mapping_of(cast("dict[str, Any]", value), "schema"), where)


def _checked_schema(schema: dict[str, Any] | None, where: str) -> dict[str, Any] | None:
    """The schema, if answers can be held against it: it stands beside every row, so it is looked at once, here."""
    if schema is None:
        return None
    if refusal := refuse_schema(schema):
        raise UsageError(f"{where}: found no JSON Schema that can be asked: {refusal[:200]}")
    return schema


def _from_cell(target: str, cell: Any) -> Any:
    """What the text of a cell says for a field that is not text."""
    if not isinstance(cell, str):
        return cell
    if target in ("messages", "schema", "tools", "params", "carried"):
        return _cell_json(target, cell)
    if target in ("tags", "images") and cell.lstrip().startswith("["):
        return _cell_json(target, cell)
    if target == "tags":
        return [tag.strip() for tag in cell.split(",") if tag.strip()]
    return [cell] if target == "images" else cell


def _cell_json(target: str, cell: str) -> Any:
    try:
        return json_of(cell)
    except UsageError as refusal:
        raise UsageError(f"{target}: {refusal}") from None
    except ValueError as problem:
        raise UsageError(f"{target}: found {cell[:40]!r}, wanted JSON ({problem})") from None


def json_of(text: str) -> Any:
    """What a JSON text says. Raises JSONDecodeError for what is none, UsageError for what Python reads otherwise."""
    try:
        return json.loads(text, parse_constant=_no_constant, object_pairs_hook=_each_once)
    except json.JSONDecodeError:
        raise
    except ValueError as problem:  # more digits than Python reads
        raise UsageError(f"found a number that cannot be read: {problem}") from None
    except RecursionError:
        raise UsageError(TOO_DEEP) from None


def _no_constant(name: str) -> NoReturn:
    """Refuse NaN and Infinity, which Python would read as JSON."""
    raise UsageError(f"found {name}, wanted a finite number; JSON has no NaN or Infinity")


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Refuse a key that stands twice in an object: Python would keep the last, and nobody would be told."""
    keys = dict(pairs)
    if len(keys) < len(pairs):
        counts = Counter(name for name, _ in pairs)
        raise UsageError(f"found the key {counts.most_common(1)[0][0][:40]!r} twice in one object, wanted it once")
    return keys


def _name(said: Mapping[str, Any], target: str) -> str | None:
    """A name of the request's; whole numbers count as their digits, since ids often are numbers."""
    value = said.get(target)
    if isinstance(value, float):
        hint = "in a frame, a gap makes floats of whole numbers: cast the column to text or Int64"
        raise UsageError(f"{target}: found {found(value)}, wanted text or a whole number; {hint}")
    return short_name(str(value) if type(value) is int else value, target)
