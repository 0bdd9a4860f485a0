"""Texts that outgrow memory, for the length of one look."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from millpond.db.scratch import Scratch


def test_what_is_kept_is_found_by_name_and_the_first_word_stands() -> None:
    with Scratch() as scratch:
        scratch.keep({"a": "1", "b": "2"})
        scratch.keep({"b": "3", 'ö"\n': "4"})
        assert scratch.of(["a", "b", 'ö"\n', "c"]) == {"a": "1", "b": "2", 'ö"\n': "4"}
        assert scratch.of([]) == {}


def test_two_know_nothing_of_each_other_and_leave_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SQLITE_TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with Scratch() as one, Scratch() as other:
        for at in range(0, 60_000, 1_000):  # more than its cache holds
            one.keep({f"{n}:{'x' * 400}": "y" for n in range(at, at + 1_000)})
        assert other.of(["0:" + "x" * 400]) == {}
        assert len(one.of([f"{n}:{'x' * 400}" for n in range(59_500, 60_500)])) == 500
        assert os.listdir(tmp_path) == []
    assert os.listdir(tmp_path) == []


FILL = """
from millpond.db.scratch import Scratch
from millpond.rules.errors import QueueUnavailable
with Scratch() as scratch:
    try:
        for at in range(0, 60_000, 1_000):
            scratch.keep({f"{n}:{'x' * 400}": "y" for n in range(at, at + 1_000)})
    except QueueUnavailable as refusal:
        print(refusal)
"""


def test_a_full_temporary_folder_is_named(tmp_path: Path) -> None:
    """The largest file of a process is bounded, so that the system itself refuses to write on."""

    def bound() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))

    environment = {**os.environ, "SQLITE_TMPDIR": str(tmp_path / "gone"), "TMPDIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", FILL],
        env=environment,
        preexec_fn=bound,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=60,
        check=False,
    )
    assert done.stderr == ""
    assert done.stdout.startswith(f"the temporary folder {tmp_path} refused what does not fit into memory (SQLITE_")
    assert done.stdout.count("\n") == 1
