"""Folders of sockets beside raylets: made, and removed once nothing can use them."""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dljob.runtime.forked_workers import socket_folders

MAKE = """
import sys
from pathlib import Path
from dljob.runtime.forked_workers import socket_folders
socket_folders.PLACE = Path(sys.argv[1])
print(socket_folders.make())
"""
SOCKET = "7-0123456789abcdef.sock"


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a short path, in which all others are made."""
    with tempfile.TemporaryDirectory(prefix="sf-", dir="/tmp") as folder:
        monkeypatch.setattr(socket_folders, "PLACE", Path(folder))
        yield Path(folder)


def old(folder: Path) -> Path:
    """Return a folder that seems to have been changed last an hour ago."""
    os.utime(folder, (time.time() - 3600, time.time() - 3600))
    return folder


@pytest.fixture
def left(place: Path) -> Path:
    """A folder whose maker has ended, and whose raylet has as well, with a socket and a lock in it."""
    told = subprocess.run([sys.executable, "-c", MAKE, str(place)], capture_output=True, text=True, check=True)
    folder = Path(told.stdout.strip())
    with socket.socket(socket.AF_UNIX) as line:
        line.bind(str(folder / SOCKET))
    for more in (".lock", ".ends"):
        (folder / f"{SOCKET}{more}").touch()
    return old(folder)


def test_a_folder_whose_raylet_is_gone_is_removed(place, left):
    assert left.stat().st_mode & 0o777 == 0o700
    socket_folders.remove_dead()
    assert list(place.iterdir()) == []


def test_a_folder_stays_until_its_maker_ends(place):
    folder = old(socket_folders.make())
    socket_folders.remove_dead()
    assert list(place.iterdir()) == [folder], "its raylet may be about to start"


def test_a_folder_that_a_command_names_stays_until_that_process_ends(left):
    code = "print('runs', flush=True); input()"  # the kernel shows the words a moment behind the exec
    words = [sys.executable, "-c", code, f"--python_worker_command=python starter.py {left} worker.py"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as raylet:
        assert raylet.stdout
        assert raylet.stdout.readline() == b"runs\n"
        socket_folders.remove_dead()
        assert left.is_dir()
        raylet.communicate(b"\n")
    socket_folders.remove_dead()
    assert not left.exists()


def test_a_folder_in_which_somebody_listens_stays(left):
    (left / SOCKET).unlink()
    with socket.socket(socket.AF_UNIX) as line:
        line.bind(str(left / SOCKET))
        line.listen()
        old(left)
        socket_folders.remove_dead()
        assert (left / SOCKET).exists()


def test_a_folder_that_was_changed_just_now_stays(left):
    os.utime(left)
    socket_folders.remove_dead()
    assert left.is_dir()


def test_a_folder_with_other_files_is_not_touched(left):
    (left / "notes.txt").touch()
    old(left)
    socket_folders.remove_dead()
    assert len(list(left.iterdir())) == 4


def test_folders_whose_processes_cannot_be_seen_stay(place, left, monkeypatch):
    elsewhere = old(left.rename(place / "dljob-forks-another_-abcdefgh"))
    (place / f"{left.name}-link").symlink_to(elsewhere)
    (place / left.name).write_text("no folder")
    socket_folders.remove_dead()
    assert len(list(place.iterdir())) == 3

    def unread(_: object) -> str:
        raise PermissionError

    monkeypatch.setattr(os, "readlink", unread)
    socket_folders.remove_dead()
    assert socket_folders.make().name.startswith("dljob-forks-")
    assert len(list(place.iterdir())) == 4


def test_a_folder_that_is_removed_before_it_is_locked_is_made_again(place, monkeypatch):
    real, lost = fcntl.flock, list[Path]()

    def late(fd: int, how: int) -> None:
        if not lost:
            lost.extend(place.iterdir())
            lost[0].rmdir()
        real(fd, how)

    monkeypatch.setattr(fcntl, "flock", late)
    assert [socket_folders.make()] == list(place.iterdir())
    assert len(lost) == 1
