"""Which fault a prompt meets: by seed, by script, by a recorded list."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millpond.drill.script import FAULTS, Script, draw, prompt_digest, read_mix, read_script, replay
from millpond.rules.errors import UsageError

MIX = {"503_proof": 0.10, "reset": 0.05, "slow": 0.05}
PROMPTS = [prompt_digest({"messages": [{"role": "user", "content": f"question {n}"}]}) for n in range(40)]


def played(script: Script, arrivals: list[str]) -> dict[tuple[str, int], str]:
    """What each (prompt, ordinal) meets when the prompts arrive in this order."""
    seen: Counter[str] = Counter()
    met: dict[tuple[str, int], str] = {}
    for arrival, digest in enumerate(arrivals, 1):
        seen[digest] += 1
        met[digest, seen[digest]] = script.fault(texts=["?"], digest=digest, ordinal=seen[digest], arrival=arrival)
    return met


@given(order=st.permutations(PROMPTS * 3), seed=st.integers(0, 2**32))
def test_the_order_of_arrivals_changes_nothing(order: list[str], seed: int) -> None:
    script = Script(mix=MIX, seed=seed)
    assert played(script, order) == played(script, PROMPTS * 3)


def test_ten_thousand_draws_come_near_the_mix() -> None:
    met = Counter(draw(7, f"prompt {n}", 1, MIX) for n in range(10_000))
    for name, share in {**MIX, "ok": 0.80}.items():
        # Five standard deviations of a fair draw; the seed is fixed, so this either always holds or never.
        assert abs(met[name] - 10_000 * share) < 5 * (10_000 * share * (1 - share)) ** 0.5, met
    assert set(met) == {*MIX, "ok"}


def test_a_draw_depends_on_seed_prompt_and_ordinal_and_on_nothing_else() -> None:
    half = {"500": 0.5}
    assert [draw(1, "a", n, half) for n in range(64)] == [draw(1, "a", n, half) for n in range(64)]
    ways = [
        tuple(draw(1, "a", n, half) for n in range(64)),
        tuple(draw(2, "a", n, half) for n in range(64)),
        tuple(draw(1, "b", n, half) for n in range(64)),
    ]
    assert len(set(ways)) == 3
    assert len(set(ways[0])) == 2, "the ordinal must matter"


def test_the_order_of_the_mix_does_not_matter() -> None:
    turned = dict(reversed(MIX.items()))
    assert [draw(3, "p", n, MIX) for n in range(500)] == [draw(3, "p", n, turned) for n in range(500)]


def test_a_mix_of_one_leaves_no_room_for_ok() -> None:
    whole = {"500": 0.7, "hang": 0.3}
    assert {draw(0, str(n), 1, whole) for n in range(2_000)} == {"500", "hang"}


def test_how_an_answer_travels_is_no_part_of_the_prompt() -> None:
    asked: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "temperature": 0}
    travelling = {**asked, "stream": True, "stream_options": {"include_usage": True}, "metadata": {"uid": "1"}}
    assert prompt_digest(travelling) == prompt_digest(asked)
    assert prompt_digest({**asked, "model": "n"}) != prompt_digest(asked)
    assert prompt_digest({**asked, "temperature": 1}) != prompt_digest(asked)


def test_a_sequence_fixed_for_a_prompt_repeats_its_last_fault() -> None:
    script = Script(per_prompt={"duck": ["503_proof", "ok"]}, script=["500"], mix={"hang": 1})
    met = [script.fault(texts=["be brief", "a duck?"], digest="d", ordinal=n, arrival=n) for n in (1, 2, 3, 4)]
    assert met == ["503_proof", "ok", "ok", "ok"]


def test_faults_without_a_prompt_go_round_by_arrival() -> None:
    script = Script(script=["429", "ok", "reset"])
    assert [script.fault(texts=[], digest="d", ordinal=1, arrival=n) for n in range(1, 6)] == [
        "429",
        "ok",
        "reset",
        "429",
        "ok",
    ]


def test_a_script_of_prompts_leaves_the_others_to_the_mix() -> None:
    script = Script(script=[{"prompt": "goose", "faults": ["cut"]}], mix={"500": 1.0})
    assert script.fault(texts=["a goose"], digest="d", ordinal=1, arrival=1) == "cut"
    assert script.fault(texts=["a duck"], digest="e", ordinal=1, arrival=2) == "500"


def test_a_recorded_list_is_matched_by_the_whole_prompt(tmp_path: Path) -> None:
    recorded = tmp_path / "jobs.jsonl"
    jobs = [{"prompt": "1 + 1", "faults": ["503_proof", "ok"]}, {"prompt": "1", "faults": ["reset"]}]
    recorded.write_text("\n".join(json.dumps(job) for job in jobs) + "\n\n")
    script = Script(script=replay(recorded))
    assert script.fault(texts=["1 + 1"], digest="d", ordinal=1, arrival=1) == "503_proof"
    assert script.fault(texts=["1"], digest="e", ordinal=1, arrival=2) == "reset"
    assert script.fault(texts=["11"], digest="f", ordinal=1, arrival=3) == "ok"
    assert read_script(recorded) == list(replay(recorded))


def test_a_script_file_is_a_json_list(tmp_path: Path) -> None:
    file = tmp_path / "script.json"
    file.write_text('["429", {"prompt": "duck", "faults": ["ok"]}]')
    assert read_script(file) == ["429", {"prompt": "duck", "faults": ["ok"]}]


def test_a_mix_is_read_from_the_command_line() -> None:
    assert read_mix("503_proof=0.1, reset=5%,slow = .05") == {"503_proof": 0.1, "reset": 0.05, "slow": 0.05}
    assert read_mix("") == {}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("503_prof=0.1", "unknown fault '503_prof'; did you mean '503_proof'?"),
        ("reset", "found 'reset', wanted name=share"),
        ("reset=half", "found 'reset=half', wanted name=share"),
        ("reset=-0.1", "found -0.1, wanted a share between 0 and 1"),
        ("reset=nan", "found nan, wanted a share between 0 and 1"),
        ("reset=0.6,cut=0.5", "the shares add up to 1.1, wanted at most 1"),
    ],
)
def test_a_mix_that_cannot_be_played_is_refused(text: str, says: str) -> None:
    with pytest.raises(UsageError) as refused:
        read_mix(text)
    assert says in str(refused.value)


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ("invalid", "script[0]: unknown fault 'invalid'"),
        (7, "script[0]: found 7, wanted a fault's name or"),
        ({"prompt": "p", "fault": ["ok"]}, "script[0]: found the keys prompt, fault"),
        ({"prompt": "p", "faults": []}, "script[0]: found no fault"),
        ({"prompt": "p", "faults": "ok"}, "script[0]: found 'ok', wanted a list"),
    ],
)
def test_a_script_that_cannot_be_played_is_refused(entry: Any, says: str) -> None:
    with pytest.raises(UsageError) as refused:
        Script(script=[entry])
    assert says in str(refused.value)


def test_a_script_file_that_cannot_be_read_is_refused_with_its_place(tmp_path: Path) -> None:
    file = tmp_path / "jobs.jsonl"
    file.write_text('{"prompt": "p", "faults": ["ok"]}\n{"prompt": "p", "faults": ["okay"]}\n')
    for path, says in [(file, "jobs.jsonl, line 2: unknown fault 'okay'"), (tmp_path / "none.json", "cannot be read")]:
        with pytest.raises(UsageError) as refused:
            read_script(path)
        assert says in str(refused.value)
    (tmp_path / "object.json").write_text("{}")
    with pytest.raises(UsageError, match="found an object, wanted a JSON list"):
        read_script(tmp_path / "object.json")


def test_what_stands_in_for_a_fault_of_streams_is_a_fault_itself() -> None:
    for name, fault in FAULTS.items():
        assert not fault.plain or not FAULTS[fault.plain].plain, name
        assert fault.works or not fault.arrives, f"{name}: nothing can arrive that was not produced"
