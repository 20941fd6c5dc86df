"""doctor: what it gathers on this machine, from files of its own where those of the machine cannot be chosen."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from dljob.api import registry
from dljob.cli.machine import facts
from dljob.runtime.backend import sweeper

OLD = time.time() - 2 * facts.YOUNG_S


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folders of this test alone: jobs, temporary files, sockets, /proc."""
    monkeypatch.setenv("DLJOB_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(facts, "scratch_places", lambda: (tmp_path,))
    monkeypatch.setattr(facts, "private_folders", lambda: iter([tmp_path / "sockets"]))
    (tmp_path / "sockets").mkdir()
    (tmp_path / "proc").mkdir()
    return tmp_path


def test_facts_of_the_machine_are_gathered_without_torch_or_ray(own, monkeypatch):
    monkeypatch.setattr(facts, "find_spec", lambda _name: None)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    found = facts.gather()
    assert found.loopback is None
    assert found.addresses.host == socket.gethostname()
    assert found.cpus == len(os.sched_getaffinity(0))
    assert found.ports is None or found.ports[0] < found.ports[1]
    assert [(one.use, one.path, one.writable) for one in found.disks] == [
        ("jobs", str(own / "home/jobs"), True),
        ("Ray's files", str(own), True),
    ]
    assert found.hiding == {"CUDA_VISIBLE_DEVICES": ""}
    assert (found.torch, found.ray) == (None, None)


def test_facts_of_a_machine_on_which_no_folder_can_be_written_are_gathered(tmp_path, monkeypatch):
    def unusable() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", unusable)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("DLJOB_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(facts, "find_spec", lambda name: name == "torch" or None)
    monkeypatch.setattr(facts, "_TORCH", "print('{\"count\": 3}')")
    found = facts.gather()
    assert [one.path for one in found.disks] == [str(tmp_path / "home/jobs"), str(tmp_path)]
    assert found.torch == facts.VisibleGpus(3)


def test_a_name_that_is_not_resolved_in_time_is_not_waited_for(monkeypatch):
    forever = threading.Event()
    monkeypatch.setattr(facts, "RESOLVE_S", 0.01)
    monkeypatch.setattr(facts, "_resolved", lambda _name: forever.wait())
    found = facts._addresses()
    forever.set()
    assert (found.resolved, found.localhost) == (None, None)


@pytest.mark.parametrize(
    ("files", "wanted"),
    [
        ({"cpu.max": "150000 100000\n"}, 1.5),
        ({"cpu.max": "max 100000\n"}, None),
        ({"cpu/cpu.cfs_quota_us": "50000", "cpu/cpu.cfs_period_us": "100000"}, 0.5),
        ({"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None),
        ({}, None),
    ],
)
def test_the_cpu_quota_is_read_from_the_control_groups(files, wanted, tmp_path):
    _write(tmp_path, {"memory.max": "max", **files})
    assert facts.quota(tmp_path, tmp_path / "proc") == wanted


def _write(folder: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


@pytest.mark.parametrize(
    ("code", "said", "wanted"),
    [
        (0, b'a warning\n{"count": 2, "build": "12.6"}\n', facts.VisibleGpus(2, "12.6")),
        (-11, b"", facts.VisibleGpus(0, trouble="its import ended with -11")),
        (0, b"nonsense", facts.VisibleGpus(0, trouble="its import ended with 0")),
    ],
)
def test_the_devices_reported_by_the_probe_process_are_read(code, said, wanted):
    assert facts.visible(code, said) == wanted


@pytest.mark.parametrize(
    ("code", "wanted"),
    [
        ("print('{\"count\": 3}')", facts.VisibleGpus(3)),
        ("import signal; signal.pause()", facts.VisibleGpus(0, trouble="no answer within 0.1 s")),
    ],
)
def test_a_child_process_is_not_waited_for_for_ever(code, wanted, monkeypatch):
    if wanted.trouble:
        monkeypatch.setattr(facts, "IMPORT_S", 0.1)
    child = facts._Child(code)
    assert child.answer() == wanted
    assert child._process.returncode is not None


def test_jobs_whose_runner_is_gone_are_left_over(own):
    for name, uid, late in (("gone", "1" * 32, 1), ("runs", "2" * 32, 0)):
        folder, me = str(registry.folder_of(name, uid)), os.getpid()
        registry.register(
            registry.RegistryEntry(name, uid, folder, runner=me, runner_started=registry.start_of(me) - late)
        )
    assert facts.leftovers(own / "proc").jobs == (("gone", "1" * 32),)


def test_a_socket_on_which_nobody_listens_is_left_over(own):
    with socket.socket(socket.AF_UNIX) as dead, socket.socket(socket.AF_UNIX) as alive:
        dead.bind(str(own / "sockets/dead.sock"))
        alive.bind(str(own / "sockets/alive.sock"))
        alive.listen()
        assert facts.leftovers(own / "proc").sockets == (str(own / "sockets/dead.sock"),)


def test_a_folder_of_ray_is_left_over_when_nobody_listens_in_it(own):
    folders = {name: own / f"dlj-{name:_<8}" for name in ("dead", "alive", "young", "swept", "named", "other")}
    for name, folder in folders.items():
        folder.mkdir()
        if name != "other":
            (folder / "token").touch()
    process(own, 11, ["gcs_server", f"--log_dir={folders['named']}/ray/logs"])
    process(own, 10, ["python", "-I", "-S", "/x/sweeper.py", str(folders["swept"]), str(folders["swept"])])
    (folders["alive"] / "n1").mkdir()
    with socket.socket(socket.AF_UNIX) as alive:
        alive.bind(str(folders["alive"] / "n1" / "raylet"))
        alive.listen()
        for name, folder in folders.items():
            os.utime(folder, None if name == "young" else (OLD, OLD))
        assert facts.leftovers(own / "proc").folders == (str(folders["dead"]),)


def test_processes_of_a_ray_without_a_sweeper_are_left_over(own):
    for pid, mark in ((20, "/tmp/dlj-swept"), (21, "/tmp/dlj-lost"), (22, "")):
        process(own, pid, ["raylet"], mark)
    process(own, 30, ["python", "-I", "-S", sweeper.__file__, "/tmp/dlj-swept", "/tmp/dlj-swept"])
    assert facts.leftovers(own / "proc").processes == ((21, "raylet"),)


def test_the_command_line_of_a_real_sweeper_is_recognized(own):
    mark = str(own / "dlj-real")
    words = [sys.executable, "-I", "-S", sweeper.__file__, mark, mark]
    with subprocess.Popen(words, stdin=subprocess.PIPE) as child:
        while not (said := Path(f"/proc/{child.pid}/cmdline").read_text()):
            pass  # execve puts them there a moment after Popen returns
        process(own, 40, said.rstrip("\0").split("\0"))
    process(own, 41, ["gcs_server"], mark)
    assert facts.leftovers(own / "proc").processes == ()


def process(own: Path, pid: int, words: list[str], mark: str = "") -> None:
    """A process as /proc shows it."""
    folder = own / "proc" / str(pid)
    folder.mkdir()
    (folder / "cmdline").write_bytes("".join(f"{word}\0" for word in words).encode())
    (folder / "environ").write_bytes(f"HOME=/root\0{f'{sweeper.MARK}={mark}' if mark else 'A=b'}\0".encode())
    (folder / "comm").write_text(f"{Path(words[0]).name}\n")


def test_a_child_process_imports_nothing_from_the_current_folder(own, monkeypatch):
    (own / "json.py").write_text("raise SystemExit('a file of another user')")
    monkeypatch.chdir(own)
    child = facts._Child("import json; print(json.dumps({'count': 3}))")
    assert child.answer() == facts.VisibleGpus(3)
