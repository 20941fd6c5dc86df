"""The next attempt of an ended job: which one it is, what it gets, and what is refused."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dljob.api import handle as handles
from dljob.api import next_attempt as attempts
from dljob.api import registry
from dljob.api.next_attempt import (
    NextAttempt,
    link_checkpoints,
    newest_step,
    next_attempt,
    offer,
    program_of,
    put_back,
    set_aside,
)
from dljob.errors import NotFoundError, UnreachableError, UsageError
from dljob.master.placement.previous_attempt import carried
from dljob.runtime.backend import connect
from dljob.runtime.job import launch
from dljob.spec.model import DLJobManifest

UID = "0123456789abcdef0123456789abcdef"
PROGRAM = "default=train.py in /home/alice/project"
CARRY = {
    "v": 1, "restarts": {"Process": 3}, "roles": {"t": 3}, "marks": {"t": [1.0]},
    "checkpoints": {"t": [1, 2, 15, 1e9]},
}  # fmt: skip


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A DLJOB_HOME, in which all jobs have a whole checkpoint of step 15 unless they have no folder of checkpoints."""
    monkeypatch.setenv("DLJOB_HOME", str(tmp_path))
    monkeypatch.setattr(attempts, "newest_step", lambda folder: 15 if (folder / "checkpoints").is_dir() else None)
    return tmp_path


def an_ended_job(
    uid: str = UID, *, phase: str = "Stopped", started: float = 1.0, program: str = PROGRAM, **status: Any
) -> Path:
    """A job's folder with what an attempt leaves."""
    folder = registry.folder_of("again", uid)
    runner_started = registry.start_of(os.getpid()) if phase == "Running" else 1
    runner = {"runner": os.getpid(), "runner_started": runner_started}
    registry.register(registry.RegistryEntry("again", uid, str(folder), **runner, started=started, program=program))
    for name in ("journal/1", "logs/t-0.log", "checkpoints/t/x"):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text(name)
    (folder / "status.json").write_text(json.dumps({"phase": phase, "step": 17, "carry": CARRY, **status}))
    return folder


def test_a_stopped_job_goes_on_with_its_checkpoints_and_without_its_spent_budgets(home: Path) -> None:
    folder = an_ended_job()
    after = next_attempt("again", program=PROGRAM)
    assert (after.record.uid, after.number, after.step) == (UID, 2, 15)
    taken = carried(after.carried, UID, 2)
    assert (taken.why, taken.step, dict(taken.saves)["t"].mark.step) == ("", 17, 15)
    assert (taken.restarts, taken.roles, taken.marks) == ((), (), ())
    set_aside(after)
    assert sorted(path.name for path in folder.iterdir()) == ["attempts", "checkpoints", "job.json"]
    assert (folder / "attempts/1/journal/1").read_text() == "journal/1"
    assert (folder / "attempts/1/job.json").is_file()
    assert (folder / "checkpoints/t/x").is_file()
    assert next_attempt("again", program=PROGRAM).number == 3, "also where the process ends here, the job is found"
    (folder / "status.json").write_text(json.dumps({"phase": "Failed"}))
    assert next_attempt("again", program=PROGRAM)._replace(record=after.record) == NextAttempt(after.record, 3, 15, "")


@pytest.mark.parametrize(
    ("phase", "changes", "words"),
    [
        ("Succeeded", {}, "has succeeded"),
        ("Running", {}, "has not ended"),
        ("Stopped", {"checkpoints": None}, "has no complete checkpoint"),
    ],
)
def test_what_cannot_go_on_is_refused_and_not_offered(
    phase: str, changes: dict[str, None], words: str, home: Path
) -> None:
    folder = an_ended_job(phase=phase)
    for name in changes:
        (folder / name).rename(home / name)
    with pytest.raises(UsageError, match=words):
        next_attempt("again", program=PROGRAM)
    assert offer("again", PROGRAM) == ""


DAMAGE = ["", '{"phase": "Succ', "{}", "[]", '"Succeeded"', '{"phase": 1}']


@pytest.mark.parametrize("content", DAMAGE)
@pytest.mark.parametrize("host", ["", "other/boot/pid:[1]"])
def test_a_job_whose_status_is_damaged_goes_on_only_where_its_events_say_how_it_ended(
    content: str, host: str, home: Path
) -> None:
    folder = an_ended_job()
    if host:
        registry.register(replace(registry.find(UID), runner_host=host))
    status, events = folder / "status.json", folder / "events.jsonl"
    status.write_text(content)
    with pytest.raises(UsageError, match=f"how job again .* ended is not known: {status} is damaged: ") as refused:
        next_attempt("again", program=PROGRAM)
    assert refused.value.hint.startswith(f"dljob replay {folder} ")
    assert refused.value.hint.endswith(f"rm {status}") is (not host)
    assert offer("again", PROGRAM) == ""
    event = {"seq": 1, "time": 160.5, "target": "job", "message": ""}
    events.write_text(json.dumps({**event, "reason": "Completed"}) + "\n")
    with pytest.raises(UsageError, match="has succeeded"):
        next_attempt("again", program=PROGRAM)
    events.write_text(json.dumps({**event, "reason": "StoppedByUser"}) + "\n")
    assert next_attempt("again", program=PROGRAM).step == 15
    events.unlink()
    status.unlink()
    if not host:
        assert next_attempt("again", program=PROGRAM).step == 15, "the user was told so"


def test_a_job_is_named_by_its_uid_and_has_to_have_the_file_s_name(home: Path) -> None:
    an_ended_job(started=1.0)
    an_ended_job("f" * 32, phase="Failed", started=2.0)
    assert next_attempt("again", program=PROGRAM).record.uid == "f" * 32
    assert next_attempt("again", UID[:8], program=PROGRAM).record.uid == UID
    with pytest.raises(UsageError, match=f"again .{UID[:8]}. is not of the name of the file's job, other"):
        next_attempt("other", UID, program=PROGRAM)
    with pytest.raises(NotFoundError, match="no job 'other'"):
        next_attempt("other", program=PROGRAM)
    assert (
        offer("again", PROGRAM)
        == "a failed job of this name has a checkpoint of step 15: add --resume to go on from it"
    )
    assert offer("other", PROGRAM) == ""


def test_a_job_of_the_same_name_that_runs_something_else_is_another_one(home: Path) -> None:
    """Two folders have a train.py each: nobody goes on from somebody else's checkpoint."""
    bobs = "default=train.py in /home/bob/project"
    an_ended_job()
    with pytest.raises(UsageError, match=f"again .{UID[:8]}. ran another program: {PROGRAM}; this is {bobs}") as error:
        next_attempt("again", program=bobs)
    assert f"--resume={UID[:8]}" in str(error.value.hint)
    assert offer("again", bobs) == ""
    assert next_attempt("again", UID, program=bobs).record.uid == UID, "whoever names it means it"
    an_ended_job("b" * 32, started=2.0, program=bobs)
    assert next_attempt("again", program=bobs).record.uid == "b" * 32
    assert next_attempt("again", program=PROGRAM).record.uid == UID


def test_a_program_is_what_each_role_runs_and_the_folder_however_it_is_named(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "link").symlink_to("a")

    def program(folder: str, **entrypoint: Any) -> str:
        role = {"name": "w", "entrypoint": entrypoint, "args": ["--lr", folder]}
        return program_of(
            DLJobManifest.model_validate({"metadata": {"name": "j"}, "spec": {"roles": [role]}}), tmp_path / folder
        )

    assert program("a", module="train.py") == program("link", module="train.py") == f"w=train.py in {tmp_path}/a"
    others = [("", {"module": "train.py"}), ("a", {"module": "a/train.py"}), ("a", {"command": ["train.py", "x y"]})]
    assert len({program("a", module="train.py"), *(program(folder, **words) for folder, words in others)}) == 4


def test_a_job_that_ended_before_its_first_checkpoint_is_passed_over(home: Path) -> None:
    an_ended_job()
    shutil.rmtree(an_ended_job("c" * 32, phase="Failed", started=2.0) / "checkpoints")
    assert next_attempt("again", program=PROGRAM).record.uid == UID
    with pytest.raises(UsageError, match="has no complete checkpoint"):
        next_attempt("again", "c" * 32, program=PROGRAM)
    an_ended_job("d" * 32, phase="Succeeded", started=3.0)
    with pytest.raises(UsageError, match="has succeeded"):
        next_attempt("again", program=PROGRAM)


def test_an_attempt_that_is_refused_leaves_the_job_as_it_was(home: Path) -> None:
    folder = an_ended_job()
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    after = next_attempt("again", program=PROGRAM)
    set_aside(after)
    registry.register(replace(after.record, address="127.0.0.1:6379"))
    for name in ("spec.json", "journal/2"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("of the refused attempt")
    put_back(after)
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    assert next_attempt("again", program=PROGRAM) == after


def files_of(folder: Path) -> dict[Path, bytes]:
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("place", ["moved", "copied", "linked", "renamed"])
def test_a_job_goes_on_in_the_folder_in_which_it_is_found(
    place: str, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, original, other = an_ended_job(), home / "jobs", tmp_path / "other"
    name = "by-hand" if place == "renamed" else folder.name
    if place == "renamed":
        folder.rename(original / name)
    elif place == "moved":
        other.mkdir()
        original.rename(other / "jobs")
    elif place == "copied":
        shutil.copytree(original, other / "jobs")
    else:
        other.symlink_to(home)
    before = files_of(original)
    if place != "renamed":
        monkeypatch.setenv("DLJOB_HOME", str(other))
    launches: list[Path] = []
    monkeypatch.setattr(connect, "connect", lambda *_, **__: "here:1")
    monkeypatch.setattr(launch, "launch", lambda _, job_dir, **__: launches.append(job_dir))
    role = {"name": "t", "entrypoint": {"class": "a.B"}}
    manifest = DLJobManifest.model_validate({"metadata": {"name": "again"}, "spec": {"roles": [role]}})
    handles.submit(manifest, code_dir=tmp_path, resume=UID)
    new_folder = registry.home() / "jobs" / name
    assert launches == [new_folder]
    assert (new_folder / "attempts/1/journal/1").is_file()
    assert (new_folder / "checkpoints/t/x").is_file()
    assert registry.find(UID).folder == new_folder
    if place in ("copied", "moved"):
        assert files_of(original) == before


def test_a_copy_does_not_go_on_where_the_original_saves(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, volume, other = an_ended_job(), tmp_path / "volume", tmp_path / "other"
    (folder / "checkpoints").rename(volume)
    (folder / "checkpoints").symlink_to(volume)
    shutil.copytree(home / "jobs", other / "jobs", symlinks=True)
    (tmp_path / "link").symlink_to(home)
    for path, is_copy in ((home, False), (tmp_path / "link", False), (other, True)):
        monkeypatch.setenv("DLJOB_HOME", str(path))
        if not is_copy:
            assert next_attempt("again", program=PROGRAM).step == 15
            continue
        with pytest.raises(UsageError, match=f"is a copy of {folder}, and both save in {volume}"):
            next_attempt("again", program=PROGRAM)
        shutil.rmtree(folder)
        assert next_attempt("again", program=PROGRAM).step == 15, "it was moved"


def test_a_folder_in_which_nothing_can_be_moved_is_told(home: Path) -> None:
    folder = an_ended_job()
    (folder / "attempts").touch()
    with pytest.raises(UnreachableError, match="cannot move what the last attempt left"):
        set_aside(next_attempt("again", program=PROGRAM))


@pytest.mark.parametrize("carry", [None, [], {"w": 1}])
def test_a_status_without_the_state_to_hand_on_gives_none(carry: object, home: Path) -> None:
    an_ended_job(carry=carry)
    assert next_attempt("again", program=PROGRAM).carried == ""


def test_without_a_folder_of_checkpoints_there_is_no_step(tmp_path: Path) -> None:
    assert newest_step(tmp_path) is None


def test_checkpoints_of_a_job_here_are_below_its_path_where_that_can_be(tmp_path: Path) -> None:
    folder, volume = tmp_path / "job", tmp_path / "volume"
    folder.mkdir()
    for _ in range(2):  # a second attempt finds the link
        assert link_checkpoints(folder, str(volume), "again", UID) == ""
        assert (folder / "checkpoints").resolve() == volume / f"again-{UID[:8]}"
    (folder / "checkpoints/x").write_text("saved")
    shutil.rmtree(folder)
    assert (volume / f"again-{UID[:8]}/x").read_text() == "saved", "the job's folder goes, what it saved stays"
    folder.mkdir()
    assert "Not a directory" in link_checkpoints(folder, "/dev/null/volume", "again", UID)
    (tmp_path / "dangling").symlink_to("/gone")
    words = link_checkpoints(folder, str(tmp_path / "dangling"), "again", UID)
    assert words.startswith(f"{tmp_path}/dangling is a link to /gone, a folder that does not exist")
    (folder / "checkpoints").mkdir()
    assert "its earlier checkpoints are in" in link_checkpoints(folder, str(volume), "again", UID)
