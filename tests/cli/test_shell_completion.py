"""Completion: what a shell is offered. A real bash asks here; zsh and fish by the words in which they ask."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from folder import Mill, chat

from millpond.drill.faultlane import FaultLane
from millpond.faces.cli import VERBS
from millpond.rules.lifecycle import STATES

LOADED = """
import json, sys
from millpond.faces.cli import main
try:
    main()
except SystemExit:
    print(json.dumps(sorted(sys.modules)))
"""
PROGRAM = f"""#!/bin/sh
exec {sys.executable} -m millpond "$@"
"""


needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="no bash on this machine")


@pytest.fixture
def full(mill: Mill) -> Mill:
    """A queue with submissions of all kinds of names, and two lanes."""
    with FaultLane() as server:
        mill.settings(lanes={"free": chat(server), "paid": chat(server, tier="paid")})
    for name in ("cats.csv", "my file.csv", "dogs.csv", "dogs.csv", "evil\x1b[2J"):
        mill.run("enqueue", "-", "--name", name, stdin="a\n")
    return mill


def bash(mill: Mill, *words: str) -> list[str]:
    """What a bash that has read our script offers for the last of these words."""
    bin_folder = mill.folder.parent / "bin"
    bin_folder.mkdir(exist_ok=True)
    program = bin_folder / "millpond"
    program.write_text(PROGRAM, encoding="utf-8")
    program.chmod(0o755)
    script = mill.folder.parent / "completion.bash"
    script.write_text(mill.run("completion", "bash").stdout, encoding="utf-8")
    asks = "\n".join([
        "set -u",
        f"source {script}",
        "compopt() { :; }",  # may be called from within a real completion only
        "shift",
        'COMP_WORDS=(millpond "$@")',
        "COMP_CWORD=$#",
        "_millpond_completion millpond",
        r"""printf '%s\n' "${COMPREPLY[@]}" """,
        'complete -p millpond >&2',
    ])  # fmt: skip
    told = subprocess.run(
        ["bash", "--norc", "--noprofile", "-c", asks, "bash", "-", *words],
        cwd=mill.folder, env={**os.environ, "PATH": f"{bin_folder}:{os.environ['PATH']}"},
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    assert told.stderr.startswith("complete -o nosort -F _millpond_completion millpond")
    assert len(told.stderr.splitlines()) == 1, told.stderr
    return [line for line in told.stdout.splitlines() if line]


@needs_bash
def test_a_bash_completes_verbs_options_and_names(full: Mill) -> None:
    assert bash(full, "") == list(VERBS)
    assert bash(full, "sta") == ["status"]
    assert bash(full, "status", "--ex") == ["--exit-status"]
    assert bash(full, "drain", "--max-") == ["--max-jobs", "--max-iters"]
    assert bash(full, "completion", "") == ["bash", "zsh", "fish"]
    for verb in ("results", "status", "wait", "submissions"):
        assert bash(full, verb, "") == ["dogs.csv", r"my\ file.csv", "cats.csv"], verb
    assert bash(full, "results", "my") == [r"my\ file.csv"]
    assert bash(full, "lanes", "p") == ["paid"]
    assert bash(full, "enqueue", "--lane", "") == ["free", "paid"]
    assert bash(full, "retry", "--lane", "f") == ["free"]
    assert bash(full, "drain", "--lanes", "free,") == ["free,paid"]


@needs_bash
def test_a_bash_completes_filters_though_it_breaks_words_at_colons(full: Mill) -> None:
    assert bash(full, "jobs", "sta") == ["state:"]
    assert bash(full, "jobs", "state", ":", "fa") == ["failed"]
    assert set(STATES) <= set(bash(full, "jobs", "state", ":"))
    assert bash(full, "jobs", "state:failed", "lane", ":") == ["free", "paid"]
    assert bash(full, "cancel", "--filter", "submission", ":", "cat") == ["cats.csv"]
    assert bash(full, "watch", "--filter", "state", ":", "can") == ["cancelled"]


def asked_by_zsh(mill: Mill, *words: str) -> list[str]:
    told = mill.process(
        _MILLPOND_COMPLETE="zsh_complete", COMP_WORDS=" ".join(["millpond", *words]), COMP_CWORD=str(len(words))
    )
    assert (told.returncode, told.stderr) == (0, "")
    lines = told.stdout.splitlines()
    assert all(kind == "plain" for kind in lines[::3])
    return lines[1::3]


def asked_by_fish(mill: Mill, *words: str) -> list[str]:
    told = mill.process(
        _MILLPOND_COMPLETE="fish_complete", COMP_WORDS=" ".join(["millpond", *words]), COMP_CWORD=words[-1]
    )
    assert (told.returncode, told.stderr) == (0, "")
    return [line.removeprefix("plain,").partition("\t")[0] for line in told.stdout.splitlines() if line]


@pytest.mark.parametrize("asked", [asked_by_zsh, asked_by_fish])
def test_zsh_and_fish_are_offered_the_same(full: Mill, asked: type[object]) -> None:
    assert asked(full, "sta") == ["status"]
    assert asked(full, "results", "c") == ["cats.csv"]
    assert asked(full, "jobs", "state:fa") == ["state:failed"]
    assert asked(full, "drain", "--lanes", "p") == ["paid"]


@pytest.mark.parametrize(
    ("shell", "hook", "asks"),
    [
        ("bash", "complete -o nosort -F _millpond_completion millpond", "_MILLPOND_COMPLETE=bash_complete"),
        ("zsh", "compdef _millpond_completion millpond", "_MILLPOND_COMPLETE=zsh_complete"),
        ("fish", "complete --no-files --command millpond", "_MILLPOND_COMPLETE=fish_complete"),
    ],
)
def test_the_script_hooks_the_shell_to_the_program(mill: Mill, shell: str, hook: str, asks: str) -> None:
    script = mill.run("completion", shell).stdout
    assert hook in script
    assert asks in script
    help_ = mill.run("completion", "--help").stdout
    assert 'eval "$(millpond completion bash)"' in help_
    assert "~/.config/fish/completions/millpond.fish" in help_
    assert list(mill.folder.iterdir()) == []


def test_the_bash_script_keeps_quotes_and_leaves_no_blank_after_a_field(mill: Mill) -> None:
    script = mill.run("completion", "bash").stdout
    assert "read -r type value" in script
    assert "[[ $value == *: ]] && compopt -o nospace" in script


@pytest.mark.parametrize("shell", ["", "tcsh"])
def test_an_unknown_shell_is_refused(mill: Mill, shell: str) -> None:
    assert "bash" in mill.run("completion", shell, code=2).stderr


@pytest.mark.parametrize(
    "words", [["results", "c"], ["lanes", "f"], ["status", "x"], ["nosuch", "x"], ["jobs", "submission:c"]]
)
def test_where_nothing_can_be_found_nothing_is_offered_made_or_said(mill: Mill, words: list[str]) -> None:
    assert asked_by_fish(mill, *words) == []
    assert list(mill.folder.iterdir()) == []
    (mill.folder / "millpond.yaml").write_text("lanes: [no, settings\n", encoding="utf-8")
    assert asked_by_fish(mill, *words) == []
    (mill.folder / "millpond.yaml").unlink()
    mill.home.mkdir()
    (mill.home / "queue.db").write_bytes(b"no database" * 1000)
    assert asked_by_fish(mill, *words) == []
    assert [path.name for path in mill.home.iterdir()] == ["queue.db"]


def test_what_goes_wrong_while_completing_is_not_said(mill: Mill) -> None:
    told = mill.process(_MILLPOND_COMPLETE="zsh_complete")  # without the words that it needs
    assert (told.returncode, told.stdout, told.stderr) == (1, "", "")


def test_the_home_that_was_given_is_the_one_that_is_asked(full: Mill, tmp_path: Path) -> None:
    elsewhere = str(tmp_path / "elsewhere")
    full.run("--home", elsewhere, "enqueue", "-", "--name", "other", stdin="x\n")
    assert asked_by_fish(full, "--home", elsewhere, "results", "o") == ["other"]
    assert asked_by_fish(full, "results", "--home", elsewhere, "o") == ["other"]


def test_completing_a_verb_loads_no_verb_and_click_alone(mill: Mill) -> None:
    told = subprocess.run(
        [sys.executable, "-c", LOADED],
        cwd=mill.folder, capture_output=True, text=True, timeout=60, check=True,
        env={**os.environ, "_MILLPOND_COMPLETE": "bash_complete", "COMP_WORDS": "millpond sta", "COMP_CWORD": "1"},
    )  # fmt: skip
    offered, loaded = told.stdout.splitlines()
    assert offered == "plain,status"
    modules = set(json.loads(loaded))
    verbs = {f"millpond.faces.cli.{module}" for module, _ in VERBS.values()} - {"millpond.faces.cli.completion"}
    assert modules & verbs == set()
    assert modules & {"apsw", "pydantic", "rich", "httpx2", "millpond.settings", "millpond.queue"} == set()
