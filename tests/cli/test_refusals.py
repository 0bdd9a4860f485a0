"""Bad input: one line each (what was found, what was wanted, what to do), a stable exit code, nothing half-written."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from folder import Mill, chat

from millpond.drill.faultlane import FaultLane
from millpond.faces.cli import looking

DEAD = {"kind": "chat", "price": 0, "base_url": "http://127.0.0.1:9/v1", "model": "m"}
KEYED = {**DEAD, "key_env": "NO_SUCH_KEY_VARIABLE"}


def unreadable(mill: Mill) -> None:
    """A path that is there and cannot be read by anybody."""
    (mill.folder / "folder.jsonl").mkdir()


CASES: dict[str, tuple[Callable[[Mill], object], list[str], int, str]] = {
    "unknown config key": (
        lambda mill: mill.settings(lanes={"free": {**DEAD, "max_inflight": 3}}),
        ["enqueue", "a.txt"],
        78,
        "millpond: millpond.yaml:7: lanes.free.max_inflight: unknown key; did you mean max_in_flight?",
    ),
    "unknown lane in a flag": (
        lambda mill: mill.settings(lanes={"free": DEAD}),
        ["enqueue", "a.txt", "--lane", "fre"],
        78,
        "millpond: unknown lane 'fre'; configured lanes: free",
    ),
    "unknown lane to drain": (
        lambda mill: mill.settings(lanes={"free": DEAD}),
        ["drain", "--lanes", "fre"],
        78,
        "millpond: unknown lane 'fre'; configured lanes: free",
    ),
    "missing key variable": (
        lambda mill: mill.settings(lanes={"free": KEYED}),
        ["drain"],
        4,
        "millpond: lane 'free' needs the key in NO_SUCH_KEY_VARIABLE, which is not set; set it with: export NO_SUCH_",
    ),
    "lane without a kind": (
        lambda mill: mill.settings(lanes={"free": {"max_attempts": 2}}),
        ["drain"],
        78,
        "millpond: lanes.free: has no kind; it serves drill, report and router only, to drain it say kind: chat",
    ),
    "no lanes": (
        lambda mill: None,
        ["drain"],
        78,
        "millpond: no lanes to drain with; name one in millpond.yaml, as `millpond init` does (or in lanes=)",
    ),
    "missing file": (
        lambda mill: None,
        ["enqueue", "nowhere.jsonl"],
        2,
        "millpond: cannot read 'nowhere.jsonl'",
    ),
    "unreadable file": (
        unreadable,
        ["enqueue", "folder.jsonl"],
        2,
        "millpond: cannot read 'folder.jsonl'",
    ),
    "second file missing": (
        lambda mill: None,
        ["enqueue", "a.txt", "nowhere.jsonl"],
        2,
        "millpond: cannot read 'nowhere.jsonl'",
    ),
    "wrong type in a file": (
        lambda mill: mill.settings(lanes={"free": {**DEAD, "max_in_flight": "many"}}),
        ["enqueue", "a.txt"],
        78,
        "millpond: millpond.yaml:7: lanes.free.max_in_flight: found 'many', wanted a whole number; such as max_in_fli",
    ),
    "wrong type in a flag": (
        lambda mill: None,
        ["enqueue", "a.txt", "--priority", "high"],
        2,
        "millpond: invalid value for '--priority': 'high' is not a valid integer; see millpond enqueue --help",
    ),
    "time without a zone": (
        lambda mill: None,
        ["enqueue", "a.txt", "--due", "2026-12-01T08:00"],
        2,
        "millpond: due: found '2026-12-01T08:00', which has no time zone; wanted it said: ",
    ),
    "map without a column": (
        lambda mill: None,
        ["enqueue", "a.txt", "--map", "task"],
        2,
        "millpond: --map: found 'task', wanted NAME=VALUE",
    ),
    "unknown option": (
        lambda mill: None,
        ["enqueue", "a.txt", "--prority", "3"],
        2,
        "millpond: no such option",
    ),
    "broken yaml": (
        lambda mill: mill.file("millpond.yaml", "lanes: {free\n"),
        ["status"],
        78,
        "millpond: millpond.yaml:",
    ),
    "unreadable settings": (
        lambda mill: (mill.folder / "millpond.yaml").mkdir(),
        ["drain"],
        78,
        "millpond: millpond.yaml: found a folder, wanted a file; name the millpond.yaml in it",
    ),
    "settings that are not there": (
        lambda mill: None,
        ["--config", "mine.yaml", "drain"],
        78,
        "millpond: mine.yaml: no such file; `millpond init` writes one",
    ),
    "a queue elsewhere": (
        lambda mill: None,
        ["--queue", "postgresql://host/db", "enqueue", "a.txt"],
        2,
        "millpond: queue 'postgresql://host/db': PostgreSQL comes with a later version; wanted a path",
    ),
    "ways to end that exclude each other": (
        lambda mill: mill.settings(lanes={"free": DEAD}),
        ["drain", "--daemon", "--until-empty"],
        2,
        "millpond: found --until-empty and --daemon, wanted at most one of the two",
    ),
    "an unknown fault": (
        lambda mill: None,
        ["faultlane", "--mix", "reest=0.1"],
        2,
        "millpond: mix: unknown fault 'reest'; did you mean 'reset'? known: ",
    ),
    "a demo in a home that is in use": (
        lambda mill: (mill.folder / "used").mkdir() or mill.file("used/queue.db", ""),
        ["demo", "--home", "used"],
        2,
        "millpond: home ",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_bad_input_is_refused_in_one_line_and_nothing_is_half_written(mill: Mill, case: str) -> None:
    prepare, words, code, line = CASES[case]
    mill.file("a.txt", "one\ntwo\n")
    prepare(mill)
    before = sorted(mill.folder.rglob("*"))
    refused = mill.run(*words, code=code)
    assert refused.stdout == ""
    assert [one[: len(line)] for one in refused.stderr.splitlines()] == [line]
    assert sorted(mill.folder.rglob("*")) == before, "something was written"


def test_every_fault_of_the_settings_has_a_line_of_its_own(mill: Mill) -> None:
    mill.settings(lanes={"free": {**DEAD, "max_attempts": 0}}, fair_evry=3)
    told = mill.run("status", code=78).stderr.splitlines()
    assert [line.partition(": ")[0] for line in told] == ["millpond", "millpond"]
    assert "did you mean fair_every?" in "".join(told)


@pytest.mark.parametrize(
    ("words", "code"), [(["drain"], 4), (["enqueue", "nowhere.txt"], 2), (["status", "--exit-status"], 2)]
)
def test_the_process_itself_ends_with_the_code_and_one_line(mill: Mill, words: list[str], code: int) -> None:
    mill.settings(lanes={"free": KEYED})
    done = mill.process(*words)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (code, "", 1)


def test_what_nobody_foresaw_is_one_line_too_and_a_traceback_only_on_request(
    drained: Mill, monkeypatch: pytest.MonkeyPatch
) -> None:
    def burst(*_: object) -> str:
        raise RuntimeError("pipe\nburst \x1b[2J")

    monkeypatch.setattr(looking.terminal, "say", burst)
    told = drained.run("status", code=1).stderr.splitlines()
    assert len(told) == 1
    assert told[0].startswith("millpond: unexpected RuntimeError: pipe burst ; a fault of this program")
    monkeypatch.setenv("MILLPOND_DEBUG", "1")
    assert "Traceback (most recent call last)" in drained.run("status", code=1).stderr


def test_a_reader_that_leaves_is_no_error(drained: Mill) -> None:
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    program = subprocess.Popen(
        [sys.executable, "-m", "millpond", "results"],
        cwd=drained.folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert program.stdout is not None
    program.stdout.close()
    assert program.wait(60) == 1
    assert program.stderr is not None
    assert program.stderr.read() == ""


def test_ctrl_c_before_anything_runs_is_130(drained: Mill, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr(looking.terminal, "say", interrupted)
    assert drained.run("status", code=130).stderr.strip() == "millpond: interrupted"


def test_a_full_disk_is_74(mill: Mill, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, *_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "mkdir", full)
    told = mill.run("enqueue", "-", stdin="a\n", code=74).stderr.splitlines()
    assert told == [f"millpond: home {mill.home}: No space left on device; make room or name another with --home"]


def test_a_file_that_spoils_midway_says_what_is_in(mill: Mill) -> None:
    path = mill.folder / "rows.csv"
    path.write_bytes(b"task\n" + b"".join(b"row %d\n" % n for n in range(600)) + b'"never closed\n')
    refused = mill.run("enqueue", "rows.csv", code=1)
    assert len(refused.stdout.split()) == 600
    assert "600 new" in refused.stderr


def test_keys_that_are_not_read_yet_are_said_aloud(mill: Mill, lane: FaultLane) -> None:
    mill.settings(lanes={"free": chat(lane, rpm=5)}, caps={"all": {"day_usd": 5}})
    told = mill.run("drain").stderr.splitlines()
    assert "not read by this version, and without effect: lanes.free.rpm, caps.all.day_usd" in told
