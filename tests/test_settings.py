"""Settings: what files, variables and flags say, which of them wins, and how each fault is told."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from millpond.rules.errors import MissingKey, SettingsError
from millpond.rules.job import Prompt
from millpond.rules.policy import Deadlines, LanePolicy, Policy
from millpond.rules.price import FREE, UNKNOWN_PRICE, PriceRule
from millpond.rules.router import lanes_for
from millpond.settings import Settings, load, make_home, schema, template

Load = Callable[..., Settings]

CONTRACT = """
lanes:
  free:  {kind: chat, tier: free, price: 0, base_url: "http://127.0.0.1:11434/v1", model: "gemma3:4b", max_attempts: 2,
          max_in_flight: 4}
  paid:  {kind: chat, tier: paid, base_url: "https://api.openai.com/v1", key_env: OPENAI_API_KEY, model: gpt-5-mini,
          max_attempts: 1, max_in_flight: 8, rpm: 500, tpm: 200000, price: auto, max_output_tokens: 4096,
          soft_timeout_s: 60}
  night: {kind: openai-batch, tier: paid, key_env: OPENAI_API_KEY, model: gpt-5-mini, price: auto,
          max_output_tokens: 4096}
routing:   {label: [free, paid]}
reconcile: {late_completion_window_s: 900, dedup_key: Idempotency-Key, hold_s: {realtime: 60, batch: 900},
            after_hold: pin}
spill: when_late
caps: {all: {day_usd: 5.00}}
alerts: {cross_lane_retries_per_job: 0.20, duplicate_artifacts_per_100_jobs: 1}
free_lane_enabled: true
"""

THIRD_SEED = """\
# lane.yaml
lanes:
  free:
    max_attempts: 2
    pin_on: [ambiguous, permanent]
  paid:
    max_attempts: 1
reconcile:
  late_completion_window_s: 900
  dedup_key: Idempotency-Key
alerts:
  cross_lane_retries_per_job: 0.20
  duplicate_artifacts_per_100_jobs: 1
free_lane_enabled: true
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder that commands are given in."""
    (tmp_path / "here").mkdir()
    return tmp_path / "here"


@pytest.fixture
def user_file(tmp_path: Path) -> Path:
    """Where the user's own settings would stand."""
    (tmp_path / "config" / "millpond").mkdir(parents=True)
    return tmp_path / "config" / "millpond" / "millpond.yaml"


@pytest.fixture
def loaded(tmp_path: Path, folder: Path) -> Load:
    """Write ./millpond.yaml and load it, with nothing of this machine's environment."""

    def load_here(text: str | None = None, *, env: Mapping[str, str] | None = None, **given: Any) -> Settings:
        if text is not None:
            (folder / "millpond.yaml").write_text(text, encoding="utf-8")
        places = {"XDG_CONFIG_HOME": str(tmp_path / "config"), "XDG_DATA_HOME": str(tmp_path / "data")}
        return load(env={**places, **(env or {})}, cwd=folder, **given)

    return load_here


def faults(act: Callable[[], object]) -> list[str]:
    with pytest.raises(SettingsError) as raised:
        act()
    assert raised.value.exit_code == 78
    return str(raised.value).splitlines()


def lane(settings: Settings, name: str = "free") -> LanePolicy:
    return settings.policy.lanes[name]


# --- what a file says ------------------------------------------------------------------------------------------------


def test_without_any_setting_the_policy_is_the_default_one(loaded: Load) -> None:
    assert loaded().policy == Policy()


def test_the_file_of_the_contract_is_read_as_it_stands(loaded: Load) -> None:
    settings = loaded(CONTRACT)
    policy = settings.policy
    assert list(policy.lanes) == ["free", "paid", "night"]
    assert policy.lanes["free"].price == FREE
    assert policy.lanes["free"].max_in_flight == 4
    assert policy.lanes["paid"].price == PriceRule("auto")
    assert policy.lanes["paid"].soft_timeout_ms == 60_000
    assert (policy.lanes["paid"].rpm, policy.lanes["paid"].tpm) == (500, 200_000)
    assert policy.lanes["night"].kind == "openai-batch"
    assert policy.lanes["night"].hold_ms == {"realtime": 60_000, "batch": 900_000}
    assert policy.routing == {"label": ("free", "paid")}
    assert policy.late_completion_window_ms == 900_000
    assert policy.spill == "when_late"
    assert policy.caps == {"all": Decimal("5.00")}
    assert policy.alerts == {"cross_lane_retries_per_job": 0.2, "duplicate_artifacts_per_100_jobs": 1}
    assert settings.keys == {"paid": "OPENAI_API_KEY", "night": "OPENAI_API_KEY"}


def test_the_third_seeds_file_loads_unchanged_and_pins_at_once(loaded: Load, folder: Path) -> None:
    (folder / "lane.yaml").write_text(THIRD_SEED)
    policy = loaded(config=Path("lane.yaml")).policy
    free, paid = policy.lanes["free"], policy.lanes["paid"]
    assert (free.kind, free.tier, free.max_attempts, free.pin_on) == ("", "free", 2, {"ambiguous", "permanent"})
    assert (paid.kind, paid.tier, paid.max_attempts, paid.pin_on) == ("", "paid", 1, {"ambiguous"})
    assert free.hold_ms == paid.hold_ms == {"realtime": 0, "batch": 0}
    assert (free.price, free.after_hold) == (UNKNOWN_PRICE, "pin")
    assert free.dedup_header == "Idempotency-Key"


def test_a_free_lane_switched_off_takes_no_work_and_the_paid_one_does(loaded: Load) -> None:
    policy = loaded(THIRD_SEED.replace("enabled: true", "enabled: false")).policy
    assert lanes_for(Prompt("x"), "anything", policy) == ("paid",)


@pytest.mark.parametrize(
    ("lanes", "hold_s"),
    [
        ("{free: {}}", (60, 900)),
        ("{free: {pin_on: []}}", (0, 0)),
        ("{free: {pin_on: [ambiguous], hold_s: 5}}", (5, 5)),
        ("{free: {hold_s: {realtime: 1}}, paid: {pin_on: [ambiguous]}}", (1, 900)),
        ("{free: {pin_on: [ambiguous]}, paid: {hold_s: 1}}", (60, 900)),
    ],
)
def test_pin_on_without_any_hold_means_no_hold(loaded: Load, lanes: str, hold_s: tuple[int, int]) -> None:
    hold = lane(loaded(f"lanes: {lanes}")).hold_ms
    assert (hold["realtime"], hold["batch"]) == (hold_s[0] * 1000, hold_s[1] * 1000)


def test_a_hold_that_is_said_counts_beside_pin_on(loaded: Load) -> None:
    settings = loaded("lanes: {free: {pin_on: [ambiguous]}}\nreconcile: {hold_s: 7}")
    assert lane(settings).hold_ms == {"realtime": 7_000, "batch": 7_000}


@pytest.mark.parametrize(
    ("said", "after_hold"),
    [
        ("lanes: {free: {price: 0}}", "same"),
        ("lanes: {free: {price: 0.01}}", "pin"),
        ("lanes: {free: {}}", "pin"),
        ("lanes: {free: {price: 0}}\nreconcile: {after_hold: ask}", "ask"),
        ("lanes: {free: {price: 0, after_hold: fail}}\nreconcile: {after_hold: ask}", "fail"),
    ],
)
def test_after_hold_is_the_lanes_then_reconciles_then_by_price(loaded: Load, said: str, after_hold: str) -> None:
    assert lane(loaded(said)).after_hold == after_hold


@pytest.mark.parametrize(
    ("price", "rule"),
    [
        ("", UNKNOWN_PRICE),
        ("0", FREE),
        ("0.0", FREE),
        ("auto", PriceRule("auto")),
        ("0.002", PriceRule("stated", call_usd=Decimal("0.002"))),
        ("{call_usd: 0.5}", PriceRule("stated", call_usd=Decimal("0.5"))),
        (
            "{input_usd_per_mtok: 0.25, output_usd_per_mtok: 0}",
            PriceRule("stated", input_usd_per_mtok=Decimal("0.25"), output_usd_per_mtok=Decimal(0)),
        ),
        ("{input_usd_per_mtok: 0, output_usd_per_mtok: 0}", FREE),
    ],
)
def test_a_price_is_unknown_free_asked_for_or_stated(loaded: Load, price: str, rule: PriceRule) -> None:
    assert lane(loaded(f"lanes: {{free: {{price: {price}}}}}")).price == rule


@pytest.mark.parametrize(
    ("name", "said", "tier"),
    [
        ("free", "", "free"),
        ("paid", "price: 0", "paid"),
        ("x", "price: 0", "free"),
        ("x", "", "paid"),
        ("x", "tier: free", "free"),
    ],
)
def test_a_lane_without_a_price_is_not_taken_for_free(loaded: Load, name: str, said: str, tier: str) -> None:
    assert lane(loaded(f"lanes: {{{name}: {{{said}}}}}"), name).tier == tier


def test_a_lane_priced_0_waits_longer_for_its_first_byte(loaded: Load) -> None:
    settings = loaded("lanes: {free: {price: 0}, paid: {}, slow: {price: 0, deadlines: {first_byte_s: 900}}}")
    assert lane(settings, "free").deadlines == Deadlines(first_byte_ms=300_000)
    assert lane(settings, "paid").deadlines == Deadlines()
    assert lane(settings, "slow").deadlines == Deadlines(first_byte_ms=900_000, total_ms=1_800_000)


def test_every_number_of_the_policy_can_be_set_in_seconds_or_counts(loaded: Load) -> None:
    policy = loaded(
        """
        durability: normal
        fair_every: 3
        max_leases_lost: 4
        max_attempts_per_job: 5
        max_unusable_per_job: 6
        lane_down_after: 7
        backoff: {first_s: 0.25, cap_s: 9, jitter: 0}
        saturated_default_s: 1.5
        saturated_cap_s: 10
        lane_down_probe_s: 11
        artifact_max_age_s: 12
        lease_s: 13
        idle_exit_s: 0.0001
        grace_s: 0
        spill: {after_s: 14}
        tz: Europe/Berlin
        """
    ).policy
    assert (policy.durable, policy.fair_every, policy.max_leases_lost) == (False, 3, 4)
    assert (policy.max_attempts_per_job, policy.max_unusable_per_job, policy.lane_down_after) == (5, 6, 7)
    assert (policy.backoff.first_ms, policy.backoff.cap_ms, policy.backoff.jitter) == (250, 9_000, 0)
    assert (policy.saturated_default_ms, policy.saturated_cap_ms, policy.lane_down_probe_ms) == (1_500, 10_000, 11_000)
    assert (policy.artifact_max_age_ms, policy.lease_ms, policy.spill, policy.tz) == (
        12_000,
        13_000,
        14_000,
        "Europe/Berlin",
    )
    assert (policy.idle_exit_ms, policy.grace_ms) == (1, 0)


def test_models_and_commands_may_be_lists_or_said_the_long_way(loaded: Load) -> None:
    settings = loaded(
        """
        lanes:
          a: {kind: command, command: "run --file 'a b'", models: [small, large]}
          b: {kind: command, command: [run, a b], models: {mini: gpt-5-mini}}
          c: {kind: python, target: "house.work:answer"}
        """
    )
    assert lane(settings, "a").command == ("run", "--file", "a b")
    assert lane(settings, "a").models == {"small": "small", "large": "large"}
    assert lane(settings, "b").command == ("run", "a b")
    assert lane(settings, "b").offers("mini")
    assert lane(settings, "c").target == "house.work:answer"


def test_a_key_with_nothing_after_it_takes_its_default(loaded: Load) -> None:
    settings = loaded("lanes:\n  free:\n  paid: {max_attempts: }\nrouting:\ncaps:\n")
    assert list(settings.policy.lanes) == ["free", "paid"]
    assert lane(settings, "paid").max_attempts == LanePolicy("").max_attempts


def test_an_empty_file_says_nothing(loaded: Load) -> None:
    assert loaded("# only a comment\n").policy == Policy()


def test_anchors_and_merges_of_yaml_work(loaded: Load) -> None:
    settings = loaded(
        """
        lanes:
          a: &base {max_attempts: 5, model: one}
          b: {<<: *base, model: two}
        """
    )
    assert (lane(settings, "b").max_attempts, lane(settings, "b").model) == (5, "two")


def test_limits_that_nothing_reads_yet_are_named(loaded: Load) -> None:
    assert set(loaded(CONTRACT).unread) == {
        "lanes.paid.rpm",
        "lanes.paid.tpm",
        "spill",
        "caps.all.day_usd",
        "alerts.cross_lane_retries_per_job",
        "alerts.duplicate_artifacts_per_100_jobs",
    }
    assert loaded("lanes: {free: {params: {rpm: 3}}}").unread == ()


# --- who wins --------------------------------------------------------------------------------------------------------


def test_a_flag_beats_a_variable_beats_the_file_beats_the_users_beats_the_default(
    loaded: Load, user_file: Path
) -> None:
    user_file.write_text("fair_every: 2\nlease_s: 2\ngrace_s: 2\nidle_exit_s: 2.5\n")
    settings = loaded(
        "fair_every: 3\nlease_s: 3\ngrace_s: 3\n",
        env={"MILLPOND_FAIR_EVERY": "4", "MILLPOND_LEASE_S": "4"},
        flags={"fair_every": 5, "max_leases_lost": None},
    )
    policy = settings.policy
    assert (policy.fair_every, policy.lease_ms, policy.grace_ms, policy.idle_exit_ms) == (5, 4_000, 3_000, 2_500)
    assert policy.max_leases_lost == Policy().max_leases_lost
    origins = settings.origins
    assert origins["fair_every"] == "flag"
    assert origins["lease_s"] == "environment MILLPOND_LEASE_S"
    assert origins["grace_s"] == "millpond.yaml:3"
    assert origins["idle_exit_s"] == f"{user_file}:4"
    assert origins["max_leases_lost"] == "default"


def test_a_nearer_file_that_names_lanes_names_all_of_them(loaded: Load, user_file: Path) -> None:
    user_file.write_text("lanes: {costly: {price: 9}}\nrouting: {label: [costly]}\ncaps: {all: {day_usd: 1}}\n")
    assert list(loaded().policy.lanes) == ["costly"]
    settings = loaded("lanes: {free: {price: 0}}\ncaps: {free: {day_usd: 2}}\n")
    assert list(settings.policy.lanes) == ["free"]
    assert settings.policy.routing == {}
    assert settings.policy.caps == {"all": Decimal(1), "free": Decimal(2)}


def test_a_variable_reaches_one_key_of_one_lane_and_keeps_the_order(loaded: Load) -> None:
    settings = loaded(
        "lanes: {free: {}, Night-Shift: {max_attempts: 7}}",
        env={
            "MILLPOND_LANES__NIGHT_SHIFT__BASE_URL": "http://127.0.0.1:1/v1",
            "MILLPOND_LANES__FREE__PIN_ON": "[ambiguous, permanent]",
            "MILLPOND_LANES__FREE__PRICE": "0.25",
            "MILLPOND_LANES__FREE__PARAMS__TEMPERATURE": "0.2",
            "MILLPOND_LANES__FREE__SERIAL": "true",
            "MILLPOND_FREE_LANE_ENABLED": "",
        },
    )
    assert list(settings.policy.lanes) == ["free", "Night-Shift"]
    night, free = settings.policy.lanes["Night-Shift"], settings.policy.lanes["free"]
    assert (night.base_url, night.max_attempts) == ("http://127.0.0.1:1/v1", 7)
    assert free.pin_on == {"ambiguous", "permanent"}
    assert free.price == PriceRule("stated", call_usd=Decimal("0.25"))
    assert free.params == {"temperature": 0.2}
    assert free.serial
    assert settings.origins["lanes.Night-Shift.base_url"] == "environment MILLPOND_LANES__NIGHT_SHIFT__BASE_URL"
    assert settings.origins["lanes.Night-Shift.max_attempts"] == "millpond.yaml:1"


def test_two_halves_of_a_price_from_two_places_are_not_put_together(loaded: Load, user_file: Path) -> None:
    user_file.write_text("lanes: {x: {price: {call_usd: 9}}}")
    env = {"MILLPOND_LANES__X__PRICE": "{input_usd_per_mtok: 1, output_usd_per_mtok: 2}"}
    assert lane(loaded(env=env), "x").price == PriceRule("stated", Decimal(1), Decimal(2))


def test_variables_of_others_and_of_kubernetes_are_left_alone(loaded: Load) -> None:
    env = {
        "MILLPOND_SERVICE_HOST": "10.0.0.1",
        "MILLPOND_PORT_80_TCP": "tcp",
        "MILLPOND_COMMAND_QUEUE_PATH": "x",
        "MILLPONDS": "1",
    }
    assert loaded(env=env).policy == Policy()


def test_another_file_may_be_named_by_flag_or_variable(loaded: Load, folder: Path) -> None:
    (folder / "other.yaml").write_text("fair_every: 9")
    text = "fair_every: 3"
    assert loaded(text, config=folder / "other.yaml").policy.fair_every == 9
    settings = loaded(text, env={"MILLPOND_CONFIG": "other.yaml"})
    assert settings.policy.fair_every == 9
    assert settings.origins["fair_every"] == "other.yaml:1"


def test_every_value_can_be_shown_with_its_origin(loaded: Load) -> None:
    shown = {key: (value, origin) for key, value, origin in loaded(CONTRACT).shown()}
    assert shown["lanes.free.max_in_flight"] == (4, "millpond.yaml:4")
    assert shown["lanes.free.after_hold"] == ("pin", "default")
    assert shown["lanes.free.deadlines.first_byte_s"] == (300, "default")
    assert shown["reconcile.hold_s.realtime"] == (60, "millpond.yaml:11")
    assert shown["durability"] == ("full", "default")
    single = {key: (value, origin) for key, value, origin in loaded("reconcile:\n  hold_s: 4\n").shown()}
    assert single["reconcile.hold_s.batch"] == (4, "millpond.yaml:2")


# --- paths -----------------------------------------------------------------------------------------------------------


def test_the_home_is_the_flags_then_the_variables_then_the_files_then_the_nearest_then_here(
    loaded: Load, folder: Path, tmp_path: Path
) -> None:
    def home(**given: Any) -> tuple[Path, str]:
        settings = loaded(**given)
        return settings.home, settings.home_origin

    assert home() == (folder / ".millpond", "default")
    (tmp_path / ".millpond").mkdir()
    assert home() == (tmp_path / ".millpond", "found upwards")
    said: dict[str, Any] = {"text": "home: from-file"}
    assert home(**said) == (folder / "from-file", "millpond.yaml:1")
    said["env"] = {"MILLPOND_HOME": "../from-variable"}
    assert home(**said) == (tmp_path / "from-variable", "environment MILLPOND_HOME")
    assert home(**said, home="from-flag") == (folder / "from-flag", "flag")
    assert not (folder / ".millpond").exists()


def test_a_path_in_a_file_starts_from_that_file(loaded: Load, tmp_path: Path, folder: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    config = tmp_path / "elsewhere" / "m.yaml"
    config.write_text("home: h\nqueue: {path: q/queue.db}\nspend: {path: ~/s.db}\nlanes: {a: {ca_file: ca.pem}}\n")
    settings = loaded(config=config)
    assert settings.home == tmp_path / "elsewhere" / "h"
    assert settings.queue == tmp_path / "elsewhere" / "q" / "queue.db"
    assert settings.spend == Path.home() / "s.db"
    assert lane(settings, "a").ca_file == str(tmp_path / "elsewhere" / "ca.pem")
    assert loaded(config=config, flags={"queue.path": "q.db"}).queue == folder / "q.db"


def test_the_queue_stands_in_the_home_or_at_an_address(loaded: Load, folder: Path) -> None:
    assert loaded().queue == folder / ".millpond" / "queue.db"
    address = "postgresql://me:secret@127.0.0.1/work"
    assert loaded(env={"MILLPOND_QUEUE": address}).queue == address
    assert loaded(flags={"queue.path": address}).queue == address


def test_the_spend_book_is_the_users_unless_a_home_was_named(loaded: Load, tmp_path: Path) -> None:
    assert loaded().spend == tmp_path / "data" / "millpond" / "spend.db"
    assert loaded("home: x").spend == tmp_path / "data" / "millpond" / "spend.db"
    assert loaded(home=tmp_path / "h").spend == tmp_path / "h" / "spend.db"
    assert loaded(env={"MILLPOND_HOME": str(tmp_path / "v")}).spend == tmp_path / "v" / "spend.db"


def test_a_home_is_made_for_its_owner_alone_and_kept_out_of_git(tmp_path: Path) -> None:
    home = make_home(tmp_path / "deep" / ".millpond")
    assert stat.S_IMODE(home.stat().st_mode) == 0o700
    assert (home / ".gitignore").read_text() == "*\n"
    assert make_home(home) == home


def test_a_folder_that_holds_something_gets_no_gitignore(tmp_path: Path) -> None:
    (tmp_path / "code.py").touch()
    make_home(tmp_path)
    assert not (tmp_path / ".gitignore").exists()


def test_a_file_in_the_place_of_the_home_is_refused(tmp_path: Path) -> None:
    (tmp_path / "h").touch()
    for path in (tmp_path / "h", tmp_path / "h" / "below"):
        with pytest.raises(SettingsError, match="found a file, wanted a folder; name another with --home"):
            make_home(path)


@contextmanager
def nobody() -> Iterator[None]:
    """Root may write everywhere; as root, be somebody else for a while."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65_534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_home_that_may_not_be_made_lacks_a_permission() -> None:
    with TemporaryDirectory() as folder:  # not pytest's own, into which nobody else may look
        Path(folder).chmod(0o555)
        with nobody(), pytest.raises(MissingKey, match="may not be written"):
            make_home(Path(folder) / "h")
        Path(folder).chmod(0o700)


# --- faults ----------------------------------------------------------------------------------------------------------


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


# --- template and schema ---------------------------------------------------------------------------------------------


def test_the_template_is_a_free_lane_that_works(loaded: Load) -> None:
    settings = loaded(template())
    free = lane(settings)
    assert list(settings.policy.lanes) == ["free"]
    assert (free.kind, free.price, free.tier, free.after_hold) == ("chat", FREE, "free", "same")
    assert settings.unread == ()
    assert settings.keys == {}
    # The template explains the defaults; only its lane differs from them.
    assert settings.policy == Policy(lanes={"free": free})


def test_every_commented_line_of_the_template_may_be_used(loaded: Load) -> None:
    used = re.sub(r"^( *)#(?=\S)", r"\1", template(), flags=re.MULTILINE)
    settings = loaded(used)
    assert list(settings.policy.lanes) == ["free", "paid"]
    assert settings.policy.routing == {"label": ("free",)}
    assert lane(settings, "paid").deadlines == Deadlines()
    assert settings.unread == ()
    loose = {"lanes", "routing"}
    assert {key for key, _, origin in settings.shown() if origin == "default"}.isdisjoint(
        {"fair_every", "durability"} | loose
    )


@pytest.mark.parametrize("line", [line for line in template().splitlines() if re.match(r"#\S.*: \S", line)])
def test_any_one_line_of_the_template_may_be_used_alone(loaded: Load, line: str) -> None:
    loaded(template().replace(line, line[1:]))


def test_what_the_template_says_is_the_default_is_the_default(loaded: Load) -> None:
    used = re.sub(r"^#(?=\w+: )", "", template(), flags=re.MULTILINE)
    assert loaded(used).policy == loaded(template()).policy


def test_every_line_of_the_template_fits_its_screen_and_names_no_secret() -> None:
    assert max(map(len, template().splitlines())) <= 130
    assert "api_key" not in template()


def test_the_schema_describes_every_key() -> None:
    described = schema()
    assert described["additionalProperties"] is False
    lane_keys = described["$defs"]["Lane"]["properties"]
    assert {"rpm", "deadlines", "after_hold", "key_env"} <= lane_keys.keys()
    keys = [*lane_keys.values(), *described["properties"].values()]
    assert all(key.get("description") or "$ref" in key for key in keys)


def test_every_field_of_a_lanes_policy_can_be_said_in_a_file() -> None:
    renamed = {"name", "soft_timeout_ms", "hold_ms", "settling_ms", "dedup_header"}
    assert set(LanePolicy.__dataclass_fields__) - renamed <= set(schema()["$defs"]["Lane"]["properties"])
