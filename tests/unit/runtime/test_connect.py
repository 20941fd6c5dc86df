"""What this process's Ray job tells Ray's workers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import ray

from dljob.runtime import connect


@pytest.mark.parametrize(("given", "path"), [(Path("/code"), ["/code"]), (None, [])])
def test_rays_workers_import_from_the_folder_of_code(monkeypatch: Any, given: Path | None, path: list[str]) -> None:
    seen: dict[str, Any] = {}
    monkeypatch.setattr(connect, "_knock", lambda _: None)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda **more: seen.update(more))
    assert connect.connect("127.0.0.1:6379", given) == "127.0.0.1:6379"
    assert seen["job_config"]._py_driver_sys_path == path
