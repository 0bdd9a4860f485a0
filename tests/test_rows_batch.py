"""Rows of OpenAI batch files: read as they stand, told by their first line, each custom_id once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from onesource import lines_of, refusal, refused, works

from millpond.rows import Refused, Row, read, read_rows
from millpond.rules.errors import UsageError
from millpond.rules.job import Prompt, Request


def batch(custom_id: Any = "a", text: str = "x", **more: Any) -> dict[str, Any]:
    body = {"model": "m", "messages": [{"role": "user", "content": text}], **more.pop("body", {})}
    line = {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions", "body": body, **more}
    return {name: value for name, value in line.items() if value is not None}


def asked(text: str, **params: Any) -> Prompt:
    return Prompt(messages=[{"role": "user", "content": text}], model="m", params=params)


def test_a_batch_file_is_read_as_it_stands() -> None:
    rows = list(read_rows(lines_of(batch(), batch("b", body={"temperature": 0}), batch("c"))))
    assert rows == [
        Row(asked("x"), custom_id="a", line=1),
        Row(asked("x", temperature=0), custom_id="b", line=2),
        Row(asked("x"), custom_id="c", line=3),
    ]


@pytest.mark.parametrize("name", ["batch.jsonl", "batch.ndjson", "batch"])
def test_a_batch_file_is_told_by_its_first_line(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"\xef\xbb\xbf\n" + lines_of(batch()).getvalue())
    assert works(tmp_path / name) == [asked("x")]
    with pytest.raises(UsageError, match="found a line of an OpenAI batch file among other rows"):
        list(read(tmp_path / name, format="jsonl"))


def test_only_a_line_with_a_custom_id_and_a_body_tells_a_batch_file(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(lines_of(batch()).getvalue())
    assert works(tmp_path / "a.txt")[0].task.startswith('{"custom_id"')
    for first in ({"task": "x"}, {"body": {}, "task": "x"}, {"custom_id": "a", "body": "text"}):
        assert 2 in refused(lines_of(first, batch()))
    assert 1 not in refused(lines_of({"custom_id": "a", "body": {}, "task": "x"}, batch("b")), task="{task}")


def test_columns_named_like_a_batch_files_are_columns_where_they_are_mapped() -> None:
    row = {"custom_id": "a", "body": {"a": 1}, "q": "x"}
    [request] = read(lines_of(row), map={"task": "q"})
    assert request == Request(Prompt("x"), carried={"custom_id": "a", "body": {"a": 1}})


def test_bad_lines_of_a_batch_file_are_refused_by_number_and_reason_while_good_ones_go_on() -> None:
    lines = {
        1: batch("1"),
        2: batch("2", body={"n": 2}),
        3: batch("3", url="/v1/embeddings"),
        4: batch("4", method="GET"),
        5: batch("5", body={"stream": True}),
        6: batch(None),
        7: batch(7),
        8: batch("1"),
        9: batch("2"),
        10: {"task": "x"},
        11: batch("11", body={"messages": []}),
        12: batch("12", metadata={}),
        13: batch("13"),
    }
    rows = list(read_rows(lines_of(*lines.values()), format="openai-batch"))
    assert [row.line for row in rows] == list(lines)
    reasons = {row.line: row.reason for row in rows if isinstance(row, Refused)}
    wanted = {
        2: "body.n: found int 2, wanted 1",
        3: "url: found text '/v1/embeddings', wanted /v1/chat/completions",
        4: "method: found text 'GET', wanted POST",
        5: "body.stream: found bool True",
        6: "custom_id: found none, wanted a name",
        7: "custom_id: found int 7, wanted text",
        8: "custom_id: found '1' again, which names line 1; wanted each once",
        9: "custom_id: found '2' again, which names line 2",
        10: "found no body, wanted {",
        11: "body.messages: found an empty list",
        12: "unknown key 'metadata' beside the body",
    }
    assert reasons.keys() == wanted.keys()
    assert [line for line, words in wanted.items() if words not in reasons[line]] == []


def test_what_applies_to_all_fills_what_a_body_leaves_open() -> None:
    format_ = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"title": "own"}}}
    own = {"temperature": 1, "response_format": format_}
    found = works(
        lines_of(batch("a"), batch("b", body=own), batch("c", body={"response_format": {"type": "text"}})),
        schema={"title": "all"}, params={"temperature": 0, "seed": 5},
    )  # fmt: skip
    assert [work.schema for work in found] == [{"title": "all"}, {"title": "own"}, None]
    assert [(work.params["temperature"], work.params["seed"]) for work in found] == [(0, 5), (1, 5), (0, 5)]


@pytest.mark.parametrize("options", [{"map": {"task": "q"}}, {"task": "{q}"}, {"system": "Be brief."}])
def test_what_a_batch_file_says_itself_cannot_be_said_beside_it(options: dict[str, Any]) -> None:
    [name] = options
    with pytest.raises(UsageError, match=f"format openai-batch: found {name}, wanted none"):
        read("gone.jsonl", format="openai-batch", **options)


def test_a_system_beside_what_turns_out_to_be_a_batch_file_is_refused() -> None:
    assert "the file: found system, wanted none" in refusal(lines_of(batch()), system="Be brief.")
