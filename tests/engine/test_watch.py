"""Who is given up by whom: after a whole lease of watching, on the watcher's own clock, while he was awake."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from millpond.engine.beat import first_note
from millpond.engine.lock import Lock
from millpond.engine.owner import Owner, lock_file
from millpond.engine.watch import Watch
from millpond.rules.job import OwnerRow
from millpond.testing import FakeClock

LEASE_MS = 60_000


class Frozen:
    """An owner of this host that holds its lock, and beats only when the test says so."""

    def __init__(self, folder: Path, lease_ms: int = LEASE_MS, host: str = "") -> None:
        here = Owner(folder, "worker", 0, lease_ms=15_000).row
        self.row = OwnerRow("frozen", "worker", host or here.host, os.getpid(), "" if host else here.boot_id, 0)
        self.lock = Lock(lock_file(folder, "frozen"))
        assert self.lock.take(first_note("frozen", lease_ms))
        self._beats = 0

    def beat(self) -> None:
        self._beats += 1
        self.lock.write_over(f"{self._beats:020}")


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def frozen(tmp_path: Path) -> Iterator[Callable[..., Frozen]]:
    made: list[Frozen] = []

    def make(**how: int | str) -> Frozen:
        made.append(Frozen(tmp_path, **how))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for one in made:
        one.lock.release()


def test_an_owner_whose_beat_stands_still_for_its_lease_is_given_up(
    tmp_path: Path, clock: FakeClock, frozen: Callable[..., Frozen]
) -> None:
    owner, watch = frozen(), Watch(tmp_path, clock)
    assert watch.gone([owner.row]) == []
    for _ in range(5):
        clock.advance(10_000)
        assert watch.gone([owner.row]) == []
    clock.advance(10_000)
    assert watch.gone([owner.row]) == [owner.row]


def test_a_beat_begins_the_watching_anew(tmp_path: Path, clock: FakeClock, frozen: Callable[..., Frozen]) -> None:
    owner, watch = frozen(), Watch(tmp_path, clock)
    for _ in range(30):
        clock.advance(20_000)
        assert watch.gone([owner.row]) == []
        clock.advance(20_000)
        assert watch.gone([owner.row]) == []
        owner.beat()


def test_a_watcher_that_slept_gives_nobody_up_on_waking(
    tmp_path: Path, clock: FakeClock, frozen: Callable[..., Frozen]
) -> None:
    """Both slept, for a week. He who is watched needs a moment to beat again."""
    owner, watch = frozen(), Watch(tmp_path, clock)
    watch.gone([owner.row])
    clock.advance(19_000)
    assert watch.gone([owner.row]) == []
    clock.advance(7 * 24 * 3_600_000)
    assert watch.gone([owner.row]) == []
    clock.advance(19_000)
    assert watch.gone([owner.row]) == []
    clock.advance(5_000)
    assert watch.gone([owner.row]) == [owner.row], "one that does not is given up after all"


def test_a_clock_that_runs_backwards_counts_nothing(
    tmp_path: Path, clock: FakeClock, frozen: Callable[..., Frozen]
) -> None:
    owner, watch = frozen(), Watch(tmp_path, clock)
    for _ in range(9):
        clock.advance(-3_600_000)
        assert watch.gone([owner.row]) == []


def test_an_owner_is_judged_by_its_own_lease(tmp_path: Path, clock: FakeClock, frozen: Callable[..., Frozen]) -> None:
    """Processes may have been given different policies; what counts is how often this one promised to beat."""
    owner, watch = frozen(lease_ms=600_000), Watch(tmp_path, clock)
    watch.gone([owner.row])
    for _ in range(20):
        clock.advance(20_000)
        assert watch.gone([owner.row]) == []


def test_an_owner_of_another_host_is_not_given_up_while_it_beats(
    tmp_path: Path, clock: FakeClock, frozen: Callable[..., Frozen]
) -> None:
    """A folder that a container shares with its host may show the beats and not the locks."""
    owner, watch = frozen(host="elsewhere"), Watch(tmp_path, clock)
    owner.lock.release()
    for beat in range(1, 10):
        assert watch.gone([owner.row]) == []
        clock.advance(20_000)
        lock_file(tmp_path, "frozen").write_text(f"{beat:020} {0:020} {LEASE_MS} frozen\n")
    assert not watch.is_undecided


def test_an_owner_of_another_host_is_given_up_once_its_beat_was_watched_standing_still(
    tmp_path: Path, clock: FakeClock, frozen: Callable[..., Frozen]
) -> None:
    """Its machine died, and its disk is here now; or it is frozen."""
    owner, watch = frozen(host="elsewhere"), Watch(tmp_path, clock)
    owner.lock.release()
    for _ in range(3):
        assert watch.gone([owner.row]) == []
        assert watch.is_undecided
        clock.advance(20_000)
    assert watch.gone([owner.row]) == [owner.row]
    assert not watch.is_undecided


def test_so_is_one_of_which_there_is_no_beat_to_be_seen(
    tmp_path: Path, clock: FakeClock, frozen: Callable[..., Frozen]
) -> None:
    """The database was copied without its folder of locks; one that lived would take a new name at its next beat."""
    owner, watch = frozen(host="elsewhere"), Watch(tmp_path, clock)
    lock_file(tmp_path, "frozen").unlink()
    for _ in range(3):
        assert watch.gone([owner.row]) == []
        clock.advance(20_000)
    assert watch.gone([owner.row]) == [owner.row]


def test_a_lock_that_is_free_needs_no_watching(tmp_path: Path, clock: FakeClock, frozen: Callable[..., Frozen]) -> None:
    owner = frozen()
    owner.lock.release()
    assert Watch(tmp_path, clock).gone([owner.row]) == [owner.row]


def test_o05_an_owner_whose_file_was_deleted_is_given_up_if_it_takes_no_new_name(
    tmp_path: Path, clock: FakeClock, frozen: Callable[..., Frozen]
) -> None:
    """Its process runs, and may be frozen; one that lives has a new name after its next beat."""
    owner, watch = frozen(), Watch(tmp_path, clock)
    watch.gone([owner.row])
    lock_file(tmp_path, "frozen").unlink()
    for _ in range(2):
        clock.advance(20_000)
        assert watch.gone([owner.row]) == []
    clock.advance(20_000)
    assert watch.gone([owner.row]) == [owner.row]
    assert Watch(tmp_path, clock).gone([owner.row]) == [], "whoever never saw it beat cannot judge"


def test_two_threads_look_one_after_the_other(tmp_path: Path) -> None:
    """At once, they would count the same time twice."""
    inside = most = 0

    def slow_clock() -> int:
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        threading.Event().wait(0.05)
        inside -= 1
        return 0

    watch = Watch(tmp_path, slow_clock)
    looking = [threading.Thread(target=watch.gone, args=([],)) for _ in range(4)]
    for thread in looking:
        thread.start()
    for thread in looking:
        thread.join()
    assert most == 1


def test_a_forked_child_can_look_though_its_parent_was_looking(
    tmp_path: Path, clock: FakeClock, frozen: Callable[..., Frozen]
) -> None:
    owner, watch = frozen(), Watch(tmp_path, clock)
    with watch._looking:
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            os._exit(0 if watch.gone([owner.row]) == [] else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
