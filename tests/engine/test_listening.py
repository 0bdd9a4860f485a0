"""The thread of workers of one's own: there while a call is under way, in the process that makes it."""

from __future__ import annotations

import os
import threading

from millpond.engine.listening import Listening
from millpond.rules.errors import QueueBusy


class Holds:
    """Stands for the store: hears whose holds are looked at."""

    def __init__(self) -> None:
        self.heard: list[str] = []
        self.again = threading.Semaphore(0)

    def end(self, owner: str) -> None:
        self.heard.append(owner)
        self.again.release()
        if len(self.heard) == 1:
            raise QueueBusy("another process writes")


def test_a_busy_store_does_not_end_the_listening() -> None:
    holds = Holds()
    listening = Listening(holds.end)
    listening.begin("call", "worker")
    for _ in range(2):
        assert holds.again.acquire(timeout=10)
    listening.stop()
    heard = len(holds.heard)
    assert not holds.again.acquire(timeout=0.6), "nothing more is asked once it has stopped"
    assert (set(holds.heard), len(holds.heard)) == ({"worker"}, heard)


def test_a_second_call_is_listened_to_after_the_first_is_over() -> None:
    holds = Holds()
    listening = Listening(holds.end)
    for owner in ("first", "second"):
        listening.begin(owner, owner)
        assert holds.again.acquire(timeout=10)
        listening.over(owner)
        for thread in threading.enumerate():
            if thread.name == "millpond-listening":
                thread.join(timeout=10)
    assert list(dict.fromkeys(holds.heard)) == ["first", "second"]
    listening.stop()


def test_a_forked_child_listens_to_its_own_calls_only() -> None:
    holds = Holds()
    listening = Listening(holds.end)
    listening.begin("call", "parent")
    assert holds.again.acquire(timeout=10)
    child = os.fork()
    if child == 0:
        holds.heard.clear()
        listening.begin("other", "child")
        heard = holds.again.acquire(timeout=10) and holds.again.acquire(timeout=10)
        os._exit(0 if heard and set(holds.heard) == {"child"} else 1)
    _, status = os.waitpid(child, 0)
    listening.stop()
    assert os.waitstatus_to_exitcode(status) == 0
