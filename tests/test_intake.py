"""The way in: what is taken, and what is refused in which words."""

from __future__ import annotations

import math
from datetime import datetime
from enum import StrEnum
from typing import Any

import pytest
from oneitem import NOW, Resize, refusal, stored, taken

from millpond.intake import Defaults, each_samples, take
from millpond.rules.identity import fingerprint
from millpond.rules.job import Command, Prompt, Request
from millpond.rules.prompt import MAX_TAGS
from millpond.store.bodies import load_work, rehydrate
from millpond.store.enqueue import Asked

# What is taken


def test_a_text_a_mapping_a_prompt_and_a_request_are_the_same_work() -> None:
    forms = ["How many ducks?", {"task": "How many ducks?"}, Prompt("How many ducks?")]
    asked = [taken(item) for item in [*forms, *map(Request, forms)]]
    assert {one.fingerprint for one in asked} == {fingerprint(Prompt("How many ducks?"))}
    assert {one.body for one in asked} == {asked[0].body}
    assert load_work(asked[0].body) == Prompt("How many ducks?")


def test_a_prompt_is_named_by_its_fingerprint_and_routed_by_its_intent() -> None:
    asked = taken(Prompt("x", intent="label"))
    assert (asked.kind, asked.route, asked.lane) == ("prompt", "label", "")
    assert asked.idempotency_key == asked.fingerprint
    assert taken("x").route == ""


def test_a_registered_model_is_a_command_under_its_registered_name() -> None:
    asked = taken(Resize(width=7), {"img.resize": Resize})
    assert (asked.kind, asked.route) == ("command", "img.resize")
    work = load_work(asked.body)
    assert isinstance(work, Command)
    assert asked.idempotency_key == work.uid
    assert rehydrate(work, {"img.resize": Resize}) == Resize(width=7)


def test_the_same_command_put_twice_is_two_jobs_of_one_fingerprint() -> None:
    first, second = taken(Resize()), taken(Resize())
    assert first.fingerprint == second.fingerprint
    assert first.idempotency_key != second.idempotency_key


def test_a_command_is_taken_as_it_is() -> None:
    command = Command("Resize", {"width": 3}, "uid-1")
    assert stored(command) == command
    assert taken(command, None).idempotency_key == "uid-1"


def test_a_default_applies_where_the_request_says_nothing() -> None:
    asked = taken(
        "x", priority=5, service_class="realtime", due="2h", not_before="2026-12-01T09:00Z", lane="paid", fresh=True,
        custom_id="c", carried={"id": 1}, label="l", tags=["t", "t", "u"], trace_id="abc", origin="cli",
    )  # fmt: skip
    assert asked == Asked(
        position=0, kind="prompt", route="", fingerprint=asked.fingerprint, idempotency_key=asked.fingerprint,
        body=asked.body, custom_id="c", carried='{"id":1}', priority=5, service_class="realtime",
        due_ms=NOW + 7_200_000, not_before_ms=NOW + 3_600_000, lane="paid", fresh=True, label="l", origin="cli",
        tags=("t", "u"), trace_id="abc",
    )  # fmt: skip


def test_what_the_request_says_wins_over_the_default() -> None:
    own = Request("x", custom_id="own", carried={"own": 1}, key="own-key", label="own label", tags=("own",))
    asked = taken(own, custom_id="c", carried={"c": 1}, key="k", label="l", tags=["t"])
    assert (asked.custom_id, asked.carried, asked.label) == ("own", '{"own":1}', "own label")
    assert (asked.idempotency_key, asked.tags) == ("own-key", ("own",))


def test_sample_key_and_dedup_choose_the_key() -> None:
    print_ = taken("x").fingerprint
    assert taken("x", key="mine").idempotency_key == "mine"
    assert taken("x", sample=3).idempotency_key == f"{print_}:sample:3"
    first, second = taken("x", dedup=False), taken("x", dedup=False)
    assert first.idempotency_key != second.idempotency_key
    assert first.idempotency_key.startswith(f"{print_}:")
    assert "at most one of key, sample and dedup=False" in refusal("x", sample=1, dedup=False)
    assert "at most one" in refusal(Request("x", key="mine"), sample=1)


def test_the_unique_number_comes_from_the_chance_that_is_handed_in() -> None:
    asked = take("x", position=0, defaults=Defaults(dedup=False), now_ms=NOW, new_uid=lambda: "7")
    assert asked.idempotency_key == f"{asked.fingerprint}:unique:7"


def test_each_identical_row_gets_a_sample_number_of_its_own() -> None:
    rows = [taken(item) for item in ["a", "b", "a", Request("a", key="mine"), "a", Resize()]]
    keys = [one.idempotency_key for one in each_samples(rows)]
    a, b = rows[0].fingerprint, rows[1].fingerprint
    assert keys[:5] == [f"{a}:sample:1", f"{b}:sample:1", f"{a}:sample:2", "mine", f"{a}:sample:3"]
    assert keys[5] == rows[5].idempotency_key
    assert [one.idempotency_key for one in each_samples(rows)] == keys
    assert keys[0] == taken("a", sample=1).idempotency_key


def test_none_and_empty_parts_are_the_same_as_left_out() -> None:
    empty: Any = dict.fromkeys(("messages", "schema", "tools", "images", "params", "model", "system", "intent"))
    lists: Any = {"messages": (), "schema": {}, "tools": [], "images": [], "params": {}, "model": "", "reasoning": None}
    assert stored({"task": "x", **empty}) == stored({"task": "x", **lists}) == Prompt("x")


def test_tuples_and_enums_become_plain() -> None:
    class Size(StrEnum):
        SMALL = "small"

    prompt = Prompt(Size.SMALL, messages=({"role": "user", "content": ("a", "b")},))
    work = stored(prompt)
    assert work == Prompt("small", messages=[{"role": "user", "content": ["a", "b"]}])
    assert type(work.task) is str


def test_the_order_of_a_schema_and_of_carried_columns_is_kept() -> None:
    schema = {"type": "object", "properties": {"z": {}, "a": {}}}
    asked = taken(Request(Prompt("x", schema=schema), carried={"z": 1, "a": 2}))
    assert list(load_work(asked.body).schema["properties"]) == ["z", "a"]  # type: ignore[union-attr,index]
    assert asked.carried == '{"z":1,"a":2}'


def test_a_prompt_may_hold_control_characters_and_they_come_back() -> None:
    text = "".join(map(chr, range(32))) + "\x7f\u2028\U0001f986"
    assert stored(Prompt(text, system=text)) == Prompt(text, system=text)


# What is refused


@pytest.mark.parametrize(
    ("item", "words"),
    [
        (7, "work: found int 7, wanted a Prompt, a task as text"),
        (None, "work: found NoneType None"),
        (b"x", "work: found bytes"),
        (["x"], "work: found list"),
        (Request(Request("x")), "work: found Request"),
        ("", "task: found nothing to ask"),
        (" \n", "task: found nothing to ask"),
        (Prompt(), "task: found nothing to ask"),
        ({}, "task: found nothing to ask"),
        ({"task": 5}, "task: found int 5, wanted text"),
        (Prompt(5), "task: found int 5, wanted text"),  # type: ignore[arg-type]
        ({"task": "x", "system": ["y"]}, "system: found list, wanted text"),
        ({"task": "x", "model": 5}, "model: found int 5, wanted text"),
        ({"task": "x", "intent": "a\0b"}, r"intent: found the control character U+0000 at 1, wanted none"),
        ({"task": "x", "messages": "hi"}, "messages: found text 'hi', wanted a list of mappings"),
        ({"task": "x", "messages": ["hi"]}, "messages[0]: found text 'hi', wanted a mapping"),
        ({"messages": [{"content": "hi"}]}, "messages[0].role: found NoneType None, wanted a role"),
        ({"messages": [{"role": 1, "content": "hi"}]}, "messages[0].role: found int 1"),
        ({"messages": [{"role": "user", "content": b"hi"}]}, "messages[0].content: found bytes"),
        ({"task": "x", "schema": "s"}, "schema: found text 's', wanted a mapping"),
        ({"task": "x", "tools": {"a": 1}}, "tools: found dict, wanted a list of mappings"),
        ({"task": "x", "params": [1]}, "params: found list, wanted a mapping"),
        ({"task": "x", "params": {"temperature": math.nan}}, "params.temperature: found nan, wanted a finite number"),
        ({"task": "x", "params": {"metadata": {"a": {1}}}}, "params.metadata.a: found set"),
        ({"task": "x", "params": {"metadata": {1: "a"}}}, "params.metadata: found int 1 as a key, wanted text"),
        ({"task": "x", "images": "a.png"}, "images: found text 'a.png', wanted a list"),
        ({"task": "x", "images": b"PNG"}, "images: found bytes, wanted a list"),
        ({1: "x"}, "found int 1 as a key"),
        ({"task": "x", "carried": {}}, "unknown key 'carried': it belongs to the request, Request(work, carried=…)"),
        ({"taks": "x"}, "unknown key 'taks'; did you mean 'task'?"),
        ({"task": "x", "temprature": 0}, 'unknown key \'temprature\'; did you mean "params": {"temperature": …}?'),
        ({"task": "x", "zzz": 0}, "unknown key 'zzz'; known: task, intent, system"),
        ({"custom_id": "1", "body": {"model": "m"}}, "body.messages: found NoneType None, wanted a list of messages"),
        ({"task": "x", "body": {"messages": []}}, "unknown key 'task' beside the body; known: custom_id, method"),
        ({"task": "x", "temperature": 0}, 'did you mean "params": {"temperature": …}?'),
        ({"messages": [{"role": "user", "content": "x"}], "temprature": 0}, "unknown key 'temprature'; did you mean"),
        ({"messages": [{"role": "user", "content": "x"}], "n": 2}, "body.n: found int 2, wanted 1; a request has one"),
        (Request("x", carried=[1]), "carried: found list, wanted a mapping"),  # type: ignore[arg-type]
        (Request("x", carried={"n": math.inf}), "carried.n: found inf, wanted a finite number"),
        (Request("x", carried={"n": [2**63]}), "carried.n[0]: found an integer of 64 bits"),
        (Request("x", carried={"n": "\ud800"}), "carried.n: found a lone surrogate U+D800"),
        (Request("x", custom_id=5), "custom_id: found int 5, wanted text"),  # type: ignore[arg-type]
        (Request("x", custom_id=""), "custom_id: found an empty text"),
        (Request("x", custom_id="a\nb"), "custom_id: found the control character U+000A at 1"),
        (Request("x", label="a\x1b[2J"), "label: found the control character U+001B at 1"),
        (Request("x", label="\ud800"), "label: found a lone surrogate"),
        (Request("x", label="l" * 513), "label: found 513 characters, wanted at most 512"),
        (Request("x", key="a\0"), "key: found the control character U+0000 at 1"),
        (Request("x", key=""), "key: found an empty key"),
        (Request("x", tags="abc"), "tags: found text 'abc', wanted a list of texts"),
        (Request("x", tags=["a", None]), "tags[1]: found None, wanted text"),  # type: ignore[list-item]
        (Request("x", tags=["a", "b\t"]), "tags[1]: found the control character U+0009"),
        (Request("x", tags=[str(n) for n in range(MAX_TAGS + 1)]), "tags: found 65, wanted at most 64"),
    ],
)
def test_what_is_refused_says_where_what_was_found_and_what_was_wanted(item: Any, words: str) -> None:
    assert words in refusal(item)


@pytest.mark.parametrize(
    ("defaults", "words"),
    [
        ({"priority": "high"}, "priority: found text 'high', wanted a whole number of at most 32 bits"),
        ({"priority": True}, "priority: found bool True"),
        ({"priority": 2**31}, "priority: found int 2147483648"),
        ({"priority": 1.5}, "priority: found float 1.5"),
        ({"service_class": "fast"}, "service_class: found text 'fast', wanted realtime or batch"),
        ({"service_class": ["batch"]}, "service_class: found list"),
        ({"dedup": 0}, "dedup: found int 0, wanted True or False"),
        ({"fresh": "no"}, "fresh: found text 'no'"),
        ({"lane": 5}, "lane: found int 5, wanted text"),
        ({"origin": "a\0"}, "origin: found the control character"),
        ({"trace_id": ""}, "trace_id: found an empty text"),
        ({"carried": "x"}, "carried: found text 'x', wanted a mapping"),
        ({"tags": "x"}, "tags: found text 'x'"),
        ({"due": "tomorrow"}, "due: found 'tomorrow', wanted \"2h\""),
        ({"not_before": datetime(2026, 12, 1)}, "not_before: found the naive datetime"),
        ({"due": 1_796_112_000}, "due: found the number 1796112000: seconds ("),
        ({"sample": -1}, "sample: found int -1"),
        ({"sample": "1"}, "sample: found text '1'"),
        ({"key": 5}, "key: found int 5"),
    ],
)
def test_a_default_of_the_wrong_kind_is_refused_by_name(defaults: Any, words: str) -> None:
    assert words in refusal("x", **defaults)


def test_every_control_character_is_refused_in_names_and_no_other_ascii() -> None:
    for code in [*range(128), 0x85, 0x9F]:
        item = Request("x", label=f"a{chr(code)}")
        if code < 32 or code >= 127:
            assert f"U+{code:04X}" in refusal(item)
        else:
            assert taken(item).label == f"a{chr(code)}"
    assert taken(Request("x", label="Ente \u00a0 \U0001f986")).label == "Ente \u00a0 \U0001f986"


def test_a_refusal_never_repeats_a_whole_prompt() -> None:
    long = "quack " * 100_000
    for item in (
        {"task": long, "system": 5},
        {"task": "x", long: 1},
        {"task": "x", "messages": long},
        {"task": "x", "params": {long: math.nan}},
        {"task": long + "\ud800"},
        {"task": "x", "images": [long]},
        {"task": "x", "images": ["data:" + long]},
        Resize(extra={long: {1}}),
    ):
        assert len(refusal(item)) < 700
