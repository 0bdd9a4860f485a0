"""Results as a table: carried columns, typed columns of answers, ours; in CSV, Parquet, pandas and polars alike."""

from __future__ import annotations

import csv
import io
import json
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import millpond.tables.columnar
import millpond.tables.table
from millpond import Permanent, Policy, Prompt, Queue, Reply, Request, Result, read, results_table
from millpond.tables import Table, as_table, write_csv, write_parquet
from millpond.tables.kinds import JSON, Kind, ListKind, ObjectKind
from millpond.tables.table import OWN

SCHEMA = {
    "type": "object",
    "properties": {
        "label": {"type": "string"},
        "score": {"type": "number"},
        "n": {"type": "integer"},
        "sure": {"type": "boolean"},
        "words": {"type": "array", "items": {"type": "string"}},
        "place": {
            "type": "object",
            "properties": {"x": {"type": "integer"}, "y": {"type": "integer"}},
            "additionalProperties": False,
        },
        "more": {"type": "object"},
        "nobody": {"type": ["integer", "null"]},
    },
}
TYPES = {
    "label": pa.string(), "score": pa.float64(), "n": pa.int64(), "sure": pa.bool_(), "words": pa.list_(pa.string()),
    "place": pa.struct([("x", pa.int64()), ("y", pa.int64())]), "more": pa.string(), "nobody": pa.int64(),
}  # fmt: skip


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Queue]:
    with Queue.open(tmp_path / "pond", policy=Policy()) as queue:
        yield queue


def answer_all(queue: Queue, answers: Mapping[str, Any], schema: Any = None, **carried: Mapping[str, Any]) -> None:
    """Ask each task with the schema, and have it answered so; `carried` by task."""
    queue.enqueue_many(Request(Prompt(task, schema=schema), carried=carried.get(task)) for task in answers)
    queue.drain(lanes=lambda work: Reply(text=json.dumps(answers[work.task]), data=answers[work.task]))


def csv_rows(queue: Queue) -> list[dict[str, str]]:
    file = io.StringIO(newline="")
    with as_table(queue.store, queue.results()) as table:
        write_csv(table, file)
    file.seek(0)
    return list(csv.DictReader(file))


def test_every_field_of_a_result_has_its_columns() -> None:
    ours = [name for name in OWN if not name.startswith("error_")]
    assert [field.name for field in fields(Result) if field.name not in ("carried", "error")] == ours


def test_properties_of_the_schema_are_typed_columns_behind_the_carried_ones(queue: Queue) -> None:
    full = {"label": "a", "score": 1, "n": 3, "sure": True, "words": ["x"], "place": {"x": 1}, "more": {"k": [1]}}
    answer_all(queue, {"full": full, "bare": {"score": 0.5}}, SCHEMA, full={"id": 1}, bare={"id": 2})
    table = results_table(queue)
    assert table.column_names[:10] == ["id", *SCHEMA["properties"], "request_id"]
    assert {name: table.schema.field(name).type for name in TYPES} == TYPES
    first, second = table.to_pylist()
    assert {name: first[name] for name in TYPES} == {
        **full, "place": {"x": 1, "y": None}, "more": '{"k":[1]}', "nobody": None,
    }  # fmt: skip
    assert {name: second[name] for name in TYPES} == {**dict.fromkeys(TYPES), "score": 0.5}
    assert json.loads(first["data"]) == full
    assert (first["id"], table.schema.field("id").type) == (1, pa.int64())
    one, two = csv_rows(queue)
    assert {name: one[name] for name in TYPES} == {
        "label": "a", "score": "1", "n": "3", "sure": "true", "words": '["x"]', "place": '{"x":1}',
        "more": '{"k":[1]}', "nobody": "",
    }  # fmt: skip
    assert {name: two[name] for name in TYPES} == {**dict.fromkeys(TYPES, ""), "score": "0.5"}


def test_without_a_schema_the_columns_come_from_the_answers(queue: Queue) -> None:
    answer_all(queue, {"a": {"x": 1}, "b": {"x": 2.5, "y": "w"}, "c": [1], "d": "text", "e": {"x": None}})
    table = results_table(queue)
    assert table.column_names[:2] == ["x", "y"]
    assert table.column("x").to_pylist() == [1.0, 2.5, None, None, None]
    assert table.column("y").to_pylist() == [None, "w", None, None, None]
    assert table.column("data").to_pylist() == ['{"x":1}', '{"x":2.5,"y":"w"}', "[1]", '"text"', '{"x":null}']


def test_a_schema_that_asks_for_no_object_adds_no_column(queue: Queue) -> None:
    answer_all(queue, {"a": [1, 2]}, {"type": "array", "items": {"type": "integer"}})
    assert results_table(queue).column_names == [*OWN]


def test_rows_of_several_schemas_share_the_columns_of_all(queue: Queue) -> None:
    answer_all(queue, {"a": {"n": 1}}, {"properties": {"n": {"type": "integer"}, "m": {"type": "string"}}})
    answer_all(queue, {"b": {"n": 0.5}}, {"properties": {"n": {"type": "number"}, "k": {"type": "boolean"}}})
    table = results_table(queue)
    assert table.column_names[:4] == ["n", "m", "k", "request_id"]
    assert table.schema.field("n").type == pa.float64()
    assert table.column("n").to_pylist() == [1.0, 0.5]


def test_an_integer_that_was_written_with_a_point_is_an_integer(queue: Queue) -> None:
    schema = {"properties": {"n": {"type": "integer"}, "ns": {"type": "array", "items": {"type": "integer"}}}}
    answer_all(queue, {"a": {"n": 5.0, "ns": [5.0, 6]}, "b": {"n": 6, "ns": []}}, schema)
    table = results_table(queue)
    assert [table.schema.field(name).type for name in ("n", "ns")] == [pa.int64(), pa.list_(pa.int64())]
    assert table.select(["n", "ns"]).to_pylist() == [{"n": 5, "ns": [5, 6]}, {"n": 6, "ns": []}]
    assert [row["n"] for row in csv_rows(queue)] == ["5", "6"]


def test_a_value_that_no_type_holds_is_kept_as_json(queue: Queue) -> None:
    schema = {"properties": {"n": {"type": "integer"}}}
    answer_all(queue, {"a": {"n": 1}, "b": {"n": 2**70}}, schema)
    assert results_table(queue).column("n").to_pylist() == ["1", str(2**70)]


def test_names_that_are_taken_get_a_prefix(queue: Queue) -> None:
    carried = {"text": 1, "carried.text": 2, "label": 3, "data.label": 4}
    answer_all(queue, {"a": {"label": "x", "state": "y"}}, a=carried)
    table = results_table(queue)
    assert table.column_names[: -len(OWN)] == [
        "carried.carried.text", "carried.text", "label", "data.label", "data.data.label", "data.state",
    ]  # fmt: skip
    [row] = table.to_pylist()
    assert [row[name] for name in table.column_names[: -len(OWN)]] == [1, 2, 3, 4, "x", "y"]
    assert row["state"] == "done"


KIND = {"type": "object", "properties": {"kind": {"type": "string"}}, "required": ["kind"]}
KIND_AND_REMARK = {**KIND, "properties": {"kind": {"type": "string"}, "remark": {"type": "integer"}}}


@pytest.mark.parametrize("order", [(KIND, KIND_AND_REMARK), (KIND_AND_REMARK, KIND)])
def test_every_schema_that_was_asked_has_its_columns_in_whatever_order(queue: Queue, order: Any) -> None:
    queue.enqueue_many(Request(Prompt(str(at), schema=schema)) for at, schema in enumerate(order))
    queue.drain(lanes=lambda _: {"kind": "x"})
    assert results_table(queue).column_names[:3] == ["kind", "remark", "request_id"]


def test_schemas_beyond_a_bound_add_no_columns(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(millpond.tables.table, "MAX_SCHEMAS", 2)
    for name in "abc":
        answer_all(queue, {name: {name: 1, "a": 1}}, {"properties": {name: {"type": "integer"}}})
    assert results_table(queue).column_names[:3] == ["a", "b", "request_id"]
    assert results_table(queue).column("a").to_pylist() == [1, 1, 1]


@pytest.mark.parametrize("most", [10_000, 0])
def test_a_column_that_a_later_schema_lists_holds_the_values_of_earlier_rows(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(millpond.tables.table, "MAX_NAMES", most)
    answer_all(queue, {"early": {"kind": "x", "remark": "many"}}, KIND)
    answer_all(queue, {"late": {"kind": "y", "remark": 2}}, KIND_AND_REMARK)
    assert results_table(queue).column("remark").to_pylist() == ['"many"', "2"]


def test_answers_whose_keys_are_data_do_not_flood_the_columns(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(millpond.tables.table, "MAX_DATA_COLUMNS", 3)
    answer_all(queue, {str(n): {f"word{n}": n, f"other{n}": n} for n in range(5)})
    table = results_table(queue)
    assert table.column_names[:4] == ["word0", "other0", "word1", "request_id"]
    assert json.loads(table.column("data").to_pylist()[4].replace("'", '"')) == {"word4": 4, "other4": 4}


def test_failed_results_have_their_errors(queue: Queue) -> None:
    queue.enqueue("a")

    def refuse(work: Prompt) -> str:
        raise Permanent("no")

    queue.drain(lanes=refuse)
    assert results_table(queue).num_rows == 0
    [row] = results_table(queue, failed=True).to_pylist()
    assert (row["error_code"], row["state"], row["text"]) == ("said_permanent", "failed", None)


def test_a_table_is_written_a_chunk_at_a_time(queue: Queue, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    answer_all(queue, {str(n): {"n": n} for n in range(10)})
    for name, limit, groups in (("CHUNK_ROWS", 4, 3), ("CHUNK_CHARS", 1, 10)):
        with monkeypatch.context() as patch:
            patch.setattr(millpond.tables.columnar, name, limit)
            with as_table(queue.store, queue.results()) as table, (tmp_path / name).open("wb") as file:
                write_parquet(table, file)
        assert pq.ParquetFile(tmp_path / name).num_row_groups == groups
        assert pq.read_table(tmp_path / name).column("n").to_pylist() == list(range(10))


def test_lone_surrogates_are_replaced_where_nothing_holds_them(queue: Queue) -> None:
    answer_all(queue, {"a": {"\ud800": ["\udfff"]}})
    assert results_table(queue).to_pylist()[0]["\ufffd"] == ["\ufffd"]
    assert csv_rows(queue)[0]["\ufffd"] == '["\\udfff"]'


def test_names_that_differ_in_a_lone_surrogate_alone_keep_their_values(queue: Queue) -> None:
    answer = json.loads(r'{"\ud800":"a","\ud801":"b","\ufffd":"c","in":{"\ud800":1,"\ud801":2},"said":"\udfff"}')
    answer_all(queue, {"a": answer}, a={"\ufffd": "d"})
    table = results_table(queue)
    [row] = table.to_pylist()
    assert [row[name] for name in table.column_names[: -len(OWN)]] == [
        "d", "a", "b", "c", '{"\\ud800":1,"\\ud801":2}', "\ufffd",
    ]  # fmt: skip
    assert len(set(table.column_names)) == 6 + len(OWN)
    assert json.loads(row["data"]) == json.loads(csv_rows(queue)[0]["data"]) == answer


def test_pandas_and_polars_read_the_table_and_hand_it_in_again(queue: Queue) -> None:
    answer_all(queue, {"duck": {"legs": 2}, "newt": {"legs": 4}}, {"properties": {"legs": {"type": "integer"}}},
               duck={"id": "a"}, newt={"id": "b"})  # fmt: skip
    table = results_table(queue)
    pandas_frame, polars_frame = table.to_pandas(), polars.from_arrow(table)
    assert isinstance(polars_frame, polars.DataFrame)
    assert polars_frame.schema["legs"] == polars.Int64
    assert str(pandas_frame.dtypes["legs"]) == "int64"
    for frame in (pandas_frame, polars_frame):
        kept = frame[["id", "legs"]]
        [first, second] = read(kept, task="Why {legs} legs?", map={"custom_id": "id"})
        assert (first, second) == (
            Request(Prompt("Why 2 legs?"), custom_id="a", carried={"legs": 2}),
            Request(Prompt("Why 4 legs?"), custom_id="b", carried={"legs": 4}),
        )


# Round trips

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
CARRIED = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)
ROWS = st.lists(st.dictionaries(st.sampled_from(["a", "b", "text", 'c,"\n', "é\0"]), CARRIED), min_size=1, max_size=4)


def loaded(value: Any, kind: Kind) -> Any:
    """What stands in a typed column as it was before."""
    if value is None:
        return None
    match kind:
        case ListKind(item):
            return [loaded(one, item) for one in value]
        case ObjectKind(fields):
            return {name: loaded(value[name], field) for name, field in fields.items()}
        case _:
            return json.loads(value) if kind == JSON else value


@settings(max_examples=40, deadline=None)
@given(ROWS)
def test_what_is_carried_comes_back_from_parquet_and_csv(rows: list[dict[str, Any]]) -> None:
    with tempfile.TemporaryDirectory() as folder, Queue.open(folder, policy=Policy()) as queue:
        queue.enqueue_many(Request("x", carried=carried) for carried in rows)
        queue.drain(lanes=lambda work: "y")
        with as_table(queue.store, queue.results()) as table:
            file = io.BytesIO()
            write_parquet(table, file)
            carried = [column for column in table.columns if column.place == "carried"]
        found = pq.read_table(pa.BufferReader(file.getvalue())).to_pylist()
        cells = csv_rows(queue)
    assert {column.key for column in carried} == {name for row in rows for name in row}
    for given_, row, cell in zip(rows, found, cells, strict=True):
        for column in carried:
            value = given_.get(column.key)
            assert loaded(row[column.name], column.kind) == value
            if isinstance(value, str):
                assert cell[column.name] == value
            else:
                assert cell[column.name] == "" if value is None else json.loads(cell[column.name]) == value


def test_the_rows_of_a_table_are_read_only_while_it_is_open(queue: Queue) -> None:
    answer_all(queue, {"a": 1})
    with as_table(queue.store, queue.results()) as table:
        assert isinstance(table, Table)
        assert [row[table.columns.index(next(c for c in table.columns if c.name == "text"))] for row in table.rows()]
        assert len(list(table.rows())) == table.rows_count == 1
    with pytest.raises(ValueError, match="closed"):
        list(table.rows())
