"""The spool: what it keeps is found whole, or not at all, and the queue takes it once."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millpond.engine import spool as room
from millpond.engine.kept import Kept, dump_kept, load_kept, without_its_reply
from millpond.engine.spool import BLOCK_BYTES, MARK, SLOT_BYTES, Spool, left_in, replay, spool_path
from millpond.rules.admission import Closing
from millpond.rules.effects import ACCEPT, UNROUTED, Ending, Heard, Then
from millpond.rules.errors import QueueUnavailable
from millpond.rules.evidence import Evidence
from millpond.rules.job import Reply, Usage
from millpond.rules.policy import LanePolicy, Policy
from millpond.rules.price import Cost
from millpond.rules.verdict import end
from millpond.store.moves import Fence
from millpond.store.store import Store, fence, open_sqlite
from millpond.testing.scripted_lane import evidence_of
from millpond.testing.store_scene import Scene

LANE = LanePolicy("free", kind="callable")
POLICY = Policy(lanes={"free": LANE})


def ending(seen: Evidence, cost: Cost | None = None, closing: Closing | None = None) -> Ending:
    return replace(end(Heard(seen, 0, 0.0), LANE, POLICY), cost=cost, closing=closing)


def kept(uid: str, text: str = "an answer", then: Then = ACCEPT, job: Fence | None = None) -> Kept:
    return Kept(uid, "free", ending(evidence_of(Reply(text))), then, job, 0)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(lambda now_ms: Store(open_sqlite(tmp_path / "queue.db"), now_ms))
    yield scene
    scene.store.close()


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    spool = Spool(tmp_path, "me", 4)
    spool.prepare()
    yield spool
    spool.remove()


# --- one ending -------------------------------------------------------------------------------------------------------

REPLY = Reply(
    "odd \0 \ud83d \u2028", {"a": [1, None, "\0"]}, "stop", "m", Usage(3, None, {"x": 1}), "req", {"raw": "\0"}
)
ENDINGS = [
    kept("a"),
    replace(kept("b", job=Fence(7, 3)), how="recalled"),
    Kept("c", "free", ending(evidence_of(REPLY), Cost(Decimal("0.000001"), "stated")), ACCEPT, Fence(1, 1), 5),
    Kept("d", "free", ending(Evidence(said="saturated", retry_info_ms=9, headers={"retry-after": "9"}),
         closing=Closing(None, "no money", "down")), Then("release", UNROUTED, None, "why", True), Fence(1, 1), 5),
    Kept("e", "free", ending(Evidence(failure="reset", usage=Usage(1, 2, {"n": float("inf")}))),
         Then(None, None, 9), None, 5),
]  # fmt: skip


@pytest.mark.parametrize("one", ENDINGS, ids=lambda one: one.uid)
def test_an_ending_is_read_back_as_it_was(one: Kept) -> None:
    stored = dump_kept(one)
    assert b"\0" not in stored, "else a reply could look like an entry"
    found = load_kept(stored)
    if one.uid == "e":  # what JSON does not have is kept in words, as the ledger keeps it
        assert found.ending.evidence.usage == Usage(1, 2, {"n": "Infinity"})
        found = replace(found, ending=replace(found.ending, evidence=one.ending.evidence))
    assert found == one


def test_what_can_never_be_stored_leaves_an_ending_that_says_so() -> None:
    one = without_its_reply(kept("a", job=Fence(1, 1)), OverflowError("too large"), LANE, POLICY)
    assert (one.ending.outcome, one.then.move, one.then.next_lane) == ("ambiguous", "release", UNROUTED)
    assert "OverflowError: too large" in one.ending.classified.message
    assert without_its_reply(kept("a"), ValueError(), LANE, POLICY).then == ACCEPT


# --- the file ---------------------------------------------------------------------------------------------------------


UNKNOWN = Kept("a", "free", ending(evidence_of("ambiguous")), ACCEPT, None, 0)


@contextmanager
def no_file_may_grow(path: Path) -> Iterator[None]:
    """Nothing may be written beyond this file's end."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_of_two_endings_of_one_call_the_reply_is_kept_on_disk_too(scene: Scene, tmp_path: Path, spool: Spool) -> None:
    _, uid = scene.in_flight()
    for one in (UNKNOWN, kept(uid), UNKNOWN):
        assert spool.keep(replace(one, uid=uid))
    assert left_in(spool.path) == [uid]
    spool.remove()  # its lock is free, and what it kept is left
    replay(scene.store, tmp_path)
    assert scene.attempt(uid).outcome == "ok"


def test_a_reply_that_finds_no_room_beside_an_earlier_ending_is_not_said_to_be_on_disk(spool: Spool) -> None:
    assert spool.keep(UNKNOWN)
    with no_file_may_grow(spool.path):
        assert not spool.keep(kept("a", "long " * SLOT_BYTES))
    assert not spool.are_all_on_disk()
    assert "in the memory of process" in str(spool.explained(QueueUnavailable("full")))


def test_its_room_is_set_aside_for_its_owner_alone(spool: Spool) -> None:
    there = spool.path.stat()
    assert (there.st_size, there.st_mode & 0o777) == (4 * SLOT_BYTES, 0o600)
    assert there.st_blocks * 512 >= there.st_size, "a sparse file has no room"
    assert spool.path.parent.stat().st_mode & 0o777 == 0o700


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from([0, 1, SLOT_BYTES, 3 * SLOT_BYTES])), max_size=20))
def test_whatever_is_kept_and_not_cleared_is_found(tmp_path_factory: Any, moves: list[tuple[int, int]]) -> None:
    spool = Spool(tmp_path_factory.mktemp("spools"), "me", 2)
    spool.prepare()
    there: set[str] = set()
    for n, size in moves:
        uid = f"a{n}"
        if uid in there:
            spool.clear(uid)
            there.remove(uid)
        else:
            assert spool.keep(kept(uid, "x" * size))
            there.add(uid)
        assert sorted(left_in(spool.path)) == sorted(there)
        assert (spool.pending(), spool.are_all_on_disk()) == (len(there), True)
    spool.remove()
    assert spool.path.exists() == bool(there)


def test_an_entry_that_was_never_written_whole_is_passed_over(spool: Spool, caplog: pytest.LogCaptureFixture) -> None:
    for uid in ("a", "b", "c"):
        spool.keep(kept(uid))
    with spool.path.open("r+b") as file:
        file.seek(SLOT_BYTES + len(MARK) + 60)
        file.write(b"torn")
    assert left_in(spool.path) == ["a", "c"]
    assert "never written whole" in caplog.text
    with spool.path.open("r+b") as file:  # a length that leads out of the file
        file.seek(2 * SLOT_BYTES + len(MARK))
        file.write(b"\xff" * 8)
    assert left_in(spool.path) == ["a"]


def test_slots_of_another_version_are_read_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(room, "SLOT_BYTES", 2 * BLOCK_BYTES)
    spool = Spool(tmp_path, "me", 4)
    spool.prepare()
    for uid in ("a", "b"):
        spool.keep(kept(uid, "x" * 5_000))
    monkeypatch.undo()
    assert left_in(spool.path) == ["a", "b"]


def test_a_spool_that_was_deleted_is_made_again_with_what_waits(spool: Spool) -> None:
    spool.keep(kept("a"))
    spool.path.unlink()
    assert not spool.is_clear()
    spool.prepare()
    assert left_in(spool.path) == ["a"]
    spool.path.unlink()
    spool.keep(kept("b"))
    assert sorted(left_in(spool.path)) == ["a", "b"]


def test_where_there_is_no_room_the_reply_is_kept_in_memory_and_that_is_said(
    scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A full disk under a real spool is in tests/process; here each call for room is refused."""

    def refused(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    spool = Spool(tmp_path, "me", 1)
    monkeypatch.setattr(room, "set_aside", refused)
    with pytest.raises(QueueUnavailable, match=r"No space left on device.*Free 64 KiB"):
        spool.prepare()
    assert not spool.path.exists()
    lease, uid = scene.in_flight()
    assert not spool.keep(kept(uid, job=fence(lease)))
    assert "in the memory of process" in caplog.text
    assert not spool.are_all_on_disk()
    words = str(spool.explained(QueueUnavailable("no room")))
    assert words.startswith("no room. 1 reply not written yet; in the memory of process")
    spool.write_all(scene.store)
    assert (spool.pending(), scene.store.counts()["done"]) == (0, 1)


# --- writing to the queue ---------------------------------------------------------------------------------------------


def spooled(tmp_path: Path, scene: Scene, *keys: str) -> tuple[Path, dict[str, str]]:
    """A spool that its process left behind, with an answer for each key; uid by key."""
    spool = Spool(tmp_path, "left", 4)
    spool.prepare()
    uids: dict[str, str] = {}
    for key in keys:
        lease, uids[key] = scene.in_flight(key)
        spool.keep(kept(uids[key], f"answer to {key}", job=fence(lease)))
    spool.remove()
    return spool.path, uids


def test_what_was_left_is_written_and_its_file_goes(tmp_path: Path, scene: Scene) -> None:
    path, _ = spooled(tmp_path, scene, "a", "b")
    replay(scene.store, tmp_path, only_left=True)
    assert (scene.store.counts()["done"], path.exists()) == (2, False)
    replay(scene.store, tmp_path, only_left=True)
    replay(scene.store, tmp_path)
    assert scene.store.miscounted() == {}


def test_an_attempt_that_is_written_is_left_as_it_is(tmp_path: Path, scene: Scene) -> None:
    """Its process died between commit and clearing; meanwhile a person has opened the lane that it closed."""
    spool = Spool(tmp_path, "left", 4)
    spool.prepare()
    lease, uid = scene.in_flight()
    closing = Closing(None, "no money", "down")
    one = Kept(uid, "free", ending(Evidence(said="lane_down"), closing=closing), Then("release"), fence(lease), 0)
    spool.keep(one)
    scene.store.settle(uid, one.ending, one.then, lane="free", lease=lease)
    scene.store.open_lane("free")
    spool.remove()
    replay(scene.store, tmp_path, only_left=True)
    assert scene.store.closed_lanes() == {}
    assert scene.store.counts()["ready"] == 1


def test_an_answer_that_was_retired_meanwhile_stays_so(tmp_path: Path, scene: Scene) -> None:
    path, uids = spooled(tmp_path, scene, "k")
    scene.store.reclaim(scene.worker)
    scene.worker = scene.owner("another")
    second = scene.take()
    scene.store.resolve(uids["k"], "same")
    scene.settle(scene.send(second), "first answer", lease=second)
    fresh = scene.ask("k", fresh=True)
    replay(scene.store, tmp_path)
    assert (scene.attempt(uids["k"]).outcome, scene.store.artifact("k")) == ("ok", None)
    assert (scene.state(fresh.job_id), path.exists()) == ("ready", False)


def test_the_spool_of_one_who_lives_is_his(tmp_path: Path, scene: Scene, spool: Spool) -> None:
    lease, uid = scene.in_flight()
    spool.keep(kept(uid, job=fence(lease)))
    replay(scene.store, tmp_path, only_left=True)
    assert scene.store.counts()["leased"] == 1
    replay(scene.store, tmp_path)  # he is taken for dead: he may be frozen, and go on writing there
    assert (scene.store.counts()["done"], left_in(spool.path)) == (1, [uid])
    spool.write_all(scene.store)
    assert (spool.pending(), left_in(spool.path), scene.store.miscounted()) == (0, [], {})


def test_what_the_queue_can_never_take_is_left_under_another_name(
    tmp_path: Path, scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    path, _ = spooled(tmp_path, scene, "a")
    spool = Spool(tmp_path, "other", 4)
    spool.prepare()
    spool.keep(kept("of another queue"))
    spool.remove()
    replay(scene.store, tmp_path, only_left=True)
    assert scene.store.counts()["done"] == 1
    assert [one.name for one in path.parent.iterdir()] == ["other.refused"]
    assert "has no attempt of another queue" in caplog.text


def test_an_entry_of_another_version_is_left_to_it(
    tmp_path: Path, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("millpond.engine.kept.FORMAT", 2)
    path, _ = spooled(tmp_path, scene, "a")
    monkeypatch.undo()
    replay(scene.store, tmp_path, only_left=True)
    assert [one.name for one in path.parent.iterdir()] == ["left.refused"]


def test_o14_a_forked_child_keeps_its_own_replies(tmp_path: Path, scene: Scene) -> None:
    child = """
import os, sys
from pathlib import Path
sys.path[:0] = sys.argv[2:]
from test_spool import kept
from millpond.engine.spool import Spool
spool = Spool(Path(sys.argv[1]), "me", 1)
spool.prepare()
spool.keep(kept("parent's"))
if os.fork() == 0:
    assert spool.pending() == 0
    spool.keep(kept("child's"))
    spool.clear("parent's")
    os._exit(0)
os.wait()
assert spool.pending() == 1
spool.clear("child's")
"""
    subprocess.run([sys.executable, "-c", child, tmp_path, str(Path(__file__).parent)], check=True)
    files = sorted((tmp_path / "spool").iterdir(), key=lambda path: path.name == "me.spool")
    assert [left_in(path) for path in files] == [["child's"], ["parent's"]]
    assert spool_path(tmp_path, "me") == files[1]
