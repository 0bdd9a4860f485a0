"""What of an answer's text is read as JSON, and what is not."""

from __future__ import annotations

from typing import Any

import pytest

from millpond.lanes.answer import read_answer

OBJECT = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


@pytest.mark.parametrize(
    ("text", "data"),
    [
        ('{"n": 1}', {"n": 1}),
        (' \n{"n": 1}\n', {"n": 1}),
        ('```json\n{"n": 1}\n```', {"n": 1}),
        ('```\n{"n":\n1}```\n', {"n": 1}),
        ('\n```JSON\r\n{"n": 1}\r\n```', {"n": 1}),
        ('\ufeff{"n": 1}', {"n": 1}),
        ('\xa0\u3000{"n": 1}\u2028\n\u200b', {"n": 1}),
        ('\ufeff\n```json\n\xa0{"n": 1}\xa0\n```\u2060\n', {"n": 1}),
        ('{"n": 1, "m": "\xa0\ufeff"}', {"n": 1, "m": "\xa0\ufeff"}),
    ],
)
def test_the_whole_text_is_read_as_json_fenced_or_not(text: str, data: Any) -> None:
    assert read_answer(text, OBJECT) == (data, "")


@pytest.mark.parametrize(
    "text",
    [
        'Sure: {"n": 1}',
        'Sure:\n```json\n{"n": 1}\n```',
        '```json\n{"n": 1}\n```\nHope this helps.',
        '```json\n{"n": 1}\n```\n```json\n{"n": 2}\n```',
        '{"n": 1} {"n": 2}',
        '{"n":\xa01}',
        "\ufeff",
        '{"n": Infinity}',
        '{"n": 1, "m": 1e999}',
        '{"n": 1, "m": -1e999}',
        '{"n": 1, "m": ' + "9" * 5_000 + "}",
        "",
        "[" * 100_000,
    ],
)
def test_json_amid_other_words_is_not_searched_for(text: str) -> None:
    data, wrong = read_answer(text, OBJECT)
    assert data is None
    assert wrong
