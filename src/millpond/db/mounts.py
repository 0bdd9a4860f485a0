"""What holds a folder: its file system, and whether that is one on which a queue may stand."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from millpond.rules.errors import SettingsError

MOUNTINFO = Path("/proc/self/mountinfo")

SHARES = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "afpfs", "webdav", "ncpfs", "ceph", "glusterfs", "lustre", "gfs2",
     "vboxsf", "prl_fs", "fuse.sshfs", "fuse.glusterfs", "fuse.ceph", "fuse.ceph-fuse", "fuse.rclone", "fuse.s3fs",
     "fuse.gcsfuse", "fuse.davfs", "fuse.vmhgfs-fuse", "macfuse", "osxfuse"}
)  # fmt: skip
"""File systems that another machine may write to, or that stand on one: locks between machines cannot be relied on, and
a write-ahead log needs memory that all who have it open share. Other kinds of FUSE are local disks."""

_ESCAPED = re.compile(r"\\([0-7]{3})")
_SHOWN = re.compile(r"(?P<source>.+) on (?P<point>.+) \((?P<kind>[^,)]+)(?P<options>[^)]*)\)")


@dataclass(frozen=True, slots=True)
class Mount:
    """One file system where it is mounted. `source` is its disk, or the other machine and what it gives."""

    kind: str
    source: str = ""
    point: str = ""
    options: str = ""

    @property
    def is_share(self) -> bool:
        """Whether another machine may write to it, so that no lock on it can be relied on."""
        if self.kind == "9p":
            # Windows' disks under WSL, and a virtual machine's host; a sandbox's own root is 9p as well, and local.
            return "drvfs" in self.options or "trans=fd" not in self.options
        return self.kind in SHARES

    def __str__(self) -> str:
        return f"{self.kind} on {self.source}" if self.source else self.kind


UNKNOWN = Mount("unknown")


def mount_of(path: Path) -> Mount:
    """What holds a path, which need not exist; UNKNOWN where the system does not say."""
    real = os.path.realpath(path)
    try:
        return of_mountinfo(MOUNTINFO.read_text(encoding="utf-8", errors="surrogateescape"), real)
    except OSError:
        return of_mount(_ask_mount(), real) if sys.platform == "darwin" else UNKNOWN


def of_mountinfo(text: str, path: str) -> Mount:
    """What holds a real path, by the text of Linux' /proc/self/mountinfo."""
    best = UNKNOWN
    for line in text.splitlines():
        before, _, after = line.partition(" - ")
        with suppress(ValueError, IndexError):
            kind, source, *options = after.split(" ")
            best = _nearer(best, Mount(kind, _plain(source), _plain(before.split(" ")[4]), "".join(options)), path)
    return best


def of_mount(text: str, path: str) -> Mount:
    """What holds a real path, by what macOS' `mount` prints."""
    best = UNKNOWN
    for line in text.splitlines():
        if shown := _SHOWN.fullmatch(line):
            best = _nearer(best, Mount(shown["kind"], shown["source"], shown["point"], shown["options"]), path)
    return best


def refuse_share(path: Path) -> None:
    """Refuse a queue on a file system whose locks do not hold (SettingsError), before anything is made there."""
    mount = mount_of(path)
    if mount.is_share:
        raise SettingsError(
            f"{path.parent} is on {mount}, a network share; wanted a local disk: locks of several machines do not hold "
            f"there and SQLite's log breaks. Nothing was touched. Two ways out: put it on a local disk (the queue by "
            f"--home or home: in millpond.yaml, the spend book by spend.path), or into PostgreSQL, which comes later"
        )


def _nearer(best: Mount, one: Mount, path: str) -> Mount:
    # Of two at one place the later hides the earlier.
    holds = one.point == "/" or f"{path}/".startswith(f"{one.point}/")
    return one if holds and len(one.point) >= len(best.point) else best


def _plain(text: str) -> str:
    return _ESCAPED.sub(lambda match: chr(int(match[1], 8)), text)


def _ask_mount() -> str:
    try:
        return subprocess.run(["/sbin/mount"], capture_output=True, text=True, timeout=5, check=False).stdout
    except (OSError, subprocess.SubprocessError):
        return ""
