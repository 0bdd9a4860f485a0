"""Files of rows: what is mapped and carried, and how bad lines are refused while good ones go on."""

from __future__ import annotations

import gzip
import io
import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from onesource import lines_of, refusal, refused, works

import millpond.rows.lines
from millpond.intake import take
from millpond.rows import Refused, Row, read, read_rows
from millpond.rules.errors import UsageError
from millpond.rules.job import Prompt, Request

# O11


GOOD = [f'{{"task": "How many ducks swim in pond {n}?", "custom_id": "{n}"}}' for n in range(1, 13)]
LF = "\n".join(GOOD) + "\n"
CRLF = LF.replace("\n", "\r\n")


def prints(path: Path) -> list[str]:
    return [take(row, position=at, now_ms=0).fingerprint for at, row in enumerate(read(path))]


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"\xef\xbb\xbf" + LF.encode(), id="byte order mark"),
        pytest.param(CRLF.encode(), id="CRLF"),
        pytest.param(LF.replace("\n", "\n\n \t\r\n").encode(), id="blank lines"),
        pytest.param(b"\n\n" + LF.encode(), id="blank first lines"),
        pytest.param(LF.rstrip("\n").encode(), id="no final newline"),
        pytest.param(b"\xef\xbb\xbf" + CRLF.replace("\r\n", "\r\n\r\n").rstrip().encode(), id="all of them"),
    ],
)
def test_o11_an_editors_habits_change_nothing(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "lf.jsonl").write_bytes(LF.encode())
    (tmp_path / "other.jsonl").write_bytes(data)
    assert prints(tmp_path / "other.jsonl") == prints(tmp_path / "lf.jsonl")
    assert [row.custom_id for row in read(tmp_path / "other.jsonl")] == [str(n) for n in range(1, 13)]


def test_o11_bad_lines_are_refused_by_number_and_reason_while_good_ones_go_on(tmp_path: Path) -> None:
    lines = list(GOOD)
    lines[6] = '{"task": "broken'
    lines[8] = '"a bare string"'
    lines[10] = '{"task": "x", "temprature": 0.2}'
    path = tmp_path / "prompts.jsonl"
    path.write_bytes("\r\n".join(lines).encode("utf-8-sig"))
    rows = list(read_rows(path))
    assert [row.line for row in rows] == list(range(1, 13))
    bad = {row.line: row.reason for row in rows if isinstance(row, Refused)}
    assert bad.keys() == {7, 9, 11}
    assert bad[7].startswith("found broken JSON at column 10: ")
    assert bad[9] == "found text 'a bare string', wanted an object such as {\"task\": …}"
    assert bad[11].startswith('unknown key \'temprature\'; did you mean "params": {"temperature": …}?')
    with pytest.raises(UsageError, match=r"prompts\.jsonl line 7: found broken JSON"):
        list(read(path))


@pytest.mark.parametrize("name", ["prompts.jsonl", "prompts.csv", "prompts.txt"])
@pytest.mark.parametrize(
    ("data", "words"),
    [
        (LF.encode("utf-16"), "found UTF-16 text, wanted UTF-8 text; iconv -f UTF-16"),
        (LF.encode("utf-16-be"), "found UTF-16 text"),
        (LF.encode("utf-16-le"), "found UTF-16 text"),
        (b"\xfe\xff" + LF.encode("utf-16-be"), "found UTF-16 text"),
        (LF.encode("utf-32"), "found UTF-32 text"),
        (gzip.compress(LF.encode()), "found a gzip file, wanted UTF-8 text; gzip -dc"),
        (b"PK\x03\x04 and so on", "found a zip file (spreadsheets are zip files too)"),
        (b"", "found no rows, wanted at least one line"),
        (b"\xef\xbb\xbf", "found no rows"),
        (b"\n \r\n\n", "found no rows"),
    ],
)
def test_o11_what_is_no_text_at_all_is_named(name: str, data: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(data)
    assert f"{tmp_path / name}: {words}" in refusal(tmp_path / name)


@pytest.mark.parametrize("name", ["prompts.jsonl", "prompts.csv", "prompts.txt", "prompts"])
def test_a_binary_file_is_refused_before_any_of_its_rows_is_given_out(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b'"task"\n' * 1_000 + b"\x7fELF\0\0\n")
    assert "found zero bytes" in refusal(tmp_path / name)
    out: list[Any] = []
    with pytest.raises(UsageError, match="found zero bytes"):
        out.extend(read_rows(tmp_path / name))
    assert out == []
    with pytest.raises(UsageError, match="found zero bytes"):  # one that cannot be looked ahead into
        list(read_rows(io.BytesIO(b"one\ntw\0\n"), format="text"))


def test_an_empty_cell_of_a_template_refuses_its_row_alone() -> None:
    first, second = read_rows(io.StringIO("q,a\nx,1\n,2\n"), format="csv", task="What is {q}?")
    assert isinstance(first, Row)
    assert isinstance(second, Refused)
    assert (second.line, "'q'" in second.reason) == (3, True)


def test_o11_a_gzip_file_is_named_whatever_its_suffix(tmp_path: Path) -> None:
    (tmp_path / "prompts.jsonl.gz").write_bytes(gzip.compress(LF.encode()))
    # Its magic stands before its suffix in the order of looking, since it says what to do.
    assert "found a gzip file" in refusal(tmp_path / "prompts.jsonl.gz")


def test_o11_a_single_line_of_12_mb_is_taken(tmp_path: Path) -> None:
    long = "duck " * (12 * 1024 * 1024 // 5)
    for name, text in {"a.jsonl": json.dumps({"task": long}), "a.txt": long, "a.csv": f"task\n{long}\n"}.items():
        (tmp_path / name).write_text(text)
        [work] = works(tmp_path / name)
        assert work == Prompt(long)


@pytest.mark.parametrize(
    ("data", "tasks"),
    [
        (CRLF.encode("utf-8-sig"), [f"How many ducks swim in pond {n}?" for n in range(1, 13)]),
        (b'\n  {"task": "x"}\n', ["x"]),
        (b"How many ducks?\r\n\r\nWhich pond?", ["How many ducks?", "Which pond?"]),
    ],
)
def test_o11_standard_input_is_told_by_its_first_character(
    data: bytes, tasks: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data), encoding="ascii"))
    assert [work.task for work in works("-")] == tasks


def test_o11_standard_input_is_named_in_refusals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO('{"task": "x"}\n{"task"\n'))
    assert refusal("-").startswith("standard input line 2: found broken JSON at column 8: Expecting")
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"")))
    assert refusal("-").startswith("standard input: found no rows")


# What a source may be


def test_every_kind_of_source_gives_the_same_rows(tmp_path: Path) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(LF)
    wanted = list(read(path))
    with path.open() as text, path.open("rb") as binary:
        for source in (str(path), text, binary, io.StringIO(LF), io.BytesIO(LF.encode()), io.StringIO("\ufeff" + LF)):
            assert list(read(source)) == wanted
        assert not text.closed
    assert type(wanted[0]) is Request


@pytest.mark.parametrize(
    ("suffix", "text", "tasks"),
    [
        (".ndjson", '{"task": "x"}', ["x"]),
        (".JSONL", '{"task": "x"}', ["x"]),
        (".text", '{"task": "x"}', ['{"task": "x"}']),
        ("", '{"task": "x"}', ["x"]),
        ("", "x", ["x"]),
    ],
)
def test_the_suffix_tells_the_format(suffix: str, text: str, tasks: list[str], tmp_path: Path) -> None:
    path = tmp_path / f"prompts{suffix}"
    path.write_text(text)
    assert [work.task for work in works(path)] == tasks


def test_the_argument_wins_over_the_suffix(tmp_path: Path) -> None:
    (tmp_path / "a.dat").write_text("task\nx\n")
    assert works(tmp_path / "a.dat", format="csv") == [Prompt("x")]
    assert "unknown suffix '.dat'; wanted .jsonl .ndjson .csv .tsv .txt .text .parquet, or the format said" in refusal(
        tmp_path / "a.dat"
    )


@pytest.mark.parametrize("text", ['[{"task": "x"}]', '[\n  {"task": "x"}\n]'])
def test_a_json_list_is_not_taken_for_lines_of_text(text: str) -> None:
    assert "found a JSON list, wanted one object a line" in refusal(io.StringIO(text))


def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path) -> None:
    assert refusal(tmp_path / "gone.jsonl").endswith("gone.jsonl': No such file or directory; wanted a readable file")
    assert "Is a directory" in refusal(tmp_path)
    assert "null byte" in refusal("a\0.jsonl")
    assert "found int 5, wanted a path" in refusal(5)
    path = tmp_path / "latin.txt"
    path.write_bytes("Enté\n".encode("latin-1"))
    with path.open(encoding="utf-8") as file:
        assert "cannot read" in refusal(file)


def test_arguments_are_refused_at_once_and_nothing_is_opened() -> None:
    for options, words in [
        ({"format": "xml"}, "format: found text 'xml', wanted one of jsonl, csv, text"),
        ({"map": {"taks": "q"}}, "map: unknown field 'taks'; did you mean 'task'?"),
        ({"map": {"zzz": "q"}}, "map: unknown field 'zzz'; fields: task, intent"),
        ({"map": {"task": 5}}, "map: found int 5 for task, wanted the name of a column"),
        ({"map": ["task"]}, "map: found list, wanted a mapping"),
        ({"map": {"task": "q"}, "task": "{q}"}, "map: found task both mapped and as a template"),
        ({"map": {"system": "q"}, "system": "{q}"}, "map: found system both mapped and as a template"),
        ({"task": 5}, "task: found int 5, wanted a template"),
        ({"task": "Classify: {text"}, "task: found 'Classify: {text' ("),
        ({"task": "Classify: {}"}, "task: found '{}', wanted plain names of columns"),
        ({"task": "{a!r}"}, "task: found '{a!r}', wanted plain names"),
        ({"task": "{a:>5}"}, "task: found '{a:>5}', wanted plain names"),
        ({"system": 'Say {"a": 1}'}, "system: found '{\"a\": 1}', wanted plain names"),
        ({"schema": 5}, "schema: found int 5, wanted a mapping"),
        ({"params": [1]}, "params: found list, wanted a mapping"),
    ]:
        with pytest.raises(UsageError) as caught:
            read("gone.jsonl", **options)  # type: ignore[arg-type]
        assert words in str(caught.value)


# Keys of a Prompt


def test_a_row_may_say_everything_that_a_prompt_and_a_request_have() -> None:
    row = {
        "task": "x", "intent": "label", "system": "s", "reasoning": "low", "schema": {"type": "object"},
        "messages": [{"role": "user", "content": "hi"}], "tools": [{"type": "function"}], "images": ["a.png"],
        "params": {"temperature": 0}, "model": "m", "namespace": "n",
    }  # fmt: skip
    asked = {"custom_id": 17, "carried": {"a": 1}, "key": "k", "label": "l", "tags": ["t"]}
    [request] = read(lines_of({**row, **asked}))
    assert request == Request(
        Prompt(**{**row, "images": ("a.png",)}),  # type: ignore[arg-type]
        custom_id="17",
        carried={"a": 1},
        key="k",
        label="l",
        tags=("t",),
    )


def test_the_row_wins_over_what_applies_to_all() -> None:
    own = {"task": "x", "system": "own", "schema": {"title": "own"}, "params": {"seed": 1}}
    found = works(
        lines_of({"task": "x"}, own), system="s", schema={"title": "all"}, params={"seed": 0, "temperature": 0}
    )
    assert found == [
        Prompt("x", system="s", schema={"title": "all"}, params={"seed": 0, "temperature": 0}),
        Prompt("x", system="own", schema={"title": "own"}, params={"seed": 1, "temperature": 0}),
    ]


def test_a_system_template_may_use_a_column_that_is_no_key_and_it_is_carried() -> None:
    [request] = read(lines_of({"task": "x", "topic": "ducks"}), system="You know {topic}.")
    assert request == Request(Prompt("x", system="You know ducks."), carried={"topic": "ducks"})
    [request] = read(lines_of({"task": "x", "label": "l", "carried": {"a": 1}}), system="{label}")
    assert request == Request(Prompt("x", system="l"), label="l", carried={"a": 1})


def test_a_schema_may_stand_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "schema.json").write_text('{"type": "object"}', encoding="utf-8-sig")
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "list.json").write_text("[]")
    (tmp_path / "twice.json").write_text('{"type": "object", "type": "array"}')
    (tmp_path / "deep.json").write_text('{"a":' * 100_000 + "1" + "}" * 100_000)
    (tmp_path / "deeper.json").write_text('{"not":' * 900 + "{}" + "}" * 900)
    assert works(lines_of({"task": "x"}), schema=tmp_path / "schema.json") == [Prompt("x", schema={"type": "object"})]
    for name, words in {
        "broken.json": "broken.json': Expecting property name",
        "gone.json": "gone.json': No such file",
        "list.json": "list.json': found list, wanted an object",
        "twice.json": "twice.json': found the key 'type' twice in one object",
        "deep.json": "deep.json': found deeper nesting than can be read",
        "deeper.json": "nesting",
    }.items():
        with pytest.raises(UsageError) as caught:
            read("gone.jsonl", schema=str(tmp_path / name))
        assert words in str(caught.value)


@pytest.mark.parametrize(
    ("schema", "words"),
    [
        ({"type": "objekt"}, "'objekt' is not valid under any of the given schemas"),
        ({"properties": {"a": {"minimum": "x"}}}, "at $.properties.a.minimum: 'x' is not of type 'number'"),
        ({"$ref": "#/$defs/gone"}, "the reference '#/$defs/gone' is not in the schema, and none is fetched"),
    ],
)
def test_a_schema_that_cannot_be_asked_is_refused_before_any_row(
    schema: dict[str, Any], words: str, tmp_path: Path
) -> None:
    (tmp_path / "schema.json").write_text(json.dumps(schema))
    for asked in (schema, tmp_path / "schema.json"):
        with pytest.raises(UsageError, match="found no JSON Schema that can be asked: ") as caught:
            read("gone.jsonl", schema=asked)
        assert words in str(caught.value)
        assert ("schema.json" in str(caught.value)) == isinstance(asked, Path)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('{"task": 5}', "task: found int 5, wanted text"),
        ('{"task": null}', "task: found nothing to ask"),
        ("{}", "task: found nothing to ask"),
        ("[1]", "found list, wanted an object"),
        ("null", "found NoneType None, wanted an object"),
        ('{"task": "x"} {"task": "y"}', "found broken JSON at column 15: Extra data"),
        ('{"task": "x", "params": {"a": NaN}}', "found NaN, wanted a finite number"),
        ('{"task": "x", "params": {"a": -Infinity}}', "found -Infinity, wanted a finite number"),
        ('{"task": "x", "params": {"a": 1e999}}', "params.a: found inf"),
        ('{"task": "x", "params": {"a": 9223372036854775808}}', "params.a: found an integer of 64 bits"),
        ('{"task": "x", "params": {"a": ' + "9" * 5000 + "}}", "found a number that cannot be read"),
        ('{"task": "x", "params": {"a": ' + "[" * 200 + "]" * 200 + "}}", "found more than 100 levels of nesting"),
        ('{"task": "x", "params": {"a": ' + "[" * 99999 + "]" * 99999 + "}}", "nesting"),
        ('{"task": "\\ud800"}', "task: found a lone surrogate U+D800"),
        ('{"task": "x", "carried": {"a": "\\ud800"}}', "carried.a: found a lone surrogate"),
        ('{"task": "x", "carried": [1]}', "carried: found list, wanted a mapping"),
        ('{"task": "x", "custom_id": 1.5}', "custom_id: found float 1.5, wanted text or a whole number; in a frame, a"),
        ('{"task": "x", "custom_id": true}', "custom_id: found bool True, wanted text"),
        ('{"task": "x", "key": "a\\u0000"}', "key: found the control character U+0000"),
        ('{"task": "x", "tags": "a"}', "tags: found text 'a', wanted a list"),
        (
            '{"custom_id": "1", "method": "POST", "body": {}}',
            "'body': found a line of an OpenAI batch file among other",
        ),
        ('{"taks": "x"}', "unknown key 'taks'; did you mean 'task'?; a column of your own needs a map or a template"),
        ("Which pond?", "found broken JSON at column 1"),
        ('{"task": "a", "task": "b"}', "found the key 'task' twice in one object, wanted it once"),
        ('{"task": "a", "params": {"seed": 1, "top_p": 1, "seed": 2}}', "found the key 'seed' twice"),
        (
            '{"custom_id": "a", "body": {"messages": [{"role": "user", "content": "x"}], "model": "a", "model": "b"}}',
            "found the key 'model' twice",
        ),
    ],
)
def test_a_line_that_is_no_request_is_refused(line: str, words: str) -> None:
    source = io.StringIO('{"task": "before"}\n' + line + '\n{"task": "after"}\n')
    before, bad, after = read_rows(source, format="jsonl")
    assert isinstance(bad, Refused)
    assert bad.line == 2
    assert words in bad.reason
    assert len(bad.reason) < 500
    assert isinstance(before, Row)
    assert isinstance(after, Row)
    assert (before.line, after.line, after.work) == (1, 3, Prompt("after"))


def test_a_line_that_is_not_utf8_is_refused_by_line_and_byte() -> None:
    data = '{"task": "é"}\n'.encode() + '{"task": "Enté"}\n'.encode("latin-1") + b'{"task": "after"}\n'
    assert refused(io.BytesIO(data)) == {2: "found the byte 0xE9 at byte 14 of the line, wanted UTF-8"}
    assert refused(io.StringIO('{"task": "\ud800"}')) == {1: "found the byte 0xED at byte 11 of the line, wanted UTF-8"}
    text = "é\n".encode() + "Enté\n".encode("latin-1")
    assert refused(io.BytesIO(text)) == {2: "found the byte 0xE9 at byte 4 of the line, wanted UTF-8"}
    table = "task\né\n".encode() + "Enté\n".encode("latin-1") + b"after\n"
    assert refused(io.BytesIO(table), format="csv") == {
        3: "column 'task': found the byte 0xE9 as character 4, wanted UTF-8"
    }


# Columns


def test_columns_that_are_not_mapped_are_carried_in_the_files_order() -> None:
    row = {"z": 1, "question": "How many?", "a": None, "id": 17, "topic": "ducks"}
    [request] = read(lines_of(row), map={"task": "question", "custom_id": "id"}, system="You know {topic}.")
    assert request == Request(
        Prompt("How many?", system="You know ducks."), custom_id="17", carried={"z": 1, "a": None, "topic": "ducks"}
    )
    assert list(request.carried or {}) == ["z", "a", "topic"]


def test_a_column_that_a_template_writes_is_carried_unless_it_is_mapped_too() -> None:
    [request] = read(io.StringIO("id,q\n7,duck\n"), format="csv", task="{id}: a {q}?", map={"custom_id": "id"})
    assert request == Request(Prompt("7: a duck?"), custom_id="7", carried={"q": "duck"})
    assert [request.carried for request in read(io.StringIO("a"), task="A {text}?")] == [{"text": "a"}]
    assert [request.carried for request in read(io.StringIO("a"))] == [None]


def test_rows_of_a_published_data_set_differ_in_their_columns() -> None:
    rows = lines_of({"question": "q1"}, {"question": "q2", "answer": "a"}, {"answer": "a"})
    found = list(read_rows(rows, map={"task": "question"}))
    assert isinstance(found[0], Row)
    assert isinstance(found[1], Row)
    assert (found[0].carried, found[1].carried) == (None, {"answer": "a"})
    assert found[2] == Refused(3, "task: no column 'question'; columns: answer")


def test_a_template_writes_columns_between_its_words() -> None:
    row = {"text": "a {b}", "n": 5, "x": 1.50, "yes": True, "id": "i"}
    [request] = read(lines_of(row), task="{{{n}}} {x} {yes}: {text}{text}")
    assert request == Request(Prompt("{5} 1.5 true: a {b}a {b}"), carried=row)


@given(st.text(st.characters(exclude_categories=["Cs"])), st.text(st.characters(exclude_categories=["Cs"])))
def test_a_template_of_escaped_text_writes_that_text(around: str, value: str) -> None:
    assume(value.strip())
    escaped = around.replace("{", "{{").replace("}", "}}")
    [work] = works(lines_of({"x": value}), task=f"-{escaped}{{x}}")
    assert work == Prompt(f"-{around}{value}")


@pytest.mark.parametrize(
    ("row", "options", "words"),
    [
        ({"n": 5}, {"map": {"task": "n"}}, "task: found int 5 in column 'n', wanted text; the template {n} writes"),
        ({"n": None}, {"map": {"task": "n"}}, "task: found NoneType None in column 'n'"),
        ({"n": None}, {"task": "{n}"}, "found null in column 'n', wanted text or a number"),
        ({"n": " "}, {"task": "{n}"}, "found nothing in column 'n', wanted text or a number"),
        ({"n": "x", "m": ""}, {"task": "{n}", "system": "{m}"}, "found nothing in column 'm'"),
        ({"n": [1]}, {"task": "{n}"}, "found list in column 'n', wanted text or a number"),
        ({"n": 1, "m": 2}, {"task": "{q}"}, "task: no column 'q'; columns: n, m"),
        ({"n": 1}, {"task": "{n.real}"}, "task: no column 'n.real'; columns: n"),
        ({"n": 1}, {"task": "{n}", "system": "{q}"}, "system: no column 'q'"),
        ({"n": 1, "c": "\ud800"}, {"task": "{n}"}, "carried.c: found a lone surrogate"),
    ],
)
def test_a_row_without_what_is_mapped_is_refused(row: Any, options: Any, words: str) -> None:
    assert words in refused(lines_of(row), **options)[1]


def test_text_lines_are_tasks_or_the_column_text() -> None:
    assert works(io.StringIO("  a \r\n\nb"), system="s") == [Prompt("  a ", system="s"), Prompt("b", system="s")]
    assert works(io.StringIO("a"), task="Classify: {text}", system="{text}?") == [Prompt("Classify: a", system="a?")]
    assert works(io.StringIO("a"), map={"system": "text"}, task="x") == [Prompt("x", system="a")]
    assert "task: no column 'question'; columns: text" in refusal(io.StringIO("a"), map={"task": "question"})
    assert [row.line for row in read_rows(io.StringIO("a\n\nb")) if isinstance(row, Row)] == [1, 3]


# Bounds


class Endless(io.RawIOBase):
    """A file that gives one good line after another."""

    def __init__(self, lines: int) -> None:
        self.left = lines

    def readline(self, size: int | None = -1, /) -> bytes:
        self.left -= 1
        return b'{"task": "' + b"x" * 1000 + b'"}\n' if self.left >= 0 else b""


def test_a_long_file_is_held_a_line_at_a_time() -> None:
    def peak(lines: int) -> int:
        tracemalloc.start()
        assert sum(1 for _ in read_rows(Endless(lines), format="jsonl")) == lines  # type: ignore[arg-type]
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    peak(10)
    assert peak(2_000) < peak(10) + 200_000


def test_a_line_beyond_the_cap_is_refused_before_it_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(millpond.rows.lines, "MAX_LINE_BYTES", 100)
    assert "line 2: found more than 100 bytes" in refusal(io.BytesIO(b'{"task": "x"}\n' + b"x" * 101))
    assert works(io.BytesIO(b"x" * 100)) == [Prompt("x" * 100)]


def test_the_file_is_opened_when_reading_starts_and_closed_when_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Any] = []
    real = Path.open

    def noting(self: Path, *given: Any, **named: Any) -> Any:
        opened.append(real(self, *given, **named))
        return opened[-1]

    monkeypatch.setattr(Path, "open", noting)
    (tmp_path / "a.txt").write_bytes(b"a\nb\n")
    opened.clear()
    rows: Iterator[Any] = read_rows(tmp_path / "a.txt")
    assert opened == []
    next(rows)
    assert not opened[0].closed
    rows.close()  # type: ignore[attr-defined]
    assert opened[0].closed
