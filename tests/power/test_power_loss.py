"""What was acknowledged survives a power cut, at whatever write it comes and whatever of the unsynced it leaves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from random import Random

import pytest
from disk import Disk
from lives import DIRECTED, by_chance, folder_of, run
from watched import FILE, Commit, Judge, Lost, cuts, look, put

from millpond import Policy, Queue
from millpond.db import connection

VERBS = {
    "whole": "settle", "enqueue": "enqueue", "open_submission": "enqueue", "record": "record", "settle": "settle",
    "cancel": "cancel", "retry": "retry", "detach": "detach", "stop_listening": "detach", "resolve": "resolve",
    "reclaim": "reclaim", "enlist": "enlist", "succeed": "enlist", "give": "give",
}  # fmt: skip
"""Every verb that a caller may rely on, by the name of its operation, and the history that has it."""

WAYS = ("synced", "torn")


def judge(
    disk: Disk,
    commits: Sequence[Commit],
    folder: Path,
    *,
    moments: Iterable[int] | None = None,
    ways: Sequence[str] = WAYS,
    seed: int = 1,
) -> int:
    """Cut at these moments, or at each since the first acknowledgement. Returns how many different disks were left."""
    if moments is None:
        first = next(commit.at for commit in commits if commit.must_last)
        moments = range(first, len(disk.log) + 1)
    of = Judge(commits, folder)
    for cut in cuts(disk, moments, Random(seed), ways):
        of.judge(cut)
    return of.images


@pytest.mark.parametrize("name", DIRECTED)
def test_what_was_acknowledged_survives_a_cut_at_any_write(name: str, tmp_path: Path) -> None:
    disk = Disk(folder_of(tmp_path, "home"))
    _, commits = run(disk, DIRECTED[name])
    assert judge(disk, commits, tmp_path / "left") > 20


def test_a_cut_while_the_file_is_made_leaves_one_that_opens(tmp_path: Path) -> None:
    disk = Disk(folder_of(tmp_path, "home"))
    _, commits = run(disk, lambda scene: scene.ask())
    first = next(commit.at for commit in commits if commit.must_last)
    assert judge(disk, commits, tmp_path / "left", moments=range(first + 1)) > 20


def test_what_was_acknowledged_survives_a_cut_while_the_file_is_closed_and_opened(tmp_path: Path) -> None:
    disk = Disk(folder_of(tmp_path, "home"))
    _, commits = run(disk, lambda scene: scene.answered("a"), lambda scene: scene.answered("b"))
    judge(disk, commits, tmp_path / "left", ways=("synced", "written", "torn", "torn"))


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_that_is_not_synced_is_noticed(verb: str, tmp_path: Path) -> None:
    """The proof that the tests above look at every verb that a caller may rely on."""
    disk = Disk(folder_of(tmp_path, "home"))
    _, commits = run(disk, DIRECTED[VERBS[verb]], weak=verb)
    with pytest.raises(Lost, match="was acknowledged and is not there"):
        judge(disk, commits, tmp_path / "left", ways=("synced",))


def test_with_durability_normal_what_was_acknowledged_is_lost(tmp_path: Path) -> None:
    disk = Disk(folder_of(tmp_path, "home"))
    _, commits = run(disk, DIRECTED["record"], durable=False)
    with pytest.raises(Lost, match="was acknowledged and is not there"):
        judge(disk, commits, tmp_path / "left", ways=("synced",))


@pytest.mark.parametrize("deaf_to", ["-wal", ".db", "/"])
def test_a_disk_that_lies_about_a_sync_is_noticed(deaf_to: str, tmp_path: Path) -> None:
    disk = Disk(folder_of(tmp_path, "home"), deaf_to=(deaf_to,))
    _, commits = run(disk, DIRECTED["checkpoint"])
    with pytest.raises(Lost):
        judge(disk, commits, tmp_path / "left", ways=("synced",))


def test_a_drain_keeps_what_it_said_and_what_it_sent(tmp_path: Path) -> None:
    """The whole machine: no request leaves a lane's hands before its ledger row is on the disk."""
    disk = Disk(folder_of(tmp_path, "home"))
    sent: list[tuple[int, str]] = []

    def answer(work: object, *, idempotency_key: str, **_: object) -> str:
        sent.append((len(disk.log), idempotency_key))
        return "an answer"

    with disk.mounted(), Queue.open(disk.folder, policy=Policy()) as queue:
        queue.enqueue_many([f"question {n}" for n in range(12)])
        asked_at = len(disk.log)
        assert queue.drain(lanes=answer, until_empty=True).done == 12
        done_at = len(disk.log)
    assert len(sent) == 12
    for cut in cuts(disk, range(asked_at, len(disk.log) + 1), Random(1), WAYS):
        put(cut.image, tmp_path / "left")
        rows = look(tmp_path / "left" / FILE)
        assert len(rows["request"]) == 12
        ledger = {key for row in rows["attempt"] for key in row}
        assert {key for at, key in sent if at <= cut.at} <= ledger, f"sent and not recorded: {cut.at} ({cut.how})"
        assert cut.at < done_at or len(rows["artifact"]) == 12, f"drained and not kept: {cut.at} ({cut.how})"


def live_and_die(seed: int, folder: Path, *, lives: int, moves: int, looks: int) -> None:
    """A long history by chance; then `looks` power cuts, from the last of which the next life goes on."""
    chance = Random(seed)
    disk, scene = Disk(folder_of(folder, "life 0")), None
    for life in range(lives):
        scene, commits = run(disk, by_chance(chance, moves), scene=scene)
        moments = sorted(chance.choices(range(len(disk.log) + 1), k=looks))
        of, last = Judge(commits, folder / "left"), None
        for last in cuts(disk, moments, chance, ("torn",)):
            of.judge(last)
        assert last is not None
        put(last.image, folder_of(folder, f"life {life + 1}"))
        disk = Disk(folder.resolve() / f"life {life + 1}")


@pytest.fixture
def frequent_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    """The log is brought into the file and overwritten from its beginning every few commits, not every 16 MB."""
    monkeypatch.setattr(connection, "WAL_CHECKPOINT_PAGES", 25)


@pytest.mark.usefixtures("frequent_checkpoints")
@pytest.mark.parametrize("seed", range(4))
def test_a_store_that_loses_power_again_and_again_keeps_what_it_acknowledged(seed: int, tmp_path: Path) -> None:
    live_and_die(seed, tmp_path, lives=3, moves=60, looks=15)


@pytest.mark.prove
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("frequent_checkpoints")
@pytest.mark.parametrize("seed", range(100, 120))
def test_long_lives_with_many_cuts(seed: int, tmp_path: Path) -> None:
    live_and_die(seed, tmp_path, lives=6, moves=150, looks=60)


@pytest.mark.prove
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", DIRECTED)
def test_every_cut_of_a_history_torn_in_ten_ways(name: str, tmp_path: Path) -> None:
    disk = Disk(folder_of(tmp_path, "home"))
    _, commits = run(disk, DIRECTED[name])
    judge(
        disk, commits, tmp_path / "left", moments=range(len(disk.log) + 1), ways=("synced", "written", *["torn"] * 10)
    )
