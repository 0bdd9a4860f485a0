"""Nothing is stored, least of all a command, that could not be loaded again."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oneitem import REGISTRY, Resize, refusal, stored, taken
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, RootModel, SecretStr, computed_field

from millpond.rules.errors import UsageError
from millpond.rules.identity import fingerprint
from millpond.rules.job import Command, Prompt, Request
from millpond.rules.prompt import plain_prompt
from millpond.store.bodies import load_work, rehydrate
from millpond.store.enqueue import Asked


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


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
