"""The thread that looks after what workers of one's own have in hand: there while there is any, in the one process."""

from __future__ import annotations

import os
import threading
import tracemalloc
from dataclasses import dataclass, field

from millpond.engine.in_hand import InHand
from millpond.rules.errors import QueueBusy
from millpond.rules.job import Lease, Prompt

LEASE_MS = 60_000


def lease(job_id: int = 1) -> Lease:
    return Lease(job_id, 1, Prompt("a"), Prompt("a"), "key", 1, None, "", "worker", "own", "batch", "", "", False)


@dataclass
class Store:
    """Stands for the store: hears whose holds are looked at, and which leases are taken back."""

    heard: list[str] = field(default_factory=list[str])
    listened: list[str] = field(default_factory=list[str])
    lapsed: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    looked: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    again: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    now_s: float = 0.0

    def in_hand(self) -> InHand:
        return InHand(
            LEASE_MS,
            look=self.looked.release,
            end_holds=self.end,
            lapse=lambda *name: self.lapsed.append(name),
            monotonic_s=lambda: self.now_s,
        )

    def end(self, *owners: str) -> list[str]:
        if owners:
            self.heard += owners
            self.again.release()
            if len(self.heard) == 1:
                raise QueueBusy("another process writes")
        return self.listened

    def passes(self, s: float) -> None:
        """Time goes on, and a whole look begins and ends thereafter."""
        self.now_s += s
        while self.looked.acquire(blocking=False):
            pass
        for _ in range(2):
            assert self.looked.acquire(timeout=10)


def ended() -> bool:
    for thread in threading.enumerate():
        if thread.name == "millpond-in-hand":
            thread.join(timeout=10)
    return all(thread.name != "millpond-in-hand" for thread in threading.enumerate())


def test_a_busy_store_does_not_end_the_listening() -> None:
    store = Store()
    in_hand = store.in_hand()
    in_hand.begin("call", "worker", lease(), "own")
    for _ in range(2):
        assert store.again.acquire(timeout=10)
    in_hand.stop()
    heard = len(store.heard)
    assert not store.again.acquire(timeout=0.6), "nothing more is asked once it has stopped"
    assert (set(store.heard), len(store.heard)) == ({"worker"}, heard)


def test_a_second_call_is_listened_to_after_the_first_is_over() -> None:
    store = Store()
    in_hand = store.in_hand()
    for owner in ("first", "second"):
        in_hand.begin(owner, owner, lease(), "own")
        assert store.again.acquire(timeout=10)
        in_hand.over(owner)
        assert ended()
    assert list(dict.fromkeys(store.heard)) == ["first", "second"]
    in_hand.stop()


def test_a_forked_child_listens_to_its_own_calls_only() -> None:
    store = Store()
    in_hand = store.in_hand()
    in_hand.begin("call", "parent", lease(), "own")
    assert store.again.acquire(timeout=10)
    child = os.fork()
    if child == 0:
        store.heard.clear()
        in_hand.begin("other", "child", lease(), "own")
        heard = store.again.acquire(timeout=10) and store.again.acquire(timeout=10)
        os._exit(0 if heard and set(store.heard) == {"child"} else 1)
    _, status = os.waitpid(child, 0)
    in_hand.stop()
    assert os.waitstatus_to_exitcode(status) == 0


def test_the_end_of_a_call_costs_the_same_however_many_are_in_hand() -> None:
    """In bytes that it takes for a moment, which no other program shares."""
    in_hand = Store().in_hand()
    in_hand.took(lease(0))
    in_hand.begin("call 0", "worker", lease(0), "own")
    for n in range(1, 5_000):
        in_hand.took(lease(n))
    tracemalloc.start()
    try:
        in_hand.over("call 0")
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        in_hand.stop()
    assert most_bytes < 20_000


def test_a_lease_that_nobody_renews_is_taken_back_and_a_renewed_one_is_not() -> None:
    store = Store()
    in_hand = store.in_hand()
    silent, renewed = lease(1), lease(2)
    in_hand.took(silent)
    in_hand.took(renewed)
    for _ in range(3):
        assert store.lapsed == []
        store.passes(20)
        in_hand.heard_of(renewed)
    assert store.lapsed == [(1, 1)]
    in_hand.gave(renewed)
    assert ended(), "nothing is in hand any more"


def test_a_process_that_slept_counts_no_more_than_a_beat_of_it_against_its_workers() -> None:
    store = Store()
    in_hand = store.in_hand()
    in_hand.took(lease())
    store.passes(7 * 24 * 3600)
    assert store.lapsed == []
    in_hand.heard_of(lease())
    store.passes(20)
    store.passes(20)
    assert store.lapsed == []
    store.now_s += 20
    assert ended(), "nothing is in hand any more"
    assert store.lapsed == [(1, 1)]


def test_to_record_a_call_renews_its_lease_and_its_end_gives_it_up() -> None:
    store = Store()
    in_hand = store.in_hand()
    in_hand.took(lease())
    for _ in range(2):
        store.passes(20)
    in_hand.begin("call", "worker", lease(), "own")
    store.passes(20)
    assert store.lapsed == []
    in_hand.over("call")
    assert ended()
    assert store.lapsed == []


def test_a_call_whose_worker_never_came_back_is_in_hand_until_nobody_listens_to_it() -> None:
    """Its job was cancelled, so its hold is longer than its lease."""
    store = Store(listened=["call"])
    in_hand = store.in_hand()
    in_hand.took(lease())
    in_hand.begin("call", "worker", lease(), "own")
    for _ in range(3):
        store.passes(20)
    assert store.lapsed == [(1, 1)]
    for _ in range(2):
        assert store.again.acquire(timeout=10)
    store.listened.clear()
    assert ended(), "nothing is in hand any more"


def test_a_lease_is_not_silent_while_its_worker_is_kept_waiting_in_a_verb() -> None:
    """By a lane that is asked what became of an earlier call, or by a lock. Thereafter it has a whole lease again."""
    store = Store()
    in_hand = store.in_hand()
    in_hand.took(lease())
    store.passes(20)
    with in_hand.at_work(lease()), in_hand.at_work(lease()):
        for _ in range(2):
            store.passes(20)
    for _ in range(2):
        store.passes(20)
    assert store.lapsed == []
    store.now_s += 20
    assert ended(), "nothing is in hand any more"
    assert store.lapsed == [(1, 1)]
