"""Full file systems, and a log that complains about one."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from dljob.linux import full_disks

MOUNTS = """\
22 1 8:1 / / rw,relatime - ext4 /dev/sda1 rw
23 22 0:21 / /proc rw,nosuid - proc proc rw
24 22 7:1 / /snap ro,nodev - squashfs /dev/loop1 ro
25 22 0:30 / /my\\040data rw - tmpfs exam rw
26 22 0:31 / /gone rw - nfs4 server:/ rw
27 22 0:32 / /inodes rw - xfs /dev/sdb rw
"""


def volume(total_mib: int, free_mib: int, inodes: int = 5) -> SimpleNamespace:
    return SimpleNamespace(
        f_blocks=total_mib, f_frsize=1 << 20, f_bavail=free_mib, f_bfree=free_mib, f_files=9, f_favail=inodes
    )


VOLUMES = {"/": volume(10_000_000, 65), "/my data": volume(20, 0), "/inodes": volume(100, 50, inodes=0)}


@pytest.fixture
def mounts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    def statvfs(folder: str) -> SimpleNamespace:
        if folder not in VOLUMES:
            raise OSError(116, "Stale file handle")
        return VOLUMES[folder]

    monkeypatch.setattr(os, "statvfs", statvfs)
    file = tmp_path / "mountinfo"
    file.write_text(MOUNTS)
    return file


def test_full_file_systems_are_named_with_what_is_left(mounts: Path) -> None:
    assert full_disks.full_disks(mounts) == ["/my data (tmpfs, 0 of 20 MiB free)", "/inodes (xfs, 0 inodes free)"]


@pytest.mark.parametrize(("free_mib", "lack"), [(0, "the volume of its log (0 KiB free)"), (1, "")])
def test_a_log_without_room_is_told(free_mib: int, lack: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "statvfs", lambda _: volume(20, free_mib))
    assert (lack in full_disks.describe_log(2), bool(full_disks.describe_log(2))) == (True, bool(lack))


def test_without_a_list_of_mounts_nothing_is_full(tmp_path: Path) -> None:
    assert full_disks.full_disks(tmp_path / "none") == []


@pytest.mark.parametrize(
    ("log", "full", "words"),
    [
        ("saver: [Errno 28] No space left on device\nstep 9\n", True, "saver: [Errno 28] No space left on device"),
        ("saver: [Errno 28] No space left on device\n", False, ""),
        ("step 9\n", True, ""),
        ("", True, ""),
    ],
)
def test_a_full_disk_counts_only_with_the_words_of_the_log(
    log: str, full: bool, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(full_disks, "full_disks", lambda: ["/data (ext4, 0 of 9 MiB free)"] if full else [])
    expected = f"no room is left on /data (ext4, 0 of 9 MiB free); its log says: {words}" if words else ""
    assert full_disks.describe(log) == expected
