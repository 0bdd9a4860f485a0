"""Identity: what must differ differs, what must not matter does not, and what cannot be stored is refused."""

from __future__ import annotations

import base64
import contextlib
import enum
import hashlib
import json
import re
import struct
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.rules import identity
from millpond.rules.errors import UsageError
from millpond.rules.identity import canonical, fingerprint, idempotency_key
from millpond.rules.job import Command, Image, Prompt

PAGE = (Path(__file__).parents[2] / "docs" / "identity.md").read_text(encoding="utf-8")
VECTORS: list[dict[str, Any]] = json.loads(re.findall(r"```json\n(.*?)\n```", PAGE, re.DOTALL)[0])
PNG = b"\x89PNG\r\n\x1a\n some pixels"
PNG_URL = "data:image/png;base64," + base64.b64encode(PNG).decode()
OTHER_HEX = "ab" * 32


def nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels - 1):
        value = [value]
    return value


def chat(*parts: Any) -> Prompt:
    return Prompt(messages=[{"role": "user", "content": list(parts)}])


# The published form


def work_of(vector: dict[str, Any]) -> Prompt | Command:
    if "command" in vector:
        return Command(**vector["command"])
    fields = dict(vector["prompt"])
    if "images" in fields:
        fields["images"] = [
            Image(data=base64.b64decode(one["data_base64"]), media_type=one["media_type"])
            if "data_base64" in one
            else Image(url=one["url"])
            for one in fields["images"]
        ]
    return Prompt(**fields)


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])
def test_the_published_vectors_hold(vector: dict[str, Any]) -> None:
    work = work_of(vector)
    assert canonical(work).hex() == vector["canonical_hex"]
    assert fingerprint(work) == vector["fingerprint"]
    assert hashlib.sha256(bytes.fromhex(vector["canonical_hex"])).hexdigest() == vector["fingerprint"]


def test_vectors_are_published_for_every_kind_of_work() -> None:
    names = {vector["name"] for vector in VECTORS}
    assert names == {"plain", "multi-turn", "image", "image in a message", "tools and a named model", "command"}
    assert len({vector["fingerprint"] for vector in VECTORS}) == len(VECTORS)


def test_the_page_alone_suffices_to_compute_a_fingerprint() -> None:
    def sized(value: str | bytes) -> bytes:
        data = value.encode() if isinstance(value, str) else value
        return struct.pack(">Q", len(data)) + data

    prompt = Prompt(
        "t🦆", intent="i", system="s", reasoning="low", model="m", params={"top_p": 1.0, "seed": 1, "user": "x"}
    )
    by_hand = b"millpond prompt 1\n" + b"".join(map(sized, ("i", "t🦆", "s", "low")))
    by_hand += sized("model") + sized("m") + sized("params") + sized('{"seed":1,"top_p":1.0}')
    assert canonical(prompt) == by_hand


def test_the_page_names_every_transport_parameter_and_the_depth() -> None:
    assert all(name in PAGE for name in identity.TRANSPORT_PARAMS)
    assert f"more than {identity.MAX_DEPTH} levels" in PAGE
    assert f"1 to {identity.MAX_KEY_CHARS} characters" in PAGE


# What must differ


def test_o23_no_two_different_jobs_share_a_fingerprint() -> None:
    def four(intent: str, task: str, system: str, reasoning: str) -> Prompt:
        return Prompt(task, intent=intent, system=system, reasoning=reasoning)

    different = [
        (four("ab", "c", "", ""), four("a", "bc", "", "")),
        (four("a", "", "b", ""), four("a", "b", "", "")),
        (Prompt(params={"n": 1}), Prompt(params={"n": "1"})),
        (Prompt(params={"n": 1}), Prompt(params={"n": 1.0})),
        (Prompt(params={"n": 1}), Prompt(params={"n": True})),
        (Prompt(params={"stop": ["x", "y"]}), Prompt(params={"stop": "x-y"})),
        (Prompt(params={"stop": ["x", "y"]}), Prompt(params={"stop": ["xy"]})),
        (four("", "3:abc", "", ""), four("", "abc", "", "")),
        (four("3:abc", "", "", ""), four("", "3:abc", "", "")),
        (four("🦆", "x", "", ""), four("🦆x", "", "", "")),
        (four("", "🦆abc", "", ""), four("", "🦆", "abc", "")),
        (four("", "é", "", ""), four("", "e\u0301", "", "")),
        (four("", "a\r\n", "", ""), four("", "a\n", "", "")),
        (four("", "a\0b", "", ""), four("", "ab", "", "")),
    ]
    for one, other in different:
        assert fingerprint(one) != fingerprint(other), (one, other)
    # The one documented rule of None and "".
    assert fingerprint(Prompt("t", system=None)) == fingerprint(Prompt("t", system=""))  # type: ignore[arg-type]
    # Lengths are of bytes: four of them for this character.
    assert (4).to_bytes(8, "big") + "🦆".encode() in canonical(four("", "🦆", "", ""))
    # Attribute order in a command changes nothing; its values and its kind do.
    payload = {"b": {"y": 1, "x": 2}, "a": [1]}
    same = {"a": [1], "b": {"x": 2, "y": 1}}
    assert fingerprint(Command("t", payload, "1")) == fingerprint(Command("t", same, "2"))
    assert fingerprint(Command("t", payload, "1")) != fingerprint(Command("u", payload, "1"))
    assert fingerprint(Command("t", payload, "1")) != fingerprint(Command("t", payload, "1", version="2"))
    assert fingerprint(Command("t", payload, "1")) != fingerprint(Command("t", {"b": 1}, "1"))


def test_every_part_that_determines_the_result_counts() -> None:
    turns = [{"role": "user", "content": "x"}]
    prompts = [
        Prompt("x"),
        Prompt(intent="x"),
        Prompt(system="x"),
        Prompt(reasoning="x"),
        Prompt(model="x"),
        Prompt(namespace="x"),
        Prompt(messages=turns),
        Prompt(messages=[*turns, {"role": "assistant", "content": "y"}]),
        Prompt(schema={"type": "object"}),
        Prompt(tools=[{"type": "object"}]),
        Prompt(params={"type": "object"}),
        Prompt(params={"stop": ""}),
        Prompt(params={"stop": []}),
        Prompt(images=[Image(PNG)]),
        Prompt(images=[Image(PNG, "image/jpeg")]),
        Prompt(images=[Image(PNG), Image(PNG)]),
        Prompt(images=[Image(url="https://example.org/x.png")]),
        chat({"type": "image_url", "image_url": {"url": PNG_URL}}),
        Command("x", {}, "1"),
    ]
    assert len({fingerprint(prompt) for prompt in prompts}) == len(prompts)


def test_two_models_asked_for_by_name_are_two_answers() -> None:
    assert len({fingerprint(Prompt("x", model=model)) for model in (None, "a", "b")}) == 3


def test_two_chats_with_equal_last_turns_are_two_answers() -> None:
    last = {"role": "user", "content": "And then?"}
    one = Prompt(messages=[{"role": "user", "content": "Ducks swim."}, last])
    other = Prompt(messages=[{"role": "user", "content": "Ducks fly."}, last])
    assert fingerprint(one) != fingerprint(other)


def test_the_order_of_a_schema_counts_and_of_a_message_does_not() -> None:
    one, other = {"properties": {"a": {}, "b": {}}}, {"properties": {"b": {}, "a": {}}}
    for field in ("schema", "params", "tools"):
        values = [{"response_format": x} if field == "params" else [x] if field == "tools" else x for x in (one, other)]
        assert fingerprint(Prompt(**{field: values[0]})) != fingerprint(Prompt(**{field: values[1]})), field
    same = [{"role": "user", "content": "x"}], [{"content": "x", "role": "user"}]
    assert fingerprint(Prompt(messages=same[0])) == fingerprint(Prompt(messages=same[1]))
    bias = {"logit_bias": {"1": 1, "2": 2}, "seed": 1}, {"seed": 1, "logit_bias": {"2": 2, "1": 1}}
    assert fingerprint(Prompt(params=bias[0])) == fingerprint(Prompt(params=bias[1]))


# What must not matter


@pytest.mark.parametrize("name", sorted(identity.TRANSPORT_PARAMS))
def test_transport_parameters_do_not_matter(name: str) -> None:
    assert fingerprint(Prompt("x", params={name: "a"})) == fingerprint(Prompt("x", params={name: "b"}))
    assert fingerprint(Prompt("x", params={name: "a"})) == fingerprint(Prompt("x"))


def test_absent_parts_are_none_or_empty() -> None:
    bare = fingerprint(Prompt("x"))
    empty: list[dict[str, Any]] = [
        {"messages": []},
        {"messages": None},
        {"schema": {}},
        {"tools": []},
        {"images": None},
        {"params": None},
        {"params": {"seed": None}},
        {"model": ""},
        {"namespace": None},
        {"intent": None, "system": None, "reasoning": None},
    ]
    for fields in empty:
        assert fingerprint(Prompt("x", **fields)) == bare, fields


def test_tuples_enums_and_stored_copies_are_the_same_work() -> None:
    class Size(enum.StrEnum):
        SMALL = "small"

    one = Prompt(messages=({"role": "user", "content": ("a", Size.SMALL)},), params={"n": enum.IntEnum("N", "A")(1)})
    other = Prompt(messages=[{"role": "user", "content": ["a", "small"]}], params={"n": 1})
    assert fingerprint(one) == fingerprint(other)
    assert fingerprint(Prompt(params=json.loads(json.dumps({"x": 1e16, "y": -0.0})))) == fingerprint(
        Prompt(params={"x": 1e16, "y": -0.0})
    )


def test_embedded_files_go_by_their_bytes() -> None:
    b64 = base64.b64encode(PNG).decode()
    wrapped = b64[:8] + "\r\n" + b64[8:].rstrip("=")
    shapes: list[tuple[Any, Any]] = [
        (
            {"type": "image_url", "image_url": {"url": "data:image/png;base64," + b64}},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64," + wrapped}},
        ),
        (
            {"type": "input_image", "image_url": "data:image/png;base64," + b64},
            {"type": "input_image", "image_url": "data:image/png;base64," + wrapped},
        ),
        (
            {"type": "input_audio", "input_audio": {"data": b64, "format": "wav"}},
            {"type": "input_audio", "input_audio": {"data": wrapped, "format": "wav"}},
        ),
        ({"type": "file", "file": {"file_data": b64}}, {"type": "file", "file": {"file_data": wrapped}}),
        ({"type": "input_file", "file_data": b64}, {"type": "input_file", "file_data": wrapped}),
        (
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": b64}},
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": wrapped}},
        ),
    ]
    for one, other in shapes:
        assert fingerprint(chat(one)) == fingerprint(chat(other)), one
        assert b64[:24].encode() not in canonical(chat(one))
        nested_one, nested_other = ({"type": "tool_result", "content": [part]} for part in (one, other))
        assert fingerprint(chat(nested_one)) == fingerprint(chat(nested_other)), one
        assert fingerprint(chat(one)) != fingerprint(chat(nested_one))
    assert len({fingerprint(chat(one)) for one, _ in shapes}) == len(shapes)


def test_embedded_files_differ_by_content_place_and_media_type() -> None:
    def part(url: Any) -> dict[str, Any]:
        return {"type": "image_url", "image_url": {"url": url}}

    other_url = "data:image/png;base64," + base64.b64encode(b"other").decode()
    works = [
        chat(part(PNG_URL)),
        chat(part(other_url)),
        chat(part(PNG_URL.replace("png", "gif"))),
        chat(part(PNG_URL), part(other_url)),
        chat(part(other_url), part(PNG_URL)),
        chat(part(None)),
        chat(part("data:image/png;base64,%%%")),
        chat(part("https://example.org/x.png")),
        chat({"type": "text", "text": PNG_URL}),
        chat({"type": "text", "text": PNG_URL + "\n"}),
    ]
    assert len({fingerprint(work) for work in works}) == len(works)


def test_the_callers_messages_are_left_as_they_are() -> None:
    part = {"type": "image_url", "image_url": {"url": PNG_URL}}
    prompt = chat(part)
    canonical(prompt)
    assert part["image_url"] == {"url": PNG_URL}


def test_a_picture_is_the_same_by_data_and_by_data_url() -> None:
    expected = fingerprint(Prompt(images=[Image(PNG, "image/png")]))
    assert fingerprint(Prompt(images=[PNG_URL])) == expected
    assert fingerprint(Prompt(images=[Image(url=PNG_URL)])) == expected
    by_address = fingerprint(Prompt(images=[Image(url="https://example.org/x.png")]))
    assert fingerprint(Prompt(images=["https://example.org/x.png"])) == by_address


# Refusals: the path, what was found, what is wanted


class Weird:
    pass


@pytest.mark.parametrize(
    ("work", "path", "found"),
    [
        (Prompt(task=1), "task", "int 1"),  # type: ignore[arg-type]
        (Prompt(system=b"x"), "system", "bytes"),  # type: ignore[arg-type]
        (Prompt("a\ud800"), "task", "lone surrogate U+D800 at character 1"),
        (Prompt(model=3), "model", "int 3"),  # type: ignore[arg-type]
        (Prompt(messages="hello"), "messages", "text 'hello'"),  # type: ignore[arg-type]
        (Prompt(messages=["hello"]), "messages[0]", "text 'hello'"),  # type: ignore[list-item]
        (Prompt(messages={"role": "user"}), "messages", "dict"),  # type: ignore[arg-type]
        (Prompt(messages=[{}, {}, {"content": float("nan")}]), "messages[2].content", "nan"),
        (Prompt(messages=[{"content": [{"text": "\udfff"}]}]), "messages[0].content[0].text", "lone surrogate"),
        (Prompt(messages=[{"a\ud800": 1}]), "messages[0] (a key)", "lone surrogate"),
        (Prompt(schema={"x": {1: 2}}), "schema.x", "int 1 as a key"),
        (Prompt(schema=[1]), "schema", "list"),  # type: ignore[arg-type]
        (Prompt(tools={"a": 1}), "tools", "dict"),  # type: ignore[arg-type]
        (Prompt(tools=["x"]), "tools[0]", "text 'x'"),  # type: ignore[list-item]
        (Prompt(params=[("a", 1)]), "params", "list"),  # type: ignore[arg-type]
        (Prompt(params={"x": float("inf")}), "params.x", "inf"),
        (Prompt(params={"x": float("-inf")}), "params.x", "-inf"),
        (Prompt(params={"seed": 2**63}), "params.seed", "integer of 64 bits"),
        (Prompt(params={"seed": -(2**63) - 1}), "params.seed", "integer of 64 bits"),
        (Prompt(params={"x": {1, 2}}), "params.x", "set"),
        (Prompt(params={"x": b"1"}), "params.x", "bytes"),
        (Prompt(params={"x": Weird()}), "params.x", "Weird"),
        (Prompt(images="x.png"), "images", "text 'x.png'"),
        (Prompt(images=["x.png"]), "images[0]", "'x.png'"),
        (Prompt(images=[Path("x.png")]), "images[0]", "the path 'x.png'"),
        (Prompt(images=[b"x"]), "images[0]", "bytes"),
        (Prompt(images=[Image()]), "images[0]", "neither content nor an address"),
        (Prompt(images=[Image("x")]), "images[0].data", "text 'x'"),  # type: ignore[arg-type]
        (Prompt(images=[Image(url="file:///x.png")]), "images[0]", "'file:///x.png'"),
        (Command("", {}, "1"), "type", "an empty text"),
        (Command("t", {"x": float("nan")}, "1"), "payload.x", "nan"),
        (Command("t", [1], "1"), "payload", "list"),  # type: ignore[arg-type]
        ({"task": "x"}, "work", "dict"),
    ],
)
def test_what_cannot_be_stored_is_refused_by_its_path(work: Any, path: str, found: str) -> None:
    with pytest.raises(UsageError) as refusal:
        fingerprint(work)
    message = str(refusal.value)
    assert message.startswith(f"{path}: found "), message
    assert found in message
    assert "wanted" in message


@pytest.mark.parametrize("levels", [101, 199, 200, 254, 255, 995, 5_000])
def test_o12_nesting_has_our_own_limit(levels: int) -> None:
    makers = (
        lambda value: Command("t", {"free": value}, "1"),
        lambda value: Prompt(params={"free": value}),
        lambda value: Prompt(schema={"free": value}),
        lambda value: Prompt(messages=[{"content": value}]),
    )
    for make in makers:
        with pytest.raises(UsageError, match="found more than 100 levels of nesting"):
            fingerprint(make(nested(levels)))
        assert len(fingerprint(make(nested(98)))) == 64


def test_o12_the_limit_is_exact_and_what_it_lets_through_loads() -> None:
    deepest = Command("t", {"free": nested(identity.MAX_DEPTH - 1)}, "1")
    assert json.loads(json.dumps(deepest.payload)) == deepest.payload
    fingerprint(deepest)
    with pytest.raises(UsageError):
        fingerprint(Command("t", {"free": nested(identity.MAX_DEPTH)}, "1"))


def test_o12_a_value_that_contains_itself_and_a_full_stack_are_refusals() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(UsageError):
        fingerprint(Prompt(params={"x": loop}))

    def deep(left: int) -> str:
        return fingerprint(Prompt(params={"x": nested(90)})) if left == 0 else deep(left - 1)

    frame, used = sys._getframe(), 0
    while frame.f_back:
        frame, used = frame.f_back, used + 1
    with pytest.raises(UsageError):
        deep(sys.getrecursionlimit() - used - 40)


# Keys


def test_keys_by_default_sample_unique_and_own() -> None:
    work = Prompt("x")
    name = fingerprint(work)
    assert idempotency_key(work, name) == name
    assert idempotency_key(work, name, sample=0) == f"{name}:sample:0"
    assert idempotency_key(work, name, unique=7) == f"{name}:unique:7"
    assert idempotency_key(work, name, unique="9f-a") == f"{name}:unique:9f-a"
    assert idempotency_key(work, name, key=" My key: Ünïcode 🦆 ") == " My key: Ünïcode 🦆 "
    keys = [idempotency_key(work, name, sample=n) for n in range(3)]
    assert len({name, *keys, *(idempotency_key(work, name, unique=n) for n in range(3))}) == 7


def test_a_commands_key_is_its_uid_unless_the_caller_gives_one() -> None:
    command = Command("t", {}, uid="u-1")
    name = fingerprint(command)
    assert idempotency_key(command, name) == "u-1"
    assert idempotency_key(command, name, unique=1) == "u-1"
    assert idempotency_key(command, name, key="mine") == "mine"
    with pytest.raises(UsageError, match="sample: found with a command"):
        idempotency_key(command, name, sample=1)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"key": "a", "sample": 1}, "found key and sample"),
        ({"sample": 1, "unique": 1}, "found sample and unique"),
        ({"key": "a", "sample": 1, "unique": 1}, "found key and sample and unique"),
        ({"key": ""}, "empty key"),
        ({"key": "x" * 513}, "513 characters"),
        ({"key": "a\nb"}, "control character U\\+000A at 1"),
        ({"key": "a\x7f"}, "control character U\\+007F"),
        ({"key": "a\ud800"}, "lone surrogate"),
        ({"key": 1}, "found int 1"),
        ({"key": OTHER_HEX}, "form of a fingerprint of other work"),
        ({"key": OTHER_HEX + ":sample:1"}, "form of a fingerprint of other work"),
        ({"key": OTHER_HEX + ":"}, "form of a fingerprint of other work"),
        ({"sample": -1}, "sample: found int -1"),
        ({"sample": True}, "sample: found bool True"),
        ({"sample": "1"}, "sample: found text '1'"),
        ({"unique": "a:b"}, "unique: found text 'a:b'"),
    ],
)
def test_keys_that_could_be_taken_for_others_are_refused(asked: dict[str, Any], says: str) -> None:
    work = Prompt("x")
    with pytest.raises(UsageError, match=says):
        idempotency_key(work, fingerprint(work), **asked)


def test_keys_that_only_resemble_a_fingerprint_are_the_callers_own() -> None:
    work = Prompt("x")
    name = fingerprint(work)
    for key in (
        name,
        f"{name}:sample:1",
        OTHER_HEX.upper(),
        OTHER_HEX + "0",
        OTHER_HEX[:-1],
        "mine-" + OTHER_HEX,
        "x" * 512,
    ):
        assert idempotency_key(work, name, key=key) == key


# Properties

TEXT = st.text(max_size=12)
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
PROMPTS = st.builds(
    Prompt,
    task=TEXT,
    intent=TEXT,
    system=TEXT,
    reasoning=TEXT,
    messages=st.none() | st.lists(st.dictionaries(TEXT, JSON, max_size=2), max_size=2),
    schema=st.none() | st.dictionaries(TEXT, JSON, max_size=2),
    tools=st.none() | st.lists(st.dictionaries(TEXT, JSON, max_size=2), max_size=2),
    images=st.lists(st.builds(Image, data=st.binary(min_size=1, max_size=4)), max_size=2),
    params=st.dictionaries(TEXT, JSON, max_size=3),
    model=st.none() | TEXT,
    namespace=TEXT,
)


def parts_of(data: bytes) -> tuple[list[bytes], dict[bytes, bytes]]:
    """Read canonical bytes back: possible at all only if no field can run into the next."""
    assert data.startswith(identity.PROMPT_TAG)
    fields: list[bytes] = []
    at = len(identity.PROMPT_TAG)
    while at < len(data):
        size = int.from_bytes(data[at : at + 8], "big")
        fields.append(data[at + 8 : at + 8 + size])
        at += 8 + size
    assert at == len(data)
    assert len(fields) % 2 == 0
    return fields[:4], dict(zip(fields[4::2], fields[5::2], strict=True))


def kept(value: Any) -> Any:
    """A value with its types and its order of keys made visible, so that 1, 1.0 and True differ."""
    if isinstance(value, dict):
        return ("dict", [(key, kept(item)) for key, item in value.items()])
    if isinstance(value, list):
        return ("list", [kept(item) for item in value])
    return (type(value).__name__, repr(value))


@given(PROMPTS)
def test_canonical_bytes_are_injective_on_field_boundaries_and_over_parts(prompt: Prompt) -> None:
    texts, parts = parts_of(canonical(prompt))
    assert [text.decode() for text in texts] == [prompt.intent, prompt.task, prompt.system, prompt.reasoning]
    assert list(parts) == sorted(parts)
    expected: dict[str, Any] = {"schema": prompt.schema, "tools": prompt.tools, "messages": prompt.messages}
    expected["params"] = {
        name: value
        for name, value in prompt.params.items()
        if value is not None and name not in identity.TRANSPORT_PARAMS
    }
    for name, value in expected.items():
        if not value:
            assert name.encode() not in parts
            continue
        read = json.loads(parts[name.encode()])
        if name in ("schema", "tools"):
            assert kept(read) == kept(value)
        else:
            assert json.dumps(read, sort_keys=True) == json.dumps(value, sort_keys=True)
    assert parts.get(b"model", b"").decode() == (prompt.model or "")
    assert parts.get(b"namespace", b"").decode() == prompt.namespace
    assert len(json.loads(parts.get(b"images", b"[]"))) == len(prompt.images)


@given(st.tuples(TEXT, TEXT, TEXT, TEXT), st.tuples(TEXT, TEXT, TEXT, TEXT))
def test_fingerprints_are_equal_exactly_when_the_texts_are(one: Any, other: Any) -> None:
    def name(texts: tuple[str, str, str, str]) -> str:
        intent, task, system, reasoning = texts
        return fingerprint(Prompt(task, intent=intent, system=system, reasoning=reasoning))

    assert (name(one) == name(other)) == (one == other)


@given(st.from_type(object) | JSON)
def test_canonical_returns_bytes_or_refuses(value: Any) -> None:
    for work in (Prompt(params={"x": value}), Prompt(messages=[{"content": value}]), Prompt(value), value):
        with contextlib.suppress(UsageError):
            assert isinstance(canonical(work), bytes)
