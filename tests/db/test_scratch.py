"""Texts that outgrow memory, for the length of one look."""

from __future__ import annotations

import os
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
