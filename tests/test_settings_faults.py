"""Faults of settings: where each is, what was found, what was wanted and what next, in one line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from settings_here import Load

from millpond.rules.errors import SettingsError


def faults(act: Callable[[], object]) -> list[str]:
    with pytest.raises(SettingsError) as raised:
        act()
    assert raised.value.exit_code == 78
    return str(raised.value).splitlines()


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("fair_evry: 3", "millpond.yaml:1: fair_evry: unknown key; did you mean fair_every?"),
        (
            "lanes:\n  free:\n    max_atempts: 3",
            "millpond.yaml:3: lanes.free.max_atempts: unknown key; did you mean max_attempts?",
        ),
        ("hold_s: 3", "millpond.yaml:1: hold_s: unknown key here; did you mean lanes.NAME.hold_s?"),
        (
            "caps: {all: {hour_usd: 3, day_usd: 1}}",
            "millpond.yaml:1: caps.all.hour_usd: unknown key; known are day_usd",
        ),
        (
            "alerts: {zzz: 3}",
            "millpond.yaml:1: alerts.zzz: unknown key; known are cross_lane_retries_per_job, duplicate_",
        ),
        ("lanes: {a: {qqqqq: 3}}", "millpond.yaml:1: lanes.a.qqqqq: unknown key; `millpond config schema` lists all"),
        (
            "lanes: {a: {concurrency: 3}}",
            "millpond.yaml:1: lanes.a.concurrency: unknown key; did you mean max_in_flight?",
        ),
        (
            "lanes: {a: {max_attempts: two}}",
            "millpond.yaml:1: lanes.a.max_attempts: found 'two', wanted a whole number; such as max_attempts: 2",
        ),
        (
            "lanes: {a: {max_attempts: true}}",
            "lanes.a.max_attempts: found true, wanted a number; such as max_attempts: 2",
        ),
        ("lanes: {a: {max_attempts: 0}}", "lanes.a.max_attempts: found 0, wanted 1 or more"),
        ("lanes: {a: {rpm: 2.5}}", "lanes.a.rpm: found 2.5, wanted a whole number; such as rpm: 100"),
        ("grace_s: -1", "grace_s: found -1, wanted 0 or more"),
        ("grace_s: .inf", "grace_s: found inf, wanted 1000000000 or less"),
        ("grace_s: soon", "grace_s: found 'soon', wanted a number; such as grace_s: 30"),
        ("lanes: {a: {model: 4.1}}", "lanes.a.model: found 4.1, wanted text; put it in quotes"),
        ("lanes: {a: {serial: maybe}}", "lanes.a.serial: found 'maybe', wanted true or false; such as serial: false"),
        (
            "lanes: {a: {pin_on: ambiguous}}",
            "lanes.a.pin_on: found 'ambiguous', wanted a list; write pin_on: [ambiguous]",
        ),
        (
            "lanes:\n a:\n  pin_on:\n  - ambigous",
            "millpond.yaml:4: lanes.a.pin_on[0]: found 'ambigous', wanted ok, retryable",
        ),
        ("lanes: {a: {pin_on: [ambigous]}}", "; did you mean ambiguous?"),
        ("lanes: {a: {tier: cheap}}", "lanes.a.tier: found 'cheap', wanted free or paid"),
        ("lanes: [a]", "lanes: found a list, wanted a mapping of keys to values; such as lanes: {name: …}"),
        ("lanes: {a: 3}", "lanes.a: found 3, wanted a mapping of keys to values; such as a: {kind: …, tier: …}"),
        ("lanes: {a b: {}}", "lanes.a b: found 'a b', wanted a lane's name of letters, digits, _ and -"),
        (
            "lanes: {a: {price: cheap}}",
            "lanes.a.price: found 'cheap', wanted 0, auto, USD for each call, or input_usd_",
        ),
        ("lanes: {a: {price: -1}}", "lanes.a.price: found -1, wanted 0 or more"),
        (
            "lanes: {a: {price: {input_usd_per_mtok: 1}}}",
            "lanes.a.price: only half a price, output_usd_per_mtok is missing",
        ),
        ("lanes: {a: {price: {}}}", "lanes.a.price: found no figure, wanted call_usd, or input_usd_per_mtok and"),
        (
            "lanes: {a: {base_url: localhost}}",
            "lanes.a.base_url: found 'localhost', wanted an address that starts with http",
        ),
        ("lanes: {a: {kind: caht}}", "lanes.a.kind: unknown kind 'caht'; did you mean chat?"),
        (
            "lanes: {a: {kind: chat}}",
            "lanes.a.base_url: missing; kind chat needs it, such as base_url: http://127.0.0.1",
        ),
        ("lanes: {a: {kind: python, target: x}}", "lanes.a.target: found 'x', wanted module:name"),
        ('lanes: {a: {kind: command, command: "a \'b"}}', "lanes.a.command: cannot be split into words (No closing"),
        ("lanes: {a: {reset_tz: Mars/Olympus}}", "found 'Mars/Olympus', wanted a time zone by its IANA name"),
        (
            "reconcile: {hold_s: long}",
            "reconcile.hold_s: found 'long', wanted seconds, or realtime and batch with seconds",
        ),
        (
            "reconcile: {hold_s: {realtime: x}}",
            "reconcile.hold_s.realtime: found 'x', wanted a number; such as realtime: 60",
        ),
        ("reconcile: {after_hold: wait}", "reconcile.after_hold: found 'wait', wanted pin, same, ask or fail"),
        ("spill: sometimes", "spill: found 'sometimes', wanted never or when_late"),
        ("spill: 3", "spill: found 3, wanted never, when_late, or after_s with seconds"),
        ("caps: {all: {}}", "caps.all.day_usd: missing; such as day_usd: 5"),
        (
            "caps: {al: {day_usd: 1}}",
            "caps.al: unknown lane 'al'; a cap is for all, a lane or a tier; known: all, free, paid",
        ),
        (
            "lanes: {free: {}}\nrouting:\n  x: [free, fre]",
            "millpond.yaml:3: routing.x[1]: unknown lane 'fre'; configured lanes: free",
        ),
        ("routing: {x: []}", "routing.x: found an empty list, wanted one or more"),
        ("durability: fast", "durability: found 'fast', wanted normal or full"),
        ("queue: {path: 'mysql://x'}", "queue.path: found an address of another kind, wanted a file or postgresql://"),
        ("commands: x", "commands: found 'x', wanted module:name"),
    ],
)
def test_a_fault_says_where_what_was_found_what_was_wanted_and_what_next(loaded: Load, text: str, line: str) -> None:
    found = faults(lambda: loaded(text))
    assert len(found) == 1
    assert line in found[0]
    assert found[0].startswith("millpond.yaml:")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("- a\n- b", "millpond.yaml: found a list, wanted keys and values"),
        ("just words", "millpond.yaml: found a value, wanted keys and values"),
        ("lanes: {", "millpond.yaml:1: not YAML: expected the node content"),
        (
            "lanes:\n\tfree: 1",
            "millpond.yaml:2: not YAML: found character '\\t' that cannot start any token; indent with",
        ),
        ("lanes: !!python/name:os.system x", "millpond.yaml:1: not YAML: could not determine a constructor"),
        ("a: 1\n---\nb: 2", "millpond.yaml:2: not YAML: but found another document"),
        ("on: 1", "millpond.yaml:1: key on is not text; put it in quotes"),
        ("? [a]\n: 1", "millpond.yaml:1: key a list is not text; put it in quotes"),
        (
            "fair_every: 1\nfair_every: 2",
            "millpond.yaml:2: fair_every: said twice (first at millpond.yaml:1); keep one",
        ),
        ("lanes: &x {a: *x}", "nested or repeated without end"),
        ("a: " + "[" * 3_000, "nested or repeated without end"),
        ("a\0b: 1", "millpond.yaml: not YAML: unacceptable character"),
        ("x: 1\n" * 300_000, "millpond.yaml: larger than 1,048,576 bytes; is it a settings file?"),
    ],
)
def test_a_file_that_cannot_be_parsed_is_one_line(loaded: Load, text: str, line: str) -> None:
    found = faults(lambda: loaded(text))
    assert len(found) == 1
    assert line in found[0]


def test_aliases_that_unfold_into_millions_are_refused(loaded: Load) -> None:
    rows = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    rows += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    assert "nested or repeated without end" in faults(lambda: loaded("\n".join(rows)))[0]


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"\xff\xfeh\x00", "other.yaml: byte 0xff at 0 is not UTF-8; save it as UTF-8 text"),
        (b"home: caf\xe9", "other.yaml: byte 0xe9 at 9 is not UTF-8; save it as UTF-8 text"),
        (None, "other.yaml: found a folder, wanted a file; name the millpond.yaml in it"),
    ],
)
def test_a_file_that_is_none_is_one_line(loaded: Load, folder: Path, content: bytes | None, line: str) -> None:
    other = folder / "other.yaml"
    other.mkdir() if content is None else other.write_bytes(content)
    assert faults(lambda: loaded(config=other)) == [line]


def test_a_named_file_must_be_there(loaded: Load) -> None:
    assert faults(lambda: loaded(config=Path("gone.yaml"))) == ["gone.yaml: no such file; `millpond init` writes one"]


def test_a_file_that_may_not_be_read_is_one_line(loaded: Load, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    (folder / "millpond.yaml").touch()
    monkeypatch.setattr(Path, "open", refuse)  # tests may run as root, whom no mode stops
    assert faults(lambda: loaded()) == [
        "millpond.yaml: cannot be read (Permission denied); mend its permissions or name another"
    ]


def test_a_file_of_a_windows_editor_is_read(loaded: Load, folder: Path) -> None:
    (folder / "millpond.yaml").write_bytes(b"\xef\xbb\xbffair_every: 3\r\nlanes: {free: {}}\r\n")
    assert loaded().policy.fair_every == 3


def test_all_faults_are_told_at_once(loaded: Load) -> None:
    found = faults(
        lambda: loaded(
            "fair_every: x\nlanes:\n  free: {tirr: 1}\n  paid: {rpm: -1}\n",
            env={"MILLPOND_LEASE_S": "x", "MILLPOND_LANES__FREE__TIRE": "free", "MILLPOND_FREE_LANE_ENABLE": "false"},
            flags={"grace_s": "x"},
        )
    )
    assert {line.partition(": ")[0] for line in found} == {
        "millpond.yaml:1",
        "millpond.yaml:3",
        "millpond.yaml:4",
        "environment MILLPOND_LEASE_S",
        "environment MILLPOND_LANES__FREE__TIRE",
        "environment MILLPOND_FREE_LANE_ENABLE",
        "flag",
    }
    assert len(found) == 7


def test_a_variable_that_is_not_yaml_is_one_line(loaded: Load) -> None:
    assert faults(lambda: loaded(env={"MILLPOND_CAPS": "{all"}))[0].startswith("environment MILLPOND_CAPS: not YAML: ")


def test_a_variable_cannot_be_both_a_value_and_a_section(loaded: Load) -> None:
    found = faults(lambda: loaded(env={"MILLPOND_HOME": "x", "MILLPOND_HOME__Y": "z"}))
    assert found == ["environment MILLPOND_HOME__Y: home.y: home is a single value; say one of the two"]


@pytest.mark.parametrize(
    "text",
    [
        "lanes: {a: {key_env: sk-SECRET}}",
        "lanes: {a: {api_key: SECRET}}",
        "lanes: {a: {headers: {X: [SECRET]}}}",
        'lanes: {a: {headers: {X: "SECRET\\nY: 1"}}}',
        "lanes: {a: {base_url: 'ftp://me:SECRET@host'}}",
        "queue: {path: 'mysql://me:SECRET@host'}",
        "lanes: {a: {params: SECRET}}",
    ],
)
def test_a_fault_never_repeats_what_may_be_a_key(loaded: Load, text: str) -> None:
    found = faults(lambda: loaded(text))
    assert "SECRET" not in "".join(found)
    assert "a.api_key" not in found[0] or "name the environment variable that holds it under key_env" in found[0]


def test_a_fault_is_one_line_whatever_the_key_is_called(loaded: Load) -> None:
    found = faults(lambda: loaded('"a\\nb\\e[2J": 1'))
    assert len(found) == 1
    assert "\x1b" not in found[0]
