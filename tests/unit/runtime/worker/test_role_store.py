"""The store of a role: kept for its first generation, emptied for each later one."""

from __future__ import annotations

import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
from datetime import timedelta
from pathlib import Path

import pytest
from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]

from dljob.errors import UsageError
from dljob.linux.descendants import below
from dljob.runtime.forked_workers import clean_process
from dljob.runtime.forked_workers.server import FOLDER
from dljob.runtime.worker import role_store
from dljob.runtime.worker.role_store import OtherProcessStore, RoleStore, listen, serve
from dljob.runtime.worker.torch_group import StaleGenerationError, renew


def of_folder(folder: Path) -> int:
    """Return the template whose socket is in a folder: the one that no other of it has forked."""
    words = os.fsencode(folder)
    found = {
        int(entry.parent.name)
        for entry in Path("/proc").glob("[0-9]*/cmdline")
        if words in entry.read_bytes() and b"server.py" in entry.read_bytes()
    }
    (root,) = (pid for pid in found if not any(pid in below(other) for other in found - {pid}))
    return root


def children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def client(store: RoleStore | OtherProcessStore) -> TCPStore:
    host, _, port = store.address.rpartition(":")
    return TCPStore(host, int(port), None, is_master=False, timeout=timedelta(seconds=20))


def test_the_first_generation_breaks_no_connection_so_torch_prints_no_warning(capfd):
    store = RoleStore(listen("127.0.0.1"))
    early = client(store)
    renew(store.address, 1)
    renew(store.address, 1)
    early.set("from before", "1")
    assert client(store).get("from before") == b"1"
    assert "recvVector" not in capfd.readouterr().err


def test_a_later_generation_gets_an_empty_store_at_the_same_address():
    store = RoleStore(listen("127.0.0.1"))
    renew(store.address, 1)
    client(store).set("of generation 1", "1")
    renew(store.address, 2)
    assert not client(store).check(["of generation 1"])
    client(store).set("of generation 2", "1")
    renew(store.address, 3)
    assert not client(store).check(["of generation 2"])


def test_a_rank_of_an_earlier_generation_is_refused_and_empties_nothing():
    store = RoleStore(listen("127.0.0.1"))
    renew(store.address, 2)
    client(store).set("of generation 2", "1")
    with pytest.raises(StaleGenerationError, match="the store serves generation 2; this rank is of 1"):
        renew(store.address, 1)
    assert client(store).check(["of generation 2"])


def test_another_python_serves_the_store_and_ends_with_this_process(tmp_path):
    ended = queue.Queue[int]()
    store = serve("w", sys.executable, str(tmp_path), "127.0.0.1", ended.put)
    assert isinstance(store, OtherProcessStore)
    renew(store.address, 1)
    client(store).set("of generation 1", "1")
    renew(store.address, 2)
    assert not client(store).check(["of generation 1"])
    store._stays.close()  # as when this process is gone
    assert ended.get(timeout=60) == 0


def test_the_end_of_the_other_python_is_told(tmp_path):
    ended = queue.Queue[int]()
    store = serve("w", sys.executable, str(tmp_path), "127.0.0.1", ended.put)
    assert isinstance(store, OtherProcessStore)
    assert isinstance(store.process, subprocess.Popen)
    store.process.kill()
    assert ended.get(timeout=60) == -9


def test_a_store_is_forked_from_what_has_torch_and_ends_with_this_process(tmp_path, monkeypatch):
    sockets = Path(tempfile.mkdtemp(dir="/tmp"))  # a short path, as a socket needs one
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as raylet:
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
        monkeypatch.setenv(FOLDER, f"{raylet.pid}:{sockets}")
        monkeypatch.setenv(clean_process.RAYLET, str(raylet.pid))

        def fork(files: role_store.Files) -> clean_process.CleanProcess | None:
            return clean_process.forked((role_store.__name__, {}), ("torch", "torch.distributed"), os.environ, files)

        ended = queue.Queue[int]()
        store = serve("w", "", str(tmp_path), "127.0.0.1", ended.put, fork=fork)
        assert isinstance(store, OtherProcessStore)
        renew(store.address, 1)
        client(store).set("of generation 1", "1")
        renew(store.address, 2)
        assert not client(store).check(["of generation 1"])
        assert ended.empty()
        store._stays.close()  # as when this process is gone
        assert ended.get(timeout=60) == 0
        # A stopped template holds the exit code back, and not the end.
        monkeypatch.setattr(role_store, "END_S", 0.1)
        again = serve("w", "", str(tmp_path), "127.0.0.1", ended.put, fork=fork)
        assert isinstance(again, OtherProcessStore)
        template = of_folder(sockets)
        (pid,) = children(template)
        os.kill(template, signal.SIGSTOP)
        os.kill(pid, signal.SIGKILL)
        assert ended.get(timeout=60) == 1
        os.kill(template, signal.SIGKILL)
        assert again.process.wait(60) == 1
        raylet.kill()
    shutil.rmtree(sockets, ignore_errors=True)  # its template removes its own socket meanwhile


def test_where_nothing_can_be_forked_this_process_serves_the_store(tmp_path):
    asked: list[role_store.Files] = []
    store = serve("w", "", str(tmp_path), "127.0.0.1", print, fork=asked.append)
    assert isinstance(store, RoleStore)
    assert len(asked) == 1
    renew(store.address, 1)
    assert not client(store).check(["of generation 1"])


@pytest.mark.parametrize(("python", "why"), [("bare", "No module named 'torch'"), ("none", "there is no such file")])
def test_an_environment_without_torch_is_named(tmp_path, python, why):
    (tmp_path / "bare" / "bin").mkdir(parents=True)
    (tmp_path / "bare" / "pyvenv.cfg").write_text(f"home = {Path(sys.executable).resolve().parent}\n")
    (tmp_path / "bare" / "bin" / "python").symlink_to(Path(sys.executable).resolve())
    path = tmp_path / python / "bin" / "python"
    with pytest.raises(UsageError, match=why) as error:
        serve("w", str(path), str(tmp_path), "127.0.0.1", print)
    assert f"role w: its ranks meet in a store of torch, which does not start in {path}: " in str(error.value)
