"""What holds a folder, read from what systems say of their mounts; and no queue on a network share."""

from __future__ import annotations

from pathlib import Path

import pytest
from item_database import open_items

from millpond.db import mounts
from millpond.db.mounts import UNKNOWN, Mount, mount_of, of_mount, of_mountinfo
from millpond.rules.errors import SettingsError

LINUX = r"""22 1 8:2 / / rw,relatime shared:1 - ext4 /dev/sda2 rw,errors=remount-ro
23 22 0:21 / /proc rw,nosuid shared:12 - proc proc rw
40 22 0:35 / /users rw,relatime shared:20 - autofs systemd-1 rw,fd=29
41 40 0:44 / /users rw,relatime shared:21 - nfs4 server:/export/users rw,vers=4.2,hard
42 22 0:45 / /mnt/with\040space rw - cifs //nas/share\040one rw,vers=3.1.1
43 22 8:17 / /users/anna/disk rw - xfs /dev/sdb1 rw
44 22 0:50 / /remote rw,nosuid - fuse.sshfs anna@host:/srv rw,user_id=1000
45 22 0:51 / /crypt rw,nosuid - fuse.gocryptfs /plain rw
46 22 0:52 / /mnt/c rw,noatime - 9p C:\134 rw,dirsync,aname=drvfs;path=C:\134;uid=1000,mmap,trans=fd,rfd=8,wfd=8
47 22 0:53 / /host rw - 9p host0 rw,sync,trans=virtio
this line says nothing
"""

SANDBOX = "1 0 0:8 / / rw - 9p none rw,trans=fd,rfdno=4,wfdno=4,aname=/\n"

MACOS = """/dev/disk3s1s1 on / (apfs, sealed, local, read-only, journaled)
/dev/disk3s5 on /System/Volumes/Data (apfs, local, journaled, nobrowse)
server:/export on /Volumes/export (nfs, nodev, nosuid, mounted by anna)
//anna@nas/share on /Volumes/a share (smbfs, nodev, nosuid, mounted by anna)
"""


@pytest.mark.parametrize(
    ("path", "kind", "is_share"),
    [
        ("/var/lib/pond", "ext4", False),
        ("/users/anna", "nfs4", True),
        ("/users", "nfs4", True),
        ("/usersome", "ext4", False),
        ("/users/anna/disk/pond", "xfs", False),
        ("/mnt/with space/pond", "cifs", True),
        ("/remote/pond", "fuse.sshfs", True),
        ("/crypt/pond", "fuse.gocryptfs", False),
        ("/mnt/c/Users", "9p", True),
        ("/host/pond", "9p", True),
    ],
)
def test_the_longest_and_last_mount_holds_a_path(path: str, kind: str, is_share: bool) -> None:
    found = of_mountinfo(LINUX, path)
    assert (found.kind, found.is_share) == (kind, is_share)


def test_a_mount_tells_its_source() -> None:
    assert str(of_mountinfo(LINUX, "/mnt/with space")) == "cifs on //nas/share one"
    assert str(of_mountinfo(LINUX, "/users/anna")) == "nfs4 on server:/export/users"


def test_the_root_of_a_sandbox_is_no_share() -> None:
    assert of_mountinfo(SANDBOX, "/root") == Mount("9p", "none", "/", "rw,trans=fd,rfdno=4,wfdno=4,aname=/")
    assert not of_mountinfo(SANDBOX, "/root").is_share


@pytest.mark.parametrize(
    ("path", "kind", "is_share"),
    [
        ("/Users/anna", "apfs", False),
        ("/System/Volumes/Data/users", "apfs", False),
        ("/Volumes/export/pond", "nfs", True),
        ("/Volumes/a share/pond", "smbfs", True),
    ],
)
def test_macos_says_it_in_its_own_way(path: str, kind: str, is_share: bool) -> None:
    found = of_mount(MACOS, path)
    assert (found.kind, found.is_share) == (kind, is_share)


def test_what_nobody_says_is_unknown_and_no_share() -> None:
    assert of_mountinfo("", "/x") == of_mount("", "/x") == UNKNOWN
    assert not UNKNOWN.is_share


def test_this_machine_tells_what_holds_a_folder(tmp_path: Path) -> None:
    assert mount_of(tmp_path / "not there yet").kind != "unknown"


def test_a_queue_on_a_network_share_is_refused_and_nothing_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = tmp_path / "mountinfo"
    share = tmp_path / "share"
    share.mkdir()
    said.write_text(f"1 0 8:1 / / rw - ext4 /dev/sda rw\n2 1 0:9 / {share.resolve()} rw - nfs4 server:/export rw\n")
    monkeypatch.setattr(mounts, "MOUNTINFO", said)
    with pytest.raises(SettingsError, match=r"is on nfs4 on server:/export, a network share.*Two ways out") as refused:
        open_items(share / "home" / "queue.db")
    assert "--home" in str(refused.value)
    assert "PostgreSQL" in str(refused.value)
    assert list(share.iterdir()) == []
    (tmp_path / "link").symlink_to(share)
    with pytest.raises(SettingsError, match="network share"):
        open_items(tmp_path / "link" / "queue.db")
    open_items(tmp_path / "local" / "queue.db").close()
