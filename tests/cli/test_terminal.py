"""O10, the terminal's part: text from jobs, lanes and providers is shown and never obeyed; keys are never printed."""

from __future__ import annotations

import json
import re
import unicodedata
from functools import partial

import pytest
from folder import Mill, chat
from hypothesis import given
from hypothesis import strategies as st

from millpond.drill.faultlane import FaultLane
from millpond.faces.cli import terminal

TITLE = "\x1b]0;owned\x07"
CLEAR = "\x1b[2J\x1b[31m"
OVERRIDE = "\u202egnp.exe\u202c"
MARKS = "e" + "\u0301" * 10_000
NASTY = f"{TITLE}{CLEAR}{OVERRIDE}\x9b2J\x90q\x9c\x00\x07\x08\r\x7f\u2066\ufeff\U000e0041"


def obeys(text: str) -> list[str]:
    """The characters in a text that a terminal would obey."""
    return [letter for letter in text if letter != "\n" and unicodedata.category(letter) in ("Cc", "Cf", "Cs", "Zl")]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"a{TITLE}b", "ab"),
        ("a\x1b]8;;http://x\x1b\\link", "alink"),
        (f"a{CLEAR}b", "ab"),
        ("a\x1b[", "a"),
        ("a\x1b]0;never ended", "a0;never ended"),
        ("a\x1b(0b\x1bcd", "abd"),
        (OVERRIDE, "gnp.exe"),
        ("one\ntwo\tthree", "one two three"),
        ("e\u0301\u0302", "e\u0301\u0302"),
        (MARKS, "e" + "\u0301" * 4),
        ("日本語 – ünï 👩\u200d🚀", "日本語 – ünï 👩\u200d🚀"),
    ],
)
def test_o10_text_is_shown_and_not_obeyed(text: str, shown: str) -> None:
    assert terminal.plain(text) == shown


@given(st.text(alphabet=st.one_of(st.characters(), st.sampled_from(NASTY + "[]()0;m")), max_size=60))
def test_o10_nothing_that_a_terminal_obeys_is_left_of_any_text(text: str) -> None:
    shown = terminal.plain(text, lines=True)
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", shown)
    shown.encode()


@given(st.text(alphabet=st.one_of(st.characters(), st.sampled_from(NASTY + '"\\')), max_size=60))
def test_o10_json_hides_nothing_and_a_terminal_obeys_nothing_of_it(text: str) -> None:
    written = terminal.as_json({"text": text})
    assert json.loads(written) == {"text": text}
    assert not re.search(r"[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]", written)
    written.encode()


def test_o10_no_verb_lets_through_what_a_job_a_lane_or_a_provider_says(mill: Mill) -> None:
    with FaultLane(answer=lambda body: f"answer {NASTY} {MARKS}") as server:
        mill.settings(lanes={"free": chat(server)})
        rows = [{"task": f"task {NASTY} {MARKS} {n}", "carried": {f"col{NASTY}": NASTY}} for n in range(3)]
        mill.file("rows.jsonl", "\n".join(json.dumps(row) for row in rows) + "\n" + json.dumps({NASTY: 1}))
        said = [mill.run("enqueue", "rows.jsonl", "--name", f"name {NASTY}"[:40], code=1)]
        said += [mill.run("drain")]
    for words in (["status"], ["jobs"], ["show", "1"], ["explain", "1"], ["submissions"], ["results"], ["doctor"],
                  ["jobs", "--json"], ["show", "1", "--json"], ["explain", "1", "--json"], ["lanes"], ["ledger"],
                  ["ledger", "--json"], ["events"], ["events", "--json"], ["submissions", "1"], ["status", "1"],
                  ["wait", "1"], ["submissions", "1", "--json"]):  # fmt: skip
        said.append(mill.run(*words, code=1 if words == ["doctor"] else 0))
    said.append(mill.run("jobs", f"state:{NASTY}", code=2))
    for result in said:
        assert obeys(result.stdout + result.stderr) == []
    [answer, *_] = mill.run("results").stdout.splitlines()
    assert json.loads(answer)["text"] == f"answer {NASTY} {MARKS}", "the data itself stays what it was"
    assert json.loads(answer)["carried"] == {f"col{NASTY}": NASTY}


def test_o10_a_providers_words_cannot_pass_for_lines_of_ours(mill: Mill) -> None:
    body = "refused\njob 1 is done: trust me\n\x1b[2J"
    with FaultLane(script=["400"]) as server:
        mill.settings(lanes={"free": chat(server)})
        mill.run("enqueue", "-", stdin="a\n")
        mill.run("drain")
    from millpond import Queue

    with Queue.open() as queue:
        from millpond.rules.admission import Closing
        from millpond.store.lanes import close_lane

        closing = Closing(None, body, "down")
        queue.store.db.write(partial(close_lane, lane="free", closing=closing, now_ms=queue.store.now_ms()))
    for words in (["status"], ["explain", "1"], ["lanes"]):
        shown = mill.run(*words).stdout
        assert not [line for line in shown.splitlines() if line.startswith("job 1 is done")]
        assert obeys(shown) == []


def test_o22_values_of_key_variables_are_never_printed(mill: Mill, monkeypatch: pytest.MonkeyPatch) -> None:
    key = "zebra-crossing-7731"
    monkeypatch.setenv("ZEBRA_KEY", key)
    with FaultLane(answer=lambda body: f"your key is {key}") as server:
        mill.settings(lanes={"free": chat(server, key_env="ZEBRA_KEY")})
        mill.run("enqueue", "-", stdin=f"what is {key}?\n")
        mill.run("drain")
    for words in (["show", "1"], ["results"], ["results", "--format", "csv"], ["jobs", key], ["show", "1", "--json"],
                  ["config", "show"]):  # fmt: skip
        shown = mill.run(*words)
        assert key not in shown.stdout + shown.stderr, words
    mill.run("results", "-o", "out.jsonl")
    assert key in (mill.folder / "out.jsonl").read_text(), "a file of results is the caller's own data"


def test_nothing_is_coloured_or_moves_off_a_terminal(mill: Mill, lane: FaultLane) -> None:
    mill.settings(lanes={"free": chat(lane)})
    mill.run("enqueue", "-", stdin="a\n")
    assert "\x1b" not in mill.process("drain").stdout
