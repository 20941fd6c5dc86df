"""Where a control socket lies: never in a folder that another user could have made."""

from __future__ import annotations

import json
import os
import shutil
import socket
from pathlib import Path

import pytest

from dljob.errors import UnreachableError
from dljob.runtime.control_socket import location

UID = "a" * 32


@pytest.fixture
def temporary(short: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setattr(location.tempfile, "gettempdir", lambda: str(short))
    return short


def test_the_jobs_folder_comes_first_then_the_private_ones(temporary, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(temporary))
    found = location.candidates(temporary, UID)
    assert next(found) == temporary / "control.sock"
    outside = next(found)
    assert outside.parent == temporary / "dljob"
    assert next(found) == temporary / f"dljob-{os.geteuid()}" / outside.name
    assert (temporary / "dljob").stat().st_mode & 0o777 == 0o700


def test_where_no_temporary_folder_can_be_written_the_private_ones_are_still_named(temporary, monkeypatch):
    def unusable() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr(location.tempfile, "gettempdir", unusable)
    name = f"dljob-{os.geteuid()}"
    monkeypatch.setenv("TMPDIR", str(temporary))
    assert list(location.private_folders()) == [temporary / name, Path("/tmp") / name]
    monkeypatch.delenv("TMPDIR")
    assert list(location.private_folders()) == [Path("/tmp") / name]


def test_a_path_that_is_too_long_in_bytes_is_passed_over(temporary):
    assert location.fits(Path("/" + "x" * 97))
    assert not location.fits(Path("/" + "x" * 98))
    assert not location.fits(Path("/" + "ü" * 50))
    (folder := temporary / ("x" * 100)).mkdir()
    first = next(location.candidates(folder, UID))
    assert first.parent == temporary / f"dljob-{os.geteuid()}"


def test_a_copy_of_a_job_folder_has_a_socket_of_its_own_and_a_moved_folder_keeps_its_one(temporary: Path) -> None:
    original, copy, moved_place = (temporary / (letter * 100) for letter in "abc")
    original.mkdir()
    path = next(location.candidates(original, UID))
    entry = {"socket": str(path)}
    shutil.copytree(original, copy)
    assert next(location.candidates(copy, UID)) != path
    assert location.socket_of(copy, entry) is None
    assert location.socket_of(original.rename(moved_place), entry) == path
    assert location.socket_of(moved_place, {"socket": "control.sock"}) == moved_place / "control.sock"


@pytest.mark.parametrize("kind", ["link", "file", "open"])
def test_a_folder_that_is_not_ours_alone_is_refused(kind, tmp_path):
    folder = tmp_path / "dljob"
    if kind == "link":
        (tmp_path / "target").mkdir(mode=0o700)
        folder.symlink_to(tmp_path / "target")
    elif kind == "file":
        folder.touch()
    else:
        folder.mkdir()
        folder.chmod(0o750)
    with pytest.raises(UnreachableError, match={"link": "a link", "file": "not a folder", "open": "open to"}[kind]):
        location.private(folder)


def test_the_command_that_closes_a_folder_has_its_path_as_one_word(tmp_path):
    folder = tmp_path / "team a"
    folder.mkdir()
    folder.chmod(0o750)
    with pytest.raises(UnreachableError) as error:
        location.private(folder)
    assert error.value.hint == f"chmod 700 '{folder}'"


def test_a_folder_of_another_user_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(location.os, "geteuid", lambda: 4711)
    with pytest.raises(UnreachableError, match=f"belongs to user {os.getuid()}, not to user 4711"):
        location.private(tmp_path / "dljob")


def test_where_no_place_is_left_the_error_says_why(temporary, monkeypatch):
    (temporary / "real").mkdir()
    (temporary / f"dljob-{os.geteuid()}").symlink_to(temporary / "real")
    monkeypatch.setattr(location, "Path", lambda at: temporary if at == "/tmp" else Path(at))
    (folder := temporary / ("x" * 100)).mkdir()
    with pytest.raises(UnreachableError, match="is a link") as error:
        list(location.candidates(folder, UID))
    assert "XDG_RUNTIME_DIR" in error.value.hint


def test_job_json_names_the_socket_and_stays_private(tmp_path):
    location.note(tmp_path, "/run/x.sock")
    assert not (tmp_path / "job.json").exists()
    location.write(tmp_path / "job.json", {"name": "a", "socket_trouble": "before"})
    location.note(tmp_path, "/run/x.sock")
    said = json.loads((tmp_path / "job.json").read_text())
    assert said == {"name": "a", "socket": "/run/x.sock", "socket_trouble": ""}
    assert (tmp_path / "job.json").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["job.json"]


def test_a_job_json_that_is_no_object_is_refused(tmp_path):
    (tmp_path / "job.json").write_text("[]")
    with pytest.raises(ValueError, match="holds no object"):
        location.read(tmp_path)


def test_a_write_that_fails_leaves_the_old_file(tmp_path):
    location.write(tmp_path / "job.json", {"name": "a"})
    with pytest.raises(TypeError):
        location.write(tmp_path / "job.json", {"name": object()})
    assert json.loads((tmp_path / "job.json").read_text()) == {"name": "a"}
    assert len(list(tmp_path.iterdir())) == 1


def test_the_removal_of_a_control_socket_removes_no_file(tmp_path):
    (tmp_path / "file").touch()
    with socket.socket(socket.AF_UNIX) as line:
        line.bind(str(tmp_path / "s"))
    for name in ("file", "s", "absent"):
        location.remove(tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
