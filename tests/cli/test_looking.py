"""What `status`, `jobs`, `show`, `explain`, `config`, `lanes`, `doctor`, `init` show, and what they leave alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from folder import Mill, chat

from millpond.drill.faultlane import FaultLane
from millpond.faces.cli import VERBS


def test_status_in_json_has_the_promised_shape(drained: Mill) -> None:
    status = json.loads(drained.run("--json", "status").stdout)
    assert status["counts"] == {
        "waiting": 0, "held": 0, "ready": 0, "leased": 0, "offloaded": 0, "done": 2, "failed": 0, "cancelled": 0,
    }  # fmt: skip
    assert {"oldest_ready_ms", "lanes", "spend", "alerts", "drainer", "needs_you"} <= status.keys()
    [lane] = status["lanes"]
    assert (lane["name"], lane["state"], lane["reason"], lane["closed_until_ms"]) == ("free", "open", None, None)
    assert (lane["in_flight"], lane["max_in_flight"]) == (0, 8)
    assert status["drainer"] is None
    assert status["alerts"] == status["needs_you"] == []
    spend = status["spend"]
    assert Path(spend.pop("book")).name == "spend.db"
    assert spend.pop("since_ms") % 86_400_000 == 0
    free = {"charges": 2, "unknown": 0, "actual_usd": 0.0, "estimated_usd": 0.0}
    assert spend == {
        "lanes": {"free": free}, "reserved": {"calls": 0, "unknown": 0, "worst_usd": 0.0}, "problem": None,
    }  # fmt: skip


def test_the_options_that_verbs_share_stand_before_or_after_the_verb(drained: Mill) -> None:
    before, after = drained.run("--json", "status").stdout, drained.run("status", "--json").stdout
    assert json.loads(before)["counts"] == json.loads(after)["counts"]
    elsewhere = str(drained.folder / "elsewhere")
    assert "elsewhere" in drained.run("--home", elsewhere, "status", code=2).stderr
    assert "elsewhere" in drained.run("status", "--home", elsewhere, code=2).stderr


def test_exit_status_says_pending_failed_or_alert(mill: Mill) -> None:
    with FaultLane(script=["400"]) as server:
        mill.settings(lanes={"free": chat(server)})
        mill.run("enqueue", "-", stdin="a\n")
        mill.run("status", "--exit-status", code=8)
        mill.run("drain")
        words = mill.run("status", "--exit-status", code=3).stdout
        assert "! 1 job failed; next: millpond jobs state:failed" in words
    with FaultLane(script=["401"]) as server:
        mill.settings(lanes={"free": chat(server)})
        mill.run("enqueue", "-", stdin="b\n")
        mill.run("drain")
        assert "lane free is down" in mill.run("status", "--exit-status", code=1).stdout


def test_status_in_words_is_one_screen(drained: Mill) -> None:
    shown = drained.run("status").stdout.splitlines()
    assert len(shown) < 24
    assert shown[0].endswith("nobody drains this queue")
    assert shown[1].startswith("waiting 0  ready 0  leased 0  offloaded 0  done 2")
    assert shown[-1].split() == ["free", "open", "0/8", "0"]


def test_jobs_are_listed_by_the_filter_newest_first(drained: Mill) -> None:
    drained.run("enqueue", "-", stdin="duck pond\n")
    ids = {
        "": ["3", "2", "1"],
        "state:ready": ["3"],
        "-state:done": ["3"],
        "submission:cats.csv": ["2", "1"],
        "text:bird": ["2"],
        '"duck pond"': ["3"],
        "id:1..2 -cat": ["2"],
        "lane:free": ["3", "2", "1"],
        "intent:none": [],
    }
    for words, wanted in ids.items():
        listed = drained.run("jobs", *words.split(" ") if '"' not in words else [words]).stdout.splitlines()
        assert [line.split()[0] for line in listed[1:]] == wanted, words
    assert [json.loads(line)["id"] for line in drained.run("--json", "jobs", "--limit", "1").stdout.splitlines()] == [3]


def test_jobs_without_a_label_show_what_they_ask(mill: Mill) -> None:
    asked = [
        {"task": "Where does the duck sleep, and why does it sleep just there?"},
        {"messages": [{"role": "user", "content": "And\nthe newt?"}]},
        {"task": "x", "label": "mine"},
    ]
    mill.file("rows.jsonl", "\n".join(map(json.dumps, asked)))
    mill.run("enqueue", "rows.jsonl")
    third, second, first = mill.run("jobs").stdout.splitlines()[1:]
    assert "Where does the duck sleep" in first
    assert "just there" not in first
    assert "And the newt?" in second
    assert third.rstrip().endswith("mine")
    nothing = mill.run("jobs", "state:failed")
    assert (nothing.stdout, nothing.stderr.strip()) == ("", "no job matches")


@pytest.mark.parametrize("words", [["explain", "abc"], ["show", "0"], ["retry", "1", "x"], ["cancel", "9" * 30]])
def test_what_is_no_id_is_refused_as_such(drained: Mill, words: list[str]) -> None:
    [line] = drained.run(*words, code=2).stderr.splitlines()
    assert f"found {words[-1]!r}, wanted the id of a job, a whole number" in line


def test_show_leaves_no_field_blank(mill: Mill) -> None:
    mill.run("enqueue", "-", stdin="a\n")
    fields = mill.run("show", "1").stdout.split("\n\n")[0].splitlines()
    assert [line for line in fields if len(line.split()) < 2] == []


@pytest.mark.parametrize("words", [[], ["config"]])
def test_no_verb_is_answered_by_the_help_as_it_is(mill: Mill, words: list[str]) -> None:
    asked = mill.run(*words, "--help").stdout
    assert mill.run(*words, code=2).stderr.splitlines() == asked.splitlines()
    assert len(asked.splitlines()) > 5


def test_an_asked_job_is_mended_by_the_commands_that_explain_names(mill: Mill) -> None:
    with FaultLane(script=["reset", "reset", "ok"]) as server:
        mill.settings(lanes={"free": chat(server, after_hold="ask", hold_s=0)})
        mill.run("enqueue", "-", stdin="a\nb\n")
        assert "state:asked" in mill.run("drain", "--until-empty").stdout
        assert "! 2 jobs waiting for your word" in mill.run("status").stdout
        ahead = mill.run("explain", "1").stdout.splitlines()[-1]
        assert "`millpond decide 1 pin|same|fail`" in ahead
        mill.run("decide", "1", "fail")
        assert server.accepted() == 2, "left unpaid"
        mill.run("decide", "2", "same")
        assert "done 1 " in mill.run("drain").stdout
        assert server.accepted() == 3, "paid again"


def test_a_job_whose_drain_was_killed_says_so(mill: Mill) -> None:
    with FaultLane(mix={"hang": 1.0}) as server:
        mill.settings(lanes={"free": chat(server)})
        mill.run("enqueue", "-", stdin="a\n")
        process = mill.start("drain")
        assert server.wait_for(1, 30)
        assert "is being worked on" in mill.run("explain", "1").stdout
        process.kill()
        process.communicate()
        assert "its worker has died; the next drain takes it back" in mill.run("explain", "1").stdout
        assert "its worker has died; the next drain takes it back; next: millpond drain" in mill.run("status").stdout


def test_a_filter_that_cannot_be_read_is_refused(drained: Mill) -> None:
    assert "did you mean state:failed?" in drained.run("jobs", "state:faild", code=2).stderr


def test_explain_opens_with_one_sentence_and_shows_the_evidence(drained: Mill) -> None:
    words = drained.run("explain", "1").stdout
    assert words.startswith("job 1 is done: answered by lane free (model m), attempt 1, ")
    assert "sent yes  status 200" in words
    assert "requests     2 answered by this job" in words
    assert "request 3: submission 1, position 2 custom_id c, joined" in words
    told = json.loads(drained.run("--json", "explain", "1").stdout)
    assert told["why"] == words.splitlines()[0]
    assert [one["outcome"] for one in told["attempts"]] == ["ok"]


def test_show_gives_the_fields_the_work_and_the_answer(drained: Mill) -> None:
    words = drained.run("show", "2").stdout
    assert "How many legs has a bird?" in words
    assert "HOW MANY LEGS HAS A BIRD?" in words
    job = json.loads(drained.run("show", "2", "--json").stdout)
    assert (job["id"], job["state"], job["attempts_made"], job["cost"]) == (2, "done", 1, 0)
    assert "no job 9 in this queue" in drained.run("show", "9", code=2).stderr


@pytest.mark.parametrize("words", [["status"], ["jobs"], ["show", "1"], ["explain", "1"], ["results"], ["submissions"],
                                   ["retry", "1"], ["cancel", "1"], ["lanes"], ["ledger"], ["events"], ["watch"],
                                   ["wait"], ["wait", "x"], ["status", "x"], ["submissions", "x"]])  # fmt: skip
def test_looking_never_makes_a_home(mill: Mill, words: list[str]) -> None:
    told = mill.run(*words, code=2).stderr.splitlines()
    assert len(told) == 1
    assert told[0].startswith(f"millpond: no queue at {mill.home}/queue.db; `millpond enqueue FILE` makes one")
    assert list(mill.folder.iterdir()) == []


def test_doctor_makes_no_home_either_and_names_what_is_missing(mill: Mill) -> None:
    words = mill.run("doctor", code=1).stdout
    assert "FAULT  lanes        no lane is configured; next: millpond init" in words
    assert list(mill.folder.iterdir()) == []


def test_doctor_says_what_is_wrong_with_a_file_that_is_no_queue(mill: Mill) -> None:
    mill.home.mkdir()
    (mill.home / "queue.db").write_bytes(b"no database at all, but long enough to look like one" * 100)
    words = mill.run("doctor", code=1).stdout
    [fault] = [line for line in words.splitlines() if line.startswith("FAULT  queue")]
    assert "keep a copy" in fault


def test_init_writes_settings_once(mill: Mill) -> None:
    mill.run("init")
    written = (mill.folder / "millpond.yaml").read_text()
    assert written.startswith("# Settings of Millpond")
    assert mill.home.is_dir()
    (mill.folder / "millpond.yaml").write_text("home: mine\n")
    assert "is there already; nothing was written" in mill.run("init", code=2).stderr
    assert (mill.folder / "millpond.yaml").read_text() == "home: mine\n"


def test_config_shows_every_key_and_where_it_was_said(mill: Mill, monkeypatch: pytest.MonkeyPatch) -> None:
    mill.settings(lanes={"free": {"kind": "chat", "base_url": "http://user:pass@127.0.0.1/v1", "price": 0,
                                  "headers": {"x-secret": "hush"}}}, grace_s=3)  # fmt: skip
    monkeypatch.setenv("MILLPOND_FAIR_EVERY", "7")
    words = mill.run("config", "show", "--origin").stdout
    assert "grace_s = 3.0    # millpond.yaml:8" in words
    assert "fair_every = 7    # environment MILLPOND_FAIR_EVERY" in words
    assert "lane_down_after = 5    # default" in words
    assert f"home = {mill.home}    # default" in words
    assert "hush" not in words
    assert "pass@" not in words
    schema = json.loads(mill.run("config", "schema").stdout)
    assert schema["title"] == "millpond.yaml"


def test_lanes_that_are_down_are_opened_by_a_person(mill: Mill) -> None:
    with FaultLane(script=["401", "ok"]) as server:
        mill.settings(lanes={"free": chat(server)})
        mill.run("enqueue", "-", stdin="a\n")
        drained = mill.run("drain").stdout
        assert "left: ready 1" in drained
        assert "`millpond lanes free resume`" in drained
        assert "next: millpond drain" not in mill.run("status").stdout, "it would do nothing"
        assert "down" in mill.run("lanes").stdout
        assert "millpond lanes free resume" in mill.run("explain", "1").stdout
        mill.run("lanes", "free", "resume")
        assert "done 1 " in mill.run("drain").stdout
    assert "unknown lane 'fre'; configured lanes: free" in mill.run("lanes", "fre", "resume", code=78).stderr


def test_retry_and_cancel_want_a_word_before_they_touch_many(mill: Mill) -> None:
    mill.run("enqueue", "-", stdin="a\nb\nc\n")
    dry = mill.run("cancel", "--filter", "id:2..", code=2)
    assert dry.stdout.strip() == "would be cancelled: 2 · eligible 2"
    assert "nothing was done: the filter admits 2 jobs; say --yes" in dry.stderr
    assert json.loads(mill.run("--json", "status").stdout)["counts"]["cancelled"] == 0
    assert mill.run("cancel", "--filter", "id:3").stdout.strip() == "cancelled 1 · eligible 1"
    assert mill.run("cancel", "--filter", "id:2..", "--yes").stdout.strip() == (
        "cancelled 1 · eligible 1 · skipped 1 (1 already cancelled)"
    )
    assert mill.run("cancel", "1", "2", "9", code=1).stdout.strip() == (
        "cancelled 1 · eligible 1 · skipped 2 (1 already cancelled, 1 unknown job)"
    )
    assert json.loads(mill.run("--json", "retry", "1").stdout)["done"] == 1
    assert "neither ids nor a filter" in mill.run("retry", code=2).stderr
    assert "ids and a filter" in mill.run("retry", "1", "--filter", "id:1", code=2).stderr
    assert "filter: found nothing" in mill.run("cancel", "--filter", " ", "--yes", code=2).stderr


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_loads_and_explains_itself(mill: Mill, verb: str) -> None:
    words = mill.run(verb, "--help").stdout
    assert words.startswith(f"Usage: millpond {verb}")
    assert VERBS[verb][1]


def test_an_unknown_verb_is_met_with_the_nearest(mill: Mill) -> None:
    assert (
        mill.run("enque", code=2).stderr.strip()
        == "millpond: unknown verb 'enque'; did you mean enqueue?; see millpond --help"
    )


HUGE = "9" * 20
BEYOND = "9" * 5_000


@pytest.mark.parametrize("verb", ["jobs", "events", "submissions", "ledger"])
@pytest.mark.parametrize("limit", [HUGE, BEYOND])
def test_a_limit_beyond_all_ids_is_refused_in_words(drained: Mill, verb: str, limit: str) -> None:
    refused = drained.run(verb, "--limit", limit, code=2).stderr
    assert "--limit" in refused
    assert "fault of this program" not in refused


@pytest.mark.parametrize("number", [HUGE, BEYOND])
def test_a_number_that_no_submission_or_event_has_is_refused_in_words(drained: Mill, number: str) -> None:
    for words in (["results", number], ["status", number], ["submissions", number], ["wait", number]):
        refused = drained.run(*words, code=2).stderr
        assert "no submission '999" in refused
        assert len(refused) < 300
    assert "wanted one that this queue gave" in drained.run("events", "--after", number, code=2).stderr
