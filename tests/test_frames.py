"""Tables with types: Parquet files and data frames become requests, a batch at a time, with values that JSON has."""

from __future__ import annotations

import io
import json
import sys
import tracemalloc
from collections.abc import Iterator
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pandas
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond import Policy, Queue
from millpond.rows import Refused, Row, read, read_rows
from millpond.rows.frames import BATCH_ROWS
from millpond.rules.errors import UsageError
from millpond.rules.job import Prompt, Request


def parquet(path: Path, columns: Any, **how: Any) -> Path:
    pq.write_table(columns if isinstance(columns, pa.Table) else pa.table(columns), path, **how)
    return path


def carried(kind: pa.DataType, *values: Any) -> list[Any]:
    """What a column of this type carries, values given as pyarrow takes them."""
    column = pa.array(values, kind)
    rows = list(read(pa.table({"q": ["x"] * len(values), "c": column}), map={"task": "q"}))
    found = [(row.carried or {})["c"] for row in rows]
    assert json.loads(json.dumps(found)) == found
    return found


def refusal(source: Any, **options: Any) -> str:
    with pytest.raises(UsageError) as caught:
        list(read(source, **options))
    return str(caught.value)


# Files


def test_a_parquet_file_is_rows_with_columns(tmp_path: Path) -> None:
    path = parquet(tmp_path / "x.parquet", {"id": [7, 8], "q": ["duck", "newt"], "legs": [2, None], "a": [[1], []]})
    assert list(read_rows(path, task="A {q}?", map={"custom_id": "id"})) == [
        Row(Prompt("A duck?"), custom_id="7", carried={"q": "duck", "legs": 2, "a": [1]}, line=1),
        Row(Prompt("A newt?"), custom_id="8", carried={"q": "newt", "legs": None, "a": []}, line=2),
    ]
    assert type(next(read(path, task="{q}"))) is Request


def test_without_a_map_the_columns_are_a_prompts(tmp_path: Path) -> None:
    columns = {
        "task": ["x", "y"], "params": [{"seed": 1}, {"seed": 2}], "schema": ['{"type": "object"}', ""],
        "tags": [["a"], None], "messages": [None, [{"role": "user", "content": "hi"}]], "label": ["l", ""],
    }  # fmt: skip
    assert list(read(parquet(tmp_path / "x.parquet", columns))) == [
        Request(Prompt("x", params={"seed": 1}, schema={"type": "object"}), label="l", tags=("a",)),
        Request(Prompt("y", params={"seed": 2}, messages=[{"role": "user", "content": "hi"}])),
    ]
    assert "unknown key 'q'" in refusal(parquet(tmp_path / "y.parquet", {"q": ["x"]}))


def test_bad_rows_are_refused_by_number_while_good_ones_go_on(tmp_path: Path) -> None:
    path = parquet(tmp_path / "x.parquet", {"q": ["a", None, "c"], "n": [1.0, 2.0, float("inf")]})
    first, second, third = read_rows(path, task="{q}")
    assert isinstance(first, Row)
    assert second == Refused(2, "found null in column 'q', wanted text or a number for the template")
    assert isinstance(third, Refused)
    assert (third.line, "carried.n: found inf" in third.reason) == (3, True)


def test_a_text_that_is_no_utf8_refuses_its_row_alone() -> None:
    texts = pa.array([b"a", b"Ent\xe9", b"c"]).cast(pa.string(), safe=False)
    rows = list(read_rows(pa.table({"q": texts}), map={"task": "q"}))
    assert [type(row) for row in rows] == [Row, Refused, Row]
    assert isinstance(rows[1], Refused)
    assert "U+DCE9" in rows[1].reason


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"q": ["x"], "pic": [b"\x89PNG"]}, "column 'pic': found bytes, wanted what JSON can hold"),
        ({"q": ["x"], "pics": [[b"\x89PNG"]]}, "column 'pics': found bytes"),
        ({"q": ["x"], "m": pa.array([[(1, 2)]], pa.map_(pa.int8(), pa.int8()))}, "column 'm': found a map of int8"),
        ({"a": ["x"]}, "task: no column 'q'; columns: a"),
        ({"q": pa.array([], pa.string())}, "found no rows below the header"),
        (pa.Table.from_arrays([pa.array(["x"])] * 2, ["q", "q"]), "found two columns named 'q'"),
    ],
)
def test_columns_that_cannot_serve_are_one_refusal_of_the_file(columns: Any, words: str, tmp_path: Path) -> None:
    path = parquet(tmp_path / "x.parquet", columns)
    assert words in refusal(path, map={"task": "q"})
    assert str(path) in refusal(path, map={"task": "q"})
    with pytest.raises(UsageError):
        next(read_rows(path, map={"task": "q"}))


def test_what_is_no_parquet_file_is_said_and_parquet_elsewhere_is_named(tmp_path: Path) -> None:
    path = parquet(tmp_path / "x.parquet", {"q": ["x"]})
    data = path.read_bytes()
    (tmp_path / "text.parquet").write_text("q\nx\n")
    (tmp_path / "cut.parquet").write_bytes(data[:-9])
    (tmp_path / "empty.parquet").write_bytes(b"")
    for name in ("text.parquet", "cut.parquet", "empty.parquet"):
        assert f"{name}: found no Parquet file that can be read: " in refusal(tmp_path / name, task="{q}")
    (tmp_path / "x.jsonl").write_bytes(data)
    assert "found a Parquet file, wanted UTF-8 text; say the format parquet" in refusal(tmp_path / "x.jsonl")
    assert "found a Parquet file" in refusal(path, format="csv")
    assert "No such file" in refusal(tmp_path / "gone.parquet")
    [request] = read(tmp_path / "x.jsonl", format="parquet", task="{q}")
    assert request.work == Prompt("x")


def test_damage_in_the_middle_is_said_with_the_row_before_it(tmp_path: Path) -> None:
    texts = [f"{n:05}" * 20 for n in range(3 * BATCH_ROWS)]
    path = parquet(tmp_path / "x.parquet", {"q": texts}, row_group_size=2 * BATCH_ROWS, use_dictionary=False)
    at = pq.ParquetFile(path).metadata.row_group(1).column(0).data_page_offset
    data = bytearray(path.read_bytes())
    data[at : at + 64] = b"\xff" * 64
    path.write_bytes(data)
    rows = read_rows(path, task="{q}")
    with pytest.raises(UsageError, match=r"cannot read '.*x\.parquet' after row 512"):
        for _ in rows:
            pass


class Pipe(io.BytesIO):
    """Bytes that cannot be sought in."""

    def seekable(self) -> bool:
        return False


def test_parquet_is_read_from_files_that_can_be_sought_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = parquet(tmp_path / "x.parquet", {"q": ["x"]})
    with path.open("rb") as file:
        assert len(list(read(file, format="parquet", task="{q}"))) == 1
        assert not file.closed
    assert len(list(read(io.BytesIO(path.read_bytes()), format="parquet", task="{q}"))) == 1
    wanted = "found a stream, wanted a file: Parquet is read from its end"
    assert wanted in refusal(Pipe(path.read_bytes()), format="parquet", task="{q}")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(Pipe(path.read_bytes())))
    assert f"standard input: {wanted}" in refusal("-", format="parquet", task="{q}")
    assert "open as text" in refusal(io.StringIO("q"), format="parquet", task="{q}")


def test_the_file_is_opened_when_reading_starts_and_closed_when_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Any] = []
    real = Path.open

    def noting(self: Path, *given: Any, **named: Any) -> Any:
        opened.append(real(self, *given, **named))
        return opened[-1]

    path = parquet(tmp_path / "x.parquet", {"q": ["x", "y"]})
    monkeypatch.setattr(Path, "open", noting)
    rows: Iterator[Any] = read_rows(path, task="{q}")
    assert opened == []
    next(rows)
    assert not opened[0].closed
    rows.close()  # type: ignore[attr-defined]
    assert opened[0].closed


def test_without_pyarrow_one_sentence_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = parquet(tmp_path / "x.parquet", {"q": ["x"]})
    frame = pandas.DataFrame({"q": ["x"]})
    for name in [name for name in sys.modules if name.partition(".")[0] == "pyarrow"]:
        monkeypatch.setitem(sys.modules, name, None)
    for source in (path, frame):
        words = "Parquet and data frames need pyarrow, which is not installed; pip install 'millpond[dataframe]'"
        assert refusal(source, task="{q}") == words


# Bounds


def test_a_long_parquet_file_is_held_a_batch_at_a_time(tmp_path: Path) -> None:
    rows, text = 200_000, "duck " * 20

    def pages() -> Iterator[pa.RecordBatch]:
        for start in range(0, rows, 10_000):
            texts = [f"{text}{n}" for n in range(start, start + 10_000)]
            yield pa.record_batch({"q": texts, "n": range(start, start + 10_000)})

    path = tmp_path / "long.parquet"
    whole = pa.Table.from_batches(pages())
    size = whole.nbytes
    # One row group, as large in the file as in memory: nothing but the reading keeps it small.
    pq.write_table(whole, path, row_group_size=rows, compression="none", use_dictionary=False)
    del whole
    before = pa.total_allocated_bytes()
    arrow_most = python_most = last = 0
    tracemalloc.start()
    for row in read_rows(path, map={"task": "q"}):
        last = row.line
        if last % 10_000 == 0:
            arrow_most = max(arrow_most, pa.total_allocated_bytes() - before)
        if last == 20_000:  # tracing is slow, and what piles up does so to the end
            python_most = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        if last == rows - 20_000:
            tracemalloc.start()
    python_most = max(python_most, tracemalloc.get_traced_memory()[1])
    tracemalloc.stop()
    assert last == rows
    assert size > 20_000_000
    assert python_most < 5_000_000
    assert arrow_most < 5_000_000


def test_a_frame_is_turned_into_rows_a_batch_at_a_time() -> None:
    made: list[int] = []

    def batches() -> Iterator[pa.RecordBatch]:
        for at in range(3):
            made.append(at)
            yield pa.record_batch({"q": [f"{at} {n}" for n in range(BATCH_ROWS + 1)]})

    reader = pa.RecordBatchReader.from_batches(pa.schema([("q", pa.string())]), batches())
    rows = read_rows(reader, map={"task": "q"})
    assert next(rows).line == 1
    assert made == [0]
    tasks = ["0 0", *(row.work.task for row in rows if isinstance(row, Row))]
    assert tasks == [f"{at} {n}" for at in range(3) for n in range(BATCH_ROWS + 1)]


# Values


@pytest.mark.parametrize(
    ("kind", "given", "wanted"),
    [
        (pa.bool_(), [True, None], [True, None]),
        (pa.int64(), [-(2**63), 2**63 - 1, None], [-(2**63), 2**63 - 1, None]),
        (pa.uint8(), [255], [255]),
        (pa.float64(), [1.5, float("nan"), None], [1.5, None, None]),
        (pa.float32(), [0.5, float("nan")], [0.5, None]),
        (pa.float16(), [0.5], [0.5]),
        (pa.string_view(), ["é", None], ["é", None]),
        (pa.large_string(), [""], [""]),
        (pa.null(), [None], [None]),
        (pa.decimal128(10, 2), [Decimal("1.50"), Decimal("0.00"), None], ["1.50", "0.00", None]),
        (pa.decimal256(40, 12), [Decimal("1E-12")], ["0.000000000001"]),
        (pa.date32(), [date(2026, 11, 30), date(1, 1, 1), date(9999, 12, 31), None],
         ["2026-11-30", "0001-01-01", "9999-12-31", None]),
        (pa.date64(), [date(1969, 12, 31)], ["1969-12-31"]),
        (pa.time32("s"), [time(23, 59, 58)], ["23:59:58"]),
        (pa.time64("ns"), [1], ["00:00:00.000000001"]),
        (pa.timestamp("s"), [datetime(2026, 11, 30, 12)], ["2026-11-30T12:00:00"]),
        (pa.timestamp("s"), [253_402_300_800, -62_167_219_201],
         ["+010000-01-01T00:00:00", "-000001-12-31T23:59:59"]),
        (pa.timestamp("ms"), [-1], ["1969-12-31T23:59:59.999"]),
        (pa.timestamp("ns"), [1, None], ["1970-01-01T00:00:00.000000001", None]),
        (pa.timestamp("us", "Europe/Berlin"), [datetime(2026, 7, 1, 12, tzinfo=UTC)], ["2026-07-01T12:00:00Z"]),
        (pa.timestamp("us", "+05:30"), [datetime(2026, 7, 1, 12, tzinfo=timezone(timedelta(hours=1)))],
         ["2026-07-01T11:00:00Z"]),
        (pa.duration("ms"), [90_500, -1], ["PT90.500S", "-PT0.001S"]),
        (pa.list_(pa.timestamp("ns")), [[1], None, []], [["1970-01-01T00:00:00.000000001"], None, []]),
        (pa.list_(pa.int8(), 2), [[1, 2], None, [3, None]], [[1, 2], None, [3, None]]),
        (pa.large_list(pa.list_(pa.string())), [[["a"], None], []], [[["a"], None], []]),
        (pa.list_view(pa.int8()), [[1], None], [[1], None]),
        (pa.struct([("a", pa.int8()), ("b", pa.date32())]), [{"a": 1, "b": date(2026, 1, 1)}, None, {"a": None}],
         [{"a": 1, "b": "2026-01-01"}, None, {"a": None, "b": None}]),
        (pa.struct([]), [{}, None], [{}, None]),
        (pa.map_(pa.string(), pa.decimal128(3, 1)), [[("a", Decimal("1.5"))], None, []], [{"a": "1.5"}, None, {}]),
        (pa.dictionary(pa.int8(), pa.string()), ["a", None, "b", "a"], ["a", None, "b", "a"]),
        (pa.run_end_encoded(pa.int32(), pa.string()), ["a", "a", None], ["a", "a", None]),
    ],
    ids=str,
)  # fmt: skip
def test_every_type_has_its_form_in_json(kind: pa.DataType, given: list[Any], wanted: list[Any]) -> None:
    column = pa.array([*given], kind) if not isinstance(kind, pa.RunEndEncodedType) else None
    if column is None:
        column = pa.RunEndEncodedArray.from_arrays([2, 3], ["a", None])
    assert [
        (row.carried or {})["c"] for row in read(pa.table({"q": ["x"] * len(given), "c": column}), map={"task": "q"})
    ] == wanted


def test_a_uuid_is_its_text() -> None:
    uuid = UUID(int=5)
    column = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([uuid.bytes, None], pa.binary(16)))
    rows = read(pa.table({"q": ["x", "y"], "u": column}), map={"task": "q"})
    assert [(row.carried or {})["u"] for row in rows] == [str(uuid), None]


def test_a_truth_of_eight_bits_is_a_truth_and_json_is_text() -> None:
    truths = pa.ExtensionArray.from_storage(pa.bool8(), pa.array([1, 0, None], pa.int8()))
    texts = pa.ExtensionArray.from_storage(pa.json_(), pa.array(['{"a": 1}', None, "5"]))
    rows = list(read(pa.table({"q": ["x", "y", "z"], "t": truths, "j": texts}), map={"task": "q"}))
    assert [row.carried for row in rows] == [
        {"t": True, "j": '{"a": 1}'},
        {"t": False, "j": None},
        {"t": None, "j": "5"},
    ]
    assert (rows[0].carried or {})["t"] is True


class Feet(pa.ExtensionType):
    """A type of somebody's own."""

    def __init__(self) -> None:
        super().__init__(pa.int64(), "pond.feet")

    def __arrow_ext_serialize__(self) -> bytes:
        return b""


def unregistered(name: str) -> pa.Field:
    return pa.field("c", pa.int64(), metadata={"ARROW:extension:name": name})


FEET = pa.ExtensionArray.from_storage(Feet(), pa.array([1]))


@pytest.mark.parametrize(
    ("frame", "name"),
    [
        (pandas.DataFrame({"q": ["x"], "c": pandas.period_range("2026-01", periods=1, freq="M")}), "pandas.period"),
        (pa.table({"q": ["x"], "c": FEET}), "pond.feet"),
        (pa.table({"q": ["x"], "c": pa.StructArray.from_arrays([FEET], ["feet"])}), "pond.feet"),
        (pa.table({"q": ["x"], "c": pa.ListArray.from_arrays([0, 1], FEET)}), "pond.feet"),
        (pa.table([["x"], [1]], pa.schema([("q", pa.string()), unregistered("pond.hands")])), "pond.hands"),
    ],
)
def test_a_type_of_somebodys_own_is_not_read_as_what_it_is_stored_as(frame: Any, name: str) -> None:
    assert f"column 'c': found values of the type {name}, wanted what JSON can hold" in refusal(frame, task="{q}")


@given(st.lists(st.datetimes() | st.none(), min_size=1, max_size=5))
def test_times_read_as_python_writes_them(moments: list[datetime | None]) -> None:
    wanted = [moment and moment.isoformat() for moment in moments]
    assert carried(pa.timestamp("us"), *moments) == wanted
    assert carried(pa.timestamp("us", "UTC"), *(moment and moment.replace(tzinfo=UTC) for moment in moments)) == [
        text and f"{text}Z" for text in wanted
    ]
    assert carried(pa.time64("us"), *(moment and moment.time() for moment in moments)) == [
        moment and moment.time().isoformat() for moment in moments
    ]
    assert carried(pa.date32(), *(moment and moment.date() for moment in moments)) == [
        moment and moment.date().isoformat() for moment in moments
    ]


JSON_COLUMNS = st.one_of(
    st.tuples(st.just(pa.int64()), st.integers(-(2**63), 2**63 - 1) | st.none()),
    st.tuples(st.just(pa.float64()), st.floats(allow_nan=False, allow_infinity=False) | st.none()),
    st.tuples(st.just(pa.string()), st.text(st.characters(exclude_categories=["Cs"])) | st.none()),
    st.tuples(
        st.just(pa.list_(pa.struct([("a", pa.bool_())]))), st.lists(st.none() | st.just({"a": True})) | st.none()
    ),
)


@given(JSON_COLUMNS.flatmap(lambda pair: st.tuples(st.just(pair[0]), st.lists(st.just(pair[1]), min_size=1))))
def test_what_json_has_already_is_carried_as_it_is(column: tuple[pa.DataType, list[Any]]) -> None:
    kind, values = column
    assert carried(kind, *values) == values


# Frames


def test_frames_of_pandas_polars_and_pyarrow_are_the_same_rows(tmp_path: Path) -> None:
    columns = {"id": ["a", "b", "c"], "text": ["duck", "newt", "duck"], "score": [0.5, None, 2.0], "n": [1, 2, 3]}
    table = pa.table(columns)
    path = parquet(tmp_path / "x.parquet", table)
    wanted = list(read(path, task="Classify: {text}", map={"custom_id": "id"}))
    assert wanted[1] == Request(
        Prompt("Classify: newt"), custom_id="b", carried={"text": "newt", "score": None, "n": 2}
    )
    for frame in (pandas.DataFrame(columns), polars.DataFrame(columns), table, table.to_reader()):
        assert list(read(frame, task="Classify: {text}", map={"custom_id": "id"})) == wanted


def test_frames_of_others_bring_types_of_their_own() -> None:
    moment = datetime(2026, 11, 30, 12, 0, 0, 5)
    columns = {"q": ["x", "y", "z"], "when": [moment, None, moment], "kind": ["a", None, "a"]}
    wanted = [{"when": text, "kind": kind} for text, kind in
              [("2026-11-30T12:00:00.000005", "a"), (None, None), ("2026-11-30T12:00:00.000005", "a")]]  # fmt: skip
    pandas_frame = pandas.DataFrame(columns).astype({"kind": "category", "when": "datetime64[us]"})
    polars_frame = polars.DataFrame(columns).with_columns(polars.col("kind").cast(polars.Categorical))
    for frame in (pandas_frame, polars_frame):
        assert [row.carried for row in read(frame, map={"task": "q"})] == wanted


def test_the_index_of_pandas_is_a_column_where_it_has_a_name() -> None:
    frame = pandas.DataFrame({"q": ["x", "y"]}, index=["i", "j"])
    assert [row.carried for row in read(frame, map={"task": "q"})] == [None, None]
    frame.index.name = "id"
    assert [row.custom_id for row in read(frame, map={"task": "q", "custom_id": "id"})] == ["i", "j"]
    assert [row.carried for row in read(frame.reset_index(), map={"task": "q"})] == [{"id": "i"}, {"id": "j"}]


def test_ids_that_a_gap_made_floats_of_say_what_to_cast_them_to() -> None:
    frame = pandas.DataFrame({"task": ["x", "y"], "custom_id": [1, None]})
    assert "custom_id: found float 1.0, wanted text or a whole number; in a frame, a gap makes floats" in refusal(frame)
    assert [row.custom_id for row in read(frame.astype({"custom_id": "Int64"}))] == ["1", None]


def test_a_type_that_json_cannot_hold_is_refused_with_its_column() -> None:
    for kind, value in ((pa.month_day_nano_interval(), (1, 2, 3)), (pa.binary(2), b"ab"), (pa.binary_view(), b"ab")):
        frame = pa.table({"q": ["x"], "odd": pa.array([value], kind)})
        assert "the data frame: column 'odd': found " in refusal(frame, map={"task": "q"})


def test_what_is_no_frame_of_typed_columns_is_said() -> None:
    assert "the data frame: found what is no table of typed columns: " in refusal(pandas.DataFrame({"a": [1, "x"]}))
    assert "the data frame: found what is no table of typed columns: " in refusal(pandas.Series([1]))
    huge = pandas.DataFrame({"a": pandas.Series([1, 2**70, None], dtype=object)})
    assert "the data frame: found what is no table of typed columns: " in refusal(huge)
    lazy = polars.DataFrame({"task": ["x"]}).lazy()
    assert refusal(lazy).endswith(
        'found LazyFrame, wanted a path, "-", an open file or a data frame; collect() it first'
    )
    with pytest.raises(UsageError, match="found a delimiter with a data frame, wanted none"):
        list(read(pandas.DataFrame({"q": ["x"]}), delimiter=";"))
    with pytest.raises(UsageError, match="format: found csv with a data frame, wanted none"):
        read(pandas.DataFrame({"q": ["x"]}), format="csv")


def test_the_rows_of_a_frame_go_into_a_queue(tmp_path: Path) -> None:
    frame = polars.DataFrame({"text": ["duck", "newt", "duck"], "n": [1, 2, 3]})
    with Queue.open(tmp_path / "pond", policy=Policy()) as queue:
        receipts = queue.enqueue_many(read(frame, task="Classify: {text}"), submission="animals")
        assert [one.disposition for one in receipts] == ["new", "new", "joined"]
        queue.drain(lanes=lambda work: work.task.upper())
        found = [(one.text, one.carried) for one in queue.results("animals")]
    assert found == [
        ("CLASSIFY: DUCK", {"text": "duck", "n": 1}),
        ("CLASSIFY: NEWT", {"text": "newt", "n": 2}),
        ("CLASSIFY: DUCK", {"text": "duck", "n": 3}),
    ]
