"""What this process's Ray job tells Ray's workers."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
import ray

from dljob.cli import main
from dljob.errors import UnreachableError
from dljob.runtime.backend import connect


@pytest.mark.parametrize(("given", "path"), [(Path("/code"), ["/code"]), (None, [])])
def test_rays_workers_import_from_the_folder_of_code(monkeypatch, given, path):
    seen: dict[str, Any] = {}
    monkeypatch.setattr(connect, "_knock", lambda _: None)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda **more: seen.update(more))
    assert connect.connect("127.0.0.1:6379", given) == "127.0.0.1:6379"
    assert seen["job_config"]._py_driver_sys_path == path


def test_rays_workers_have_no_folder_of_the_users_where_they_import_no_code(monkeypatch):
    """Ray adds the current folder of the process that joins it."""
    configs: list[Any] = []
    monkeypatch.setattr(connect, "_knock", lambda _: None)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda **more: configs.append(more["job_config"]))
    connect.connect("127.0.0.1:6379", Path("/code"), imports_code=False)
    configs[0]._py_driver_sys_path.extend(["/current"])
    assert list(configs[0]._get_proto_job_config().py_driver_sys_path) == []


def test_a_ray_that_cannot_be_joined_is_given_up(monkeypatch):
    hang = threading.Event()
    monkeypatch.setattr(connect, "_knock", lambda _: None)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda **_: hang.wait())
    monkeypatch.setattr(connect, "LEAST_S", 0.01)
    with pytest.raises(UnreachableError, match=r"cannot be joined as a Ray within 0.0 s: ray.init hangs"):
        connect.connect("127.0.0.1:6379", within_s=0.01)
    assert main._hangs_in_ray()
    hang.set()
    for thread in threading.enumerate():
        if thread.name.startswith(connect.IN_RAY):
            thread.join()
    assert not main._hangs_in_ray()


def test_rays_refusal_to_connect_is_raised(monkeypatch):
    def refuse(**_: Any) -> None:
        raise ConnectionError("no such token: authentication failed")

    monkeypatch.setattr(connect, "_knock", lambda _: None)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", refuse)
    with pytest.raises(UnreachableError, match=r"refused the connection: no such token") as error:
        connect.connect("127.0.0.1:6379", within_s=10)
    assert "RAY_AUTH_TOKEN_PATH" in error.value.hint
