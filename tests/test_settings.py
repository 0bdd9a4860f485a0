"""Settings: what files, variables and flags say, and which of them wins."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest
from settings_here import Load, lane

from millpond.rules.job import Prompt
from millpond.rules.policy import Deadlines, LanePolicy, Policy
from millpond.rules.price import FREE, UNKNOWN_PRICE, PriceRule
from millpond.rules.router import lanes_for

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
def user_file(tmp_path: Path) -> Path:
    """Where the user's own settings would stand."""
    (tmp_path / "config" / "millpond").mkdir(parents=True)
    return tmp_path / "config" / "millpond" / "millpond.yaml"


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
