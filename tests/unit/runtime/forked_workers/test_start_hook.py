"""The hook of `ray start`."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ray._private import services

from dljob import ray_private
from dljob.runtime.forked_workers import first_template, socket_folders, start_hook, starter

WORDS = f"--python_worker_command={sys.executable} /ray/setup_worker.py /ray/default_worker.py"


def test_the_raylet_forks_its_workers_and_other_processes_start_as_before(tmp_path, monkeypatch):
    monkeypatch.setattr(socket_folders, "PLACE", tmp_path)
    begun: list[tuple[list[str], str, dict[str, Any]]] = []
    servers: list[tuple[Any, ...]] = []
    monkeypatch.setattr(first_template, "start_first", lambda *asked: servers.append(asked))

    def record(*args: Any, **more: Any) -> Any:
        begun.append((*args, more))
        return SimpleNamespace(process=SimpleNamespace(pid=7))

    monkeypatch.setattr(services, "start_ray_process", record)
    start_hook.install(None, head=True)
    start: Any = services.start_ray_process
    start(["gcs", WORDS], "gcs_server", fate_share=True)
    assert list(tmp_path.iterdir()) == [], "a folder is for a raylet"
    start(["raylet", WORDS], "raylet", fate_share=True)
    assert begun[0] == (["gcs", WORDS], "gcs_server", {"fate_share": True})
    (_, words), kind, more = begun[1]
    assert (kind, more) == ("raylet", {"fate_share": True})
    assert starter.__file__ in words
    folder = Path(words.split(starter.__file__)[1].split()[0])
    assert servers == [(folder, 7)]
    assert [folder] == list(tmp_path.iterdir())
    assert folder.stat().st_mode & 0o777 == 0o700
    monkeypatch.setattr(socket_folders, "PLACE", tmp_path / "gone")
    start(["raylet", WORDS], "raylet", fate_share=True)
    assert begun[2] == (["raylet", WORDS], "raylet", {"fate_share": True}), "without a folder, as Ray does it"


def test_an_error_in_the_hook_leaves_ray_as_it_is(monkeypatch, capsys):
    def refuse(_: object) -> None:
        raise ImportError("another Ray")

    monkeypatch.setattr(ray_private, "start_processes_by", refuse)
    start_hook.install(None, head=False)
    assert capsys.readouterr().err == "[dljob] Ray starts its workers itself: ImportError('another Ray')\n"
