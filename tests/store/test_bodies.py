"""What is stored of work and replies, and that it comes back as it was (O06, O12)."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from millpond.rules.errors import Undeliverable
from millpond.rules.job import Command, Image, Prompt, Reply, Usage
from millpond.store.bodies import dump, dump_reply, dump_work, load_reply, load_work, rehydrate, storable

ANY_TEXT = st.text(st.characters(exclude_categories=()))
"""Text as Python may hold it: NUL and lone surrogates too."""
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False)
    | ANY_TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(ANY_TEXT, inner, max_size=3),
    max_leaves=8,
)  # fmt: skip
USAGE = st.builds(
    Usage,
    st.none() | st.integers(0, 10**9),
    st.none() | st.integers(0, 10**9),
    st.none() | st.dictionaries(ANY_TEXT, JSON, min_size=1, max_size=2),
)


@given(st.builds(Reply, ANY_TEXT, JSON, st.none() | ANY_TEXT, st.none() | ANY_TEXT, USAGE, st.none() | ANY_TEXT,
                 st.none() | st.dictionaries(ANY_TEXT, JSON, max_size=2)))  # fmt: skip
def test_o06_any_reply_comes_back_as_it_was(reply: Reply) -> None:
    body = dump_reply(reply)
    assert "\0" not in body
    body.encode()
    assert load_reply(body) == reply


@given(
    st.builds(
        Prompt, task=st.text(), intent=st.text(), system=st.text(), reasoning=st.text(), namespace=st.text(),
        model=st.none() | st.text(min_size=1), params=st.dictionaries(st.text(), JSON, max_size=2),
        images=st.lists(st.builds(Image, st.binary(min_size=1), st.just("image/png")), max_size=2).map(tuple),
    )
)  # fmt: skip
def test_o12_any_prompt_comes_back_as_it_was(prompt: Prompt) -> None:
    body = dump_work(prompt)
    assert "\0" not in body
    assert load_work(body) == prompt


@given(st.builds(Command, st.text(min_size=1), st.dictionaries(st.text(), JSON, max_size=3), st.text(min_size=1)))
def test_o12_any_command_comes_back_as_it_was(command: Command) -> None:
    assert load_work(dump_work(command)) == command


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_o12_work_with_a_number_that_json_lacks_is_refused(value: float) -> None:
    with pytest.raises(ValueError, match="JSON"):
        dump({"x": [value]})


@pytest.mark.parametrize("value", [b"bytes", {1, 2}, object()])
def test_o12_work_with_a_thing_that_json_lacks_is_refused(value: object) -> None:
    with pytest.raises(TypeError):
        dump({"x": value})


def test_a_providers_nan_does_not_lose_its_reply_and_is_kept_as_a_word() -> None:
    reply = Reply("blue", raw={"logprob": -math.inf}, usage=Usage(1, 2, {"x": math.nan}))
    back = load_reply(dump_reply(reply))
    assert (back.text, back.raw, back.usage.raw) == ("blue", {"logprob": "-Infinity"}, {"x": "NaN"})


@given(ANY_TEXT)
def test_o06_words_of_an_error_can_be_stored_and_lose_nothing_else(words: str) -> None:
    stored = storable(words)
    assert stored is not None
    assert "\0" not in stored
    stored.encode()
    assert len(stored) == len(words)
    assert all(now == was or was == "\0" or "\ud800" <= was <= "\udfff" for now, was in zip(stored, words, strict=True))


def test_no_words_stay_none() -> None:
    assert storable(None) is None


class Mail(BaseModel):
    to: str
    copies: int = 1


def test_o12_a_registered_command_comes_back_as_its_model() -> None:
    command = load_work(dump_work(Command("mail", {"to": "ann", "copies": 2}, "u1")))
    assert rehydrate(command, {"mail": Mail}) == Mail(to="ann", copies=2)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (Command("male", {"to": "ann"}, "u"), "unknown command type 'male'; registered types: mail"),
        (Command("mail", {"to": "ann", "copies": "many"}, "u"), "copies: "),
        (Command("mail", {}, "u"), "to: "),
    ],
)
def test_o12_a_command_that_no_longer_loads_says_what_is_wrong(command: Command, words: str) -> None:
    with pytest.raises(Undeliverable, match=words):
        rehydrate(command, {"mail": Mail})


def test_prompts_and_commands_without_a_registry_stay_as_they_are() -> None:
    for work in (Prompt("x"), Command("mail", {}, "u")):
        assert rehydrate(work, None) is work


def test_empty_parts_of_a_prompt_are_not_stored() -> None:
    assert json.loads(dump_work(Prompt("x", system=""))) == {"prompt": {"task": "x"}}
