"""The way in: what is taken, what is refused and in which words, and that nothing is stored which cannot be loaded."""

from __future__ import annotations

import base64
import json
import math
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from decimal import Decimal
from enum import StrEnum
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, RootModel, SecretStr, computed_field

from millpond.intake import MAX_IMAGE_BYTES, Defaults, each_samples, take
from millpond.rules.errors import UsageError
from millpond.rules.identity import fingerprint
from millpond.rules.job import Command, Image, Prompt, Request
from millpond.rules.prompt import MAX_TAGS, plain_prompt
from millpond.store.bodies import load_work, rehydrate
from millpond.store.enqueue import Asked

NOW = 1_796_112_000_000  # 2026-12-01T08:00Z
PNG = b"\x89PNG\r\n\x1a\n and so on"
JPEG = b"\xff\xd8\xff\xe0 and so on"
GIF = b"GIF89a and so on"
WEBP = b"RIFF\x10\x00\x00\x00WEBPVP8 "


class Resize(BaseModel):
    """A typed command with one field of each kind that the cases name."""

    path: str = "a.png"
    ratio: float = 1.0
    width: int = 1
    extra: Any = None


REGISTRY: Mapping[str, type[BaseModel]] = {"Resize": Resize}


def taken(item: Any, registry: Mapping[str, type[BaseModel]] | None = REGISTRY, **defaults: Any) -> Asked:
    return take(item, position=0, registry=registry, defaults=Defaults(**defaults), now_ms=NOW)


def stored(item: Any) -> Any:
    return load_work(taken(item).body)


def refusal(item: Any, registry: Mapping[str, type[BaseModel]] | None = REGISTRY, **defaults: Any) -> str:
    with pytest.raises(UsageError) as caught:
        taken(item, registry, **defaults)
    return str(caught.value)


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


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


# Commands that could not be loaded again


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"ratio": math.nan}, "payload.ratio: found nan, wanted a finite number"),
        ({"ratio": math.inf}, "payload.ratio: found inf, wanted a finite number"),
        ({"ratio": -math.inf}, "payload.ratio: found -inf, wanted a finite number"),
        ({"extra": math.nan}, "payload.extra: found nan"),
        ({"extra": {"deep": [math.inf]}}, "payload.extra.deep[0]: found inf"),
        ({"extra": nested(100)}, "payload.extra[0]"),
        ({"extra": nested(199)}, "payload.extra[0]"),
        ({"extra": nested(200)}, "payload.extra[0]"),
        ({"extra": nested(254)}, "payload.extra[0]"),
        ({"extra": nested(255)}, "payload.extra[0]"),
        ({"extra": nested(5_000)}, "payload.extra[0]"),
        ({"width": 2**63}, "payload.width: found an integer of 64 bits, wanted at most 64 bits, signed"),
        ({"width": -(2**63) - 1}, "payload.width: found an integer"),
        ({"extra": [2**63]}, "payload.extra[0]: found an integer"),
        ({"path": "\ud800"}, "payload.path: found a lone surrogate U+D800 at character 0"),
        ({"extra": {"a": "x\udfff"}}, "payload.extra.a: found a lone surrogate U+DFFF at character 1"),
        ({"extra": {"\ud800": 1}}, "payload.extra (a key): found a lone surrogate"),
        ({"extra": b"abc"}, "payload.extra: found bytes, which would load as text 'abc'"),
        ({"extra": [b"\xff"]}, "payload.extra[0]: found bytes, which JSON cannot carry"),
        ({"extra": {1, 2}}, "payload.extra: found set, which would load as list"),
        ({"extra": {"a": [{1}]}}, "payload.extra.a[0]: found set, which would load as list"),
        ({"extra": (1, 2)}, "payload.extra: found tuple, which would load as list"),
        ({"extra": {1: 2}}, "payload.extra.1: found int 2, which would load as NoneType None"),
        ({"extra": object()}, "payload.extra: found object, which JSON cannot carry"),
        ({"extra": Resize()}, "payload: found private or excluded values, or a model in an untyped field"),
    ],
)
def test_o12_a_command_that_could_not_be_loaded_is_refused_by_its_field(fields: Any, words: str) -> None:
    assert words in refusal(Resize(**fields))


@pytest.mark.parametrize("value", [math.nan, math.inf, nested(199), nested(255), 2**63, "\ud800", b"x", {1}])
@pytest.mark.parametrize("where", ["messages", "schema", "tools", "params", "transport params", "carried", "command"])
def test_o12_the_same_values_are_refused_by_path_wherever_they_stand(value: Any, where: str) -> None:
    items: dict[str, Any] = {
        "messages": {"messages": [{"role": "user", "content": value}]},
        "schema": {"task": "x", "schema": {"const": value}},
        "tools": {"task": "x", "tools": [{"function": value}]},
        "params": {"task": "x", "params": {"seed": value}},
        "transport params": {"task": "x", "params": {"metadata": value}},
        "carried": Request("x", carried={"column": value}),
        "command": Command("Resize", {"extra": value}, "uid-1"),
    }
    path = {"transport params": "params", "command": "payload"}.get(where, where)
    assert refusal(items[where], None).startswith(path)


def test_o12_what_nests_as_deep_as_is_allowed_is_taken_and_loads() -> None:
    deepest = Resize(extra=nested(99))
    assert rehydrate(stored(deepest), REGISTRY) == deepest
    assert stored(Prompt("x", params={"a": nested(99)})) == Prompt("x", params={"a": nested(99)})


def test_o12_a_nearly_full_stack_is_a_refusal_and_not_a_crash() -> None:
    def deep(levels: int) -> Asked:
        return taken(Resize(extra=nested(90))) if levels == 0 else deep(levels - 1)

    endings: set[str] = set()
    for levels in range(700, 1000, 3):
        try:
            deep(levels)
            endings.add("taken")
        except UsageError:
            endings.add("refused")
        except RecursionError:  # before take was reached
            break
    assert endings == {"taken", "refused"}


TREES = st.recursive(
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.integers(2**62, 2**65), st.floats(), st.text(),
        st.sampled_from(["\ud800", "\0", "NaN"]), st.binary(max_size=3), st.decimals(), st.datetimes(),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.one_of(st.text(max_size=3), st.integers(0, 9)), inner, max_size=3),
        st.tuples(inner),
        st.frozensets(st.integers(), max_size=2),
    ),
    max_leaves=8,
)  # fmt: skip


class Free(BaseModel):
    """A command whose fields take anything, and one that pydantic converts."""

    anything: Any = None
    number: float = 0
    moment: datetime | None = None


@settings(max_examples=300, deadline=None)
@given(TREES, st.floats(), st.one_of(st.none(), st.datetimes()))
def test_o12_no_command_that_is_taken_can_fail_to_load(anything: Any, number: float, moment: datetime | None) -> None:
    registry = {"Free": Free}
    given_model = Free(anything=anything, number=number, moment=moment)
    try:
        asked = taken(given_model, registry)
    except UsageError:
        return
    assert rehydrate(load_work(asked.body), registry) == given_model
    asked.body.encode()


@settings(max_examples=300, deadline=None)
@given(
    st.fixed_dictionaries(
        {"task": TREES},
        optional=dict.fromkeys(("system", "messages", "schema", "tools", "params", "model", "namespace"), TREES),
    )
)
def test_o12_no_prompt_that_is_taken_can_fail_to_load(fields: dict[str, Any]) -> None:
    try:
        asked = taken(fields)
    except UsageError:
        return
    work = load_work(asked.body)
    assert work == plain_prompt(Prompt(**fields))
    assert fingerprint(work) == asked.fingerprint
    asked.body.encode()


def test_typed_fields_load_as_what_they_were() -> None:
    class Typed(BaseModel):
        model_config = ConfigDict(strict=True)
        when: datetime
        price: Decimal
        uid: UUID
        names: set[str]
        pair: tuple[int, str]
        blob: bytes
        counts: dict[int, str]
        inner: Resize

    given_model = Typed(
        when=datetime(2026, 12, 1, tzinfo=UTC), price=Decimal("1.10"), uid=UUID(int=7), names={"b", "a"},
        pair=(1, "x"), blob=b"abc", counts={1: "one"}, inner=Resize(),
    )  # fmt: skip
    asked = taken(given_model, {"Typed": Typed})
    assert rehydrate(load_work(asked.body), {"Typed": Typed}) == given_model


def test_aliases_and_computed_fields_do_not_hinder_loading() -> None:
    class Aliased(BaseModel):
        model_config = ConfigDict(extra="forbid")
        from_: str = Field(alias="from")

        @computed_field
        @property
        def length(self) -> int:
            return len(self.from_)

    given_model = Aliased.model_validate({"from": "here"})
    asked = taken(given_model, {"Aliased": Aliased})
    assert json.loads(asked.body)["command"]["payload"] == {"from": "here"}
    assert rehydrate(load_work(asked.body), {"Aliased": Aliased}) == given_model


def test_what_a_model_hides_from_its_json_is_refused() -> None:
    class Hiding(BaseModel):
        token: SecretStr = SecretStr("")
        left_out: int = Field(default=0, exclude=True)
        _private: int = PrivateAttr(default=0)

    registry = {"Hiding": Hiding}
    words = refusal(Hiding(token=SecretStr("hunter2")), registry)
    assert words.startswith("payload.token: found SecretStr, which would load as SecretStr")
    assert "hunter2" not in words
    assert "private or excluded values" in refusal(Hiding(left_out=1), registry)
    changed = Hiding()
    changed._private = 1
    assert "private or excluded values" in refusal(changed, registry)
    assert taken(Hiding(), registry).kind == "command"


def test_a_validator_that_refuses_its_own_output_is_found_out_at_the_door() -> None:
    class Moody(BaseModel):
        name: str

        def model_post_init(self, context: Any) -> None:
            if self.name == "stored":
                raise RuntimeError("not twice")

    given_model = Moody(name="fresh")
    given_model.name = "stored"
    assert refusal(given_model, {"Moody": Moody}) == (
        "payload: what would be stored does not load again: "
        "command 'Moody' no longer validates: RuntimeError: not twice"
    )


def test_a_model_without_fields_of_its_own_is_refused() -> None:
    class Listed(RootModel[list[int]]):
        pass

    assert "payload: found list, wanted a model with fields" in refusal(Listed([1]), {"Listed": Listed})


def test_an_unregistered_model_is_refused_and_the_registered_types_are_named() -> None:
    class Other(Resize):
        pass

    words = refusal(Other(), {"b": Resize, "a": Resize})
    assert words.startswith("work: found a Other, which is not registered; registered types: a, b;")
    assert "registered types: none" in refusal(Other(), None)
    assert "type: found 'Gone', which is not registered; registered types: Resize" in refusal(Command("Gone", {}, "u"))


def test_a_command_that_its_type_refuses_is_refused() -> None:
    assert "does not load again: command 'Resize' no longer validates: width" in refusal(
        Command("Resize", {"width": "wide"}, "u")
    )
    assert "command.payload.extra: found tuple, which would load as list" in refusal(
        Command("Resize", {"extra": (1,)}, "u")
    )
    assert "payload: found list, wanted a mapping" in refusal(Command("Resize", [1], "u"))  # type: ignore[arg-type]
    assert "type: found the control character" in refusal(Command("a\0", {}, "u"), None)
    assert "uid: found an empty text" in refusal(Command("Resize", {}, ""))
    nameless: Any = [Command(None, {}, "u"), Command("Resize", {}, None), Command("Resize", {}, "u", b"1")]  # type: ignore[arg-type]
    for command, name in zip(nameless, ["type", "uid", "version"], strict=True):
        assert refusal(command, None).startswith(f"{name}: found")


# Pictures


def pictures(images: Any, base: Path | None = None) -> Any:
    asked = take(Prompt("what is this?", images=images), position=0, now_ms=NOW, base=base)
    work = load_work(asked.body)
    assert isinstance(work, Prompt)
    return work.images


@pytest.mark.parametrize(
    ("data", "media_type"), [(PNG, "image/png"), (JPEG, "image/jpeg"), (GIF, "image/gif"), (WEBP, "image/webp")]
)
def test_a_picture_is_told_by_its_content_however_it_comes(data: bytes, media_type: str, tmp_path: Path) -> None:
    (tmp_path / "wrong.tiff").write_bytes(data)
    url = "data:image/tiff;base64," + base64.b64encode(data).decode()
    found = pictures(
        [data, bytearray(data), url, Image(data, "image/tiff"), Image(url=url), "wrong.tiff", Path("wrong.tiff"),
         str(tmp_path / "wrong.tiff")],
        tmp_path,
    )  # fmt: skip
    assert set(found) == {Image(data, media_type)}
    assert len(found) == 8


def test_the_same_picture_from_a_file_and_from_memory_is_the_same_work(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(PNG)
    by_path = take(Prompt("x", images=["a.png"]), position=0, now_ms=NOW, base=tmp_path)
    assert by_path.fingerprint == taken(Prompt("x", images=[PNG])).fingerprint


def test_an_address_is_kept_for_the_lane_to_fetch() -> None:
    assert pictures(["https://host/a.png", Image(url="HTTP://host/b", media_type="image/gif")]) == (
        Image(url="https://host/a.png"),
        Image(url="HTTP://host/b"),
    )


def test_without_a_base_paths_are_relative_to_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.png").write_bytes(PNG)
    monkeypatch.chdir(tmp_path)
    assert pictures(["a.png"]) == (Image(PNG),)


def test_a_picture_that_cannot_be_read_is_refused_by_path_and_reason(tmp_path: Path) -> None:
    (tmp_path / "text.png").write_bytes(b"no picture")
    (tmp_path / "empty.png").write_bytes(b"")
    os.mkfifo(tmp_path / "pipe.png")
    for image, words in {
        "gone.png": "gone.png': No such file or directory; wanted a readable picture",
        ".": "is not a file, wanted a picture",
        "pipe.png": "is not a file, wanted a picture",
        "nul\0": "null byte; wanted a readable picture",
        "text.png": "'text.png' starting with 6e 6f 20 70 69 63 74 75, wanted the content of a PNG, JPEG, GIF or WebP",
        "empty.png": "'empty.png' with no bytes",
        "ftp://host/a.png": "found 'ftp://host/a.png', wanted an http(s) or data URL, a path or bytes",
        "data:image/png;base64,???": "a data URL that does not decode",
        "data:image/png;base64,aGFsbG8=": "found a data URL starting with 68 61 6c 6c 6f",
    }.items():
        with pytest.raises(UsageError) as caught:
            pictures([PNG, image], tmp_path)
        assert str(caught.value).startswith("images[1]: ")
        assert words in str(caught.value)
    others: dict[Any, str] = {
        5: "images[0]: found int 5, wanted an Image, bytes, a path",
        b"": "content with no bytes",
        Image(): "images[0]: found an empty text, wanted an Image",
        Image(PNG, url="https://host/a"): "content both in data and in url",
    }
    for image, words in others.items():
        with pytest.raises(UsageError) as caught:
            pictures([image])
        assert words in str(caught.value)


def test_a_picture_beyond_the_cap_is_refused_and_one_at_the_cap_is_taken(tmp_path: Path) -> None:
    at_cap = PNG + bytes(MAX_IMAGE_BYTES - len(PNG))
    (tmp_path / "cap.png").write_bytes(at_cap)
    (tmp_path / "big.png").write_bytes(at_cap + b"\0")
    assert len(pictures(["cap.png"], tmp_path)[0].data) == MAX_IMAGE_BYTES
    for image in ("big.png", at_cap + b"\0"):
        with pytest.raises(UsageError, match="is larger than 20,971,520 bytes"):
            pictures([image], tmp_path)
