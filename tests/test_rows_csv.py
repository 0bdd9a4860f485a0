"""Rows of CSV: cells, delimiters and headers, and no fragment of a broken row becomes a prompt."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from onesource import refusal, refused, works

import millpond.rows.formats
from millpond.rows import Refused, Row, read, read_rows
from millpond.rules.errors import UsageError
from millpond.rules.job import Prompt, Request


def test_csv_cells_hold_commas_quotes_and_newlines() -> None:
    text = 'id,question,note\r\n1,"How many ""ducks"",\r\nand where?",\r\n\r\n2,Which pond?,x\r\n'
    data = io.BytesIO(text.encode("utf-8-sig"))
    rows = list(read_rows(data, format="csv", map={"task": "question", "custom_id": "id"}))
    assert rows == [
        Row(Prompt('How many "ducks",\r\nand where?'), custom_id="1", carried={"note": ""}, line=2),
        Row(Prompt("Which pond?"), custom_id="2", carried={"note": "x"}, line=5),
    ]


def test_a_ragged_row_is_refused_with_both_counts_and_the_rows_after_it_go_on() -> None:
    rows = list(read_rows(io.StringIO('task,label\n"a\n\nb"\nx,y,z\ngood,l\n'), format="csv"))
    assert rows == [
        Refused(2, "found 1 cells, wanted 2, one for each column of the header"),
        Refused(5, "found 3 cells, wanted 2, one for each column of the header"),
        Row(Prompt("good"), label="l", line=6),
    ]


@pytest.mark.parametrize(
    ("broken", "words"),
    [
        ('"The "duck" said:\nline two of the same cell\nline three"\nWhat is 2+2?\n', "found broken CSV: ',' expected"),
        ('"never closed,\nmore\n', "found a quote that is never closed"),
        ("x" * 200 + "\nWhat is 2+2?\n", "found broken CSV: field larger than field limit (100)"),
        ("a\rWhat is 2+2?\nmore\n", "found carriage returns alone as line ends"),
    ],
)
def test_no_fragment_of_a_broken_csv_row_becomes_a_prompt(
    broken: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(millpond.rows.formats, "MAX_LINE_BYTES", 100)
    before = csv.field_size_limit(100)
    try:
        first, second = read_rows(io.StringIO(f"\ntask\nWhat is 1+1?\n{broken}"), format="csv")
    finally:
        csv.field_size_limit(before)
    assert first == Row(Prompt("What is 1+1?"), line=3)
    assert isinstance(second, Refused)
    assert second.line == 4
    assert second.reason.startswith(words)
    assert second.reason.endswith("; nothing from this line on is taken in")


def test_another_delimiter_can_be_said_and_a_tab_is_that_of_tsv(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("id\tq\n7\ta;b,c\n")
    wanted = Request(Prompt("a;b,c"), custom_id="7")
    how: dict[str, Any] = {"map": {"task": "q", "custom_id": "id"}}
    assert list(read(tmp_path / "a.tsv", **how)) == [wanted]
    assert list(read(io.StringIO('id;q\n7;"a;b,c"\n'), format="csv", delimiter=";", **how)) == [wanted]
    assert "no column 'q'" in refusal(tmp_path / "a.tsv", delimiter=",", **how)


@pytest.mark.parametrize(("text", "other"), [("id;frage\n1;a\n", ";"), ("id\tfrage\n1\ta\n", "\t")])
def test_a_header_of_another_delimiter_is_recognized(text: str, other: str) -> None:
    for how in ({"map": {"task": "frage"}}, {"task": "{frage}"}, {}):
        words = refusal(io.StringIO(text), format="csv", **how)
        assert words.endswith(f"; found one column alone, parted by ','; is the delimiter {other!r}?")
    assert "delimiter" not in refusal(io.StringIO("frage\na\n"), format="csv", map={"task": "q"})


def test_a_delimiter_is_one_character_and_of_csv_alone(tmp_path: Path) -> None:
    for said in ("", ";;", "a", '"', "\n", " ", "ä", 5):
        with pytest.raises(UsageError, match=r"delimiter: found .*, wanted one character"):
            read("gone.csv", delimiter=said)  # type: ignore[arg-type]
    (tmp_path / "a.jsonl").write_text('{"task": "x"}\n')
    assert "found a delimiter with jsonl, wanted none" in refusal(tmp_path / "a.jsonl", delimiter=";")
    assert "found a delimiter with text, wanted none" in refusal(io.StringIO("x"), delimiter=";")


@pytest.mark.parametrize("name", ["a.txt", "a.csv", "a.jsonl"])
def test_carriage_returns_alone_are_no_line_ends(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b'{"task": "a"}\r{"task": "b"}\r')
    words = "found carriage returns alone as line ends, wanted line feeds; tr '\\r' '\\n' < FILE"
    assert refusal(tmp_path / name) == f"{tmp_path / name}: {words}"
    assert refused(io.BytesIO(b"a\rb\nc\n"), format="text") == {1: words}
    assert works(io.BytesIO(b"a\r\r\nc\r"), format="text") == [Prompt("a"), Prompt("c")]


@pytest.mark.parametrize(
    ("text", "options", "words"),
    [
        ("question,answer\nq,a\n", {}, "unknown key 'question'; known: task"),
        ("question,answer\nq,a\n", {"map": {"task": "text"}}, "task: no column 'text'; columns: question, answer"),
        ("question,answer\nq,a\n", {"task": "{text}"}, "task: no column 'text'"),
        ("task,task\nq,a\n", {}, "found two columns named 'task', wanted every column once"),
        ("task\n", {}, "found no rows below the header"),
        ("task\n\n\n", {}, "found no rows below the header"),
        ('"task\n', {}, "line 1: found a quote that is never closed"),
        (b"t\xe9sk\nx\n", {}, "the file: the header: found the byte 0xE9 as character 2, wanted UTF-8"),
    ],
)
def test_a_header_that_cannot_serve_is_one_refusal_of_the_file(text: str | bytes, options: Any, words: str) -> None:
    source = io.BytesIO(text) if isinstance(text, bytes) else io.StringIO(text)
    with pytest.raises(UsageError) as caught:
        list(read_rows(source, format="csv", **options))
    assert words in str(caught.value)


def test_csv_cells_of_fields_that_are_no_text_are_json_or_plain() -> None:
    table = io.StringIO()
    writer = csv.writer(table)
    writer.writerow(["task", "params", "tags", "images", "schema", "model", "label", "carried"])
    writer.writerow(["x", '{"seed": 1}', "a, b", "a.png", '{"type": "object"}', "", "", '{"c": 1}'])
    writer.writerow(["y", "", '["a,b"]', '["a.png", "b.png"]', "", "m", "l", ""])
    writer.writerow(["z", "{", "", "", "", "", "", ""])
    writer.writerow(["z", "[1]", "", "", "", "", "", ""])
    first, second, third, fourth = read_rows(io.StringIO(table.getvalue()), format="csv")
    assert first == Row(
        Prompt("x", params={"seed": 1}, images=("a.png",), schema={"type": "object"}),
        tags=("a", "b"), carried={"c": 1}, line=2,
    )  # fmt: skip
    assert second == Row(Prompt("y", images=("a.png", "b.png"), model="m"), tags=("a,b",), label="l", line=3)
    assert isinstance(third, Refused)
    assert "params: found '{', wanted JSON" in third.reason
    assert fourth == Refused(5, "params: found list, wanted a mapping")


@given(
    st.lists(
        st.tuples(*[st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\0"), min_size=1)] * 2),
        min_size=1,
        max_size=5,
    )
)
def test_what_the_csv_module_writes_is_read_back(cells: list[tuple[str, str]]) -> None:
    rows = [(one, other) for one, other in cells if one.strip()]
    table = io.StringIO(newline="")
    csv.writer(table).writerows([("q", "c"), *rows])
    if not rows:
        return
    found = list(read(io.BytesIO(table.getvalue().encode()), format="csv", map={"task": "q"}))
    assert [(row.work.task, (row.carried or {})["c"]) for row in found] == rows
