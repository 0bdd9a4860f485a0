"""Whoever reads what a drain says may pause, as by Ctrl-S or in a pager: the drain goes on, and heeds its signals."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from mill import Home

from millpond import Queue
from millpond.faces.cli import speaker
from millpond.faces.cli.speaker import Speaker

LANE = """
import logging
def answer(work):
    logging.getLogger("millpond.engine").warning("a warning")
    return "quack"
"""
WAIT_S = 30


@contextmanager
def drain(home: Home, *words: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A drain whose stdout and stderr are one pipe, which is full; and the end that the test reads, if it does."""
    ear, mouth = os.pipe()
    _fill(mouth)
    (home.folder / "mine.py").write_text(LANE)
    program = [sys.executable, "-m", "millpond", "drain", *words]
    path = os.pathsep.join([str(home.folder), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        program, cwd=home.folder, stdin=subprocess.DEVNULL, stdout=mouth, stderr=mouth,
        env={**os.environ, "PYTHONPATH": path},
    )  # fmt: skip
    os.close(mouth)
    try:
        yield process, ear
    finally:
        os.close(ear)
        process.kill()
        process.wait()


def _fill(mouth: int) -> None:
    flags = fcntl.fcntl(mouth, fcntl.F_GETFL)
    fcntl.fcntl(mouth, fcntl.F_SETFL, flags | os.O_NONBLOCK)
    for size in (65_536, 1):
        with suppress(BlockingIOError):
            while True:
                os.write(mouth, b"x" * size)
    fcntl.fcntl(mouth, fcntl.F_SETFL, flags)


def pond(folder: Path) -> Home:
    return Home(folder, lanes={"own": {"kind": "python", "target": "mine:answer", "price": 0}})


def test_a_drain_whose_reader_pauses_goes_on_and_says_all_of_it_later(tmp_path: Path) -> None:
    home = pond(tmp_path)
    with Queue.open(home.home) as queue:
        jobs = [queue.enqueue(f"q {n}").job_id for n in range(3)]
        with drain(home, "--until-empty") as (process, ear):
            assert queue.wait(jobs, timeout=WAIT_S)
            with os.fdopen(os.dup(ear), encoding="utf-8") as reader:
                said = reader.read().lstrip("x").splitlines()
            assert process.wait(WAIT_S) == 0
    assert (said[0].split()[0], said[-2].split(" · ")[0], said[-1].split(":")[0]) == ("draining", "done 3", "next")
    assert (sum(" done job " in line for line in said), said.count("a warning")) == (3, 3)


def test_a_signal_ends_a_drain_whose_reader_pauses(tmp_path: Path) -> None:
    home = pond(tmp_path)
    with Queue.open(home.home) as queue:
        with drain(home, "--daemon") as (process, _):
            assert queue.wait(queue.enqueue("q").job_id, timeout=WAIT_S)
            process.send_signal(signal.SIGTERM)
            assert process.wait(WAIT_S) == 128 + signal.SIGTERM
        assert (queue.drainer(), queue.store.living_owners()) == (None, [])


def test_a_signal_ends_a_drain_that_is_over_and_whose_reader_pauses(tmp_path: Path) -> None:
    home = pond(tmp_path)
    with Queue.open(home.home) as queue:
        job = queue.enqueue("q").job_id
        with drain(home, "--until-empty") as (process, _):
            assert queue.wait(job, timeout=WAIT_S)
            while queue.drainer() is not None:
                time.sleep(0.01)
            process.send_signal(signal.SIGTERM)
            assert process.wait(WAIT_S) == 128 + signal.SIGTERM


def test_what_is_too_much_for_a_reader_who_pauses_is_left_out_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speaker, "KEPT", 2)
    said: list[str] = []
    pauses, reads = threading.Event(), threading.Event()
    mouth = Speaker(lambda lines: said.append(f"{lines} left out"))

    def first() -> None:
        pauses.set()
        reads.wait(WAIT_S)
        said.append("1")

    mouth.say(first)
    pauses.wait(WAIT_S)
    for word in "23456":
        mouth.say(lambda word=word: said.append(word))
    assert not mouth.wait_said(0)
    reads.set()
    assert mouth.wait_said(WAIT_S)
    assert said == ["1", "3 left out", "5", "6"]
