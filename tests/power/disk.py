"""A disk that knows what was synced: SQLite writes through it, and any power cut of the past can be looked at.

It is a VFS of apsw above the system's own. Files stand where they always do, so that locks and shared memory are the
real ones; beside that, each write, truncation, sync, creation and deletion is put into a log. What a power cut after
the n-th of them would have left is then computed from the log, as often and in as many ways as a test likes:

- `synced`: what was synced, and nothing else; of names, those whose folder was synced since.
- `written`: everything, as after a crash of the program alone.
- `torn`: of what was not synced, any 512-byte sectors, in any order; a file that was cut short may have its old length;
  a deleted file may be back, a new one gone.

SQLite syncs the folder with the first sync of a journal or log that it opened to create, and with some deletions.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import apsw

SECTOR_BYTES = 512
_JOURNALS = apsw.SQLITE_OPEN_MAIN_JOURNAL | apsw.SQLITE_OPEN_WAL | apsw.SQLITE_OPEN_SUPER_JOURNAL


@dataclass(frozen=True, slots=True)
class Write:
    """Bytes at a place of a file."""

    file: int
    at: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Truncate:
    """A file has a new length."""

    file: int
    size: int


@dataclass(frozen=True, slots=True)
class Sync:
    """All that was done to a file is on the disk."""

    file: int


@dataclass(frozen=True, slots=True)
class Name:
    """A name stands for a file from now on; for none if it was deleted."""

    name: str
    file: int | None


@dataclass(frozen=True, slots=True)
class SyncFolder:
    """All names are on the disk as they are."""


Operation = Write | Truncate | Sync | Name | SyncFolder


class Disk:
    """One folder on it. Everything that SQLite does to files of the folder while it is `mounted` is in `log`.

    It lies where it is told to: `deaf_to` names the kinds of syncs that it drops, by the ending of the file's name
    (`-wal`), or `/` for the folder's own.
    """

    def __init__(self, folder: Path, *, deaf_to: tuple[str, ...] = ()) -> None:
        self.folder = folder
        self.log: list[Operation] = []
        self._deaf_to = deaf_to
        self._mutex = threading.RLock()
        self._files: dict[str, int] = {}
        """Name -> the file that it stands for now."""
        self._number = 0
        self.before: dict[str, bytes] = {one.name: one.read_bytes() for one in folder.iterdir() if one.is_file()}
        """What was there, durably, when the disk was made."""
        for name in self.before:
            self._number += 1
            self._files[name] = self._number
        self.first_files = dict(self._files)

    @contextmanager
    def mounted(self) -> Iterator[Disk]:
        """Every file that SQLite opens in this process meanwhile is on this disk, whoever opens it."""
        vfs = _Vfs(self)
        assert apsw.vfs_names()[0] == "power", "the disk is not SQLite's default"
        try:
            yield self
        finally:
            vfs.unregister()

    # --- what the VFS tells ---------------------------------------------------------------------------------------

    def opened(self, path: str) -> int | None:
        """The file that a path stands for, made if it is not there; None if it is not of this folder."""
        folder, name = os.path.split(path)
        if folder != str(self.folder):
            return None
        with self._mutex:
            if name not in self._files:
                self._number += 1
                self._files[name] = self._number
                self.log.append(Name(name, self._number))
            return self._files[name]

    def deleted(self, path: str, *, folder_too: bool) -> None:
        """A name was deleted."""
        folder, name = os.path.split(path)
        if folder == str(self.folder) and self._files.pop(name, None) is not None:
            self.log.append(Name(name, None))
            if folder_too:
                self.synced_folder()

    def did(self, operation: Write | Truncate) -> None:
        """Something was written."""
        self.log.append(operation)

    def synced(self, path: str, file: int) -> None:
        """A file was synced."""
        if not any(path.endswith(ending) for ending in self._deaf_to):
            self.log.append(Sync(file))

    def synced_folder(self) -> None:
        """The folder was synced."""
        if "/" not in self._deaf_to:
            self.log.append(SyncFolder())

    @contextmanager
    def one_at_a_time(self) -> Iterator[None]:
        """The log has the order in which things were done."""
        with self._mutex:
            yield


class _Vfs(apsw.VFS):
    def __init__(self, disk: Disk) -> None:
        super().__init__("power", "unix", makedefault=True)
        self._disk = disk

    def xOpen(self, name: Any, flags: list[int]) -> Any:  # noqa: N802
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        wanted = flags[0]
        file = _File("unix", name, flags)
        number = self._disk.opened(path) if path else None
        if number is None:
            return file
        file.note(self._disk, path, number, bool(wanted & apsw.SQLITE_OPEN_CREATE and wanted & _JOURNALS))
        return file

    def xDelete(self, name: str, sync: bool) -> None:  # noqa: N802
        with self._disk.one_at_a_time():
            super().xDelete(name, sync)
            self._disk.deleted(name, folder_too=sync)


class _File(apsw.VFSFile):
    _disk: Disk | None = None

    def note(self, disk: Disk, path: str, number: int, syncs_folder: bool) -> None:
        """From now on tell the disk."""
        self._disk, self._path, self._number, self._syncs_folder = disk, path, number, syncs_folder

    def xWrite(self, data: bytes, offset: int) -> None:  # noqa: N802
        if self._disk is None:
            super().xWrite(data, offset)
            return
        with self._disk.one_at_a_time():
            super().xWrite(data, offset)
            self._disk.did(Write(self._number, offset, bytes(data)))

    def xTruncate(self, size: int) -> None:  # noqa: N802
        if self._disk is None:
            super().xTruncate(size)
            return
        with self._disk.one_at_a_time():
            super().xTruncate(size)
            self._disk.did(Truncate(self._number, size))

    def xSync(self, flags: int) -> None:  # noqa: N802
        # Not passed on: that the disk at hand can sync is not what is proved here, and thousands of syncs take minutes.
        if self._disk is None:
            return
        with self._disk.one_at_a_time():
            self._disk.synced(self._path, self._number)
            if self._syncs_folder:
                self._syncs_folder = False
                self._disk.synced_folder()


@dataclass
class _Content:
    """A file: what of it is on the disk, and what was done to it since."""

    synced: bytes = b""
    since: list[Write | Truncate] = field(default_factory=list)

    def sync(self) -> None:
        self.synced, self.since = self.written(), []

    def written(self) -> bytes:
        content = bytearray(self.synced)
        for one in self.since:
            _apply(content, one)
        return bytes(content)

    def torn(self, chance: Random) -> bytes:
        """Some of what was not synced. Lengths change in their order, what is written between two changes in any."""
        content = bytearray(self.synced)
        happened = chance.randint(0, sum(isinstance(one, Truncate) for one in self.since))
        share = chance.choice((0.1, 0.5, 0.9))
        between: list[Write] = []

        def reach_disk() -> None:
            chance.shuffle(between)
            for one in between:
                if chance.random() < share:
                    _apply(content, one)
            between.clear()

        for one in self.since:
            if isinstance(one, Write):
                between += _sectors(one)
            elif happened == 0:
                break
            else:
                reach_disk()
                _apply(content, one)
                happened -= 1
        reach_disk()
        return bytes(content)


class Past:
    """The disk at one moment of its past. Starts before the first operation; `step` goes on by one."""

    def __init__(self, disk: Disk) -> None:
        self._log = disk.log
        self.at = 0
        self._files = {number: _Content(disk.before[name]) for name, number in disk.first_files.items()}
        self._names: dict[str, int] = dict(disk.first_files)
        self._since: list[Name] = []

    def go_to(self, at: int) -> Past:
        """Go on to the moment after the first `at` operations."""
        while self.at < at:
            self.step()
        return self

    def step(self) -> Operation:
        """Go on by one operation, and return it."""
        operation = self._log[self.at]
        self.at += 1
        match operation:
            case Write() | Truncate():
                self._files[operation.file].since.append(operation)
            case Sync():
                self._files[operation.file].sync()
            case Name():
                if operation.file is not None:
                    self._files.setdefault(operation.file, _Content())
                self._since.append(operation)
            case SyncFolder():
                self._names, self._since = self._names_written(), []
        return operation

    def synced(self) -> dict[str, bytes]:
        """What a power cut leaves at least: the names and contents of files that were synced."""
        return {name: self._files[file].synced for name, file in self._names.items()}

    def written(self) -> dict[str, bytes]:
        """All that was written, as another program would read it."""
        return {name: self._files[file].written() for name, file in self._names_written().items()}

    def torn(self, chance: Random) -> dict[str, bytes]:
        """What was synced, and of all else whatever chance left."""
        names: dict[str, int | None] = {**self._names}
        for one in self._since:
            names[one.name] = chance.choice((names.get(one.name), one.file))
        contents = {file: content.torn(chance) for file, content in self._files.items()}
        return {name: contents[file] for name, file in names.items() if file is not None}

    def _names_written(self) -> dict[str, int]:
        names: dict[str, int | None] = {**self._names}
        for one in self._since:
            names[one.name] = one.file
        return {name: file for name, file in names.items() if file is not None}


def _apply(content: bytearray, operation: Write | Truncate) -> None:
    if isinstance(operation, Truncate):
        del content[operation.size :]
        content.extend(bytes(operation.size - len(content)))
        return
    content.extend(bytes(max(0, operation.at - len(content))))
    content[operation.at : operation.at + len(operation.data)] = operation.data


def _sectors(write: Write) -> Iterator[Write]:
    """A write as the sectors that the disk writes one by one."""
    done = 0
    while done < len(write.data):
        room = SECTOR_BYTES - (write.at + done) % SECTOR_BYTES
        yield Write(write.file, write.at + done, write.data[done : done + room])
        done += room
