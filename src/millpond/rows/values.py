"""Arrow's values in JSON: for each type of column the text, number or list that its values become, or its refusal.

Times are ISO 8601 and keep every digit of their unit: an instant in UTC with a `Z`, a time without a zone as it is.
They are computed from the stored numbers, since Python's own types end at microseconds and at the year 9999.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import date, timedelta
from functools import partial
from itertools import islice
from typing import Any
from uuid import UUID

from millpond.arrow import arrow
from millpond.rules.errors import UsageError

Reader = Callable[[Any], list[Any]]
"""An array -> its values as JSON has them."""

_PER_S = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_DAY_S = 86_400
_CYCLE_YEARS, _CYCLE_DAYS = 400, 146_097
"""The calendar repeats itself after so many years, and they have so many days."""


def reader_of(field: Any, column: str) -> Reader:
    """How the values of a field are read. Raises UsageError, naming the column, for a type that JSON cannot hold."""
    said: Mapping[bytes, bytes] = field.metadata or {}
    if name := said.get(b"ARROW:extension:name"):  # nobody has registered it here, so its type is that of its storage
        return _extension(name.decode(errors="replace"), column)
    return _reader_of_type(field.type, column)


def _extension(name: str, column: str) -> Reader:
    """How the storage of a type of somebody's own is read.

    What it means is known of few: a period is stored as a number, which says nothing without its frequency.
    """
    if name not in _EXTENSIONS:
        raise _refusal(f"values of the type {name[:60]}", column)
    return _EXTENSIONS[name]


def _reader_of_type(kind: Any, column: str) -> Reader:
    if isinstance(kind, arrow().BaseExtensionType):
        extension = _extension(kind.extension_name, column)
        return lambda array: extension(array.storage)
    for name, reader in _SIMPLE.items():
        if _is(kind, name):
            return reader
    for name, reader_by_type in _BY_TYPE.items():
        if _is(kind, name):
            return reader_by_type(kind, column)
    raise _refusal("bytes" if "binary" in str(kind) else f"values of type {str(kind)[:60]}", column)


def _refusal(what: str, column: str) -> UsageError:
    wanted = "wanted what JSON can hold; leave the column out, or write it as text"
    return UsageError(f"column {column[:40]!r}: found {what}, {wanted}")


def _is(kind: Any, name: str) -> bool:
    """Whether a type is of a family; not all of them are known to every pyarrow."""
    claim = getattr(arrow().types, f"is_{name}", None)
    return claim is not None and claim(kind)


def _each(array: Any, written: Callable[[Any], Any]) -> list[Any]:
    return [None if value is None else written(value) for value in array.to_pylist()]


# One value each


def _as_they_are(array: Any) -> list[Any]:
    return array.to_pylist()


def _texts(array: Any) -> list[Any]:
    try:
        return array.to_pylist()
    except UnicodeDecodeError:
        # Nobody has checked them; what is no UTF-8 goes on as lone surrogates, for which its row is refused.
        return _each(array.cast(arrow().binary()), lambda value: value.decode(errors="surrogateescape"))


def _floats(array: Any) -> list[Any]:
    """NaN is what frames write for a value that is not there, and JSON has no word for it."""
    return [None if value is None or value != value else float(value) for value in array.to_pylist()]


def _decimals(array: Any) -> list[Any]:
    return _each(array, lambda value: format(value, "f"))


def _date(days: int) -> str:
    cycles, day = divmod(days, _CYCLE_DAYS)
    on = date(1970, 1, 1) + timedelta(day)
    year = on.year + _CYCLE_YEARS * cycles
    return (f"{year:04d}" if 0 <= year <= 9999 else f"{year:+07d}") + f"{on:-%m-%d}"


def _clock(parts: int, per_s: int) -> str:
    seconds, rest = divmod(parts, per_s)
    return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}{_fraction(rest, per_s)}"


def _fraction(rest: int, per_s: int) -> str:
    return f".{rest:0{len(str(per_s)) - 1}d}" if rest else ""


def _uuids(array: Any) -> list[Any]:
    return _each(array, lambda value: str(UUID(bytes=value)))


def _truths(array: Any) -> list[Any]:
    return _each(array, bool)


def _dates(kind: Any, _: str) -> Reader:
    if _is(kind, "date32"):
        return lambda array: _each(array.view("int32"), _date)
    return lambda array: _each(array.view("int64"), lambda ms: _date(ms // (_DAY_S * 1_000)))


def _times(kind: Any, _: str) -> Reader:
    whole = "int32" if kind.bit_width == 32 else "int64"
    return lambda array: _each(array.view(whole), partial(_clock, per_s=_PER_S[kind.unit]))


def _timestamps(kind: Any, _: str) -> Reader:
    per_s = _PER_S[kind.unit]
    zone = "" if kind.tz is None else "Z"

    def written(parts: int) -> str:
        days, rest = divmod(parts, _DAY_S * per_s)
        return f"{_date(days)}T{_clock(rest, per_s)}{zone}"

    return lambda array: _each(array.view("int64"), written)


def _durations(kind: Any, _: str) -> Reader:
    per_s = _PER_S[kind.unit]

    def written(parts: int) -> str:
        seconds, rest = divmod(abs(parts), per_s)
        return f"{'-' * (parts < 0)}PT{seconds}{_fraction(rest, per_s)}S"

    return lambda array: _each(array.view("int64"), written)


# Values of values


def _lists(kind: Any, column: str) -> Reader:
    inner = reader_of(kind.value_field, column)

    def read(array: Any) -> list[Any]:
        lengths = arrow("pyarrow.compute").list_value_length(array).to_pylist()
        values = iter(inner(array.flatten()))
        return [None if length is None else list(islice(values, length)) for length in lengths]

    return read


def _structs(kind: Any, column: str) -> Reader:
    fields = [kind.field(at) for at in range(kind.num_fields)]
    names = [field.name for field in fields]
    if twice := next((name for at, name in enumerate(names) if name in names[:at]), None):
        raise UsageError(f"column {column[:40]!r}: found two fields named {twice[:40]!r}, wanted each once")
    inner = [reader_of(field, column) for field in fields]

    def read(array: Any) -> list[Any]:
        parts = [one(part) for one, part in zip(inner, array.flatten(), strict=True)]
        rows = zip(*parts, strict=True) if parts else ((),) * len(array)
        return [
            None if is_null else dict(zip(names, row, strict=True))
            for is_null, row in zip(array.is_null().to_pylist(), rows, strict=True)
        ]

    return read


def _maps(kind: Any, column: str) -> Reader:
    """A map is an object, as its keys are texts."""
    pyarrow = arrow()
    if not (_is(kind.key_type, "string") or _is(kind.key_type, "large_string") or _is(kind.key_type, "string_view")):
        raise UsageError(f"column {column[:40]!r}: found a map of {kind.key_type}, wanted one of texts, as JSON has")
    pairs = pyarrow.list_(pyarrow.struct([kind.key_field.with_name("key"), kind.item_field.with_name("value")]))
    inner = _reader_of_type(pairs, column)
    return lambda array: [
        None if value is None else {pair["key"]: pair["value"] for pair in value} for value in inner(array.cast(pairs))
    ]


def _dictionaries(kind: Any, column: str) -> Reader:
    """Only the entries that a batch uses are read: a dictionary may be longer than all that is read of its column."""
    inner = _reader_of_type(kind.value_type, column)

    def read(array: Any) -> list[Any]:
        at: list[int | None] = array.indices.to_pylist()
        used: dict[int | None, Any] = {one: inner(array.dictionary.slice(one, 1))[0] for one in {*at} - {None}}
        return [used.get(one) for one in at]

    return read


def _run_ends(kind: Any, column: str) -> Reader:
    inner = _reader_of_type(kind.value_type, column)
    return lambda array: inner(arrow("pyarrow.compute").run_end_decode(array))


_SIMPLE: Mapping[str, Reader] = {
    "null": _as_they_are,
    "boolean": _as_they_are,
    "integer": _as_they_are,
    "string": _texts,
    "large_string": _texts,
    "string_view": _texts,
    "floating": _floats,
    "decimal": _decimals,
}
"""Family of types -> how an array of it is read."""

_EXTENSIONS: Mapping[str, Reader] = {
    "arrow.uuid": _uuids,
    "arrow.bool8": _truths,
    "arrow.json": _texts,
}
"""Types beyond Arrow's own -> how an array of their storage is read."""

_BY_TYPE: Mapping[str, Callable[[Any, str], Reader]] = {
    "date": _dates,
    "time": _times,
    "timestamp": _timestamps,
    "duration": _durations,
    "list": _lists,
    "large_list": _lists,
    "fixed_size_list": _lists,
    "list_view": _lists,
    "large_list_view": _lists,
    "struct": _structs,
    "map": _maps,
    "dictionary": _dictionaries,
    "run_end_encoded": _run_ends,
}
"""Family of types -> how a type of it is read, and the types in it; the name of the column is for refusals."""
