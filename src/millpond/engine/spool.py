"""Where a paid reply stands that the queue does not take yet: a file for each owner, its room set aside beforehand.

The file is divided into slots, and made before the first lease, so that it can be written when the disk is full. It is
locked while its owner lives. Whoever finds it unlocked writes what is in it to the queue, and deletes it: before what
its owner held is given to anybody else, else a call whose reply is at hand would be made again.

What is in a slot is written again as often as it is found, and the queue takes it once: it does not matter where
between commit, clearing and deleting a process dies.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import logging
import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from uuid import uuid4

from millpond.db import fork
from millpond.engine.kept import Kept, dump_kept, load_kept
from millpond.rules.errors import REFUSED, MillpondError, QueueUnavailable, UsageError
from millpond.store.store import Store

SLOT_BYTES = 1 << 16
"""Room set aside for each reply. An answer of the 4,096 tokens that our template allows takes 16 kB at 4 bytes a token
(OpenAI's rule of thumb for English), and stands there twice: as text, and in the provider's own body."""

BLOCK_BYTES = 4096
"""Entries begin at a multiple of this, however large the slots of the version that wrote them are."""

REFUSED_SUFFIX = ".refused"
"""Of a spool of whose entries the queue can never take one."""

MARK = b"\0MILLPOND-REPLY\0"
"""Begins an entry. What follows is JSON, which has no NUL, so nothing that was replied looks like an entry."""

log = logging.getLogger("millpond.engine")


class Spool(fork.Bystander):
    """The endings that one owner has to write, each kept until the queue has it. Thread-safe.

    On disk where the disk allows, and in memory always: what cannot be put on disk lives as long as this process.
    """

    def __init__(self, folder: Path, uuid: str, replies: int) -> None:
        """`replies`: how many calls its owner has in flight at most. Nothing is made before `prepare`."""
        self._folder = folder
        self._path = spool_path(folder, uuid)
        self._bytes = max(replies, 1) * SLOT_BYTES
        self._descriptor: int | None = None
        self._mutex = threading.RLock()
        self._kept: dict[str, Kept] = {}
        self._places: dict[str, range] = {}
        """Attempt uid -> the slots that its entry fills."""
        fork.join(self)

    @property
    def path(self) -> Path:
        """The file."""
        return self._path

    def prepare(self) -> None:
        """Make the file, whole and durable, unless it stands. Raises QueueUnavailable; nothing may be leased then."""
        with self._mutex:
            if self._stands():
                return
            try:
                self._make()
            except OSError as problem:
                raise QueueUnavailable(
                    f"{self._path}: {os.strerror(problem.errno or errno.EIO)}; a reply that the queue cannot take is "
                    f"kept there, so nothing is called without it. Free {self._bytes >> 10:,} KiB, and check owner "
                    f"and mode of {self._path.parent} (`df -h`, `ls -ld`)"
                ) from problem

    def keep(self, kept: Kept) -> bool:
        """Keep an ending until `clear`. Whether it is on disk; if not, it is as lasting as this process.

        One that brings no reply never takes the place of one that does. Raises one of kept.UNSTORABLE for what can
        never be written.
        """
        with self._mutex:
            before = self._kept.get(kept.uid)
            if before is not None and _is_better(before, kept):
                kept = before
            entry = dump_kept(kept)
            try:
                if not self._stands():
                    self._make()
                old = self._places.get(kept.uid)
                if old is None or kept != before:
                    self._write(kept.uid, entry)
                    if old is not None:  # only once the new one is there
                        self._strike_out(old)
            except OSError as problem:
                self._places.pop(kept.uid, None)  # what stands there is not what is to be written
                log.warning(
                    "the reply of attempt %s (%s bytes) cannot be kept in %s (%s): it is in the memory of process %s "
                    "alone, do not kill it; free space",
                    kept.uid, f"{len(entry):,}", self._path, problem.strerror, os.getpid(),
                )  # fmt: skip
                return False
            finally:
                self._kept[kept.uid] = kept
            return True

    def clear(self, uid: str) -> None:
        """The queue has it, or it can never be written."""
        with self._mutex:
            self._kept.pop(uid, None)
            place = self._places.pop(uid, None)
            if place is not None:
                self._strike_out(place)

    def keeps_better(self, kept: Kept) -> bool:
        """Whether a reply of this attempt waits to be written, and this brings none."""
        before = self._kept.get(kept.uid)
        return before is not None and _is_better(before, kept)

    def _strike_out(self, place: range) -> None:
        if self._descriptor is not None:
            with suppress(OSError):  # found again, it is written again, which changes nothing
                os.pwrite(self._descriptor, bytes(len(MARK)), place.start * SLOT_BYTES)

    def pending(self) -> int:
        """How many endings the queue does not have yet."""
        return len(self._kept)

    def are_all_on_disk(self) -> bool:
        """Whether nothing would be lost if this process ended now."""
        with self._mutex:
            return self._kept.keys() == self._places.keys()

    def is_clear(self) -> bool:
        """Whether work may be leased: nothing waits to be written, and what comes could be kept."""
        return not self._kept and self._stands()

    def write_all(self, store: Store) -> None:
        """Write to the queue whatever waits. Raises the first refusal, with what that means for the replies."""
        with self._mutex:
            for uid, kept in list(self._kept.items()):
                try:
                    _write_late(store, kept)
                except UsageError as problem:  # handed in while the ledger could not be read, so nobody could say so
                    log.error("a reply is let go that no call of this queue brought: %s", problem)
                except REFUSED as problem:
                    raise self.explained(problem) from problem
                self.clear(uid)

    def explained(self, problem: MillpondError) -> MillpondError:
        """A refusal, and what it means for the replies that wait."""
        with self._mutex:
            n, in_memory = len(self._kept), self._kept.keys() - self._places.keys()
        words = [f"{problem}. {_replies(n)} not written yet"]
        if n > len(in_memory):
            words.append(f"kept in {self._path}, from where the next drain or worker writes it before anything else")
        if in_memory:
            words.append(f"in the memory of process {os.getpid()} alone: {', '.join(sorted(in_memory))}")
        return type(problem)("; ".join(words))

    def remove(self) -> None:
        """Give the lock back; the file goes unless something is left in it, which is then for others to write."""
        with self._mutex:
            if in_memory := self._kept.keys() - self._places.keys():
                log.error("lost, for want of any room: the replies of the attempts %s", ", ".join(sorted(in_memory)))
            if self._descriptor is not None:
                if not self._places and self._stands():
                    self._path.unlink(missing_ok=True)
                os.close(self._descriptor)
                self._descriptor = None
            self._kept, self._places = {}, {}

    def after_fork(self, *, child: bool) -> None:
        """What waits is the parent's to write, and so is its file."""
        if child:
            self._mutex = threading.RLock()
            if self._descriptor is not None:
                os.close(self._descriptor)
                self._descriptor = None
            self._path = spool_path(self._folder, uuid4().hex)
            self._kept, self._places = {}, {}

    # --- the file ---------------------------------------------------------------------------------------------------

    def _stands(self) -> bool:
        return self._descriptor is not None and _is_file_of(self._path, self._descriptor)

    def _make(self) -> None:
        """Make the file, and write what waits, if one was deleted under us."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
        self._places.clear()
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = self._open()
        try:
            set_aside(descriptor, 0, self._bytes)
            os.fsync(descriptor)
            _sync_folder(self._path.parent)
        except OSError:
            self._path.unlink(missing_ok=True)
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        for uid, kept in self._kept.items():
            self._write(uid, dump_kept(kept))

    def _open(self) -> int:
        """The file, locked: not one that somebody who found it before it was locked took for left, and deleted."""
        while True:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if _is_file_of(self._path, descriptor):
                return descriptor
            os.close(descriptor)

    def _write(self, uid: str, entry: bytes) -> None:
        """Write an entry into free slots, and at the end of the file where there are none. Durable when it returns."""
        assert self._descriptor is not None
        whole = MARK + len(entry).to_bytes(8, "big") + hashlib.sha256(entry).digest() + entry
        place = self._free(-(-len(whole) // SLOT_BYTES))
        if place.stop * SLOT_BYTES > self._bytes:
            set_aside(self._descriptor, self._bytes, place.stop * SLOT_BYTES - self._bytes)
            self._bytes = place.stop * SLOT_BYTES
        written = 0
        while written < len(whole):
            written += os.pwrite(self._descriptor, whole[written:], place.start * SLOT_BYTES + written)
        os.fsync(self._descriptor)
        self._places[uid] = place

    def _free(self, slots: int) -> range:
        """So many slots side by side in which nothing stands; the last ones may have to be made."""
        taken = {slot for place in self._places.values() for slot in place}
        start = 0
        while taken_here := [slot for slot in range(start, start + slots) if slot in taken]:
            start = taken_here[-1] + 1
        return range(start, start + slots)


def spool_path(folder: Path, uuid: str) -> Path:
    """The spool of an owner."""
    return folder / "spool" / f"{uuid}.spool"


def replay(store: Store, folder: Path, *, only_left: bool = False) -> None:
    """Write to the queue what stands in the spools, and delete those whose owner is dead.

    `only_left`: of those alone. One whose owner lives, or only stands still, stays; that he writes the same again
    changes nothing. Raises QueueBusy or QueueUnavailable, and deletes nothing, while the queue does not take it. What
    it can never take stays in the folder under another name.
    """
    for path in sorted((folder / "spool").glob("*.spool")):
        _replay(store, path, only_left=only_left)


def _replay(store: Store, path: Path, *, only_left: bool) -> None:
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    except OSError as problem:
        raise QueueUnavailable(
            f"{path}: {problem.strerror}; replies that were paid for may stand there, so nothing is called before it "
            f"can be read. Check owner and mode (`ls -l`)"
        ) from problem
    try:
        is_left = _locked(descriptor)
        if only_left and not is_left:
            return
        written, refused = _write_entries(store, path, descriptor)
        if written:
            log.info("written now, from %s: %s that the queue could not take before", path, _replies(written))
        if is_left and _is_file_of(path, descriptor):
            if refused:
                path.rename(path.with_suffix(REFUSED_SUFFIX))
            else:
                path.unlink(missing_ok=True)
    finally:
        os.close(descriptor)


def _is_better(one: Kept, other: Kept) -> bool:
    """Whether only the first has a reply."""
    return one.ending.evidence.reply is not None and other.ending.evidence.reply is None


def left_in(path: Path) -> list[str]:
    """The attempts whose endings stand in a spool, "" for what another version wrote. Raises OSError."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return []
    try:
        return [_uid_of(entry) for entry in _entries(path, descriptor)]
    finally:
        os.close(descriptor)


def _uid_of(entry: bytes) -> str:
    try:
        return load_kept(entry).uid
    except Exception:  # whatever another version wrote, it is counted
        return ""


def set_aside(descriptor: int, start: int, size: int) -> None:
    """Give a file this much room for good, or raise OSError. Zeros are written where the system has no call for it."""
    try:
        os.posix_fallocate(descriptor, start, size)
    except (AttributeError, OSError) as problem:
        if isinstance(problem, OSError) and problem.errno not in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
            raise
        for at in range(start, start + size, SLOT_BYTES):
            os.pwrite(descriptor, bytes(min(SLOT_BYTES, start + size - at)), at)


def _write_entries(store: Store, path: Path, descriptor: int) -> tuple[int, int]:
    """How many entries were written to the queue, and how many it can never take."""
    written = refused = 0
    for entry in _entries(path, descriptor):
        try:
            kept = load_kept(entry)
        except Exception as problem:  # whatever another version wrote: it must not keep all others from draining
            log.error("%s: an entry of another version is left for it: %s: %s", path, type(problem).__name__, problem)
            refused += 1
            continue
        if store.lane_of(kept.uid) is None:
            log.error("%s: the ledger of this queue has no attempt %s; its reply is left there", path, kept.uid)
            refused += 1
            continue
        written += _write_late(store, kept)
    return written, refused


def _entries(path: Path, descriptor: int) -> Iterator[bytes]:
    """What stands whole in a spool, one after the other. One that was being written when its process died is not."""
    head = len(MARK) + 8 + hashlib.sha256().digest_size
    at, end = 0, os.fstat(descriptor).st_size
    while at < end:
        start = os.pread(descriptor, head, at)
        size = int.from_bytes(start[len(MARK) : len(MARK) + 8], "big")
        if not start.startswith(MARK):
            at += BLOCK_BYTES
            continue
        entry = os.pread(descriptor, size, at + head) if size <= end - at - head else b""
        if len(entry) == size and hashlib.sha256(entry).digest() == start[len(MARK) + 8 :]:
            yield entry
            at += -(-(head + size) // BLOCK_BYTES) * BLOCK_BYTES
        else:
            log.warning("%s: an entry at byte %s was never written whole, and is passed over", path, f"{at:,}")
            at += BLOCK_BYTES


def _write_late(store: Store, kept: Kept) -> bool:
    settled = store.settle_late(kept.uid, kept.ending, kept.then, lane=kept.lane, job=kept.job, how=kept.how)
    return settled is not None


def _locked(descriptor: int) -> bool:
    """Lock it, or say that somebody else has."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_file_of(path: Path, descriptor: int) -> bool:
    ours = os.fstat(descriptor)
    try:
        there = os.stat(path)
    except OSError:
        return False
    return (ours.st_dev, ours.st_ino) == (there.st_dev, there.st_ino)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _replies(n: int) -> str:
    return "1 reply" if n == 1 else f"{n:,} replies"
